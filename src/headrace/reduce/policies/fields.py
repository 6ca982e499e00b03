"""The fields of an entity under one configuration: what is held of each, and how more of it comes in.

A field is kept whether or not the schema still has it, so that one that comes back shows what it had. Once it was
corrected, nothing but corrections counts, and nothing else is held. So a state has one value for a field, or the
bounded values of merge_array, however many observations there were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.operators.reducer import Reducer
from headrace.reduce.policies.arrays import ArrayState, add_values, elements_of, merge_arrays, order_values, restore
from headrace.reduce.policies.order import (
    NO_PRIORITIES,
    Key,
    Origin,
    comes_first,
    last_write_key,
    origin_of,
    policy_key,
    ranks,
    uses_priorities,
)
from headrace.schema.entity.nodes import Field, ReducerConfig, Schema
from headrace.schema.entity.observation import Observation
from headrace.schema.entity.values import UNFIT, convert_value

#: The key of the best observation, what is kept of it, and its value.
Best = tuple[Key, Origin, Any]
Held = Best | ArrayState
Fields = dict[str, Held]

_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder().decode


class ShownField(msgspec.Struct, frozen=True):
    """The value of a field, and the observations that it is from; without any it is cleared."""

    value: Any
    origins: tuple[Origin, ...]
    truncated: bool = False


_CLEARED = ShownField(None, ())


class Policies(Reducer[Observation, Fields, bytes]):
    """A configuration of merge policies as a reducer of observations to the fields of an entity."""

    order = "any"

    def __init__(self, config: ReducerConfig) -> None:
        self.config = config
        ranked = ranks(config)
        policies = config.merge_policies.items()
        #: The priorities of sources by name; none where no policy looks at priorities.
        self.priorities = config.source_priorities if uses_priorities(config) else NO_PRIORITIES
        self.arrays = frozenset(name for name, policy in policies if policy.strategy == "merge_array")
        #: The orders of fields that are not taken from the latest write.
        self.keys: dict[str, Callable[[Origin], Key]] = {
            name: policy_key(policy, ranked) for name, policy in policies if policy.strategy != "last_write"
        }

    def fold(self, state: Fields | None, at: int, seq: int, row: Observation, matched: bool = True) -> Fields:
        """The fields with those of one more observation."""
        held = {} if state is None else state
        origin = origin_of(row, self.priorities)
        # Whatever the policies, corrections are ordered by time.
        usual, keys = last_write_key(origin), {} if origin.correction else self.keys
        for name, value in row.fields.items():
            key, best = usual, held.get(name)
            if keys and name in keys:
                if name in self.arrays:
                    if best is None or isinstance(best, ArrayState):
                        held[name] = add_values(best, origin, value)
                    continue
                key = keys[name](origin)
            if best is None or isinstance(best, ArrayState) or key < best[0] or _ties(key, origin, value, best):
                held[name] = (key, origin, value)
        return held

    def merge_both(self, left: Fields, right: Fields) -> Fields:
        """The fields of both."""
        merged = dict(left)
        for name, theirs in right.items():
            ours = merged.get(name)
            merged[name] = theirs if ours is None else _better(ours, theirs)
        return merged

    def finish(self, state: Fields | None, now: int = 0, schema: Schema | None = None) -> dict[str, ShownField]:
        """The fields that a schema has, in its order, or all of them by name where there is none; no cleared ones."""
        held = state or {}
        declared = None if schema is None else schema.schema_definition.fields
        shown_fields = {
            name: _show_field(held[name], name in self.arrays, None if declared is None else declared[name])
            for name in (sorted(held) if declared is None else declared)
            if name in held
        }
        return {name: shown for name, shown in shown_fields.items() if shown.origins}

    def pack(self, state: Fields) -> bytes:
        """The fields as JSON, which keeps numbers of any size: the observations, then fields that point to them."""
        numbers: dict[Origin, int] = {}
        rows: list[Any] = []
        for name in sorted(state):
            field_state = state[name]
            if isinstance(field_state, tuple):
                rows.append((name, numbers.setdefault(field_state[1], len(numbers)), field_state[2]))
            else:
                rows.append((name, *_pack_array(field_state, numbers)))
        return encode_fields(list(numbers), rows)

    def unpack(self, packed: bytes) -> Fields:
        """The fields that were packed."""
        packed_origins, rows = _DECODE(packed)
        origins = [Origin(*parts) for parts in packed_origins]
        held: Fields = {}
        for name, number, value, *more in rows:
            first = origins[number]
            if more:
                elements = [(origins[of], position, element) for of, position, element in value]
                held[name] = restore(first, elements, more[0])
            else:
                key = last_write_key if first.correction else self.keys.get(name, last_write_key)
                held[name] = (key(first), first, value)
        return held


def encode_fields(origins: Sequence[Origin], rows: Sequence[Any]) -> bytes:
    """Observations and fields as they are kept: a field is its name, the number of its observation and its value."""
    return _ENCODE((origins, rows))


def _pack_array(state: ArrayState, numbers: dict[Origin, int]) -> tuple[int, list[tuple[int, int, Any]], bool]:
    elements = order_values(state)
    first = numbers.setdefault(state.first, len(numbers))
    rows = [(numbers.setdefault(origin, len(numbers)), key[2], value) for key, origin, value in elements]
    return first, rows, state.dropped or len(state.elements) > len(elements)


def _ties(key: Key, origin: Origin, value: Any, best: Best) -> bool:
    """Whether an observation that is neither better nor worse than the one held is to be taken."""
    return key == best[0] and comes_first(origin, value, best[1], best[2])


def _better(ours: Held, theirs: Held) -> Held:
    """What is held of two; a single value beside many is a correction."""
    if isinstance(ours, ArrayState):
        return merge_arrays(ours, theirs) if isinstance(theirs, ArrayState) else theirs
    if isinstance(theirs, ArrayState):
        return ours
    return theirs if theirs[0] < ours[0] or _ties(*theirs, ours) else ours


def _show_field(held: Held, is_array: bool, field: Field | None) -> ShownField:
    if isinstance(held, ArrayState):
        return _show_array(held)
    _, origin, value = held
    if value is None:
        return _CLEARED
    if is_array:
        return ShownField(elements_of(value), (origin,))
    made = value if field is None else convert_value(field, value)
    return ShownField(value if made is UNFIT else made, (origin,))


def _show_array(held: ArrayState) -> ShownField:
    """All values; if there are none, their origin is the first observation."""
    elements = order_values(held)
    origins = tuple(dict.fromkeys(origin for _, origin, _ in elements)) or (held.first,)
    truncated = held.dropped or len(held.elements) > len(elements)
    return ShownField([value for _, _, value in elements], origins, truncated)
