"""Merge adjacent companions into one, row group by row group.

Memory: of every input one row group of postings, of all together one of columns, what they become, and the row groups
in the making, however many rows there are. Measured: 16 inputs, 25 million rows with ten fields, in a process of
at most 335 MiB; row groups at all their limits may take about 200 MiB more. Panes are
merged elsewhere: ``reduce`` knows how.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.companion import tables
from headrace.format.companion.file_reader import FileCompanion
from headrace.format.companion.layout import (
    KEYS,
    LIMITS,
    Companion,
    CompanionInfo,
    FieldShape,
    Limits,
    PartFile,
    PartName,
    companion_entry,
)
from headrace.format.companion.postings import Block, Piece, concatenate_pieces, text_of
from headrace.format.companion.writer import ColumnsWriter, PostingsWriter, write_panes
from headrace.format.object_names import file_name, range_name

_MAX_ROWS = 2**31 - 1


def merge(
    inputs: Sequence[FileCompanion],
    directory: Path,
    *,
    unique: str,
    level: int,
    fields: Mapping[str, str],
    rollups: Mapping[str, str],
    panes: Any = None,
    limits: Limits = LIMITS,
) -> Companion:
    """Write the companion of adjacent ones into a directory, and return its entry in metadata.

    It holds the fields and rollups with the hashes given: those of a definition for which all inputs are valid. Without
    ``panes`` the caller writes them, by `writer.write_panes` with `merge_infos`, and adds them to what this returns.
    """
    info = merge_infos([companion.info for companion in inputs], level=level, fields=fields, rollups=rollups)
    name = range_name(info.first_seq, info.count, unique)
    parts: dict[PartName, PartFile] = {
        "columns": _merge_columns(inputs, directory / file_name(name, "columns"), info, limits),
        "postings": _merge_postings(inputs, directory / file_name(name, "postings"), info, limits),
    }
    if panes is not None:
        parts["panes"] = write_panes(directory / file_name(name, "panes"), info, panes, limits)
    return companion_entry(info, name, parts)


def _merge_columns(inputs: Sequence[FileCompanion], path: Path, info: CompanionInfo, limits: Limits) -> PartFile:
    schemas = [companion.schema for companion in inputs]
    common = [name for name in schemas[0].names if all(name in schema.names for schema in schemas)]
    kept = [name for name in common if _is_kept(name, info)]
    schema = tables.common_schema([pa.schema([schema.field(name) for name in kept]) for schema in schemas])
    writer = ColumnsWriter(path, info, schema, limits)
    for companion in inputs:
        for table in companion.column_tables():
            writer.add(tables.widen(table, schema))
    return writer.close()


def _is_kept(column: str, info: CompanionInfo) -> bool:
    """Whether a stored column belongs to something that the companion holds."""
    kind, _, name = column.partition(".")
    return kind not in {"f", "n"} or name in info.fields


def _merge_postings(inputs: Sequence[FileCompanion], path: Path, info: CompanionInfo, limits: Limits) -> PartFile:
    writer = PostingsWriter(path, info, limits)
    fields = [name for name, shape in info.fields.items() if shape.indexed]
    for field in sorted([*fields, KEYS] if info.keys else fields):
        feeds = [_Feed(companion, field, companion.first_seq - info.first_seq) for companion in inputs]
        _merge_field(field, feeds, writer)
    return writer.close()


def _merge_field(field: str, feeds: list[_Feed], writer: PostingsWriter) -> None:
    """Merge a field in steps: up to the first term that ends some row group all postings are decoded."""
    while any(feed.block is not None for feed in feeds):
        bound = min((last for feed in feeds if (last := feed.last) is not None), default=None)
        parts = [part for feed in feeds if (part := feed.before(bound)) is not None]
        if parts:
            writer.add(field, parts[0] if len(parts) == 1 else _interleave(parts))
        if bound is not None:
            writer.add_long(field, bound, (piece for feed in feeds for piece in feed.of(bound)))


class _Feed:
    """The postings of one field in one input, read term by term."""

    def __init__(self, companion: FileCompanion, field: str, shift: int) -> None:
        self._companion, self._shift = companion, shift
        self._groups = list(companion.posting_groups(field))
        self._index = 0
        self.block: Block | None = None
        self._next()

    @property
    def last(self) -> str | None:
        """The last decoded term, or None where no row group follows."""
        return text_of(self.block.terms[-1]) if self.block is not None and self._groups else None

    def before(self, bound: str | None) -> Block | None:
        """Take the decoded terms before this one, or all."""
        if self.block is None:
            return None
        terms = self.block.terms
        stop = len(terms) if bound is None else bisect_left(terms, bound, self._index, key=text_of)
        part = self.block.part(self._index, stop) if stop > self._index else None
        self._advance(stop)
        return part

    def of(self, term: str) -> Iterator[Piece]:
        """Take all postings of a term, if it is the next one."""
        while self.block is not None and text_of(self.block.terms[self._index]) == term:
            yield self.block.part(self._index, self._index + 1).lists()
            self._advance(self._index + 1)

    def _advance(self, index: int) -> None:
        self._index = index
        if self.block is not None and index == len(self.block.terms):
            self._next()

    def _next(self) -> None:
        self._index = 0
        self.block = None
        if self._groups:
            block = self._companion.block(self._groups.pop(0))
            self.block = block._replace(rows=block.rows + np.int32(self._shift))


def _interleave(parts: list[Block]) -> Block:
    """Blocks of neighbours as one: of a term that several have, the lists follow each other."""
    terms = pa.concat_arrays([part.terms for part in parts])
    order = pc.array_sort_indices(terms).to_numpy()
    rows, positions = concatenate_pieces([part.lists() for part in parts])
    counts = np.concatenate([np.diff(part.ends) for part in parts])
    starts = (np.cumsum(counts) - counts)[order]
    counts = counts[order]
    ends = np.cumsum(counts)
    places = np.arange(len(rows)) + np.repeat(starts - (ends - counts), counts)
    terms = terms.take(pa.array(order))
    is_last = np.append(pc.not_equal(terms[1:], terms[:-1]).to_numpy(zero_copy_only=False), True)
    return Block(
        terms.filter(pa.array(is_last)),
        np.append(0, ends[is_last]).astype(np.int32),
        rows[places],
        None if positions is None else positions[places],
    )


def merge_infos(
    infos: Sequence[CompanionInfo], *, level: int, fields: Mapping[str, str], rollups: Mapping[str, str]
) -> CompanionInfo:
    """The identity of the whole, with the hashes that a definition has for it; ValueError where there is no whole."""
    first, count = infos[0], sum(companion.count for companion in infos)
    for before, after in pairwise(infos):
        if (before.stream, before.incarnation, before.end_seq) != (after.stream, after.incarnation, after.first_seq):
            raise ValueError(f"event {after.first_seq} cannot come where {before.end_seq} is due")
    if count > _MAX_ROWS:
        raise ValueError(f"a companion cannot have {count} rows")
    _must_be_valid(infos, fields, rollups)
    shapes = {name: _shape([companion.fields[name] for companion in infos], hash) for name, hash in fields.items()}
    times = [companion.times for companion in infos if companion.times is not None]
    return CompanionInfo(
        stream=first.stream,
        incarnation=first.incarnation,
        first_seq=first.first_seq,
        count=count,
        level=level,
        segments=sum(companion.segments for companion in infos),
        through_version=max(companion.through_version for companion in infos),
        fields=shapes,
        rollups=dict(rollups),
        keys=all(companion.keys for companion in infos),
        times=(min(least for least, _ in times), max(greatest for _, greatest in times)) if times else None,
        words={name: _words(infos, name) for name, shape in shapes.items() if shape.kind == "text"},
        odd=sum(companion.odd for companion in infos),
    )


def _must_be_valid(infos: Sequence[CompanionInfo], fields: Mapping[str, str], rollups: Mapping[str, str]) -> None:
    """Check that all hold what is wanted; hashes are compared where the greatest schema version is that of all."""
    newest = max(companion.through_version for companion in infos)
    for companion in infos:
        held = {name: shape.hash for name, shape in companion.fields.items()}
        for wanted, held_hashes in ((fields, held), (rollups, companion.rollups)):
            for name, hash in wanted.items():
                if name not in held_hashes or (companion.through_version == newest and held_hashes[name] != hash):
                    raise ValueError(f"the companion of {companion.first_seq} does not hold {name} as it is defined")


def _shape(shapes: Sequence[FieldShape], hash: str) -> FieldShape:
    if len({(shape.kind, shape.indexed) for shape in shapes}) > 1:
        raise ValueError("a field cannot be of two kinds")
    return msgspec.structs.replace(shapes[0], many=any(shape.many for shape in shapes), hash=hash)


def _words(infos: Sequence[CompanionInfo], name: str) -> tuple[int, int]:
    return sum(companion.words[name][0] for companion in infos), sum(companion.words[name][1] for companion in infos)
