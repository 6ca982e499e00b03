"""Historical rows: for keys and moments, what a table would have answered then.

Replay begins with states that end before the first moment; from there on events are folded in order, for the requested
keys only. It uses the definitions of now, whenever they were registered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.format.state import State
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.bound_events import BoundShapes
from headrace.reduce.features.events import EventShapes
from headrace.reduce.features.table import KeyState
from headrace.reduce.states.coverage import Chain, history, merge_row
from headrace.reduce.states.definition import EventRun


class KeyMoment(NamedTuple):
    """A key at a moment."""

    key: bytes
    at_us: int


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
    usable = [state for state in states if state.end_seq <= until]
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


class Replay:
    """Folds events, and keeps the row of each key as it is at each requested moment."""

    def __init__(
        self,
        begun: ReplayStart,
        key_moments: Sequence[KeyMoment],
        features: Sequence[str],
        find: Callable[[State, bytes], Mapping[str, bytes] | None],
    ) -> None:
        self._parts = begun.parts
        self._features = features
        self._pending = sorted(enumerate(key_moments), key=lambda entry: entry[1].at_us, reverse=True)
        self.rows: list[dict[str, Any]] = [{} for _ in key_moments]
        self._held = [_read_states(part, {key_moment.key for key_moment in key_moments}, find) for part in begun.parts]

    def fold(self, shapes: EventShapes | BoundShapes, run: EventRun) -> bool:
        """Fold a run of events; returns whether a later moment is still requested."""
        for at, event in enumerate(shapes.events(run.body, run.version)):
            self._finish_before(run.times_us[at])
            if not self._pending:
                return False
            self._add(run.first_seq + at, run.times_us[at] // 1000, event)
        return True

    def finish(self) -> list[dict[str, Any]]:
        """The rows of all requested keys and moments, in the order of the request."""
        self._finish_before(None)
        return self.rows

    def _add(self, seq: int, at_ms: int, event: dict[str, Any] | None) -> None:
        for part, held in zip(self._parts, self._held, strict=True):
            if seq < part.start:
                continue
            reducer = part.defined.reducer
            placed = reducer.key_and_row(event)
            if placed is not None and placed[0] in held:
                held[placed[0]] = reducer.fold(held[placed[0]], at_ms, seq, placed[1])

    def _finish_before(self, before_us: int | None) -> None:
        """Finish the rows of all requested moments before this one, or of all that are left."""
        while self._pending and (before_us is None or self._pending[-1][1].at_us < before_us):
            number, key_moment = self._pending.pop()
            self.rows[number] = self._row(key_moment)

    def _row(self, key_moment: KeyMoment) -> dict[str, Any]:
        states = [held[key_moment.key] for held in self._held]
        return finish_row([part.defined for part in self._parts], states, key_moment, self._features)


def finish_row(
    parts: Sequence[TableDefinition], rows: Sequence[KeyState | None], key_moment: KeyMoment, features: Sequence[str]
) -> dict[str, Any]:
    """The row of a key at a moment, from parts that have different features; none where it was not seen."""
    seen = next((row for row in rows if row is not None), None)
    answers: dict[str, Any] = {}
    for defined, row in zip(parts, rows, strict=True):
        state = msgspec.structs.replace(seen, states={}) if row is None and seen is not None else row
        answers |= defined.reducer.finish(state, key_moment.at_us // 1000)
    return {name: answers[name] for name in features if name in answers}


def _read_states(
    part: StartGroup, keys: Iterable[bytes], find: Callable[[State, bytes], Mapping[str, bytes] | None]
) -> dict[bytes, KeyState | None]:
    """The rows that states hold of the requested keys."""
    reducer, version_ids = part.defined.reducer, {name: version.id for name, version in part.defined.lives.items()}
    return {key: merge_row(reducer, version_ids, [part.chain], lambda state, key=key: find(state, key)) for key in keys}  # type: ignore[misc]


#: States come before all events.
BEFORE = -(1 << 40)


class Question(msgspec.Struct, frozen=True):
    """Keys and moments, the features that are wanted, and the table as it was defined."""

    features: tuple[str, ...]
    requests: tuple[tuple[bytes, int], ...] = msgspec.field(name="asked")
    defined: TableDefinition

    def moments(self) -> dict[bytes, list[int]]:
        """The requested moments of each key, in order."""
        by_key: dict[bytes, list[int]] = {}
        for key, at_us in sorted(self.requests):
            by_key.setdefault(key, []).append(at_us)
        return by_key


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
    """What some events left of a key before one of its moments, packed; pieces of a part go by number and moment."""

    key: bytes
    part: int
    number: int
    moment: int
    packed: dict[str, bytes]


class PieceFolder:
    """Folds a run of events into pieces."""

    def __init__(self, question: Question, start_point: StartPoint) -> None:
        self._moments = question.moments()
        self._parts = [(part.start, question.defined.restricted(part.features).reducer) for part in start_point.parts]
        self._rows: dict[tuple[bytes, int, int], KeyState] = {}
        self._number: int | None = None

    def fold(self, shapes: EventShapes | BoundShapes, run: EventRun) -> None:
        """Fold a run of events."""
        self._number = run.first_seq if self._number is None else self._number
        for at, event in enumerate(shapes.events(run.body, run.version)):
            self._add(run.first_seq + at, run.times_us[at], event)

    def _add(self, seq: int, at_us: int, event: dict[str, Any] | None) -> None:
        for number, (start, reducer) in enumerate(self._parts):
            placed = reducer.key_and_row(event) if seq >= start else None
            moments = None if placed is None else self._moments.get(placed[0])
            if placed is None or moments is None or at_us > moments[-1]:
                continue
            mark = placed[0], number, bisect_left(moments, at_us)
            self._rows[mark] = reducer.fold(self._rows.get(mark), at_us // 1000, seq, placed[1])

    def packed(self) -> Iterator[Piece]:
        """Every piece."""
        for (key, part, moment), row in self._rows.items():
            yield Piece(key, part, self._number or 0, moment, self._parts[part][1].pack(row))


def answer_moments(
    question: Question, start_point: StartPoint, key: bytes, pieces: Sequence[Piece]
) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a key at its moments, given its pieces in order, with their positions in the request."""
    defined = [question.defined.restricted(part.features) for part in start_point.parts]
    numbered_moments = sorted((at_us, index) for index, (own, at_us) in enumerate(question.requests) if own == key)
    along = [
        _states_at_moments(table, len(numbered_moments), [piece for piece in pieces if piece.part == number])
        for number, table in enumerate(defined)
    ]
    rows = zip(*along, strict=True)
    return [
        (index, finish_row(defined, states, KeyMoment(key, at_us), question.features))
        for (at_us, index), states in zip(numbered_moments, rows, strict=True)
    ]


def _states_at_moments(defined: TableDefinition, moments: int, pieces: Iterable[Piece]) -> list[KeyState | None]:
    """The row of a key at each of its moments, None before its first event."""
    reducer, states, row = defined.reducer, list[KeyState | None](), None
    for piece in pieces:
        states += [row] * (piece.moment - len(states))
        part = reducer.unpack(piece.packed)
        row = part if row is None else reducer.merge(row, part)
    return states + [row] * (moments - len(states))
