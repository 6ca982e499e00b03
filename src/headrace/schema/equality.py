"""When two JSON values are the same value."""

from __future__ import annotations

from typing import Any

from headrace.schema.shape.canonical import value_text


def same(left: Any, right: Any) -> bool:
    """Equal whatever the order of members and the spelling of numbers; true is not 1."""
    return value_text(left) == value_text(right)
