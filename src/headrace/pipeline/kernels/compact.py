"""Compact: adjacent companions become one; their panes go through Spark, which merges them by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace import decoding
from headrace.format.companion.file_reader import FileCompanion, sources_of
from headrace.format.companion.layout import Companion, PartFile
from headrace.format.companion.merge import merge, merge_infos
from headrace.format.companion.writer import write_panes
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import companion_key, file_name
from headrace.pipeline.kernels.units import Kernel, Workspace, attempt, defined, failure, open_workspace
from headrace.reduce.state import PANES, merge_operator_states
from headrace.reduce.work_units import Unit

SORTED = ("unit", "rollup", "interval", "pane", "key", "measure")


def perform(unit: Unit, here: Workspace) -> dict[str, Any]:
    """Write the columns and postings of a unit's companion; its panes are written by `panes_written`."""
    with ExitStack() as stack:
        inputs = _opened(unit, here, stack)
        fields, rollups = unit.fields or {}, unit.rollups or {}
        unique = attempt(unit)
        companion = merge(inputs, here.directory, unique=unique, level=unit.level, fields=fields, rollups=rollups)
    here.upload(unit, companion)
    return {"companion": companion}


def panes(packs: Sequence[Sequence[bytes]], store: str) -> Kernel:
    """A kernel whose rows are numbers of packs, and which yields the panes of all inputs of their units."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for encoded in packs[number]:
                    yield from _panes(decoding.decode(encoded, Unit), store)

    return run


def panes_written(units: Mapping[str, bytes], names: Mapping[str, str], store: str) -> Kernel:
    """A kernel that takes merged panes, sorted, all of a unit together, and yields the file written for each unit.

    ``names`` are those of the companions that `perform` wrote. The row of a unit that failed holds its error.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch_list = list(batches)
        table = pa.Table.from_batches(batch_list) if batch_list else pa.table({"unit": pa.array([], pa.string())})
        for name in pc.unique(table["unit"]).to_pylist():
            unit = decoding.decode(units[name], Unit)
            part, failed = _part(unit, names[name], table.filter(pc.equal(table["unit"], name)), store)
            yield pa.RecordBatch.from_pydict(
                {"unit": [name], "part": pa.array([part], pa.string()), "failure": pa.array([failed], pa.string())}
            )

    return run


def _part(unit: Unit, name: str, table: pa.Table, store: str) -> tuple[str | None, str | None]:
    """The panes file of a unit as JSON, or why there is none."""
    is_pane = pc.is_valid(table["rollup"])
    for failed in table.filter(pc.invert(is_pane))["key"].drop_null():
        return None, failed.as_py()
    try:
        with open_workspace(store) as here:
            part = _written(
                unit, here, name, merge_operator_states(table.filter(is_pane).select(PANES.names).cast(PANES))
            )
        return msgspec.json.encode(part).decode(), None
    except Exception as reason:  # that of one unit must not be that of the others
        return None, _failed(reason)


def _failed(reason: Exception) -> str:
    return msgspec.json.encode(failure(reason)).decode()


def _panes(unit: Unit, store: str) -> Iterator[pa.RecordBatch]:
    """The panes of a unit's inputs; if they cannot be read, a row without a rollup whose key is the error."""
    try:
        yield from _read_panes(unit, store)
    except Exception as reason:  # that of one unit must not be that of the others
        yield from _labelled(unit, pa.Table.from_pylist([{"key": _failed(reason)}], schema=PANES))


def _read_panes(unit: Unit, store: str) -> Iterator[pa.RecordBatch]:
    """The panes of a unit's inputs, after a row without any, so that a unit that has none is not forgotten."""
    rollups = defined(unit).search.rollups
    wanted = [(name, interval.millis) for name in unit.rollups or {} for interval in rollups[name].intervals]
    yield from _labelled(unit, pa.Table.from_pylist([{}], schema=PANES))
    with open_workspace(store) as here, ExitStack() as stack:
        for companion in _opened(unit, here, stack):
            for rollup, interval in wanted:
                for panes in companion.panes(rollup, interval) or ():
                    yield from _labelled(unit, panes)


def _labelled(unit: Unit, table: pa.Table) -> list[pa.RecordBatch]:
    labelled = table.append_column("unit", pa.repeat(unit.unit, table.num_rows))
    batches: list[pa.RecordBatch] = labelled.select(["unit", *PANES.names]).to_batches()
    return batches


def _written(unit: Unit, here: Workspace, name: str, table: pa.Table) -> PartFile:
    with ExitStack() as stack:
        infos = [companion.info for companion in _opened(unit, here, stack)]
    info = merge_infos(infos, level=unit.level, fields=unit.fields or {}, rollups=unit.rollups or {})
    path = here.directory / file_name(name, "panes")
    part = write_panes(path, info, table)
    here.objects.upload(companion_key(unit.stream, unit.incarnation, name, "panes"), path)
    return part


def _opened(unit: Unit, here: Workspace, stack: ExitStack) -> list[FileCompanion]:
    return [_one(unit, companion, here, stack) for companion in unit.inputs]


def _one(unit: Unit, companion: Companion, here: Workspace, stack: ExitStack) -> FileCompanion:
    paths = {
        name: stack.enter_context(
            here.borrowed(
                companion_key(unit.stream, unit.incarnation, companion.name, name),
                part.bytes,
                file_name(companion.name, name),
            )
        )
        for name, part in companion.parts.items()
    }
    sources = sources_of(companion.name, paths, companion.parts)
    return FileCompanion(sources, name=companion.name, decoded=LruCache(0))
