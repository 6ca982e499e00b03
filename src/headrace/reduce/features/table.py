"""A table as a reducer: events become rows with a key, rows fold into one state per key, ranges merge, moments finish.

An entity that is idle for longer than ``cold_after`` starts afresh with its next event; a global table has no
entities and never does. Whether an event starts afresh depends on the event before it, which may lie in another part.
So a state has a frame: the first and the last event of its range, and whether it started afresh within. Two parts
merge to the right one alone where that one did, or does so at the seam.

Late events of a source with event time are not folded, but counted. A key that has only late ones has an empty frame.

The frame of a packed state ends with the version of its format, and after it the number of late events if there are
any. Those of version 1 have none: states of operators held
fewer times and sequence numbers, and take those of the first event of their frame. Append time was their only time, so
what was folded earlier lies before that event, and what was folded later after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import KeyShapeMismatch
from headrace.format.state import VERSION
from headrace.operators.catalogue import make_operator
from headrace.operators.state_bytes import pack, unpack
from headrace.reduce.features.event_time import AHEAD_MS, LATE_MS
from headrace.reduce.features.keys import KeyEncoder
from headrace.reduce.features.rows import Rows, mentioned_names
from headrace.reduce.states.definition import KeyedReducer
from headrace.schema.descriptor.nodes import GREATEST, FeatureVersion
from headrace.schema.expression import compiled, parse

if TYPE_CHECKING:
    from headrace.schema.descriptor.validate import ResolvedTable

NEVER = float("inf")


class KeyState(msgspec.Struct, gc=False):
    """The state of one key: the frame of its events, and a state per feature; an absent one is that of no events.

    The frame has the least and the greatest sequence number and time; that of a key with only late events is `EMPTY`.
    """

    first_seq: int
    first_ms: int
    last_seq: int
    last_ms: int
    restarted: bool
    states: dict[str, Any]
    #: How many events came too late to be folded.
    late: int = 0

    @property
    def is_seen(self) -> bool:
        """Whether any event was folded."""
        return self.last_seq >= 0


#: The frame of a key without folded events.
EMPTY = (0, 0, -1, 0, False)
#: How many parts the frame of today's format has.
_FRAME_PARTS = 6


def pack_frame(frame: Sequence[Any], late: int = 0) -> bytes:
    """The frame of a state as it is stored; it has the parts of `EMPTY`."""
    return pack([*frame, VERSION, late] if late else [*frame, VERSION])


def end_of(version: FeatureVersion) -> int:
    """The event before which a version of a feature ends."""
    return GREATEST if version.end is None else version.end


class TableReducer(KeyedReducer[dict[str, Any], KeyState]):
    """The features of one table as a reducer over its root event stream."""

    def __init__(
        self,
        resolved: ResolvedTable,
        feature_versions: Mapping[str, FeatureVersion],
        cold: Sequence[tuple[int, int | None]] = (),
    ) -> None:
        table = resolved.table
        self.name = table.name
        self.features = tuple(table.features)
        #: Whether events are folded by a time of their own, in any order, up to a minute ahead of now.
        self.has_event_time = resolved.root.timestamp_field is not None
        ahead_ms = AHEAD_MS if self.has_event_time else 0
        seen = mentioned_names(resolved)
        self.rows = Rows(resolved.root.schema, resolved.ops, seen)
        self.keys = KeyEncoder(table.key, resolved.key_types)
        self.operators = {
            name: make_operator(feature.op, feature.params, resolved.types, ahead_ms)
            for name, feature in table.features.items()
        }
        self.feature_versions = {name: feature_versions[name] for name in table.features}
        #: The types of the fields of events that are seen, the steps from events to rows, and the types after them.
        self.source_types = {name: field.type for name, field in resolved.root.schema.items() if name in seen}
        self.ops, self.types = resolved.ops, resolved.types
        #: Which rows count for a feature; without an entry all do.
        self.where_texts: dict[str, str] = {
            name: text for name, feature in table.features.items() if (text := feature.params.get("where")) is not None
        }
        self.wheres = {name: compiled(parse(text), resolved.types) for name, text in self.where_texts.items()}
        self._folds = [
            (name, feature_versions[name].birth, end_of(feature_versions[name]), self.wheres.get(name), reducer.fold)
            for name, reducer in self.operators.items()
        ]
        #: How long an entity may be idle, None for ever, from each sequence number on.
        self.cold = sorted(cold, key=lambda step: step[0]) if table.key else []

    def key_and_row(self, event: dict[str, Any] | None) -> tuple[bytes, dict[str, Any]] | None:
        """The key and the row of an event; None where it is unfit or filtered out, or a part of its key is null."""
        row = None if event is None else self.rows.of(event)
        if row is None or (key := self.keys.of(row)) is None:
            return None
        return key, row

    def fold(self, state: KeyState | None, at: int, seq: int, row: dict[str, Any], matched: bool = True) -> KeyState:
        """The state with one more row; a late one, whose time is `LATE_MS`, is counted and does nothing else."""
        if at == LATE_MS:
            state = KeyState(*EMPTY, {}) if state is None else state
            state.late += 1
            return state
        if state is None:
            state = KeyState(seq, at, seq, at, False, {})
        elif self.has_event_time:
            _widen_frame(state, seq, at)
        else:
            if self.cold and at - state.last_ms > self._cold_after(seq):
                state.states = {}
                state.restarted = True
            state.last_seq = seq
            state.last_ms = at
        states = state.states
        for name, start_seq, end_seq, where, fold in self._folds:
            if start_seq <= seq < end_seq:
                held = states.get(name)
                folded = fold(held, at, seq, row, where is None or where(row) is True)
                if folded is not held:
                    states[name] = folded
        return state

    def merge_both(self, left: KeyState, right: KeyState) -> KeyState:
        """The state of two adjacent ranges, the earlier one first; with event time, of any two sets of events."""
        late = left.late + right.late
        if not left.is_seen or not right.is_seen:
            return msgspec.structs.replace(right if right.is_seen else left, late=late)
        afresh = right.restarted or right.first_ms - left.last_ms > self._cold_after(right.first_seq)
        if afresh:
            states = dict(right.states)
        else:
            ours, theirs = left.states, right.states
            states = {
                name: reducer.merge(ours.get(name), theirs.get(name))
                for name, reducer in self.operators.items()
                if name in ours or name in theirs
            }
        restarted = left.restarted or afresh
        first_seq, last_seq = min(left.first_seq, right.first_seq), max(left.last_seq, right.last_seq)
        first_ms, last_ms = min(left.first_ms, right.first_ms), max(left.last_ms, right.last_ms)
        return KeyState(first_seq, first_ms, last_seq, last_ms, restarted, states, late)

    def finish(self, state: KeyState | None, now: int = 0, wanted: Sequence[str] | None = None) -> dict[str, Any]:
        """The features of a key at a moment; none at all of a key that is unseen or has gone cold."""
        if state is None or not state.is_seen or self._is_cold(state, now):
            return {}
        states = state.states
        names = self.features if wanted is None else wanted
        return {name: self.operators[name].finish(states.get(name), now) for name in names}

    def blank(self, now_ms: int, wanted: Sequence[str]) -> dict[str, Any]:
        """The features of a key that no event has had since they began."""
        return {name: self.operators[name].finish(None, now_ms) for name in wanted}

    def pack(self, state: KeyState) -> dict[str, bytes]:
        """The frame under the empty name, and the state of every feature version that has one."""
        frame = state.first_seq, state.first_ms, state.last_seq, state.last_ms, state.restarted
        packed = {"": pack_frame(frame, state.late)}
        for name, held in state.states.items():
            if held is not None:
                packed[self.feature_versions[name].id] = pack(held)
        return packed

    def unpack(self, packed: Mapping[str, bytes]) -> KeyState:
        """Restore a packed state; absent feature versions are empty, unknown ones are ignored."""
        states = {
            name: unpack(packed[version.id]) for name, version in self.feature_versions.items() if version.id in packed
        }
        first_seq, first_ms, last_seq, last_ms, restarted, *rest = unpack(packed[""])
        if not rest:
            states = {
                name: self.operators[name].from_version_1(state, first_ms, first_seq) for name, state in states.items()
            }
        return KeyState(first_seq, first_ms, last_seq, last_ms, restarted, states, rest[1] if len(rest) > 1 else 0)

    def renew(self, packed: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """A packed state, in today's format if it has an earlier one."""
        return packed if len(unpack(packed[""])) >= _FRAME_PARTS else self.pack(self.unpack(packed))

    def key(self, caller_key: Any) -> bytes:
        """The key that a caller gives: an array, or a scalar where it has one part; "" is the key of a global table."""
        key = self.keys.from_caller(caller_key)
        if key is None:
            raise KeyShapeMismatch(f"the key must be {self.keys.shape()}", table=self.name, key=caller_key)
        return key

    def may_restart(self, first_seq: int, end_seq: int) -> bool:
        """Whether one of these events may start an entity afresh."""
        ends = [since for since, _ in self.cold[1:]]
        steps = zip(self.cold, [*ends, end_seq], strict=False)
        return any(after is not None and since < end_seq and end > first_seq for (since, after), end in steps)

    def _cold_after(self, seq: int) -> float:
        """How long an entity may be idle before the event with this number, ms."""
        at = bisect_right(self.cold, seq, key=lambda step: step[0])
        after = self.cold[at - 1][1] if at else None
        return NEVER if after is None else after

    def _is_cold(self, state: KeyState, now_ms: int) -> bool:
        """Whether it has been idle for too long by the rule of its last event, and the newest one would restart it."""
        if not self.cold:
            return False
        newest = self.cold[-1][1]
        allowed = max(self._cold_after(state.last_seq), NEVER if newest is None else newest)
        return now_ms - state.last_ms > allowed


def _widen_frame(state: KeyState, seq: int, at_ms: int) -> None:
    """Take an event of any time into the frame of a state; sequence numbers increase."""
    if not state.is_seen:
        state.first_seq, state.first_ms, state.last_ms = seq, at_ms, at_ms
    elif at_ms < state.first_ms:
        state.first_ms = at_ms
    elif at_ms > state.last_ms:
        state.last_ms = at_ms
    state.last_seq = seq
