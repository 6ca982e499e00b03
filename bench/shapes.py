"""The shape of the large event in four versions, and the three lenses between them; every server gets the same."""

from __future__ import annotations

from typing import Any

REGION = "north"
LEVELS = {"low": 1, "normal": 2, "high": 3}

_TEXT = {"type": "string", "minLength": 1, "maxLength": 200}
_PLACE = {
    "type": "object",
    "properties": {"country": {"type": "string", "maxLength": 2}, "city": _TEXT, "altitude": {"type": "integer"}},
    "required": ["country"],
    "additionalProperties": False,
}
_FIRST = {
    "id": _TEXT,
    "at": {"type": "string", "format": "date-time"},
    "type": {"type": "string", "enum": ["page_view", "click", "purchase"]},
    "user": _TEXT,
    "session": _TEXT,
    "path": _TEXT,
    "status": {"type": "integer", "minimum": 100, "maximum": 599},
    "ms": {"type": "number", "minimum": 0},
    "ok": {"type": "boolean"},
    "level": {"type": "string", "enum": list(LEVELS)},
    "place": _PLACE,
    "ref": _TEXT,
}
_SECOND = {**{name: shape for name, shape in _FIRST.items() if name != "path"}, "page": _TEXT}
_THIRD = {**_SECOND, "region": _TEXT}
_FOURTH = {**_THIRD, "level": {"type": "integer", "enum": list(LEVELS.values())}}

_OPS: list[dict[str, Any]] = [
    {"op": "rename", "from": "/path", "to": "/page"},
    {"op": "add", "path": "/region", "schema": _TEXT, "default": REGION},
    {
        "op": "convert",
        "path": "/level",
        "fromType": "string",
        "toType": "integer",
        "forward": {"map": LEVELS},
        "backward": {"map": {str(number): name for name, number in LEVELS.items()}},
    },
]


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    """A schema that admits these properties and no others; two may be left out."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in ("session", "ref")],
        "additionalProperties": False,
    }


#: The schemas of the versions, from 1 on.
SCHEMAS = [_closed(properties) for properties in (_FIRST, _SECOND, _THIRD, _FOURTH)]


def lenses(stream: str) -> list[dict[str, Any]]:
    """The lenses of a stream, in the order of their versions: rename, add, convert."""
    return [
        {"apiVersion": "durable.lens/v1", "schema": stream, "from": version, "to": version + 1, "ops": [op]}
        for version, op in enumerate(_OPS, start=1)
    ]


def newest(event: dict[str, Any]) -> dict[str, Any]:
    """What the lenses must make of an event of the first version."""
    kept = {name: value for name, value in event.items() if name != "path"}
    return {**kept, "page": event["path"], "region": REGION, "level": LEVELS[event["level"]]}
