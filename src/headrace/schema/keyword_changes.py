"""Rules that compare the keywords of two schemas: they find changes, and inner schemas to compare in turn."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from headrace.schema import pointer
from headrace.schema.canonical import same, value_text
from headrace.schema.change import Change, Classification
from headrace.schema.pointer import Pointer

Node = dict[str, Any]

_SHOWN_CHARACTERS = 80


class SchemaLocation(NamedTuple):
    """Where two schemas are compared: in the data, and in the schema document.

    With ``proven`` (every event that was valid stays valid) no change is breaking, whatever its rule says.
    """

    data: Pointer = ()
    schema: Pointer = ()
    proven: bool = False

    def inside(self, name: str, *steps: str) -> SchemaLocation:
        """The location of a member or element, whose schema is some steps further."""
        return self._replace(data=(*self.data, name), schema=(*self.schema, *steps))

    def beside(self, *steps: str) -> SchemaLocation:
        """The same location in the data, some steps further in the schema."""
        return self._replace(schema=(*self.schema, *steps))

    def change(self, what: str, classification: Classification, reason: str, *keyword: str, remedy: str = "") -> Change:
        """A change at this location, of a keyword where one is named; the sentence begins with the data pointer."""
        words = f"{pointer.text(self.data) or 'the event'}: {reason}"
        if classification.breaking and self.proven:
            classification = Classification.WIDENING
            words += " (harmless here: every event that was valid stays valid)"
        elif remedy:
            words += f"; {remedy}"
        return Change(pointer.text(self.data), what, classification, words, pointer.text((*self.schema, *keyword)))

    def changed(self, keyword: str, old: Node, new: Node) -> Change:
        """A change of a keyword that no rule classifies as harmless."""
        return self.change("keyword_changed", Classification.DESTRUCTIVE, describe_change(keyword, old, new), keyword)


class SchemaPair(NamedTuple):
    """Two schemas for the same location in the data."""

    old: Any
    new: Any
    location: SchemaLocation


Finding = Change | SchemaPair


def format_value(value: Any) -> str:
    """A value as JSON for a message, cut where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def describe_change(keyword: str, old: Node, new: Node) -> str:
    """A sentence about a keyword that has another value, or none on one side."""
    before, after = (format_value(node[keyword]) if keyword in node else "nothing" for node in (old, new))
    return f"{keyword} changes from {before} to {after}"


LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
#: A value must satisfy each of these on its own, so removing one allows more.
CONSTRAINTS = ("pattern", "format", "uniqueItems", "multipleOf", "not", "propertyNames")

_EVERY_TYPE = ("null", "boolean", "number", "string", "array", "object")
_FLOORS = {"minLength": 0, "minItems": 0, "minProperties": 0}


def compare_types(old: Node, new: Node, location: SchemaLocation) -> Iterator[Change]:
    """How the types that a value may have change."""
    before, after = _types(old), _types(new)
    keeps, gains = _are_included(before, after), not _are_included(after, before)
    if keeps and not gains:
        return
    words = f"from {_join_types(old)} to {_join_types(new)}"
    if keeps:
        yield location.change("type_widened", Classification.WIDENING, f"the type widens {words}", "type")
        return
    what, verb = ("type_changed", "changes") if gains else ("type_narrowed", "narrows")
    remedy = "a lens operation `convert` may carry the values"
    yield location.change(what, Classification.DESTRUCTIVE, f"the type {verb} {words}", "type", remedy=remedy)


def compare_choices(old: Node, new: Node, location: SchemaLocation) -> Iterator[Change]:
    """How the list of values that a value may take changes."""
    before, after = _choices(old), _choices(new)
    keyword = "const" if "const" in new or ("const" in old and "enum" not in new) else "enum"
    if before is None and after is not None:
        reason = f"may now only be {_alternatives(after)}"
        yield location.change("enum_added", Classification.DESTRUCTIVE, reason, keyword)
    elif before is not None and after is None:
        reason = f"was {_alternatives(before)}, and may now be another value"
        yield location.change("enum_removed", Classification.WIDENING, reason, keyword)
    elif before is not None and after is not None:
        yield from _compare_choice_lists(before, after, location, keyword)


