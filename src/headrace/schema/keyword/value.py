"""Changes of the keywords that speak of a value as a whole: its type, the values it may take, its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from headrace.schema.change import Change, Classification
from headrace.schema.equality import same
from headrace.schema.keyword.finding import Node, Place, shown
from headrace.schema.shape.canonical import value_text

LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
#: A value must pass each of these on its own, so taking one away allows more.
CONSTRAINTS = ("pattern", "format", "uniqueItems", "multipleOf", "not", "propertyNames")

_EVERY_TYPE = ("null", "boolean", "number", "string", "array", "object")
_FLOORS = {"minLength": 0, "minItems": 0, "minProperties": 0}


def types(old: Node, new: Node, place: Place) -> Iterator[Change]:
    """How the types that a value may have change."""
    before, after = _types(old), _types(new)
    keeps, gains = _within(before, after), not _within(after, before)
    if keeps and not gains:
        return
    words = f"from {_listed(old)} to {_listed(new)}"
    if keeps:
        yield place.change("type_widened", Classification.WIDENING, f"the type widens {words}", "type")
        return
    what, verb = ("type_changed", "changes") if gains else ("type_narrowed", "narrows")
    remedy = "a lens operation `convert` may carry the values"
    yield place.change(what, Classification.DESTRUCTIVE, f"the type {verb} {words}", "type", remedy=remedy)


def choices(old: Node, new: Node, place: Place) -> Iterator[Change]:
    """How the list of values that a value may take changes."""
    before, after = _choices(old), _choices(new)
    keyword = "const" if "const" in new or ("const" in old and "enum" not in new) else "enum"
    if before is None and after is not None:
        reason = f"may now only be {_alternatives(after)}"
        yield place.change("enum_added", Classification.DESTRUCTIVE, reason, keyword)
    elif before is not None and after is None:
        reason = f"was {_alternatives(before)}, and may now be another value"
        yield place.change("enum_removed", Classification.WIDENING, reason, keyword)
    elif before is not None and after is not None:
        yield from _choices_moved(before, after, place, keyword)


def _choices_moved(before: list[Any], after: list[Any], place: Place, keyword: str) -> Iterator[Change]:
    added, removed = _without(after, before), _without(before, after)
    if added:
        reason = f"may now also be {_alternatives(added)}"
        yield place.change("enum_values_added", Classification.WIDENING, reason, keyword)
    if removed:
        remedy = "a lens operation `convert` with a table can map them"
        reason = f"may no longer be {_alternatives(removed)}"
        yield place.change("enum_values_removed", Classification.DESTRUCTIVE, reason, keyword, remedy=remedy)


def bounds(old: Node, new: Node, place: Place) -> Iterator[Change]:
    """How limits on numbers, lengths and counts move."""
    for keyword in (*LOWER, *UPPER):
        before, after = (node.get(keyword, _FLOORS.get(keyword)) for node in (old, new))
        if isinstance(before, bool) or isinstance(after, bool):
            if not same(before, after):
                yield place.changed(keyword, old, new)
        elif before != after:
            yield _bound(keyword, before, after, place)


def _bound(keyword: str, before: Any, after: Any, place: Place) -> Change:
    upwards = before is not None and after is not None and after > before
    loosened = after is None or (before is not None and upwards == (keyword in UPPER))
    words = f"from {'none' if before is None else before} to {'none' if after is None else after}"
    if loosened:
        return place.change("bound_loosened", Classification.WIDENING, f"{keyword} loosens {words}", keyword)
    return place.change("bound_tightened", Classification.DESTRUCTIVE, f"{keyword} tightens {words}", keyword)


def constraints(old: Node, new: Node, place: Place) -> Iterator[Change]:
    """How the rules change that a value must pass each on its own."""
    for keyword in CONSTRAINTS:
        before, after = _demand(keyword, old), _demand(keyword, new)
        if same(before, after):
            continue
        if after is None:
            reason = f"{keyword} {shown(before)} is no longer demanded"
            yield place.change("constraint_removed", Classification.WIDENING, reason, keyword)
        elif before is None:
            reason = f"{keyword} {shown(after)} is now demanded"
            yield place.change("constraint_added", Classification.DESTRUCTIVE, reason, keyword)
        elif keyword == "multipleOf" and _divides(after, before):
            reason = f"multipleOf loosens from {before} to {after}"
            yield place.change("bound_loosened", Classification.WIDENING, reason, keyword)
        else:
            yield place.changed(keyword, old, new)


def _demand(keyword: str, node: Node) -> Any:
    """What a keyword demands, None where it demands nothing."""
    value = node.get(keyword)
    return None if keyword == "uniqueItems" and value is False else value


def _divides(part: Any, whole: Any) -> bool:
    return Fraction(str(whole)) % Fraction(str(part)) == 0


def _types(node: Node) -> set[str]:
    named = node.get("type", _EVERY_TYPE)
    return {named} if isinstance(named, str) else set(named)


def _within(inner: set[str], outer: set[str]) -> bool:
    return all(name in outer or (name == "integer" and "number" in outer) for name in inner)


def _listed(node: Node) -> str:
    return " or ".join(sorted(_types(node))) if "type" in node else "any type"


def _choices(node: Node) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    return node.get("enum")


def _without(values: list[Any], others: list[Any]) -> list[Any]:
    texts = {value_text(other) for other in others}
    return [value for value in values if value_text(value) not in texts]


def _alternatives(values: list[Any]) -> str:
    return shown(values[0]) if len(values) == 1 else f"one of {shown(values)}"
