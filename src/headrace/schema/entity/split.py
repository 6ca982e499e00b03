"""Split the members of an entity into fields that fit the schema and fragments that do not; nothing is lost.

The law: ``rejoin_fragments(fields, fragments)`` is exactly what was split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.schema.entity.nodes import Definition, Field, Type
from headrace.schema.entity.values import PLAIN, UNFIT, VALIDATORS, convert_value

Reason = Literal["unknown_field", "converted_value_original"]


class Fragment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value outside the fields: one that fits no field, or the original of one that was converted."""

    key: str
    value: Any
    reason: Reason
    converted_to: Type | None = None


class Split(NamedTuple):
    """The values that conform to the schema, an explicit null among them, and the others."""

    fields: dict[str, Any]
    fragments: tuple[Fragment, ...]


class Splitter:
    """A definition, compiled once to split many entities."""

    def __init__(self, definition: Definition) -> None:
        self._fields = definition.fields
        #: Of fields whose values need no second look: how Python has what fits them.
        self._plain = {
            name: PLAIN[field.type]
            for name, field in definition.fields.items()
            if field.type in PLAIN and field.validator is None
        }
        self._validators = {
            name: VALIDATORS[field.validator].accepts
            for name, field in definition.fields.items()
            if field.validator is not None
        }

    def split(self, members: Mapping[str, Any]) -> Split:
        """What fits, converted where that makes it fit, and the fragments."""
        fields: dict[str, Any] = {}
        fragments = []
        plain = self._plain
        for key, value in members.items():
            if type(value) is plain.get(key):
                fields[key] = value
                continue
            field = self._fields.get(key)
            made = UNFIT if field is None else value if value is None else self._convert(key, field, value)
            if made is UNFIT:
                fragments.append(Fragment(key, value, "unknown_field"))
                continue
            fields[key] = made
            if made is not value:
                fragments.append(Fragment(key, value, "converted_value_original", field.type if field else None))
        return Split(fields, tuple(fragments))

    def _convert(self, key: str, field: Field, value: Any) -> Any:
        """The value as the field holds it, or UNFIT."""
        made = convert_value(field, value)
        accepts = self._validators.get(key)
        return UNFIT if made is UNFIT or (accepts is not None and not accepts(made)) else made

    def complaint(self, fragment: Fragment) -> tuple[str, str]:
        """Why a value that was given is not among the fields: a code and a sentence."""
        field = self._fields.get(fragment.key)
        if field is None:
            return "UNKNOWN_FIELD", f"there is no field {fragment.key!r}; the value is kept as a fragment"
        if field.validator is None or convert_value(field, fragment.value) is UNFIT:
            return "UNKNOWN_FIELD", f"{fragment.key!r} takes a {field.type}; the value is kept as a fragment"
        wants = VALIDATORS[field.validator].wants
        return "VALIDATOR_FAILED", f"{fragment.key!r} takes {wants}; the value is kept as a fragment"


def rejoin_fragments(fields: Mapping[str, Any], fragments: Iterable[Fragment]) -> dict[str, Any]:
    """The members that were split into these fields and fragments."""
    return {**fields, **{fragment.key: fragment.value for fragment in fragments}}
