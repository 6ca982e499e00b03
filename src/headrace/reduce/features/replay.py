"""Historical rows: for keys and moments, what a table would have answered then.

Replay begins with states that end before the first moment; from there on events are folded, for the requested keys
only. Over a source with event time it begins with the first event that is there: a state holds events of any time. It
uses the definitions of now, whenever they were registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from headrace.format.state import State
from headrace.reduce.features.bound_events import BoundShapes
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.event_time import UNFIT_MS, EventTime
from headrace.reduce.features.events import EventShapes
from headrace.reduce.features.moments import KeyMoment, KeyMoments, Question
from headrace.reduce.features.table import KeyState
from headrace.reduce.states.coverage import Chain, history, merge_row
from headrace.reduce.states.definition import EventRun


class StartGroup(NamedTuple):
    """Features of a table whose states end at the same event, where folding goes on."""

    defined: TableDefinition
    chain: Chain
    start: int


class ReplayStart(NamedTuple):
    """Where to begin for every feature, and whether its events are complete since its first one."""

    parts: tuple[StartGroup, ...]
    complete: bool

    @property
    def start(self) -> int:
        """The first event to fold."""
        return min(part.start for part in self.parts)

    @property
    def states(self) -> list[State]:
        """Every state that is read, once."""
        return list({state.name: state for part in self.parts for state in part.chain.states}.values())

    @property
    def since(self) -> int:
        """The first event that the rows cover."""
        return min(part.chain.states[0].first_seq if part.chain.states else part.start for part in self.parts)


def find_start(
    defined: TableDefinition, features: Iterable[str], states: Iterable[State], first_seq: int, until: int
) -> ReplayStart:
    """Begin with states that hold nothing from an event on; events before ``first_seq`` are not retained."""
    has_event_time = defined.event.timestamp_field is not None
    usable = [] if has_event_time else [state for state in states if state.end_seq <= until]
    together: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    chains: dict[str, list[State]] = {}
    complete = True
    for name in sorted(features):
        version = defined.lives[name]
        chains[name], end = history(version, usable, min(first_seq, version.birth))
        complete = complete and (end >= first_seq or version.birth >= first_seq)
        start = max(end, first_seq)
        together.setdefault((start, tuple(state.name for state in chains[name])), []).append(name)
    parts = [
        StartGroup(defined.restricted(names), Chain(tuple(names), tuple(chains[names[0]])), start)
        for (start, _), names in together.items()
    ]
    return ReplayStart(tuple(parts), complete)


class PastRow(NamedTuple):
    """The features of a key at a moment, and how many events until then came too late to count."""

    features: dict[str, Any]
    late_events: int


def split_rows(rows: Sequence[PastRow]) -> tuple[list[dict[str, Any]], Sequence[int]]:
    """The features of rows, and the number of late events of each; empty where there are none."""
    late_events = [row.late_events for row in rows]
    return [row.features for row in rows], late_events if any(late_events) else ()


#: The name of the number of late events in a row of a worker's result; no feature has it.
_LATE_EVENTS = ""


def result_row(row: PastRow) -> dict[str, Any]:
    """A row as a worker returns it."""
    return {**row.features, _LATE_EVENTS: row.late_events} if row.late_events else row.features


def read_result_row(row: dict[str, Any]) -> PastRow:
    """Read back a row that a worker returned."""
    features = dict(row)
    return PastRow(features, features.pop(_LATE_EVENTS, 0))


class MomentFolder:
    """Folds events into a state of each key for each slot of its moments, and part of the features."""

    def __init__(self, question: Question, parts: Sequence[tuple[int, TableDefinition]]) -> None:
        """A part has features, and folds events from a first one on."""
        self._parts = [(start, defined.reducer) for start, defined in parts]
        self._moments, self._last_us = question.moments, question.last_limit_us()
        #: The states by key, part and slot.
        self.states: dict[tuple[bytes, int, int], KeyState] = {}

    def fold(self, shapes: EventShapes | BoundShapes, run: EventRun) -> bool:
        """Fold a run of events; returns whether later ones may count."""
        if run.times_us[0] > self._last_us:
            return False
        for at, event in enumerate(shapes.events(run.body, run.version)):
            if event is not None:
                self._add(run.first_seq + at, run.times_us[at], event, shapes.event_time)
        return True

    def _add(self, seq: int, append_us: int, event: dict[str, Any], event_time: EventTime | None) -> None:
        for number, (start, reducer) in enumerate(self._parts):
            placed = reducer.key_and_row(event) if seq >= start else None
            moments = None if placed is None else self._moments.get(placed[0])
            if placed is None or moments is None:
                continue
            event_us, at_ms = append_us, append_us // 1000
            if event_time is not None:
                event_us, at_ms = event_time.micros(event) or 0, event_time.folded_ms(event, append_us)
                if at_ms == UNFIT_MS:
                    return
            for slot in moments.slots(event_us, append_us):
                mark = placed[0], number, slot
                self.states[mark] = reducer.fold(self.states.get(mark), at_ms, seq, placed[1])


class Replay:
    """Folds events after the states that a replay begins with, into rows of keys at the requested moments."""

    def __init__(
        self, begun: ReplayStart, question: Question, find: Callable[[State, bytes], Mapping[str, bytes] | None]
    ) -> None:
        self._question = question
        self._parts = [part.defined for part in begun.parts]
        self._folder = MomentFolder(question, [(part.start, part.defined) for part in begun.parts])
        self.fold = self._folder.fold
        for number, part in enumerate(begun.parts):
            # States end before the first moment, and there is one chain where there are states.
            for key, state in _read_states(part, question.moments, find):
                self._folder.states[key, number, 0] = state

    def finish(self) -> list[PastRow]:
        """The rows of all requested keys and moments, in the order of the request."""
        rows = [PastRow({}, 0) for _ in self._question.requests]
        states = self._folder.states
        for key, moments in self._question.moments.items():
            for position, row in _finish_rows(self._question, self._parts, moments, partial(_state, states, key)):
                rows[position] = row
        return rows


def _state(states: Mapping[tuple[bytes, int, int], KeyState], key: bytes, part: int, slot: int) -> KeyState | None:
    return states.get((key, part, slot))


def _finish_rows(
    question: Question,
    parts: Sequence[TableDefinition],
    moments: KeyMoments,
    find: Callable[[int, int], KeyState | None],
) -> Iterator[tuple[int, PastRow]]:
    """The rows of a key with their positions in the request, from the state of each part and slot."""
    for chain in moments.chains:
        states: list[KeyState | None] = [None] * len(parts)
        for slot, positions in enumerate(chain.positions, chain.first_slot):
            states = [
                part.reducer.merge(state, find(number, slot))
                for number, (part, state) in enumerate(zip(parts, states, strict=True))
            ]
            late_events = max((state.late for state in states if state is not None), default=0)
            for position in positions:
                features = finish_row(parts, states, question.requests[position], question.features)
                yield position, PastRow(features, late_events)


def finish_row(
    parts: Sequence[TableDefinition], rows: Sequence[KeyState | None], key_moment: KeyMoment, features: Sequence[str]
) -> dict[str, Any]:
    """The row of a key at a moment, from parts that have different features; none where it was not seen."""
    seen = next((row for row in rows if row is not None and row.is_seen), None)
    answers: dict[str, Any] = {}
    for defined, row in zip(parts, rows, strict=True):
        is_seen = row is not None and row.is_seen
        state = msgspec.structs.replace(seen, states={}) if seen is not None and not is_seen else row
        answers |= defined.reducer.finish(state, key_moment.at_us // 1000)
    return {name: answers[name] for name in features if name in answers}


def _read_states(
    part: StartGroup, keys: Iterable[bytes], find: Callable[[State, bytes], Mapping[str, bytes] | None]
) -> Iterator[tuple[bytes, KeyState]]:
    """The rows that states hold of the requested keys."""
    reducer, version_ids = part.defined.reducer, {name: version.id for name, version in part.defined.lives.items()}
    for key in keys if part.chain.states else ():
        state = merge_row(reducer, version_ids, [part.chain], lambda state, key=key: find(state, key))  # type: ignore[misc]
        if state is not None:
            yield key, state


#: States come before all events.
BEFORE = -(1 << 40)


class StartPart(msgspec.Struct, frozen=True):
    """Features that begin with the same states, and the first event to fold after them."""

    features: tuple[str, ...]
    start: int
    states: tuple[str, ...]


class StartPoint(msgspec.Struct, frozen=True):
    """Where to begin, whether the events of the features are complete, and the first event that the rows cover."""

    parts: tuple[StartPart, ...]
    complete: bool
    since: int


class Piece(NamedTuple):
    """What states or a run of events have of a key for one slot of its moments, packed; numbers are in their order."""

    key: bytes
    part: int
    number: int
    slot: int
    packed: dict[str, bytes]


def fold_pieces(
    question: Question, start_point: StartPoint, shapes: EventShapes | BoundShapes, runs: Iterable[EventRun]
) -> Iterator[Piece]:
    """What runs of events, which follow each other, have of each key for its moments."""
    parts = _defined_parts(question, start_point)
    folder, number = MomentFolder(question, parts), None
    for run in runs:
        number = run.first_seq if number is None else number
        if not folder.fold(shapes, run):
            break
    for (key, part, slot), state in folder.states.items():
        yield Piece(key, part, number or 0, slot, parts[part][1].reducer.pack(state))


def answer_moments(
    question: Question, start_point: StartPoint, key: bytes, pieces: Iterable[Piece]
) -> list[tuple[int, PastRow]]:
    """The rows of a key at its moments, given its pieces in order, with their positions in the request."""
    parts = [defined for _, defined in _defined_parts(question, start_point)]
    states: dict[tuple[int, int], KeyState] = {}
    for piece in pieces:
        reducer, mark = parts[piece.part].reducer, (piece.part, piece.slot)
        state = reducer.unpack(piece.packed)
        states[mark] = reducer.merge_both(states[mark], state) if mark in states else state
    return list(_finish_rows(question, parts, question.moments[key], lambda *mark: states.get(mark)))


def _defined_parts(question: Question, start_point: StartPoint) -> list[tuple[int, TableDefinition]]:
    return [(part.start, question.defined.restricted(part.features)) for part in start_point.parts]
