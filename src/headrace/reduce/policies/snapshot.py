"""An entity as it is shown: the fields of a schema, with the observations that each value is from.

Nothing here depends on the clock: a snapshot is as old as the latest observation in it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from headrace.reduce.policies.arrays import ArrayState, elements_of, order_values
from headrace.reduce.policies.fields import Fields, Held
from headrace.reduce.policies.order import Origin
from headrace.schema.entity.nodes import Field, Schema
from headrace.schema.entity.values import UNFIT, convert_value


class Snapshot(msgspec.Struct, frozen=True):
    """An entity at a moment; ``origins`` are the observations of each field, from which their sources are found."""

    snapshot: dict[str, Any]
    provenance: dict[str, str]
    origins: dict[str, tuple[Origin, ...]]
    schema_version: str
    computed_at_us: int
    last_observation_at_us: int
    observation_count: int
    #: Fields that had more values than are kept.
    truncated: tuple[str, ...] = ()


class _ShownField(msgspec.Struct, frozen=True):
    """The value of a field, and the observations that it is from; without any it is cleared."""

    value: Any
    origins: tuple[Origin, ...]
    truncated: bool = False


_CLEARED = _ShownField(None, ())


def finish_snapshot(
    held: Fields, arrays: Collection[str], count: int, newest: tuple[int, str, str], schema: Schema | None
) -> Snapshot:
    """The fields that a schema has, in its order, or all of them by name where there is none."""
    declared = None if schema is None else schema.schema_definition.fields
    shown_fields: dict[str, _ShownField] = {}
    for name in sorted(held) if declared is None else declared:
        if name in held:
            shown = _show_field(held[name], name in arrays, None if declared is None else declared[name])
            if shown.origins:
                shown_fields[name] = shown
    return Snapshot(
        {name: shown.value for name, shown in shown_fields.items()},
        {name: ",".join(origin.id for origin in shown.origins) for name, shown in shown_fields.items()},
        {name: shown.origins for name, shown in shown_fields.items()},
        newest[2] if schema is None else schema.schema_version,
        -newest[0],
        -newest[0],
        count,
        tuple(name for name, shown in shown_fields.items() if shown.truncated),
    )


def _show_field(held: Held, is_array: bool, field: Field | None) -> _ShownField:
    if isinstance(held, ArrayState):
        return _show_array(held)
    _, origin, value = held
    if value is None:
        return _CLEARED
    if is_array:
        return _ShownField(elements_of(value), (origin,))
    made = value if field is None else convert_value(field, value)
    return _ShownField(value if made is UNFIT else made, (origin,))


def _show_array(held: ArrayState) -> _ShownField:
    """All values; where there is none, the first observation says so."""
    elements = order_values(held)
    origins = tuple(dict.fromkeys(origin for _, origin, _ in elements)) or (held.first,)
    truncated = held.dropped or len(held.elements) > len(elements)
    return _ShownField([value for _, _, value in elements], origins, truncated)
