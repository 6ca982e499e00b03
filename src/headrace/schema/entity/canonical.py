"""The spelling of values in names: what people spell in several ways becomes one text.

Text of several words loses punctuation, honorifics before it and company suffixes after it. A single word keeps its
punctuation, for there it tells things apart: addresses, identifiers, ``C++``.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from headrace.schema.entity.converters import decimal
from headrace.schema.shape.canonical import value_text

_HONORIFICS = frozenset({"mr", "mrs", "ms", "miss", "mx", "dr", "prof", "professor", "sir", "dame"})
_SUFFIXES = frozenset(
    {"inc", "incorporated", "llc", "llp", "lp", "ltd", "limited", "corp", "corporation", "co", "company", "plc"}
    | {"gmbh", "ag", "kg", "sa", "sas", "sarl", "srl", "spa", "bv", "nv", "ab", "oy", "as", "aps", "pty"}
)


class _Blanks(dict[int, str | int]):
    """Punctuation and symbols become blanks; each character is looked up once."""

    def __missing__(self, code: int) -> str | int:
        category = unicodedata.category(chr(code))
        self[code] = found = " " if category[0] in "PS" else code
        return found


_BLANKS = _Blanks()


def part(value: Any, preserve_case: bool = False) -> str | None:
    """The text of a value in a name, or None where there is nothing in it."""
    if value is None:
        return None
    if isinstance(value, str):
        return normalised(value, preserve_case) or None
    if isinstance(value, bool):
        return "true" if value else "false"
    return decimal(value) if isinstance(value, int | float) else value_text(value)


def normalised(text: str, preserve_case: bool = False) -> str:
    """One spelling of a text; a vertical bar is never part of it."""
    composed = text if text.isascii() else unicodedata.normalize("NFKC", text)
    words = composed.replace("|", " ").split()
    if not preserve_case:
        words = [word.lower() for word in words]
    if len(words) <= 1:
        return "".join(words)
    return " ".join(_essential(" ".join(words).translate(_BLANKS).split())) or " ".join(words)


def _essential(words: list[str]) -> list[str]:
    """The words without honorifics in front and suffixes behind; the last word that is left stays."""
    while len(words) > 1 and words[0].lower() in _HONORIFICS:
        words = words[1:]
    while len(words) > 1 and words[-1].lower() in _SUFFIXES:
        words = words[:-1]
    return words
