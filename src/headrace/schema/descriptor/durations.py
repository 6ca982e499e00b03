"""Durations of descriptors: ``[1-9][0-9]*`` and one of ms, s, m, h, d; or ``forever``."""

from __future__ import annotations

import re
from typing import Any

from headrace.types import format_duration, parse_duration_us

FOREVER = "forever"
#: A hundred years; more than any event will be kept.
LONGEST_MS = 100 * 366 * 86_400_000

_DURATION = re.compile(r"[1-9][0-9]{0,14}(?:ms|s|m|h|d)", re.ASCII)


def millis(given: Any) -> int | None:
    """The milliseconds of a duration; None where it is none."""
    if not isinstance(given, str) or _DURATION.fullmatch(given) is None or len(given) > 14:
        return None
    found = parse_duration_us(given, "duration") // 1000
    return found if found <= LONGEST_MS else None


def text(found: int | None) -> str:
    """A duration in its largest whole unit; None is for ever."""
    return FOREVER if found is None else format_duration(found * 1000)
