"""What a change touches: the keys of a template, found from the row before and the row after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.profiles.state_protocol.keys import Key
from headrace.profiles.state_protocol.messages import DELETE, INSERT, Change
from headrace.profiles.state_protocol.settings import SKIP_BEFORE
from headrace.profiles.state_protocol.templates import Template

_MISSING: Any = object()


class NoBefore(Exception):
    """An update does not say what its row was before, and the stream's settings do not allow that."""


def touched(template: Template, change: Change, on_missing_before: str) -> set[Key] | None:
    """The keys that a change touches; None where they cannot be told, so that anything of the template may be."""
    operation = change.headers.operation
    if operation == INSERT:
        return _around(template, template.place(change.value))
    if not template.knows(change.old_value):
        return _without_before(template, change, on_missing_before)
    before = template.place(change.old_value)
    if operation == DELETE:
        return _around(template, before)
    after = template.place(change.value)
    if before is None or before != after:
        return _around(template, before) | _around(template, after)
    names = _changed(change.old_value, change.value, template.names)
    return {template.watch(before), *(template.projected(name, before) for name in names)}


def _around(template: Template, place: bytes | None) -> set[Key]:
    return set() if place is None else {template.watch(place), template.membership(place)}


def _without_before(template: Template, change: Change, on_missing_before: str) -> set[Key] | None:
    if change.headers.operation == DELETE or on_missing_before not in (SKIP_BEFORE, "error"):
        return None
    if on_missing_before == "error":
        raise NoBefore
    place = template.place(change.value)
    if place is None:
        return set()
    scalars = (name for name, value in change.value.items() if _is_scalar(value) and name not in template.names)
    return _around(template, place) | {template.projected(name, place) for name in scalars}


def _changed(before: dict[str, Any], after: dict[str, Any], apart_from: Iterable[str]) -> list[str]:
    """Fields whose values differ, where both are scalars."""
    found = []
    for name in before.keys() | after.keys():
        old, new = before.get(name, _MISSING), after.get(name, _MISSING)
        if name not in apart_from and _is_scalar(old) and _is_scalar(new) and not _same(old, new):
            found.append(name)
    return found


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _same(old: Any, new: Any) -> bool:
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)