def _compare_choice_lists(
    before: list[Any], after: list[Any], location: SchemaLocation, keyword: str
) -> Iterator[Change]:
    added, removed = _values_not_in(after, before), _values_not_in(before, after)
    if added:
        reason = f"may now also be {_alternatives(added)}"
        yield location.change("enum_values_added", Classification.WIDENING, reason, keyword)
    if removed:
        remedy = "a lens operation `convert` with a table can map them"
        reason = f"may no longer be {_alternatives(removed)}"
        yield location.change("enum_values_removed", Classification.DESTRUCTIVE, reason, keyword, remedy=remedy)


def compare_bounds(old: Node, new: Node, location: SchemaLocation) -> Iterator[Change]:
    """How limits on numbers, lengths and counts move."""
    for keyword in (*LOWER, *UPPER):
        before, after = (node.get(keyword, _FLOORS.get(keyword)) for node in (old, new))
        if isinstance(before, bool) or isinstance(after, bool):
            if not same(before, after):
                yield location.changed(keyword, old, new)
        elif before != after:
            yield _bound_change(keyword, before, after, location)


def _bound_change(keyword: str, before: Any, after: Any, location: SchemaLocation) -> Change:
    upwards = before is not None and after is not None and after > before
    loosened = after is None or (before is not None and upwards == (keyword in UPPER))
    words = f"from {'none' if before is None else before} to {'none' if after is None else after}"
    if loosened:
        return location.change("bound_loosened", Classification.WIDENING, f"{keyword} loosens {words}", keyword)
    return location.change("bound_tightened", Classification.DESTRUCTIVE, f"{keyword} tightens {words}", keyword)


def compare_constraints(old: Node, new: Node, location: SchemaLocation) -> Iterator[Change]:
    """How the rules change that a value must pass each on its own."""
    for keyword in CONSTRAINTS:
        before, after = _constraint(keyword, old), _constraint(keyword, new)
        if same(before, after):
            continue
        if after is None:
            reason = f"{keyword} {format_value(before)} is no longer demanded"
            yield location.change("constraint_removed", Classification.WIDENING, reason, keyword)
        elif before is None:
            reason = f"{keyword} {format_value(after)} is now demanded"
            yield location.change("constraint_added", Classification.DESTRUCTIVE, reason, keyword)
        elif keyword == "multipleOf" and _divides(after, before):
            reason = f"multipleOf loosens from {before} to {after}"
            yield location.change("bound_loosened", Classification.WIDENING, reason, keyword)
        else:
            yield location.changed(keyword, old, new)


def _constraint(keyword: str, node: Node) -> Any:
    """The value of a keyword, None where it constrains nothing."""
    value = node.get(keyword)
    return None if keyword == "uniqueItems" and value is False else value


def _divides(divisor: Any, dividend: Any) -> bool:
    return Fraction(str(dividend)) % Fraction(str(divisor)) == 0


def _types(node: Node) -> set[str]:
    named = node.get("type", _EVERY_TYPE)
    return {named} if isinstance(named, str) else set(named)


def _are_included(inner: set[str], outer: set[str]) -> bool:
    return all(name in outer or (name == "integer" and "number" in outer) for name in inner)


def _join_types(node: Node) -> str:
    return " or ".join(sorted(_types(node))) if "type" in node else "any type"


def _choices(node: Node) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    return node.get("enum")


def _values_not_in(values: list[Any], others: list[Any]) -> list[Any]:
    texts = {value_text(other) for other in others}
    return [value for value in values if value_text(value) not in texts]


