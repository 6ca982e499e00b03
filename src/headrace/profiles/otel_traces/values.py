"""Values of attributes, bounded while they are read."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from headrace.profiles.otel_traces.rules import OtlpLimits

Element = TypeVar("Element")

#: What stands for a value that is nested too deeply.
NESTED = "[NESTED]"


class Limits:
    """How deep and how long values may be; counts what was cut."""

    def __init__(self, limits: OtlpLimits) -> None:
        self.depth = limits.max_any_value_depth
        self.elements = limits.max_array_values_per_any_value
        self.members = limits.max_kv_list_values_per_any_value
        self.cuts = 0

    def cut(self, mark: str) -> str:
        """Take note that something is left out, and put a mark in its place."""
        self.cuts += 1
        return mark

    def few(self, elements: list[Element], most: int) -> list[Element]:
        """As many as are allowed."""
        if len(elements) > most:
            self.cuts += len(elements) - most
            return elements[:most]
        return elements


def finite(number: float) -> Any:
    """A number as JSON has it: those that it has not are words."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
