"""The words in which the table of evolutions is written: short schemas, ops, and rows.

A verdict is PROVEN, or the rule that is not shown. Members whose name ends in ``?`` may be missing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Json = Any

PROVEN = "proven"


class Row(NamedTuple):
    """One evolution; ``doubt`` marks what holds, and is refused because it cannot be shown."""

    name: str
    old: Json
    new: Json
    ops: list[dict[str, Any]]
    verdict: str = PROVEN
    doubt: bool = False


def opened(members: dict[str, Json], **more: Json) -> Json:
    """An object that may hold other members too."""
    required = [name for name in members if not name.endswith("?")]
    properties = {name.removesuffix("?"): schema for name, schema in members.items()}
    return {"type": "object", "properties": properties, "required": required, **more}


def closed(members: dict[str, Json], **more: Json) -> Json:
    """An object that holds nothing else."""
    return opened(members, additionalProperties=False, **more)


def listed(items: Json, **more: Json) -> Json:
    return {"type": "array", "items": items, **more}


def one_of(*values: Json) -> Json:
    return {"enum": list(values)}


TEXT, WHOLE, NUMBER, TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
TIME = {"type": "string", "format": "date-time"}
MAYBE_TEXT = {"type": ["string", "null"]}
LEVELS = one_of("low", "high")


def move(source: str, target: str, **more: Json) -> dict[str, Any]:
    return {"op": "rename", "from": source, "to": target, **more}


def copy(source: str, target: str, **more: Json) -> dict[str, Any]:
    return {"op": "copy", "from": source, "to": target, **more}


def add(path: str, schema: Json, *default: Json, **more: Json) -> dict[str, Any]:
    return {"op": "add", "path": path, "schema": schema, **({"default": default[0]} if default else {}), **more}


def remove(path: str, **more: Json) -> dict[str, Any]:
    return {"op": "remove", "path": path, "schema": {}, **more}


def hoist(host: str, name: str, target: str, **more: Json) -> dict[str, Any]:
    return {"op": "hoist", "host": host, "name": name, "to": target, **more}


def plunge(source: str, host: str, name: str, **more: Json) -> dict[str, Any]:
    return {"op": "plunge", "from": source, "host": host, "name": name, **more}


def wrap(path: str, **more: Json) -> dict[str, Any]:
    return {"op": "wrap", "path": path, "mode": "singleton", **more}


def head(path: str, **more: Json) -> dict[str, Any]:
    return {"op": "head", "path": path, **more}


def convert(path: str, types: str, forward: Json, **more: Json) -> dict[str, Any]:
    """Types are ``from>to``; the way back plays no part in the proof."""
    from_type, to_type = types.split(">")
    transform = {"builtin": forward} if isinstance(forward, str) else forward
    facts = {"fromType": from_type, "toType": to_type, "forward": transform, "backward": {"map": {}}}
    return {"op": "convert", "path": path, **facts, **more}


def within(path: str, *ops: dict[str, Any], **more: Json) -> dict[str, Any]:
    return {"op": "in", "path": path, "ops": list(ops), **more}


def each(path: str, *ops: dict[str, Any], **more: Json) -> dict[str, Any]:
    return {"op": "map", "path": path, "ops": list(ops), **more}


TABLE = {"map": {"low": 1, "high": 2}}
OPTIONAL = {"optional": True}
TREE = closed({"v": TEXT, "kids": listed({"$ref": "#/$defs/node"})})
WIDER_TREE = closed({"v": TEXT, "kids": listed({"$ref": "#/$defs/node"}), "note?": TEXT})
SHAPES = [closed({"kind": {"const": "dot"}, "x": NUMBER}), closed({"kind": {"const": "line"}, "to": NUMBER})]
