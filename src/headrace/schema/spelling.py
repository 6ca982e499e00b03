"""One spelling for equal values."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """A JSON value whose whole numbers have no fraction."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
