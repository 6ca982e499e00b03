"""The observations of a unit brought together by entity: sorted as they are stored, and decoded a slice at a time.

So what is held of a unit is what its segments hold, once, however many entities it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.segment import layout
from headrace.reduce.policies.batch import Told
from headrace.reduce.policies.observations import OBSERVATIONS

#: Observations that are decoded together.
_SLICE = 2048


class _Batch(NamedTuple):
    """Stored observations: their numbers, times and keys, and where each begins and ends in a piece of memory."""

    seqs: Any
    times_us: Any
    keys: Any
    starts: Any
    ends: Any
    memory: memoryview


class Gathered:
    """Stored observations, whose keys are the entities that they are about."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []

    def __len__(self) -> int:
        return sum(len(batch.seqs) for batch in self._batches)

    def add(self, batch: Any) -> None:
        """More observations, later than all others: a record batch in the columns of a segment."""
        seqs, times = (batch.column(place).cast("int64").to_numpy() for place in (layout.SEQ, layout.APPEND_TIME))
        payloads = batch.column(layout.PAYLOAD)
        _, offsets, data = payloads.buffers()
        places = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
        self._batches.append(_Batch(seqs, times, batch.column(layout.KEY), places[:-1], places[1:], memoryview(data)))

    def by_entity(self) -> Iterator[list[Told]]:
        """All of them in slices: those of one entity in order, after those of entities with lesser ids."""
        if not self._batches:
            return
        seqs, times, keys, starts, ends, memories = zip(*self._batches, strict=True)
        order = pc.sort_indices(pa.concat_arrays(keys)).to_numpy()  # keeps the order of equal ones
        held = np.repeat(np.arange(len(memories)), [len(one) for one in seqs])
        columns = [np.concatenate(column)[order] for column in (seqs, times, starts, ends, [held])]
        for at in range(0, len(order), _SLICE):
            seq, time, start, end, number = (column[at : at + _SLICE].tolist() for column in columns)
            bodies = [memories[of][first:last] for of, first, last in zip(number, start, end, strict=True)]
            found = OBSERVATIONS.decode(b"[" + b",".join(bodies) + b"]")
            yield list(zip(seq, time, found, strict=True))
