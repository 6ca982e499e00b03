"""The job that folds events into states, and merges states.

A number of neighbours of one level are merged into one of the next, so that a key is looked up in few files. States
that were folded separately, since a version started later than others, are merged too.

There are many entities with few events each, so larger units write fewer rows for them. Workers process units in
parallel and finish with the last one, so units are cut to equal sizes, as many as workers process concurrently.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import ceil
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.config import PipelineConfig
from headrace.engine.derive.job import Job, JobCommitter, JobPlanner, StreamPlan
from headrace.engine.derive.unit_cutter import (
    OwnedRange,
    PlannedUnit,
    SegmentPart,
    UnitCutter,
    counted_levels,
    owned_ranges,
)
from headrace.engine.log.batch import Batch
from headrace.format.object_names import STATES, parse_state_key, state_key
from headrace.format.ranges import Range, size, without
from headrace.format.state import State
from headrace.reduce.states.coverage import base, missing, span, unused_states
from headrace.reduce.states.definition import Definition, Definitions
from headrace.reduce.work_units import STATE_JOBS, JobName, Unit
from headrace.schema.registry import Registry
from headrace.storage.database import Connection
from headrace.storage.derived import States
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import DueRow, UnitRow, Work

#: What is merged into one state at most: rows, and bytes of objects.
MAX_MERGED_ROWS = 1 << 26
MAX_MERGED_BYTES = 1 << 32
_EVER = 1 << 62
#: The payload of a unit as a multiple of the configured one: with little and with much to fold.
MIN_UNIT_FACTOR, MAX_UNIT_FACTOR = 4, 20
#: The assumed number of concurrent units on a cluster, whose size is not known.
_ELSEWHERE = 16
#: Units are cut to equal sizes up to this many rounds of concurrent units; with more it makes no difference.
_ROUNDS = 4
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


class StateKind(NamedTuple):
    """The definitions to fold over streams whose names begin with a prefix, and the job of their units."""

    job: JobName
    prefix: str
    current: Callable[[Connection], Definitions[Any]]
    #: Whether they are over no streams but those that their registry manages.
    is_managed: bool = True


class StateJob(Job[State]):
    """Makes states of features, of snapshots of entities and of their fragments."""

    names = STATE_JOBS
    output = "state"
    scans_streams = True

    def __init__(self, config: PipelineConfig, kinds: Sequence[StateKind]) -> None:
        self._config = config
        self._kinds = kinds
        #: Called with the streams that have new states.
        self.listeners: list[Callable[[set[int]], None]] = []

    def planner(self, connection: Connection) -> StatePlanner:
        """A planner that finds events to fold and states to merge."""
        return StatePlanner(connection, self._config, self._kinds)

    def committer(self, batch: Batch) -> _StateCommitter:
        """A committer that lists new states."""
        return _StateCommitter(batch)

    def refusal(self, unit: Unit, output: State) -> str | None:
        """Why a state does not have the table, the events and the versions of its unit; None where it does."""
        wanted = (unit.table, unit.first_seq, unit.count, unit.level, unit.lives)
        made = (output.table, output.first_seq, output.count, output.level, output.lives)
        is_named_so = output.name.startswith(unit.name_begins)
        key = state_key(unit.stream, unit.incarnation, output.name)
        if unit.job in STATE_JOBS and wanted == made and is_named_so and parse_state_key(key) is not None:
            return None
        return f"{output.name!r} is not what {unit.unit!r} asks for"

    def written(self, unit: Unit, output: State) -> dict[str, int]:
        """The one object of a state."""
        return {state_key(unit.stream, unit.incarnation, output.name): output.bytes}

    def retire(self, batch: Batch, stream: int, names: Sequence[str]) -> None:
        """Retire states whose versions have all ended."""
        States(batch.connection).retire(stream, names)

    def definition_changes(self, reader: Connection) -> Iterator[Callable[[Batch], None]]:
        """A function for each kind whose definitions have changed, which marks its streams as due."""
        for kind in self._kinds:
            current, meta = kind.current(reader), f"work_{kind.job}"
            if Streams(reader).meta(meta, 0) != current.version:
                # The names are read here: a commit may be made in another thread.
                yield partial(_mark_due, meta=meta, version=current.version, streams=tuple(current.streams))

    def notify(self, streams: set[int]) -> None:
        """Call the listeners with streams whose states have changed."""
        for listener in self.listeners:
            listener(streams)


def _may_fold(kind: StateKind, row: StreamRow) -> bool:
    return row.name.startswith(kind.prefix) and (bool(row.managed) or not kind.is_managed)


def _mark_due(batch: Batch, meta: str, version: int, streams: Sequence[str]) -> None:
    for name in streams:
        row = batch.streams.by_name(name)
        if row is not None and row.state == LIVE:
            Work(batch.connection).mark(row.id, batch.now_us)
    batch.streams.set_meta(meta, version)


class _StateCommitter(JobCommitter[State]):
    """Lists states in place of those that they were made of."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._states = States(batch.connection)

    def accept(self, row: UnitRow, unit: Unit, output: State) -> str | None:
        stream = self._batch.streams.by_id(row.stream)
        if stream is None or stream.state != LIVE:
            return "the stream was deleted"
        inputs = {state.name for state in unit.states}
        listed = {state.name: state for state in self._states.listed(row.stream) if state.table == output.table}
        if not inputs <= listed.keys():
            return "its inputs were replaced"
        if any(_holds_same(other, output) for name, other in listed.items() if name not in inputs):
            return "its events were folded already"
        self._states.retire(row.stream, inputs)
        self._states.add(row.stream, output)
        self._batch.published.mark(row.stream, self._batch.now_us)
        return None

    def is_listed(self, row: UnitRow, unit: Unit, output: State) -> bool:
        return self._states.has(row.stream, output.name)


