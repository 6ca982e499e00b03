"""Writing a companion: tables go in piece by piece, row groups go out as they fill up.

Memory: one row group in the making for each file, within `layout.Limits`; while it is written it also exists as encoded
and as compressed pages.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.format.companion.index import ColumnsIndex, PanesIndex
from headrace.format.companion.layout import (
    LIMITS,
    Companion,
    CompanionInfo,
    Limits,
    PartFile,
    PartName,
    companion_entry,
)
from headrace.format.companion.posting_file import PostingsWriter, Sink, blocks
from headrace.format.companion.postings import one_array
from headrace.format.companion.tables import zone
from headrace.format.object_names import file_name, range_name


def write(
    directory: Path,
    info: CompanionInfo,
    *,
    unique: str,
    columns: Any,
    postings: Any,
    panes: Any = None,
    limits: Limits = LIMITS,
) -> Companion:
    """Write the files of a companion into a directory, and tell how metadata lists it; ``unique`` tells attempts apart.

    The tables are the stored columns and the postings as ``extract.postings`` makes them, and the panes of
    ``reduce.rollup``, None where there is no rollup.
    """
    if not 0 < columns.num_rows == info.count:
        raise ValueError(f"a companion of {info.count} events cannot have {columns.num_rows} rows")
    name = range_name(info.first_seq, info.count, unique)
    column_file = ColumnsWriter(directory / file_name(name, "columns"), info, columns.schema, limits)
    column_file.add(columns)
    posting_file = PostingsWriter(directory / file_name(name, "postings"), info, limits)
    for field, block in blocks(postings):
        posting_file.add(field, block)
    parts: dict[PartName, PartFile] = {"columns": column_file.close(), "postings": posting_file.close()}
    if panes is not None:
        parts["panes"] = write_panes(directory / file_name(name, "panes"), info, panes, limits)
    return companion_entry(info, name, parts)


class ColumnsWriter:
    """The file of stored columns while it is written."""

    def __init__(self, path: Path, info: CompanionInfo, schema: Any, limits: Limits = LIMITS) -> None:
        dates = (f"f.{name}" for name, shape in info.fields.items() if shape.kind == "date" and not shape.many)
        encodings = dict.fromkeys(("seq", *dates), "DELTA_BINARY_PACKED")
        self._sink = Sink(path, info, schema, encodings=encodings, statistics=True)
        self._limits = limits
        self._index = ColumnsIndex([], {name: [] for name in schema.names})
        self._pending = schema.empty_table()

    def add(self, table: Any) -> None:
        """Take the next rows."""
        self._pending = pa.concat_tables([self._pending, table])
        while (rows := self._full()) is not None:
            self._write(self._pending.slice(0, rows))
            self._pending = self._pending.slice(rows)

    def close(self) -> PartFile:
        """Write what is left, and tell what was written."""
        if self._pending.num_rows:
            self._write(self._pending)
        return self._sink.close(self._index)

    def _full(self) -> int | None:
        """How many rows make the next row group, or None where there are too few yet."""
        limits, ahead = self._limits, self._pending.slice(0, self._limits.rows)
        rows, size = int(ahead.num_rows), int(ahead.nbytes)
        if size > limits.column_bytes and rows > 1:
            return max(1, rows * limits.column_bytes // size)
        return rows if rows == limits.rows else None

    def _write(self, table: Any) -> None:
        self._sink.write(table)
        self._index.rows.append(table.num_rows)
        for name, zones in self._index.zones.items():
            zones.append(zone(one_array(table.column(name))))


def write_panes(path: Path, info: CompanionInfo, panes: Any, limits: Limits = LIMITS) -> PartFile:
    """Write the file of panes: no row group has panes of two rollups or two intervals."""
    sink, index = Sink(path, info, panes.schema, encodings={}, statistics=False), PanesIndex([])
    rollups, intervals = one_array(panes.column("rollup")), panes.column("interval").to_numpy()
    codes = rollups.dictionary_encode().indices.to_numpy()
    borders = np.flatnonzero((np.diff(codes) != 0) | (np.diff(intervals) != 0)) + 1
    starts = [0, *borders.tolist(), panes.num_rows]
    for first, end in pairwise(starts):
        for start in range(first, end, limits.rows):
            sink.write(panes.slice(start, min(limits.rows, end - start)))
            index.groups.append((rollups[start].as_py(), int(intervals[start])))
    return sink.close(index)
