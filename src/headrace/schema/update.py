"""What a request asks of a registry: the next schema, another routing key, another search configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace import decoding
from headrace.schema import pointer
from headrace.schema.lens.document import LONGEST
from headrace.schema.problem import Problem
from headrace.schema.registry import API_VERSION, KeySetting

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


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """A change request; what is unset stays as it is, and None clears."""

    schema: Any = UNSET
    lens: Any = UNSET
    routing_key: KeySetting | msgspec.UnsetType | None = UNSET
    search: Any = UNSET


def parse_update(body: Any) -> Update | list[Problem]:
    """Read a request body, or say everything that is wrong with it."""
    if not isinstance(body, dict):
        return [Problem("", "a schema update is an object with `schema`, `routingKey` or `search`")]
    if _nested(body, MAX_NESTING):
        return [Problem("", f"a schema update is nested at most {MAX_NESTING} deep")]
    problems = [*_keys(body), *_kinds(body), *_routing_key(body.get("routingKey")), *_combination(body)]
    if not problems and not body.keys() & {"schema", "routingKey", "search"}:
        problems.append(Problem("", "a schema update must include `schema`, `routingKey` or `search`"))
    return problems or Update(
        schema=body.get("schema", UNSET),
        lens=body.get("lens", UNSET),
        routing_key=_key(body["routingKey"]) if "routingKey" in body else UNSET,
        search=body.get("search", UNSET),
    )


def _nested(value: Any, depth: int) -> bool:
    """Whether containers are nested deeper than so."""
    level = [value]
    for _ in range(depth):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, dict | list) for item in level)


def _keys(body: dict[str, Any]) -> Iterator[Problem]:
    for name in body:
        if name not in _ACCEPTED:
            reason = _REFUSED.get(name, f"a schema update holds {', '.join(_ACCEPTED)} and nothing else")
            yield Problem(pointer.text((name,)), f"{name} is not supported: {reason}")


def _kinds(body: dict[str, Any]) -> Iterator[Problem]:
    if body.get("apiVersion", API_VERSION) != API_VERSION:
        yield Problem("/apiVersion", f"apiVersion must be {API_VERSION}")
    if "schema" in body and not isinstance(body["schema"], dict | bool):
        yield Problem("/schema", "schema must be a JSON Schema: an object, true or false")
    if "lens" in body and not isinstance(body["lens"], dict):
        yield Problem("/lens", "lens must be an object; leave it out where none is needed")
    if "search" in body and not isinstance(body["search"], dict | None):
        yield Problem("/search", "search must be an object, or null to clear it")


def _routing_key(setting: Any) -> Iterator[Problem]:
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
    if names is None or len(names) > LONGEST:
        reason = f'routingKey.jsonPointer must be a JSON Pointer such as "/user/id", of at most {LONGEST} names'
        yield Problem("/routingKey/jsonPointer", reason)
    if not isinstance(setting.get("required"), bool):
        yield Problem("/routingKey/required", "routingKey.required must be true or false")


def _combination(body: dict[str, Any]) -> Iterator[Problem]:
    if "schema" in body:
        if "routingKey" in body and body["routingKey"] is None:
            yield Problem("/routingKey", "a routing key is cleared in an update of its own, without `schema`")
        return
    if "lens" in body:
        yield Problem("/lens", "missing schema: a lens leads to the `schema` it is sent with")
    if "routingKey" in body and "search" in body:
        yield Problem("", "missing schema: `routingKey` and `search` are set together only with a `schema`")


def _key(setting: Any) -> KeySetting | None:
    return None if setting is None else decoding.convert(setting, KeySetting)
