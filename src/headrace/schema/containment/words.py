"""How values are called in reasons."""

from __future__ import annotations

import json
from typing import Any

from headrace.schema.shape.model import ANY_NUMBER, Alternative, Boolean, Number, Text

_SHOWN = 4


def described(alternative: Alternative) -> str:
    """The values of an alternative, in a few words."""
    if isinstance(alternative, Boolean) and len(alternative.values) == 1:
        return spelled(*alternative.values)
    if isinstance(alternative, Number) and alternative.values is not None:
        return some(sorted(alternative.values))
    if isinstance(alternative, Text) and alternative.values is not None:
        return some([spelled(value) for value in sorted(alternative.values)])
    if isinstance(alternative, Number) and alternative.integer != ANY_NUMBER:
        return "an integer"
    return _NAMES[alternative.kind]


_NAMES = {
    "null": "null",
    "boolean": "a boolean",
    "number": "a number",
    "string": "a string",
    "object": "an object",
    "array": "an array",
}
EVERYTHING = frozenset(_NAMES.values())
"""What a value may be of which nothing is known."""


def spelled(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=float)
    return text if len(text) <= 60 else text[:57] + "..."


def some(texts: list[str]) -> str:
    """The first few of many."""
    shown = " or ".join(texts[:_SHOWN])
    return shown if len(texts) <= _SHOWN else f"{shown} or {len(texts) - _SHOWN} more"
