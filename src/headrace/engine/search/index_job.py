"""The job that indexes events into companions, and merges companions.

A fixed number of neighbours of one level are merged into one of the next (see ``engine.derive.unit_cutter``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from headrace.config import PipelineConfig
from headrace.engine.derive.job import Job, JobCommitter, JobPlanner, NothingDerivable, StreamPlan
from headrace.engine.derive.unit_cutter import OwnedRange, PlannedUnit, UnitCutter, counted_levels, owned_ranges
from headrace.engine.log.batch import Batch
from headrace.engine.search.companion_coverage import SearchDefinition, SearchDefinitions, replaced, span, widest
from headrace.errors import CorruptData
from headrace.format.companion.layout import Companion
from headrace.format.object_names import COMPANIONS, companion_key, parse_companion_key
from headrace.format.ranges import Range, size, without
from headrace.reduce.work_units import COMPANION_JOBS, JobName, Unit
from headrace.storage.database import Connection
from headrace.storage.derived import Companions
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import DueRow, UnitRow, Work

#: The largest companion that is merged: its entries, and the bytes of its objects.
MAX_ROWS = 1 << 26
MAX_BYTES = 1 << 32

_CHANGED = "what is derived from the stream has changed"


class IndexJob(Job[Companion]):
    """Makes companions of streams with a search configuration."""

    names = COMPANION_JOBS
    output = "companion"
    scans_streams = True

    def __init__(self, config: PipelineConfig, definitions: SearchDefinitions) -> None:
        self._config = config
        self._definitions = definitions

    def planner(self, connection: Connection) -> _IndexPlanner:
        """The planner of entries to index and companions to merge."""
        return _IndexPlanner(connection, self._config, self._definitions)

    def committer(self, batch: Batch) -> _CompanionCommitter:
        """The committer of companions."""
        return _CompanionCommitter(batch, self._definitions)

    def refusal(self, unit: Unit, output: Companion) -> str | None:
        """Why a companion does not belong to a unit; None where it does."""
        wanted, made = (unit.first_seq, unit.count, unit.level), (output.first_seq, output.count, output.level)
        key = companion_key(unit.stream, unit.incarnation, output.name, "columns")
        is_named_so = output.name.startswith(unit.name_begins) and parse_companion_key(key) is not None
        if unit.job in COMPANION_JOBS and wanted == made and is_named_so:
            return None
        return f"{output.name!r} is not what {unit.unit!r} asks for"

    def written(self, unit: Unit, output: Companion) -> dict[str, int]:
        """An object for each part of a companion."""
        keys = {name: companion_key(unit.stream, unit.incarnation, output.name, name) for name in output.parts}
        return {keys[name]: part.bytes for name, part in output.parts.items()}

    def retire(self, batch: Batch, stream: int, names: Sequence[str]) -> None:
        """Retire companions that others have replaced."""
        Companions(batch.connection).retire(stream, names)


class _StreamIndex(NamedTuple):
    """The companions of a living stream with a search configuration; entries before ``start`` are of no interest."""

    row: StreamRow
    defined: SearchDefinition
    owned: list[OwnedRange]
    start: int
    listed: list[Companion]
    #: Those that hold everything that is defined.
    current: list[Companion]
    #: Published entries without any companion, and those whose companions are out of date.
    uncovered: list[Range]
    stale: list[Range]


class _IndexPlanner(JobPlanner):
    def __init__(self, connection: Connection, config: PipelineConfig, definitions: SearchDefinitions) -> None:
        self._streams, self._registries = Streams(connection), Registries(connection)
        self._companions, self._published, self._work = (
            Companions(connection),
            Published(connection),
            Work(connection),
        )
        self._config = config
        self._definitions = definitions

    def stream_units(self, due: DueRow, room: int, names: Collection[JobName], now_us: int) -> StreamPlan:
        try:
            index = self._index(due.stream)
        except CorruptData as reason:
            raise NothingDerivable(reason.message) from reason
        if index is None:
            return StreamPlan(retired=[companion.name for companion in self._companions.listed(due.stream)])
        working = [unit for unit in self._work.open_units(due.stream) if unit.job in COMPANION_JOBS]
        busy = [Range(unit.first_seq, unit.end_seq) for unit in working]
        failures = [failure for failure in self._work.failures(due.stream) if failure.job in COMPANION_JOBS]
        cutter = UnitCutter(index.row, index.owned, self._published, self._config, failures, now_us, COMPANIONS)
        units: list[PlannedUnit] = []
        if "compact" in names:
            units += islice(_compact(index, cutter, busy, self._config.fan_out), room)
            busy += [planned.range for planned in units]
        if "index" in names and (due.run or size(index.uncovered) + size(index.stale) >= self._config.min_rows):
            units += islice(_fill(index, cutter, busy), room - len(units))
        waits = (
            bool(working) or not set(COMPANION_JOBS) <= set(names) or any(not failure.parked for failure in failures)
        )
        return StreamPlan(units, waits, replaced(index.listed, index.defined, index.start))

    def progress(self, stream: int) -> tuple[int, int]:
        try:
            index = self._index(stream)
        except CorruptData:
            return 0, 0
        if index is None:
            return 0, 0
        total = index.owned[-1].end - index.start if index.owned else 0
        return total - size(index.uncovered) - size(index.stale), total

    def _index(self, stream: int) -> _StreamIndex | None:
        """The companions of a stream and what they lack; None where nothing is to be derived."""
        row = self._streams.by_id(stream)
        if row is None or row.state != LIVE:
            return None
        defined = self._definitions.stored(self._registries, row)
        if defined is None:
            return None
        start = max(row.first_seq, defined.registry.readable_from)
        owned = owned_ranges(self._streams, row, start)
        published = [Range(start, owned[-1].end)] if owned else []
        listed = self._companions.listed(stream)
        current = [companion for companion in listed if defined.is_current(companion)]
        uncovered = without(published, map(span, listed))
        stale = without(without(published, map(span, widest(current))), uncovered)
        return _StreamIndex(row, defined, owned, start, listed, current, uncovered, stale)


def _fill(index: _StreamIndex, cutter: UnitCutter, busy: list[Range]) -> Iterator[PlannedUnit]:
    """Units for ranges without any companion, then for those whose companions are out of date."""
    taken = [*busy, *cutter.resting("index")]
    wanted = (*without(index.uncovered, taken), *without(index.stale, taken))
    return cutter.units("index", wanted, level=0, registry=index.defined.registry.dump())


def _compact(index: _StreamIndex, cutter: UnitCutter, busy: list[Range], fan_out: int) -> Iterator[PlannedUnit]:
    """Units that merge companions that follow each other."""
    taken, registry = [*busy, *cutter.resting("compact")], None
    for inputs, level in windows(widest(index.current), taken, fan_out):
        through = max(companion.through_version for companion in inputs)
        fields, rollups = index.defined.hashes(through)
        registry = registry or index.defined.registry.dump()
        yield cutter.planned(
            "compact",
            Range(inputs[0].first_seq, inputs[-1].end_seq),
            level=level,
            inputs=tuple(inputs),
            through_version=through,
            fields=fields,
            rollups=rollups,
            registry=registry,
        )


def windows(companions: list[Companion], taken: list[Range], fan_out: int) -> Iterator[tuple[list[Companion], int]]:
    """Neighbours to merge, and the level of the merged companion; they come in order, and do not overlap."""
    fan_out = max(fan_out, 2)
    for neighbours in _free_neighbours(companions, taken):
        levels = counted_levels(neighbours)
        at = 0
        while at + fan_out <= len(neighbours):
            window, level = neighbours[at : at + fan_out], levels[at]
            if levels[at + fan_out - 1] == level and _fits(window):
                yield window, level + 1
                at += fan_out
            else:
                at += 1


def _free_neighbours(companions: list[Companion], taken: list[Range]) -> Iterator[list[Companion]]:
    """Runs of companions without gaps that no unit works on."""
    neighbours: list[Companion] = []
    for companion in companions:
        is_free = not any(span(companion).overlaps(other) for other in taken)
        if neighbours and not (is_free and neighbours[-1].end_seq == companion.first_seq):
            yield neighbours
            neighbours = []
        if is_free:
            neighbours.append(companion)
    yield neighbours


def _fits(window: list[Companion]) -> bool:
    size = sum(part.bytes for companion in window for part in companion.parts.values())
    return sum(companion.count for companion in window) <= MAX_ROWS and size <= MAX_BYTES


class _Target:
    """A living stream that companions are listed for."""

    def __init__(self, row: StreamRow, defined: SearchDefinition, listed: list[Companion]) -> None:
        self.row, self.defined, self.listed = row, defined, listed
        self.names = {companion.name for companion in listed}
        self.start = max(row.first_seq, defined.registry.readable_from)

    def refuses(self, unit: Unit, companion: Companion) -> str | None:
        """Why a companion is refused; None where it is accepted."""
        if not self.defined.is_current(companion):
            return _CHANGED
        if companion.end_seq <= self.start:
            return "its entries are not retained any more"
        if not {unit_input.name for unit_input in unit.inputs} <= self.names:
            return "its inputs were replaced"
        return None


class _CompanionCommitter(JobCommitter[Companion]):
    """Lists companions, and retires those that they replace."""

    def __init__(self, batch: Batch, definitions: SearchDefinitions) -> None:
        super().__init__(batch)
        self._definitions = definitions
        self._companions = Companions(batch.connection)
        self._targets: dict[int, _Target | str] = {}

    def accept(self, row: UnitRow, unit: Unit, output: Companion) -> str | None:
        if row.stream not in self._targets:
            self._targets[row.stream] = self._load_target(row.stream)
        target = self._targets[row.stream]
        if isinstance(target, str):
            return target
        if (reason := target.refuses(unit, output)) is not None:
            return reason
        self._companions.add(row.stream, output)
        target.listed.append(output)
        self._batch.published.mark(row.stream, self._batch.now_us)
        return None

    def is_listed(self, row: UnitRow, unit: Unit, output: Companion) -> bool:
        return self._companions.has(row.stream, output.name)

    def is_outdated(self, row: UnitRow, unit: Unit) -> bool:
        if not unit.inputs:
            return super().is_outdated(row, unit)
        listed = {companion.name for companion in self._companions.listed(row.stream)}
        return not {companion.name for companion in unit.inputs} <= listed

    def finish(self) -> None:
        """Retire companions that others have replaced."""
        for target in self._targets.values():
            if isinstance(target, _Target):
                listed = sorted(target.listed, key=lambda companion: companion.first_seq)
                self._companions.retire(target.row.id, replaced(listed, target.defined, target.start))

    def _load_target(self, stream: int) -> _Target | str:
        """A stream that takes companions, or why it takes none."""
        row = self._batch.streams.by_id(stream)
        if row is None or row.state != LIVE:
            return "the stream was deleted"
        try:
            defined = self._definitions.stored(self._batch.registries, row)
        except CorruptData as reason:
            return reason.message
        return _CHANGED if defined is None else _Target(row, defined, self._companions.listed(stream))
