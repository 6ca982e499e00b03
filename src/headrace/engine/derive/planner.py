"""Finding work: entries to verify, to fold or to index, states and companions to merge, what is of no more use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from headrace.config import PipelineConfig
from headrace.engine.derive.branch import StateKind
from headrace.engine.derive.state_job import StatePlanner
from headrace.engine.derive.unit_cutter import PlannedUnit, UnitCutter
from headrace.engine.entities.erasure.job import ErasePlanner
from headrace.engine.features.histories import HistoryPlanner
from headrace.engine.search.companion_cover import replaced
from headrace.engine.search.definitions import Definitions
from headrace.engine.search.index_job import Maker
from headrace.engine.search.stream_view import View, Viewer
from headrace.engine.verification.job import VerifyPlanner
from headrace.errors import CorruptData
from headrace.format.ranges import Range, size
from headrace.reduce.work_units import DERIVED, JobName
from headrace.storage.companions import Companions
from headrace.storage.database import Connection
from headrace.storage.erasures import Erasures
from headrace.storage.published import Published
from headrace.storage.work import DueRow, Work

log = logging.getLogger("headrace.work")

_PAGE = 100


class Plan(NamedTuple):
    """Units to give away, streams that need none, what is of no more use, and whether all streams were looked at."""

    units: list[PlannedUnit]
    idle: list[DueRow]
    #: Companions and states that count no more, by stream.
    useless: dict[int, list[str]]
    lifeless: dict[int, list[str]]
    is_complete: bool
    #: Streams that may have something to do once an erasure is over.
    suspended: list[int]
    #: How many may have something to do and were not looked at.
    unseen: int = 0


class Planner:
    """Reads one database; for one thread at a time.

    ``claims`` are what the server verifies itself, ``answering`` the questions that it answers itself.
    """

    def __init__(
        self,
        connection: Connection,
        config: PipelineConfig,
        definitions: Definitions,
        claims: Mapping[str, Range],
        branches: Sequence[StateKind],
        answering: set[str],
    ) -> None:
        self._connection = connection
        self._config = config
        self._viewer = Viewer(connection, definitions)
        self._checks = VerifyPlanner(connection, config, claims)
        self._states = StatePlanner(connection, config, branches)
        self._histories = HistoryPlanner(connection, answering)
        self._erasures, self._erase = Erasures(connection), ErasePlanner(connection)
        self._published, self._companions, self._work = (
            Published(connection),
            Companions(connection),
            Work(connection),
        )

    def plan(self, limit: int, each: int, jobs: Collection[JobName], now_us: int, goes_on: Callable[[], bool]) -> Plan:
        """Up to so many units of these jobs, in all and for each stream; looks for them for as long as it may go on.

        Needs a snapshot.
        """
        plan = Plan([], [], {}, {}, True, [])
        for row in self._checks.running() if "verify" in jobs else ():
            plan.units.extend(islice(self._checks.units(row, now_us), min(each, limit - len(plan.units))))
        for asked in self._histories.running() if "history" in jobs else ():
            plan.units.extend(islice(self._histories.units(asked, now_us), limit - len(plan.units)))
        if "erase" in jobs:
            plan.units.extend(islice(self._erase.units(now_us), limit - len(plan.units)))
        for looked_at, due in enumerate(self._due()):
            if len(plan.units) >= limit or not goes_on():
                return plan._replace(is_complete=False, unseen=self._work.count_due() - looked_at)
            self._plan_stream(plan, due, min(each, limit - len(plan.units)), jobs, now_us)
        return plan

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that is read meanwhile is of one moment."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def progress(self, stream: int) -> tuple[int, int]:
        """How many published entries of a stream have companions that are up to date, and how many there are."""
        try:
            view = self._viewer.view(stream)
        except CorruptData:
            return 0, 0
        if view is None:
            return 0, 0
        total = view.owned[-1].end - view.start if view.owned else 0
        return total - size(view.uncovered) - size(view.stale), total

    def _due(self) -> Iterator[DueRow]:
        after = (-1, 0)
        while page := self._work.due(_PAGE, after):
            yield from page
            after = page[-1].since_us, page[-1].stream

    def _plan_stream(self, plan: Plan, due: DueRow, room: int, jobs: Collection[JobName], now_us: int) -> None:
        if self._erasures.is_running(due.stream):
            plan.suspended.append(due.stream)
            return  # what would be derived now holds what is erased
        try:
            view = self._viewer.view(due.stream)
        except CorruptData as reason:
            log.error("nothing can be derived from stream %d: %s", due.stream, reason.message)
            plan.idle.append(due)
            return
        states = self._states.find(due, room, now_us, jobs)
        found, waits, useless = states.units, states.waits, list[str]()
        if view is None:
            useless = [one.name for one in self._companions.listed(due.stream)]
        else:
            derived, waiting = self._units(view, due, room - len(found), jobs, now_us)
            found, waits = found + derived, waits or waiting
            useless = replaced(view.listed, view.defined, view.start)
        plan.units.extend(found)
        if useless:
            plan.useless[due.stream] = useless
        if states.lifeless:
            plan.lifeless[due.stream] = states.lifeless
        if not found and not waits:
            plan.idle.append(due)

    def _units(
        self, view: View, due: DueRow, room: int, jobs: Collection[JobName], now_us: int
    ) -> tuple[list[PlannedUnit], bool]:
        """Units of a stream, and whether there will be more once others are done or a pause is over."""
        working = [unit for unit in self._work.working_on(due.stream) if unit.job in DERIVED]
        busy = [Range(unit.first_seq, unit.end_seq) for unit in working]
        failures = [failure for failure in self._work.failures(due.stream) if failure.job in DERIVED]
        cutter = UnitCutter(view.row, view.owned, self._published, self._config, failures, now_us)
        is_worth_it = bool(due.run) or size(view.uncovered) + size(view.stale) >= self._config.min_rows
        found: list[PlannedUnit] = []
        for job in DERIVED:
            if job in jobs and (job != "index" or is_worth_it):
                maker = Maker(view, cutter, self._config.fan_out, busy)
                found += islice(maker.make(job), room - len(found))
                busy += [planned.range for planned in found]
        return found, bool(working) or not set(DERIVED) <= set(jobs) or any(not one.parked for one in failures)
