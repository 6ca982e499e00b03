"""Index: the entries of segments become a companion, written where they were read."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa

from headrace.errors import CorruptData
from headrace.extract.postings import describe_companion, postings, stored_columns
from headrace.format.companion import tables
from headrace.format.companion.layout import Companion
from headrace.format.companion.writer import write
from headrace.pipeline.kernels.units import Workspace, attempt, batches, defined, extractor
from headrace.query.definition import Definition
from headrace.reduce import rollup as rollups
from headrace.reduce.work_units import Unit

#: So many entries, or so much of them, are extracted together.
_ROWS, _BYTES = 65_536, 32 * 1024 * 1024
# Larger blocks make no difference to what the C library keeps.
_BLOCK = 31 * 1024 * 1024


def perform(unit: Unit, here: Workspace) -> dict[str, Any]:
    """Write the companion of a unit; the objects are durable when this returns."""
    columns, through = extract_columns(unit, here)
    return {"companion": _write_companion(unit, here, columns, defined(unit), through)}


def extract_columns(unit: Unit, here: Workspace) -> tuple[pa.Table, int]:
    """The columns of all entries of a unit, and the greatest version among them."""
    _settle()
    extracts, tables_of_columns, through = extractor(unit), [], 0
    for entries in _merge_batches(batches(unit, here)):
        tables_of_columns.append(extracts.columns(entries))
        through = max(through, *entries.column("version").unique().to_pylist())
    columns = tables.concat(tables_of_columns)
    if columns.num_rows != unit.count:
        raise CorruptData(f"the segments of {unit.unit} hold {columns.num_rows} entries, not {unit.count}")
    return columns, through


@cache
def _settle() -> None:
    """Make a process quicker that performs many units.

    Spark collects garbage after every task: what is loaded by now is none, and is not looked through again. The C
    library gives free memory back, and the next unit would get it anew page by page; it keeps about twice as much as
    the largest block that was ever freed.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)
    bytes(_BLOCK)


def _merge_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Row groups of segments as tables of many rows: each extraction has a cost of its own."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if (
            sum(record_batch.num_rows for record_batch in pending) >= _ROWS
            or sum(record_batch.nbytes for record_batch in pending) >= _BYTES
        ):
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def _write_companion(unit: Unit, here: Workspace, columns: pa.Table, definition: Definition, through: int) -> Companion:
    info = describe_companion(
        columns,
        definition,
        first_seq=unit.first_seq,
        through_version=through,
        stream=unit.stream,
        incarnation=unit.incarnation,
        level=unit.level,
        segments=len(unit.segments),
    )
    search = definition.search
    panes = [rollups.panes(columns, search.rollups[name], search) for name in sorted(search.rollups)]
    companion = write(
        here.directory,
        info,
        unique=attempt(unit),
        columns=stored_columns(columns),
        postings=postings(columns, definition),
        panes=pa.concat_tables(panes) if panes else None,
    )
    here.upload(unit, companion)
    return companion
