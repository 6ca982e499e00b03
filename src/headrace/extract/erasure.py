"""Erased observations: hidden while segments still hold them, and gone once these were written anew.

What is being erased is not read any more: segments that still hold it are read through a mask. A segment is written
anew with a tombstone in the place of each erased observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace import decoding
from headrace.format.segment import layout
from headrace.format.segment.columns import with_tombstones, without_keys
from headrace.format.segment.layout import SealedSegment
from headrace.format.segment.reader import SegmentReader
from headrace.format.segment.writer import SegmentWriter
from headrace.schema.entity.observation import Observation, decode, tombstone
from headrace.schema.entries import entries_of

#: An observation by the entity that it was stored for, and its id.
Mark = tuple[str, str]


class Targets(msgspec.Struct, frozen=True, dict=True):
    """Entities, the observations of others that were moved to them, and theirs that were moved to others."""

    entity_type: str
    ids: tuple[str, ...]
    here: tuple[Mark, ...] = ()
    away: tuple[Mark, ...] = ()
    #: Observations from it on are of entities that came later.
    before_seq: int = 0

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The routing keys that erased observations may have."""
        return tuple(sorted({*self.ids, *(entity for entity, _ in self.here)}))

    def dump(self) -> str:
        """The targets as they are stored."""
        return msgspec.json.encode(self).decode()

    def take(self, seq: int, observation: Observation) -> bool:
        """Whether an observation is erased. One that only moves those of others stays."""
        if seq >= self.before_seq or observation.kind == "erased":
            return False
        if observation.kind == "split" or observation.details.get("undoes") == "split":
            return observation.details["into"] in self._ids
        mark = observation.entity_id, observation.id
        return mark in self._here or (observation.entity_id in self._ids and mark not in self._away)

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(self.ids)

    @cached_property
    def _here(self) -> frozenset[Mark]:
        return frozenset(self.here)

    @cached_property
    def _away(self) -> frozenset[Mark]:
        return frozenset(self.away)


def load(document: str) -> Targets:
    """Read back what was stored."""
    return decoding.decode(document, Targets)


#: Masks by the incarnation of the stream. Empty almost always, and then reads cost nothing more.
Masks = dict[str, "ErasureMask"]

_numbers = count(1)


class ErasureMask:
    """Hides the observations of the erasures of one stream that have not ended; a `RowMask` of segments."""

    def __init__(self, targets: Sequence[Targets]) -> None:
        self.number = next(_numbers)
        self._targets, self._entity_type = tuple(targets), targets[0].entity_type
        self.keys = tuple(sorted({key for target in targets for key in target.keys}))
        self.before_seq = max(target.before_seq for target in targets)

    def rows(self, batch: Any) -> list[int]:
        """The rows of a batch that are being erased."""
        return erased_rows(batch, self._targets)

    def tombstone(self, size: int) -> bytes:
        """What is read in the place of an observation of so many bytes."""
        return tombstone(self._entity_type, size)


def erased_rows(batch: Any, targets: Sequence[Targets]) -> list[int]:
    """The rows of a batch that are erased, in order."""
    keys = pa.array(sorted({key for target in targets for key in target.keys}), pa.string())
    rows = pc.indices_nonzero(pc.is_in(batch.column(layout.KEY), value_set=keys)).to_pylist()
    seqs, payloads = batch.column(layout.SEQ), batch.column(layout.PAYLOAD)
    erased: list[int] = []
    for row in rows:
        seq, observation = seqs[row].as_py(), decode(payloads[row].as_py().encode())
        if any(target.take(seq, observation) for target in targets):
            erased.append(row)
    return erased


def holds(reader: SegmentReader, targets: Sequence[Targets]) -> bool:
    """Whether a segment has an erased observation."""
    return any(
        erased_rows(batch, [target])
        for target in targets
        for key in target.keys
        for batch in reader.keyed(reader.first_seq, target.before_seq, key)
    )


def rewrite(reader: SegmentReader, targets: Sequence[Targets], sink: BinaryIO) -> SealedSegment:
    """Write a segment anew without the erased observations; everything else of it stays as it is."""
    info = reader.info
    writer = SegmentWriter(
        sink,
        stream=info.stream,
        incarnation=info.incarnation,
        is_json=info.json,
        first_seq=info.first_seq,
        split=entries_of,
    )
    writer.copy(_erase_rows(reader, ErasureMask(targets)))
    return writer.finish()


def _erase_rows(reader: SegmentReader, mask: ErasureMask) -> Iterator[Any]:
    for batch in reader.batches(reader.first_seq, reader.end_seq):
        rows = mask.rows(batch)
        yield _without(batch, rows, mask) if rows else batch


def _without(batch: Any, rows: list[int], mask: ErasureMask) -> Any:
    columns = list(batch.columns)
    columns[layout.KEY] = without_keys(columns[layout.KEY], rows)
    columns[layout.PAYLOAD] = with_tombstones(columns[layout.PAYLOAD], rows, mask)
    return pa.record_batch(columns, schema=batch.schema)
