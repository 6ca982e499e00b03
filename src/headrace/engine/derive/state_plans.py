"""What work there is for what is folded: events to fold into states, and states to merge.

A number of neighbours of one level are merged into one of the next, so that a key is looked up in few files. What was
folded apart, since a life came later than others, is merged too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.config import PipelineConfig
from headrace.engine.derive import widths
from headrace.engine.derive.branch import Branch, branches_of
from headrace.engine.derive.levels import counted_levels
from headrace.engine.derive.readable import Part, parts
from headrace.engine.derive.unit_cutter import Cutter, Planned
from headrace.format.ranges import Range, size, without
from headrace.format.state.layout import State
from headrace.reduce.states.coverage import base, missing, span, useless
from headrace.reduce.states.definition import Definition
from headrace.reduce.work_units import FOLDED, Job, Unit
from headrace.storage.database import Connection
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.states import States
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import DueRow, Work

#: What is merged into one state at most: rows, and bytes of objects.
MOST_ROWS = 1 << 26
MOST_BYTES = 1 << 32
_EVER = 1 << 62


class Found(NamedTuple):
    """Units for one stream, whether there will be more once others are done, and states of no more use."""

    units: list[Planned]
    waits: bool
    lifeless: list[str]


class Block(NamedTuple):
    """States that overlap, and those that do not overlap any other alone."""

    range: Range
    states: tuple[State, ...]
    level: int


class StatePlans:
    """Looks for work through one connection."""

    def __init__(self, connection: Connection, config: PipelineConfig, branches: Sequence[Branch]) -> None:
        self._connection = connection
        self._streams, self._published = Streams(connection), Published(connection)
        self._states, self._work, self._registries = States(connection), Work(connection), Registries(connection)
        self._config = config
        self._branches = branches

    def find(self, due: DueRow, room: int, now_us: int, jobs: Collection[Job]) -> Found:
        """Work for what is folded over a stream, unless units of its job are not wanted."""
        row = self._streams.by_id(due.stream)
        branches = [] if row is None else branches_of(self._branches, row.name)
        listed = self._states.listed(due.stream)
        if row is None or not branches or row.state != LIVE or not row.managed:
            return Found([], False, [state.name for state in listed])
        found = [(branch.job, defined) for branch in branches for defined in self._definitions(branch, row.name)]
        lifeless = useless([defined for _, defined in found], listed)
        wanted = [(job, defined) for job, defined in found if job in jobs]
        if not wanted:
            return Found([], bool(found), lifeless)
        desk = _Desk(row, parts(self._streams, row, row.first_seq), bool(due.run), now_us, room)
        units = list(islice(self._units(desk, wanted, listed), room))
        failures = self._work.failures(due.stream)
        waits = bool(self._busy(due.stream)) or any(not one.parked and one.job.startswith(FOLDED) for one in failures)
        return Found(units, waits or len(wanted) < len(found), lifeless)

    def _definitions(self, branch: Branch, stream: str) -> list[Definition]:
        current = branch.current(self._connection)
        return [current.defined(name) for name in current.names_over(stream)]

    def _units(self, desk: _Desk, definitions: list[tuple[Job, Definition]], listed: list[State]) -> Iterator[Planned]:
        busy, row = self._busy(desk.row.id), desk.row
        failures = self._work.failures(row.id)
        registry = msgspec.json.decode(self._registries.document(row.id, row.revision))
        for job, defined in definitions:
            cutter = Cutter(row, desk.owned, self._published, self._config, failures, desk.now_us)
            taken = [range for name, range in busy if name == defined.name]
            taken += cutter.resting(job, defined.name)
            states = [state for state in listed if state.table == defined.name]
            facts = {"job": job, "table": defined.name, "registry": registry, "defined": defined.dump()}
            yield from self._merges(cutter, defined, states, taken, facts)
            yield from self._folds(desk, cutter, defined, states, taken, facts)

    def _folds(
        self,
        desk: _Desk,
        cutter: Cutter,
        defined: Definition,
        states: list[State],
        taken: list[Range],
        facts: dict[str, Any],
    ) -> Iterator[Planned]:
        """Events that some lives lack; those that only the newest states lack wait until they are many."""
        if not desk.owned:
            return
        whole = Range(desk.row.first_seq, desk.owned[-1].end)
        start = base(defined, states, whole.first, whole.end, _EVER).start
        cells = missing(defined, states, whole)
        newest = [cell for cell, _ in cells if cell.end > start]
        is_worth_it = desk.run or size(newest) >= max(1, self._config.min_rows) or self._is_leaving(desk, newest)
        for cell, lives in cells:
            if cell.end <= start or is_worth_it:
                for wanted in without([cell], taken):
                    most_bytes = self._width(desk, cutter, wanted, facts["job"])
                    yield from cutter.units(wanted=[wanted], most_bytes=most_bytes, level=0, lives=lives, **facts)

    def _width(self, desk: _Desk, cutter: Cutter, wanted: Range, job: Job) -> int:
        """The payload of a unit; who takes one at a time, as the server does, shall not hold much at once."""
        unit_bytes = self._config.unit_bytes
        if job != "snapshots":
            return unit_bytes
        if desk.room == 1:
            return widths.LEAST * unit_bytes
        return widths.even(cutter.pieces(wanted), unit_bytes, widths.side_by_side(self._config))

    def _is_leaving(self, desk: _Desk, cells: list[Range]) -> bool:
        """Whether retention waits for events to be folded."""
        age_us = desk.row.retention_age_us
        if age_us is None or not cells:
            return False
        placed = self._published.holding(desk.row.id, cells[0].first)
        return placed is not None and placed.segment.min_us < desk.now_us - age_us

    def _merges(
        self, cutter: Cutter, defined: Definition, states: list[State], taken: list[Range], facts: dict[str, Any]
    ) -> Iterator[Planned]:
        for window, level in windows(defined, states, taken, self._config.fan_out):
            where = Range(window[0].range.first, window[-1].range.end)
            inputs = tuple(state for block in window for state in block.states)
            held = {life for state in inputs for life in state.lives.values()}
            lives = {name: life.id for name, life in sorted(defined.lives.items()) if life.id in held}
            yield cutter.planned(where=where, level=level, states=inputs, lives=lives, **facts)
            taken.append(where)

    def _busy(self, stream: int) -> list[tuple[str, Range]]:
        """What is being worked on, by definition."""
        units = (unit for unit in self._work.working_on(stream) if unit.job in FOLDED)
        found = [decoding.decode(unit.document, Unit) for unit in units]
        return [(unit.table or "", Range(unit.first_seq, unit.end_seq)) for unit in found]


class _Desk(NamedTuple):
    """One stream while work is looked for."""

    row: StreamRow
    owned: list[Part]
    run: bool
    now_us: int
    #: Units that are asked for.
    room: int


def windows(
    defined: Definition, states: Sequence[State], taken: Sequence[Range], fan_out: int
) -> Iterator[tuple[list[Block], int]]:
    """Neighbouring blocks to merge, and the level of what comes of them; blocks that lack something wait."""
    for stretch in _stretches(defined, states, taken):
        levels, at, width = counted_levels(stretch), 0, max(fan_out, 2)
        while at < len(stretch):
            window = stretch[at : at + width]
            if len(window) == width and levels[at] == levels[at + width - 1] and _fits(window):
                yield window, levels[at] + 1
                at += width
                continue
            if len(stretch[at].states) > 1 and _fits(stretch[at : at + 1]):
                yield stretch[at : at + 1], stretch[at].level
            at += 1


def blocks(defined: Definition, states: Sequence[State]) -> list[Block]:
    """The states that hold lives of today, in order, together where they overlap."""
    alive = {life.id for life in defined.lives.values()}
    found: list[Block] = []
    for state in sorted(states, key=lambda state: (state.first_seq, state.name)):
        if alive.isdisjoint(state.lives.values()):
            continue
        if found and state.first_seq < found[-1].range.end:
            last = found.pop()
            where = Range(last.range.first, max(last.range.end, state.end_seq))
            found.append(Block(where, (*last.states, state), max(last.level, state.level)))
        else:
            found.append(Block(span(state), (state,), state.level))
    return found


def _stretches(defined: Definition, states: Sequence[State], taken: Sequence[Range]) -> Iterator[list[Block]]:
    """Blocks that follow each other without gaps, lack nothing, and that nobody works on."""
    stretch: list[Block] = []
    for block in blocks(defined, states):
        is_free = not any(block.range.overlaps(other) for other in taken) and not missing(defined, states, block.range)
        if stretch and not (is_free and stretch[-1].range.end == block.range.first):
            yield stretch
            stretch = []
        if is_free:
            stretch.append(block)
    yield stretch


def _fits(window: list[Block]) -> bool:
    states = [state for block in window for state in block.states]
    return sum(one.rows for one in states) <= MOST_ROWS and sum(one.bytes for one in states) <= MOST_BYTES
