"""Requests to change a registry: the next schema, another routing key, another search configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace import decoding
from headrace.schema import pointer
from headrace.schema.canonical import same
from headrace.schema.change import Change, Classification
from headrace.schema.lens.document import MAX_POINTER_NAMES
from headrace.schema.problem import Problem
from headrace.schema.registry import API_VERSION, KeySetting

#: The parts of a search configuration that have members of their own.
_GROUPS = ("fields", "rollups", "aliases")


def routing_key_changes(old: KeySetting | None, new: KeySetting | None) -> Iterator[Change]:
    """How the routing key changes; events that are stored keep the keys they have."""
    if old == new:
        return
    what = "routing_key_set" if old is None else "routing_key_cleared" if new is None else "routing_key_changed"
    before, after = _describe_key(old), _describe_key(new)
    reason = f"events from here on are keyed by {after}, were by {before}; stored events keep their keys"
    yield Change("/routingKey", what, Classification.ADDITIVE, reason)


def routing_key_carried(old: KeySetting, new: KeySetting, *, lost: bool) -> Iterator[Change]:
    """How a routing key follows its data through a lens, and whether it is lost there."""
    if old != new:
        before, after = _describe_key(old), _describe_key(new)
        reason = f"events from here on are keyed by {after}: the routing key follows its data from {before}"
        yield Change("/routingKey", "routing_key_moved", Classification.ADDITIVE, reason)
    if lost:
        reason = f"no event has a routing key at {_describe_key(new)} any more; stored events keep their keys"
        yield Change("/routingKey", "routing_key_lost", Classification.DESTRUCTIVE, reason)


def _describe_key(key: KeySetting | None) -> str:
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
            yield from _compare_part(name, old.get(name), new.get(name))


def _compare_part(name: str, old: Any, new: Any) -> Iterator[Change]:
    if name not in _GROUPS:
        yield from _compare_member(("search", name), old, new)
        return
    before, after = old or {}, new or {}
    for inner in {**after, **before}:
        yield from _compare_member(("search", name, inner), before.get(inner), after.get(inner))


def _compare_member(path: pointer.Pointer, old: Any, new: Any) -> Iterator[Change]:
    where = ".".join(path)
    if same(old, new):
        return
    if old is None:
        yield Change(pointer.text(path), "search_added", Classification.ADDITIVE, f"{where} is new")
    elif new is None:
        reason = f"{where} is gone, and queries that need it are refused"
        yield Change(pointer.text(path), "search_removed", Classification.DESTRUCTIVE, reason)
    elif _only_gains(old, new):
        yield Change(pointer.text(path), "search_extended", Classification.WIDENING, f"{where} can do more than before")
    else:
        reason = f"{where} changes, and queries that need what it was may be refused or answered otherwise"
        yield Change(pointer.text(path), "search_changed", Classification.DESTRUCTIVE, reason)


def _only_gains(old: Any, new: Any) -> bool:
    """Whether the new value keeps every member and element of the old one."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _only_gains(old[name], new[name]) for name in old)
    if isinstance(old, list) and isinstance(new, list):
        return all(any(same(element, other) for other in new) for element in old)
    return same(old, new) or (old is False and new is True)


UNSET = msgspec.UNSET

_REGISTRY = "the registry is not written as a whole; send the next `schema`, and the `lens` that leads to it"
_ROUTING = 'the routing key is set with "routingKey": {"jsonPointer": …, "required": …}'
_INDEXES = "indexes are declared as fields of `search`"
_PROFILE = "this belongs to the profile of the stream, at _profile"
_REFUSED = {
    **dict.fromkeys(("schemas", "lenses", "currentVersion", "boundaries", "breaks"), _REGISTRY),
    **dict.fromkeys(("routing_key", "routingKeyPointer", "routing_key_pointer"), _ROUTING),
    **dict.fromkeys(("jsonPointer", "json_pointer", "required"), _ROUTING),
    **dict.fromkeys(("indexes", "index"), _INDEXES),
    **dict.fromkeys(("profile", "touch", "live", "kind"), _PROFILE),
}
MAX_NESTING = 128
_ACCEPTED = ("apiVersion", "schema", "lens", "routingKey", "search")


class SchemaUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A change request; what is unset stays as it is, and None clears.

    With ``first_on_data`` a first schema may be installed on stored events, if all of them fit.
    """

    schema: Any = UNSET
    lens: Any = UNSET
    routing_key: KeySetting | msgspec.UnsetType | None = UNSET
    search: Any = UNSET
    first_on_data: bool = False


def parse_update(body: Any) -> SchemaUpdate | list[Problem]:
    """Read a request body, or return every problem with it."""
    if not isinstance(body, dict):
        return [Problem("", "a schema update is an object with `schema`, `routingKey` or `search`")]
    if _is_nested_deeper(body, MAX_NESTING):
        return [Problem("", f"a schema update is nested at most {MAX_NESTING} deep")]
    problems = [
        *_key_problems(body),
        *_type_problems(body),
        *_routing_key_problems(body.get("routingKey")),
        *_combination_problems(body),
    ]
    if not problems and not body.keys() & {"schema", "routingKey", "search"}:
        problems.append(Problem("", "a schema update must include `schema`, `routingKey` or `search`"))
    return problems or SchemaUpdate(
        schema=body.get("schema", UNSET),
        lens=body.get("lens", UNSET),
        routing_key=_read_key(body["routingKey"]) if "routingKey" in body else UNSET,
        search=body.get("search", UNSET),
    )


def _is_nested_deeper(value: Any, depth: int) -> bool:
    """Whether containers are nested deeper than ``depth``."""
    level = [value]
    for _ in range(depth):
        containers = [element for element in level if isinstance(element, dict | list)]
        level = [
            inner for element in containers for inner in (element.values() if isinstance(element, dict) else element)
        ]
    return any(isinstance(element, dict | list) for element in level)


def _key_problems(body: dict[str, Any]) -> Iterator[Problem]:
    for name in body:
        if name not in _ACCEPTED:
            reason = _REFUSED.get(name, f"a schema update holds {', '.join(_ACCEPTED)} and nothing else")
            yield Problem(pointer.text((name,)), f"{name} is not supported: {reason}")


def _type_problems(body: dict[str, Any]) -> Iterator[Problem]:
    if body.get("apiVersion", API_VERSION) != API_VERSION:
        yield Problem("/apiVersion", f"apiVersion must be {API_VERSION}")
    if "schema" in body and not isinstance(body["schema"], dict | bool):
        yield Problem("/schema", "schema must be a JSON Schema: an object, true or false")
    if "lens" in body and not isinstance(body["lens"], dict):
        yield Problem("/lens", "lens must be an object; leave it out where none is needed")
    if "search" in body and not isinstance(body["search"], dict | None):
        yield Problem("/search", "search must be an object, or null to clear it")


def _routing_key_problems(setting: Any) -> Iterator[Problem]:
    if setting is None:
        return
    if not isinstance(setting, dict):
        yield Problem("/routingKey", "routingKey must be an object with jsonPointer and required, or null to clear it")
        return
    for name in setting:
        if name not in ("jsonPointer", "required"):
            yield Problem(pointer.text(("routingKey", name)), f"routingKey.{name} is not supported: {_ROUTING}")
    text = setting.get("jsonPointer")
    names = pointer.parse(text) if isinstance(text, str) else None
    if names is None or len(names) > MAX_POINTER_NAMES:
        reason = (
            f'routingKey.jsonPointer must be a JSON Pointer such as "/user/id", of at most {MAX_POINTER_NAMES} names'
        )
        yield Problem("/routingKey/jsonPointer", reason)
    if not isinstance(setting.get("required"), bool):
        yield Problem("/routingKey/required", "routingKey.required must be true or false")


def _combination_problems(body: dict[str, Any]) -> Iterator[Problem]:
    if "schema" in body:
        if "routingKey" in body and body["routingKey"] is None:
            yield Problem("/routingKey", "a routing key is cleared in an update of its own, without `schema`")
        return
    if "lens" in body:
        yield Problem("/lens", "missing schema: a lens leads to the `schema` it is sent with")
    if "routingKey" in body and "search" in body:
        yield Problem("", "missing schema: `routingKey` and `search` are set together only with a `schema`")


def _read_key(setting: Any) -> KeySetting | None:
    return None if setting is None else decoding.convert(setting, KeySetting)
