"""Changes of what a registry says beside its schemas: the routing key and the search configuration.

Here ``pointer`` leads into the registry document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.schema import pointer
from headrace.schema.change import Change, Classification
from headrace.schema.equality import same
from headrace.schema.registry import KeySetting

#: The parts of a search configuration that have members of their own.
_GROUPS = ("fields", "rollups", "aliases")


def routing_key_changes(old: KeySetting | None, new: KeySetting | None) -> Iterator[Change]:
    """How the routing key changes; events that are stored keep the keys they have."""
    if old == new:
        return
    what = "routing_key_set" if old is None else "routing_key_cleared" if new is None else "routing_key_changed"
    reason = f"events from here on are keyed by {_shown(new)}, were by {_shown(old)}; stored events keep their keys"
    yield Change("/routingKey", what, Classification.ADDITIVE, reason)


def routing_key_carried(old: KeySetting, new: KeySetting, *, lost: bool) -> Iterator[Change]:
    """How a routing key follows its data through a lens, and whether it is lost there."""
    if old != new:
        reason = f"events from here on are keyed by {_shown(new)}: the routing key follows its data from {_shown(old)}"
        yield Change("/routingKey", "routing_key_moved", Classification.ADDITIVE, reason)
    if lost:
        reason = f"no event has a routing key at {_shown(new)} any more; stored events keep their keys"
        yield Change("/routingKey", "routing_key_lost", Classification.DESTRUCTIVE, reason)


def _shown(key: KeySetting | None) -> str:
    if key is None:
        return "Stream-Key"
    return f"{key.pointer or 'the whole event'} ({'required' if key.required else 'optional'})"


def search_changes(old: Any, new: Any) -> Iterator[Change]:
    """How the search configuration changes; what only gains something breaks no query."""
    if same(old, new):
        return
    if old is None:
        yield Change("/search", "search_set", Classification.ADDITIVE, "events can be searched")
    elif new is None:
        reason = "events can no longer be searched, and queries are refused"
        yield Change("/search", "search_cleared", Classification.DESTRUCTIVE, reason)
    else:
        for name in {**new, **old}:
            yield from _part(name, old.get(name), new.get(name))


def _part(name: str, old: Any, new: Any) -> Iterator[Change]:
    if name not in _GROUPS:
        yield from _member(("search", name), old, new)
        return
    before, after = old or {}, new or {}
    for inner in {**after, **before}:
        yield from _member(("search", name, inner), before.get(inner), after.get(inner))


def _member(path: pointer.Pointer, old: Any, new: Any) -> Iterator[Change]:
    where = ".".join(path)
    if same(old, new):
        return
    if old is None:
        yield Change(pointer.text(path), "search_added", Classification.ADDITIVE, f"{where} is new")
    elif new is None:
        reason = f"{where} is gone, and queries that need it are refused"
        yield Change(pointer.text(path), "search_removed", Classification.DESTRUCTIVE, reason)
    elif _gains(old, new):
        yield Change(pointer.text(path), "search_extended", Classification.WIDENING, f"{where} can do more than before")
    else:
        reason = f"{where} changes, and queries that need what it was may be refused or answered otherwise"
        yield Change(pointer.text(path), "search_changed", Classification.DESTRUCTIVE, reason)


def _gains(old: Any, new: Any) -> bool:
    """Whether everything that was said is still said."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _gains(old[name], new[name]) for name in old)
    if isinstance(old, list) and isinstance(new, list):
        return all(any(same(item, other) for other in new) for item in old)
    return same(old, new) or (old is False and new is True)
