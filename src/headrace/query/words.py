"""Letters and words: how texts are made comparable, and the analyser ``unicode_word_v1``."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+")


def lower(text: str) -> str:
    """Lower case, letter by letter, so that a part of a text stays a part of it.

    Two letters would break that promise: a capital sigma has another form at the end of a word, a dotted capital I
    becomes two characters. Here there is one small sigma and one small i.
    """
    return text.replace("İ", "i").lower().replace("ς", "σ")


def words(text: str) -> list[str]:
    """The words of a text: runs of letters and digits of any script, in lower case."""
    return _WORD.findall(lower(text))


def has_words(given: list[str], asked: list[str], *, prefix: bool) -> bool:
    """Whether all words are there in any order; with ``prefix``, the last one is the beginning of a word."""
    *whole, last = asked
    if not set(whole) <= set(given):
        return False
    return any(word.startswith(last) for word in given) if prefix else last in given


def has_phrase(given: list[str], asked: list[str], *, prefix: bool) -> bool:
    """Whether the words follow each other; with ``prefix``, the last one is the beginning of a word."""
    *whole, last = asked
    return any(
        given[start : start + len(whole)] == whole and (word.startswith(last) if prefix else word == last)
        for start, word in enumerate(given[len(whole) :])
    )