def _holds_same(state: State, other: State) -> bool:
    """Whether two states of a table hold the same version of a feature over some of the same events."""
    is_disjoint = state.end_seq <= other.first_seq or other.end_seq <= state.first_seq
    return not is_disjoint and not set(state.lives.values()).isdisjoint(other.lives.values())


class StateBlock(NamedTuple):
    """States that overlap, and those that do not overlap any other alone."""

    range: Range
    states: tuple[State, ...]
    level: int


class StatePlanner(JobPlanner):
    """Finds events to fold and states to merge."""

    def __init__(self, connection: Connection, config: PipelineConfig, kinds: Sequence[StateKind]) -> None:
        self._connection = connection
        self._streams, self._published = Streams(connection), Published(connection)
        self._states, self._work, self._registries = States(connection), Work(connection), Registries(connection)
        self._config = config
        self._kinds = kinds

    def stream_units(self, due: DueRow, room: int, names: Collection[JobName], now_us: int) -> StreamPlan:
        """Work for what is folded over a stream, unless units of its job are not wanted."""
        row = self._streams.by_id(due.stream)
        kinds = [] if row is None else [kind for kind in self._kinds if _may_fold(kind, row)]
        listed = self._states.listed(due.stream)
        if row is None or not kinds or row.state != LIVE:
            return StreamPlan(retired=[state.name for state in listed])
        definitions = [(kind.job, defined) for kind in kinds for defined in self._definitions(kind, row.name)]
        retired = unused_states([defined for _, defined in definitions], listed)
        wanted = [(job, defined) for job, defined in definitions if job in names]
        if not wanted:
            return StreamPlan([], bool(definitions), retired)
        due_stream = _DueStream(row, owned_ranges(self._streams, row, row.first_seq), bool(due.run), now_us, room)
        units = list(islice(self._units(due_stream, wanted, listed), room))
        failures = self._work.failures(due.stream)
        waits = bool(self._busy(due.stream)) or any(
            not failure.parked and failure.job.startswith(STATE_JOBS) for failure in failures
        )
        return StreamPlan(units, waits or len(wanted) < len(definitions), retired)

    def _definitions(self, kind: StateKind, stream: str) -> list[Definition]:
        current = kind.current(self._connection)
        return [current.defined(name) for name in current.names_over(stream)]

    def _units(
        self, due_stream: _DueStream, definitions: list[tuple[JobName, Definition]], listed: list[State]
    ) -> Iterator[PlannedUnit]:
        busy, row = self._busy(due_stream.row.id), due_stream.row
        failures = self._work.failures(row.id)
        registry = self._registry(row)
        folds: list[Iterator[PlannedUnit]] = []
        for job, defined in definitions:
            cutter = UnitCutter(
                row, due_stream.owned, self._published, self._config, failures, due_stream.now_us, STATES
            )
            taken = [range for name, range in busy if name == defined.name]
            taken += cutter.resting(job, defined.name)
            states = [state for state in listed if state.table == defined.name]
            facts = {"job": job, "table": defined.name, "registry": registry, "defined": defined.dump()}
            yield from self._merges(cutter, defined, states, taken, facts)
            folds.append(self._folds(due_stream, cutter, defined, states, taken, facts))
        # A worker decodes a range once for all definitions, so that they go to it together.
        yield from heapq.merge(*folds, key=lambda planned: planned.unit.first_seq)

    def _registry(self, row: StreamRow) -> Any:
        """The document of the registry of a stream, an empty one where it has none."""
        if not row.revision:
            return Registry.empty(row.name).dump()
        return msgspec.json.decode(self._registries.document(row.id, row.revision))

    def _folds(
        self,
        due_stream: _DueStream,
        cutter: UnitCutter,
        defined: Definition,
        states: list[State],
        taken: list[Range],
        facts: dict[str, Any],
    ) -> Iterator[PlannedUnit]:
        """Units for events that are not in states of every version; the newest wait until there are enough of them."""
        if not due_stream.owned:
            return
        retained = Range(due_stream.row.first_seq, due_stream.owned[-1].end)
        start = base(defined, states, retained.first, retained.end, _EVER).start
        cells = missing(defined, states, retained)
        newest = [cell for cell, _ in cells if cell.end > start]
        is_worth_it = (
            due_stream.run or size(newest) >= max(1, self._config.min_rows) or self._is_leaving(due_stream, newest)
        )
        for cell, version_ids in cells:
            if cell.end <= start or is_worth_it:
                for wanted in without([cell], taken):
                    max_bytes = self._width(due_stream, cutter, wanted, facts["job"])
                    yield from cutter.units(ranges=[wanted], max_bytes=max_bytes, level=0, lives=version_ids, **facts)

    def _width(self, due_stream: _DueStream, cutter: UnitCutter, wanted: Range, job: JobName) -> int:
        """The payload of a unit; small where units are taken one at a time, as the server does, to limit its memory."""
        unit_bytes = self._config.unit_bytes
        if job != "snapshots":
            return unit_bytes
        if due_stream.room == 1:
            return MIN_UNIT_FACTOR * unit_bytes
        return even_unit_bytes(cutter.pieces(wanted), unit_bytes, concurrent_units(self._config))

    def _is_leaving(self, due_stream: _DueStream, cells: list[Range]) -> bool:
        """Whether retention would remove these events, but waits until they are folded."""
        age_us = due_stream.row.retention_age_us
        if age_us is None or not cells:
            return False
        placed = self._published.holding(due_stream.row.id, cells[0].first)
        return placed is not None and placed.segment.min_us < due_stream.now_us - age_us

    def _merges(
        self, cutter: UnitCutter, defined: Definition, states: list[State], taken: list[Range], facts: dict[str, Any]
    ) -> Iterator[PlannedUnit]:
        for window, level in windows(defined, states, taken, self._config.fan_out):
            where = Range(window[0].range.first, window[-1].range.end)
            inputs = tuple(state for block in window for state in block.states)
            merged_ids = {id for state in inputs for id in state.lives.values()}
            version_ids = {
                name: version.id for name, version in sorted(defined.lives.items()) if version.id in merged_ids
            }
            yield cutter.planned(where=where, level=level, states=inputs, lives=version_ids, **facts)
            taken.append(where)

    def _busy(self, stream: int) -> list[tuple[str, Range]]:
        """The ranges of open units, each with the name of its definition."""
        rows = (unit for unit in self._work.open_units(stream) if unit.job in STATE_JOBS)
        units = [decoding.decode(unit.document, Unit) for unit in rows]
        return [(unit.table or "", Range(unit.first_seq, unit.end_seq)) for unit in units]


