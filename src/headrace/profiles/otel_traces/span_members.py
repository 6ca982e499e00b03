"""Single members of spans, as they come: what they are, and what goes elsewhere because it is something else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from headrace.profiles.hook import Misfit
from headrace.profiles.redaction import REDACTED, Listed
from headrace.types import rfc3339

_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
_MOST_NANOS = 2**64 - 1


def identifier(raw: Any, letters: int) -> str | None:
    """An identifier of so many hexadecimal digits, not all of them zero; None for anything else."""
    if not isinstance(raw, str):
        return None
    digits = raw.strip().lower()
    if len(digits) != letters or not _HEX.fullmatch(digits) or digits == "0" * letters:
        return None
    return digits


def take_identifier(raw_span: dict[str, Any], name: str, letters: int) -> str:
    """An identifier that a span must have."""
    digits = identifier(raw_span.pop(name, None), letters)
    if digits is None:
        raise Misfit(f"/{name}", f"{name} must have {letters} hexadecimal digits, not all of them zero")
    return digits


def parse_nanos(raw: Any) -> int | None:
    """A moment in nanoseconds since 1970, as a number or as digits."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int):
        return raw if 0 <= raw <= _MOST_NANOS else None
    if isinstance(raw, str) and _DIGITS.fullmatch(text := raw.strip()):
        number = int(text)
        return number if number <= _MOST_NANOS else None
    return None


def moment(nanoseconds: int) -> str:
    """The text of a moment."""
    return rfc3339(nanoseconds // 1000)


def choose_word(raw: Any, names: tuple[str, ...]) -> str | None:
    """One of several words, which OTLP also numbers or spells with a prefix in capitals."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return names[raw] if 0 <= raw < len(names) else None
    if isinstance(raw, str):
        word = raw.strip().lower().removeprefix("span_kind_").removeprefix("status_code_")
        return word if word in names else None
    return None


def take_text(members: dict[str, Any], name: str, mistyped: dict[str, Any]) -> str | None:
    """A text, or null; what else stands there goes to the odd ones."""
    value = members.pop(name, None)
    if value is None or isinstance(value, str):
        return value
    mistyped[name] = value
    return None


def take_container(members: dict[str, Any], name: str, mistyped: dict[str, Any], kind: type) -> Any:
    """An object or an array, an empty one where there is none; what else stands there goes to the odd ones."""
    value = members.pop(name, None)
    if isinstance(value, kind):
        return value
    if value is not None:
        mistyped[name] = value
    return kind()


def take_count(members: dict[str, Any], name: str) -> int:
    """How many of something were left out by whoever sent it."""
    value = members.pop(name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def add(attributes: dict[str, Any], more: dict[str, Any], listed: Listed) -> None:
    """Keep what has no place of its own among the attributes, under names that are free.

    Where a listed name is taken, both are redacted as one.
    """
    for name, value in more.items():
        free = name
        while free in attributes:
            free += "_"
        if free is name or not listed(name):
            attributes[free] = value


def first_value(attributes: dict[str, Any], names: Iterable[str], *, whole: bool = False) -> Any:
    """What the first of these attributes says, as a text or as a whole number."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if value is None or value == REDACTED:
            continue
        if whole:
            if isinstance(value, str) and _DIGITS.fullmatch(value):
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        elif isinstance(value, str) and value.strip():
            return value.strip()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    return None