def _alternatives(values: list[Any]) -> str:
    return format_value(values[0]) if len(values) == 1 else f"one of {format_value(values)}"


EVERY_OTHER = "*"
#: How the reason begins why a member that every event must hold from now on may break older ones.
NEW_AND_REQUIRED = "is new and required"
NOW_REQUIRED = "is now required"
#: How the reason begins why a member that is not allowed any more may break older events, and how its remedy begins.
NO_LONGER_ALLOWED = "is no longer allowed as"
REMOVE_REMEDY = "a lens operation `remove`"
#: How the reason begins why a member is no longer declared where others are allowed, and how it goes on.
NO_LONGER_DESCRIBED, MAY_STILL_HOLD = "is no longer described", ", events may still hold it"
#: How the reason goes on why a declared member may break older events where others were allowed.
WAS_OPEN = ", but the schema was open: an event may hold any value under this name already"


class _Members(NamedTuple):
    """The members of an object schema; ``others`` is None where patterns apply as well."""

    declared: Node
    required: dict[str, None]
    others: Any


def _members(node: Node) -> _Members:
    contested = node.get("patternProperties") or "unevaluatedProperties" in node
    others = None if contested else node.get("additionalProperties", True)
    return _Members(node.get("properties", {}), dict.fromkeys(node.get("required", ())), others)


def compare_properties(old: Node, new: Node, location: SchemaLocation) -> Iterator[Finding]:
    """How the declared members change: compared, added, removed."""
    before, after = _members(old), _members(new)
    for name in after.declared:
        here = location.inside(name, "properties", name)
        if name in before.declared:
            yield SchemaPair(before.declared[name], after.declared[name], here)
        else:
            yield _added_property(name, before, after, here)
    for name in before.declared:
        if name not in after.declared:
            yield _removed_property(name, before, after, location.inside(name, "properties", name))
    yield from _compare_required(before, after, location)


def _added_property(name: str, before: _Members, after: _Members, location: SchemaLocation) -> Change:
    if name in after.required and name not in before.required:
        reason = f"{NEW_AND_REQUIRED}, and events so far need not hold it"
        remedy = "a lens operation `add` can give it a value"
        return location.change("property_added", Classification.DESTRUCTIVE, reason, remedy=remedy)
    schema = after.declared[name]
    if before.others is False or schema is True or schema == {} or same(before.others, schema):
        return location.change("property_added", Classification.ADDITIVE, f"is new, as {format_value(schema)}")
    described = f"is new, as {format_value(schema)}"
    reason = f"{described}{WAS_OPEN}"
    remedy = (
        "close the schema first (additionalProperties: false), "
        "or send a lens with an operation `remove` of it with optional: true"
    )
    return location.change("property_added", Classification.DESTRUCTIVE, reason, remedy=remedy)


def _removed_property(name: str, before: _Members, after: _Members, location: SchemaLocation) -> Change:
    schema = before.declared[name]
    if after.others is True or same(after.others, schema):
        reason = f"{NO_LONGER_DESCRIBED}; was {format_value(schema)}{MAY_STILL_HOLD}"
        return location.change("property_removed", Classification.WIDENING, reason)
    reason = f"{NO_LONGER_ALLOWED} {format_value(schema)}"
    how = "" if name in before.required else " with optional: true"
    remedy = f"{REMOVE_REMEDY}{how} takes it out of older events"
    return location.change("property_removed", Classification.DESTRUCTIVE, reason, remedy=remedy)


def _compare_required(before: _Members, after: _Members, location: SchemaLocation) -> Iterator[Change]:
    """Which members become required or optional, except those added or removed as a whole."""
    for name in after.required:
        if name not in before.required and (name in before.declared or name not in after.declared):
            reason = f"{NOW_REQUIRED}, and events so far need not hold it"
            yield location.inside(name).change("required_added", Classification.DESTRUCTIVE, reason, "required")
    for name in before.required:
        if name not in after.required and (name in after.declared or name not in before.declared):
            reason = "was required and is now optional"
            yield location.inside(name).change("required_removed", Classification.WIDENING, reason, "required")


