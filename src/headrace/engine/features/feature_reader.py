"""Reads the features of keys: all keys of one request as of one moment, with an explanation of each answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from headrace.config import FeaturesConfig
from headrace.engine.derive import state_reader
from headrace.engine.derive.generation import Generation
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.features.definitions import FeatureDefinitions
from headrace.engine.features.source import SourceGone, source_of
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.errors import FeatureNotInTable
from headrace.format.state import State
from headrace.reduce.features.bound_events import BoundShapes
from headrace.reduce.features.build import TableColumns
from headrace.reduce.features.definition import UNFIT_TABLE, TableDefinition
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.coverage import history
from headrace.schema.registry import Registry
from headrace.storage.derived import States
from headrace.storage.streams import LIVE
from headrace.storage.wal import Wal
from headrace.types import Clock


def explain_features(
    defined: TableDefinition,
    generation: Generation,
    stream: Stream,
    through: int,
    listed: Sequence[State],
    wanted: Sequence[str],
) -> dict[str, Any]:
    """The states and events that an answer was computed from, feature by feature."""
    through = max(through, generation.position)
    tail, first_seq = generation.base.start, stream.head.first_seq
    features = {}
    for name in wanted:
        version = defined.lives[name]
        states, _ = history(version, listed, first_seq)
        start = states[0].first_seq if states else min(first_seq, tail)
        features[name] = {
            "life": version.id,
            "born": stream.offset_at(version.birth),
            "since": stream.offset_at(max(version.birth, start)),
            "states": [state.name for state in states],
            "tail_events": max(0, through - max(tail, version.birth)),
            "complete": generation.is_folded(name, version.id) and name not in generation.lost,
        }
        if version.end is not None:
            features[name]["ended"] = stream.offset_at(version.end)
    return {
        "table": defined.table,
        "tail_from": stream.offset_at(tail),
        "through": stream.offset_at(through),
        "features": features,
    }


class Moment(NamedTuple):
    """The moment of a request: its time, the head of each source, and when to stop folding."""

    now_ms: int
    heads: Mapping[str, Head]
    ends: float | None = None


class FeatureAnswer(NamedTuple):
    """The row of a key, whether each feature has all events since the start of its version, and an explanation.

    ``late`` is the number of events of the key that came too late by their event time to be counted.
    ``has_ended`` where some feature counts no more events, since the stream has lost what it is computed from.
    ``is_partial`` where events that count for some feature were removed before they were folded into a state.
    """

    row: dict[str, Any]
    complete: bool
    explain: dict[str, Any] | None = None
    late: int = 0
    has_ended: bool = False
    is_partial: bool = False

    @property
    def coverage(self) -> str:
        """What the header of coverage says."""
        return coverage_of(complete=self.complete, has_ended=self.has_ended, is_partial=self.is_partial)


def coverage_of(*, complete: bool, has_ended: bool, is_partial: bool) -> str:
    """What the header of coverage says of rows of now."""
    if not complete:
        return "backfilling"
    if is_partial:
        return "partial"
    return "ended" if has_ended else "complete"


class UnfitEvents(NamedTuple):
    """How many events of a stream do not fit a source, the first of them with reasons, and whether all are counted."""

    events: int
    first: list[tuple[int, str]]
    complete: bool


class FeatureReader(state_reader.StateReader[TableDefinition]):
    """Reads every feature table of this node."""

    def __init__(
        self,
        *,
        log: Log,
        wal: Wal,
        states: States,
        current: Callable[[], FeatureDefinitions],
        state_builder: StateBuilder,
        clock: Clock,
        config: FeaturesConfig,
    ) -> None:
        super().__init__(
            log,
            wal,
            states,
            current,
            shapes_of,
            state_builder,
            config.fold_rows,
            keying_of=attrgetter("keying"),
            pending_bytes=config.tail_bytes // 2,
            columns_of=TableColumns,
        )
        self._definitions = current
        self._clock = clock

    def get(
        self,
        table: str,
        key: Any,
        features: Sequence[str] | None = None,
        moment: Moment | None = None,
        *,
        explain: bool = False,
    ) -> FeatureAnswer:
        """The features of a key at a moment, by default now."""
        defined = self.defined(table)
        wanted = self.wanted(defined, features)
        packed_key = defined.reducer.key(key)
        now_ms, heads, ends = self.moment([table]) if moment is None else moment
        if defined.binding is not None:
            self.find_stream(defined)
        head = heads[defined.stream]
        generation, stream = self.current_generation(defined, head, by_key=True)
        folded = [name for name in wanted if generation.is_folded(name, defined.lives[name].id)]
        is_folded = generation.position >= head.next_seq
        state = generation.row(packed_key) if is_folded else self.row(generation, head, packed_key, ends)
        # A version that is replaced answers until the one that replaces it is complete.
        answered = folded
        if len(folded) < len(wanted):
            answered = [name for name in wanted if name in folded or generation.is_replaced(name, defined.lives[name])]
        row = generation.fold.reducer.finish(state, now_ms, answered)
        is_seen = state is not None and state.is_seen
        if len(answered) < len(wanted) and (is_seen or not generation.has_all_keys(defined.start_seq)):
            current_row = row or generation.fold.reducer.blank(now_ms, answered)
            row = {name: current_row.get(name) for name in wanted}
        explanation = None
        if explain:
            explanation = explain_features(
                defined, generation, stream, head.next_seq, self.listed(defined, stream), wanted
            )
            explanation["registry_version"] = self._definitions().current.version
            if generation.fold.reducer.has_event_time:
                explanation["late_events"] = 0 if state is None else state.late
        late = 0 if state is None else state.late
        has_ended = bool(defined.ended) and not defined.ended.isdisjoint(wanted)
        is_partial = bool(generation.lost) and not generation.lost.isdisjoint(wanted)
        return FeatureAnswer(row, len(folded) == len(wanted), explanation, late, has_ended, is_partial)

    def moment(self, tables: Iterable[str], ends: float | None = None) -> Moment:
        """The present moment for reads of these tables, which is not before any of their events."""
        definitions = {defined.stream: defined for defined in map(self.defined, tables)}
        heads = {name: self.find_stream(defined).head for name, defined in definitions.items()}
        now_us = max([self._clock.now_us(), *(head.last_us for head in heads.values())])
        return Moment(now_us // 1000, heads, ends)

    def unfit(self, source: str) -> UnfitEvents:
        """The events that do not fit a source that is bound to a stream; raises NotReady."""
        defined = self.defined(source + UNFIT_TABLE)
        head = self.find_stream(defined).head
        generation, _ = self.current_generation(defined, head)
        state = generation.row(defined.reducer.key([]))
        is_folded = all(generation.is_folded(name, version.id) for name, version in defined.lives.items())
        complete = is_folded and not generation.lost
        if state is None:
            return UnfitEvents(0, [], complete)
        first = [(seq, reason) for _, seq, reason in state.states["first"]]
        return UnfitEvents(state.states["count"], first, complete)

    def find_stream(self, defined: TableDefinition) -> Stream:
        """The stream of a table; raises SourceGone where it is not the one any more that its source is bound to."""
        if defined.binding is None:
            return super().find_stream(defined)
        stream = self._log.catalog.find(defined.stream)
        if stream is None or stream.head.state != LIVE or stream.incarnation != defined.binding.incarnation:
            message = f"the stream {defined.stream} was deleted, from whose events {defined.table} was computed"
            raise SourceGone(message, table=defined.table, stream=defined.stream)
        return stream

    def wanted(self, defined: TableDefinition, features: Sequence[str] | None) -> Sequence[str]:
        """The requested features; raises FeatureNotInTable for one that the table does not have."""
        if features is None:
            return defined.reducer.features
        for name in features:
            if name not in defined.lives:
                raise FeatureNotInTable(f"{defined.table} has no feature {name!r}", table=defined.table, feature=name)
        return features


def shapes_of(registry: StreamRegistry | None, defined: TableDefinition) -> EventShapes | BoundShapes:
    """Converts the stored events of a source into its newest shape, by the registry of their stream."""
    if defined.binding is not None:
        return defined.shapes(Registry.empty(defined.stream) if registry is None else registry.registry)
    event = source_of(registry).rules.event
    assert registry is not None, "an event source has a schema"
    return EventShapes(registry.registry, event)