class _DueStream(NamedTuple):
    """A stream for which units are planned."""

    row: StreamRow
    owned: list[OwnedRange]
    run: bool
    now_us: int
    #: How many units are requested.
    room: int


def windows(
    defined: Definition, states: Sequence[State], taken: Sequence[Range], fan_out: int
) -> Iterator[tuple[list[StateBlock], int]]:
    """Neighbouring blocks to merge, with the level of the merged state; incomplete blocks are left out."""
    for run in _mergeable_runs(defined, states, taken):
        levels, at, width = counted_levels(run), 0, max(fan_out, 2)
        while at < len(run):
            window = run[at : at + width]
            if len(window) == width and levels[at] == levels[at + width - 1] and _fits(window):
                yield window, levels[at] + 1
                at += width
                continue
            if len(run[at].states) > 1 and _fits(run[at : at + 1]):
                yield run[at : at + 1], run[at].level
            at += 1


def blocks(defined: Definition, states: Sequence[State]) -> list[StateBlock]:
    """The states that hold current versions, in order, with overlapping states in one block."""
    current_ids = {version.id for version in defined.lives.values()}
    blocks_in_order: list[StateBlock] = []
    for state in sorted(states, key=lambda state: (state.first_seq, state.name)):
        if current_ids.isdisjoint(state.lives.values()):
            continue
        if blocks_in_order and state.first_seq < blocks_in_order[-1].range.end:
            last = blocks_in_order.pop()
            where = Range(last.range.first, max(last.range.end, state.end_seq))
            blocks_in_order.append(StateBlock(where, (*last.states, state), max(last.level, state.level)))
        else:
            blocks_in_order.append(StateBlock(span(state), (state,), state.level))
    return blocks_in_order


