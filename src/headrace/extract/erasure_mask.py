"""What is being erased is not read any more: segments that still hold it are read through a mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from headrace.extract.erasure_targets import Targets
from headrace.schema.entity.observation import decode
from headrace.schema.entity.tombstone import tombstone

#: Masks by the incarnation of the stream. Empty almost always, and then reads cost nothing more.
Masks = dict[str, "ErasureMask"]

_numbers = count(1)


class ErasureMask:
    """Hides the observations of the erasures of one stream that have not ended; a `Mask` of segments."""

    def __init__(self, targets: Sequence[Targets]) -> None:
        self.number = next(_numbers)
        self._targets, self._entity_type = tuple(targets), targets[0].entity_type
        self.keys = tuple(sorted({key for one in targets for key in one.keys}))
        self.before_seq = max(one.before_seq for one in targets)

    def rows(self, batch: Any) -> list[int]:
        """The rows of a batch that are being erased."""
        return erased_rows(batch, self._targets)

    def tombstone(self, size: int) -> bytes:
        """What is read in the place of an observation of so many bytes."""
        return tombstone(self._entity_type, size)


def erased_rows(batch: Any, targets: Sequence[Targets]) -> list[int]:
    """The rows of a batch that are erased, in order."""
    import pyarrow as pa  # slow to load, and seldom needed
    import pyarrow.compute as pc

    from headrace.format.segment import layout

    keys = pa.array(sorted({key for one in targets for key in one.keys}), pa.string())
    rows = pc.indices_nonzero(pc.is_in(batch.column(layout.KEY), value_set=keys)).to_pylist()
    seqs, payloads = batch.column(layout.SEQ), batch.column(layout.PAYLOAD)
    found: list[int] = []
    for row in rows:
        seq, observation = seqs[row].as_py(), decode(payloads[row].as_py().encode())
        if any(one.take(seq, observation) for one in targets):
            found.append(row)
    return found