def compare_other_members(old: Node, new: Node, location: SchemaLocation) -> Iterator[Finding]:
    """How the members change that no name declares."""
    yield from _compare_patterns(old, new, location)
    keyword = "additionalProperties"
    before, after = old.get(keyword, True), new.get(keyword, True)
    if before is False and after is not False:
        reason = f"other members are now allowed, as {format_value(after)}"
        yield location.change("additional_opened", Classification.WIDENING, reason, keyword)
    elif before is not False and after is False:
        reason = "other members are no longer allowed, and events so far may hold some"
        yield location.change("additional_closed", Classification.DESTRUCTIVE, reason, keyword)
    elif keyword in old or keyword in new:
        yield SchemaPair(before, after, location.inside(EVERY_OTHER, keyword))


def _compare_patterns(old: Node, new: Node, location: SchemaLocation) -> Iterator[Finding]:
    keyword = "patternProperties"
    before, after = old.get(keyword, {}), new.get(keyword, {})
    if before.keys() == after.keys():
        for pattern in after:
            yield SchemaPair(before[pattern], after[pattern], location.inside(EVERY_OTHER, keyword, pattern))
    else:
        yield location.changed(keyword, old, new)


def compare_elements(old: Node, new: Node, location: SchemaLocation) -> Iterator[Finding]:
    """How the elements of an array change."""
    yield from _compare_positions("prefixItems", old.get("prefixItems", []), new.get("prefixItems", []), location)
    before, after = old.get("items", True), new.get("items", True)
    if isinstance(before, list) and isinstance(after, list):
        yield from _compare_positions("items", before, after, location)
    elif isinstance(before, list) or isinstance(after, list):
        yield _items_changed("items", before, after, location)
    elif "items" in old or "items" in new:
        yield SchemaPair(before, after, location.inside(EVERY_OTHER, "items"))


def _compare_positions(
    keyword: str, before: list[Any], after: list[Any], location: SchemaLocation
) -> Iterator[Finding]:
    if len(before) != len(after):
        yield _items_changed(keyword, before, after, location)
        return
    for index, (left, right) in enumerate(zip(before, after, strict=True)):
        yield SchemaPair(left, right, location.inside(str(index), keyword, str(index)))


def _items_changed(keyword: str, before: Any, after: Any, location: SchemaLocation) -> Change:
    reason = f"the elements change from {format_value(before)} to {format_value(after)}"
    return location.change("items_changed", Classification.DESTRUCTIVE, reason, keyword)


def compare_alternatives(old: Node, new: Node, location: SchemaLocation) -> Iterator[Finding]:
    """How lists of whole schemas change, of which a value must pass any or all."""
    for keyword, harmless in (("anyOf", _only_gains), ("allOf", _only_loses)):
        before, after = old.get(keyword), new.get(keyword)
        if before is None and after is None:
            continue
        if before is not None and after is not None and len(before) == len(after):
            for index, (left, right) in enumerate(zip(before, after, strict=True)):
                yield SchemaPair(left, right, location.beside(keyword, str(index)))
        elif harmless(before, after):
            reason = f"{keyword} allows more than before: {format_value(before)} becomes {format_value(after or [])}"
            yield location.change("alternatives_widened", Classification.WIDENING, reason, keyword)
        else:
            yield location.changed(keyword, old, new)


def _only_gains(before: list[Any] | None, after: list[Any] | None) -> bool:
    return after is None or (before is not None and _texts(before) <= _texts(after))


def _only_loses(before: list[Any] | None, after: list[Any] | None) -> bool:
    return after is None or (before is not None and _texts(after) <= _texts(before))


def _texts(schemas: list[Any]) -> set[str]:
    return {value_text(schema) for schema in schemas}