def _mergeable_runs(defined: Definition, states: Sequence[State], taken: Sequence[Range]) -> Iterator[list[StateBlock]]:
    """Runs of adjacent blocks that are complete and not part of an open unit."""
    run: list[StateBlock] = []
    for block in blocks(defined, states):
        is_free = not any(block.range.overlaps(other) for other in taken) and not missing(defined, states, block.range)
        if run and not (is_free and run[-1].range.end == block.range.first):
            yield run
            run = []
        if is_free:
            run.append(block)
    yield run


def _fits(window: list[StateBlock]) -> bool:
    states = [state for block in window for state in block.states]
    return (
        sum(state.rows for state in states) <= MAX_MERGED_ROWS
        and sum(state.bytes for state in states) <= MAX_MERGED_BYTES
    )


def concurrent_units(config: PipelineConfig) -> int:
    """How many units workers process concurrently; an assumed number for a cluster of unknown size."""
    local = None if config.remote else _LOCAL.fullmatch(config.master)
    if local is None:
        return _ELSEWHERE
    return os.cpu_count() or 1 if local[1] == "*" else max(1, int(local[1] or 1))


def even_unit_bytes(parts: Iterable[SegmentPart], unit_bytes: int, concurrency: int) -> int:
    """The maximal payload of a unit, so that units over these segments have about equal sizes."""
    min_bytes, max_bytes = MIN_UNIT_FACTOR * unit_bytes, MAX_UNIT_FACTOR * unit_bytes
    total = largest = 0
    for part in parts:
        total, largest = total + part.payload_bytes, max(largest, part.payload_bytes)
        if total > _ROUNDS * concurrency * max_bytes:
            return max_bytes
    number = min(concurrency * ceil(total / (concurrency * max_bytes)), ceil(total / min_bytes))
    return total // max(1, number) + largest - 1  # so that what is left over makes no unit of its own
