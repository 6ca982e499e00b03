"""Changes of the keywords that speak of what is inside a value: members of objects, elements of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.schema.change import Change, Classification
from headrace.schema.equality import same
from headrace.schema.keyword.finding import Finding, Node, Pair, Place, shown
from headrace.schema.shape.canonical import value_text

EVERY_OTHER = "*"
#: How the reason begins why a member that every event must hold from now on may break older ones.
NEW_AND_REQUIRED = "is new and required"
NOW_REQUIRED = "is now required"
#: How the reason begins why a member that is not allowed any more may break older events, and how its remedy begins.
NO_LONGER_ALLOWED = "is no longer allowed as"
REMOVE_REMEDY = "a lens operation `remove`"


class _Members(NamedTuple):
    """What a schema says of the members of an object; ``others`` is None where patterns have a say as well."""

    declared: Node
    required: dict[str, None]
    others: Any


def _members(node: Node) -> _Members:
    contested = node.get("patternProperties") or "unevaluatedProperties" in node
    others = None if contested else node.get("additionalProperties", True)
    return _Members(node.get("properties", {}), dict.fromkeys(node.get("required", ())), others)


def properties(old: Node, new: Node, place: Place) -> Iterator[Finding]:
    """How the declared members change: compared, added, removed."""
    before, after = _members(old), _members(new)
    for name in after.declared:
        here = place.inside(name, "properties", name)
        if name in before.declared:
            yield Pair(before.declared[name], after.declared[name], here)
        else:
            yield _added(name, before, after, here)
    for name in before.declared:
        if name not in after.declared:
            yield _removed(name, before, after, place.inside(name, "properties", name))
    yield from _required(before, after, place)


def _added(name: str, before: _Members, after: _Members, place: Place) -> Change:
    if name in after.required and name not in before.required:
        reason = f"{NEW_AND_REQUIRED}, and events so far need not hold it"
        remedy = "a lens operation `add` can give it a value"
        return place.change("property_added", Classification.DESTRUCTIVE, reason, remedy=remedy)
    schema = after.declared[name]
    if before.others is False or schema is True or schema == {} or same(before.others, schema):
        return place.change("property_added", Classification.ADDITIVE, f"is new, as {shown(schema)}")
    reason = f"is new, as {shown(schema)}, but the schema was open: an event may hold any value under this name already"
    remedy = (
        "close the schema first (additionalProperties: false), "
        "or send a lens with an operation `remove` of it with optional: true"
    )
    return place.change("property_added", Classification.DESTRUCTIVE, reason, remedy=remedy)


def _removed(name: str, before: _Members, after: _Members, place: Place) -> Change:
    schema = before.declared[name]
    if after.others is True or same(after.others, schema):
        reason = f"is no longer described; was {shown(schema)}, events may still hold it"
        return place.change("property_removed", Classification.WIDENING, reason)
    reason = f"{NO_LONGER_ALLOWED} {shown(schema)}"
    how = "" if name in before.required else " with optional: true"
    remedy = f"{REMOVE_REMEDY}{how} takes it out of older events"
    return place.change("property_removed", Classification.DESTRUCTIVE, reason, remedy=remedy)


def _required(before: _Members, after: _Members, place: Place) -> Iterator[Change]:
    """Which members become required or optional; of one that is added or removed as a whole, enough has been said."""
    for name in after.required:
        if name not in before.required and (name in before.declared or name not in after.declared):
            reason = f"{NOW_REQUIRED}, and events so far need not hold it"
            yield place.inside(name).change("required_added", Classification.DESTRUCTIVE, reason, "required")
    for name in before.required:
        if name not in after.required and (name in after.declared or name not in before.declared):
            reason = "was required and is now optional"
            yield place.inside(name).change("required_removed", Classification.WIDENING, reason, "required")


def others(old: Node, new: Node, place: Place) -> Iterator[Finding]:
    """How the members change that no name declares."""
    yield from _patterns(old, new, place)
    keyword = "additionalProperties"
    before, after = old.get(keyword, True), new.get(keyword, True)
    if before is False and after is not False:
        reason = f"other members are now allowed, as {shown(after)}"
        yield place.change("additional_opened", Classification.WIDENING, reason, keyword)
    elif before is not False and after is False:
        reason = "other members are no longer allowed, and events so far may hold some"
        yield place.change("additional_closed", Classification.DESTRUCTIVE, reason, keyword)
    elif keyword in old or keyword in new:
        yield Pair(before, after, place.inside(EVERY_OTHER, keyword))


def _patterns(old: Node, new: Node, place: Place) -> Iterator[Finding]:
    keyword = "patternProperties"
    before, after = old.get(keyword, {}), new.get(keyword, {})
    if before.keys() == after.keys():
        for pattern in after:
            yield Pair(before[pattern], after[pattern], place.inside(EVERY_OTHER, keyword, pattern))
    else:
        yield place.changed(keyword, old, new)


def elements(old: Node, new: Node, place: Place) -> Iterator[Finding]:
    """How the elements of an array change."""
    yield from _positions("prefixItems", old.get("prefixItems", []), new.get("prefixItems", []), place)
    before, after = old.get("items", True), new.get("items", True)
    if isinstance(before, list) and isinstance(after, list):
        yield from _positions("items", before, after, place)
    elif isinstance(before, list) or isinstance(after, list):
        yield _items_changed("items", before, after, place)
    elif "items" in old or "items" in new:
        yield Pair(before, after, place.inside(EVERY_OTHER, "items"))


def _positions(keyword: str, before: list[Any], after: list[Any], place: Place) -> Iterator[Finding]:
    if len(before) != len(after):
        yield _items_changed(keyword, before, after, place)
        return
    for index, (left, right) in enumerate(zip(before, after, strict=True)):
        yield Pair(left, right, place.inside(str(index), keyword, str(index)))


def _items_changed(keyword: str, before: Any, after: Any, place: Place) -> Change:
    reason = f"the elements change from {shown(before)} to {shown(after)}"
    return place.change("items_changed", Classification.DESTRUCTIVE, reason, keyword)


def alternatives(old: Node, new: Node, place: Place) -> Iterator[Finding]:
    """How lists of whole schemas change, of which a value must pass any or all."""
    for keyword, harmless in (("anyOf", _only_gains), ("allOf", _only_loses)):
        before, after = old.get(keyword), new.get(keyword)
        if before is None and after is None:
            continue
        if before is not None and after is not None and len(before) == len(after):
            for index, (left, right) in enumerate(zip(before, after, strict=True)):
                yield Pair(left, right, place.beside(keyword, str(index)))
        elif harmless(before, after):
            reason = f"{keyword} allows more than before: {shown(before)} becomes {shown(after or [])}"
            yield place.change("alternatives_widened", Classification.WIDENING, reason, keyword)
        else:
            yield place.changed(keyword, old, new)


def _only_gains(before: list[Any] | None, after: list[Any] | None) -> bool:
    return after is None or (before is not None and _texts(before) <= _texts(after))


def _only_loses(before: list[Any] | None, after: list[Any] | None) -> bool:
    return after is None or (before is not None and _texts(after) <= _texts(before))


def _texts(schemas: list[Any]) -> set[str]:
    return {value_text(schema) for schema in schemas}
