from __future__ import annotations

import sys
import unicodedata

import pytest

from headrace.query.values import has_phrase, has_words, lower, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Card declined, by ISSUER!", ["card", "declined", "by", "issuer"]),
        ("snake_case-kebab.dot", ["snake", "case", "kebab", "dot"]),
        ("req_8f2k", ["req", "8f2k"]),
        ("Ⅷ² 日本語 Ёлка", ["ⅷ²", "日本語", "ёлка"]),
        ("constructor __proto__", ["constructor", "proto"]),
        ("İstanbul ΟΔΟΣ", ["istanbul", "οδοσ"]),
        (" -- ", []),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_and_digits_in_lower_case(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_every_letter_and_digit_of_unicode_belongs_to_a_word_and_nothing_else_does() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        folded = lower(character)
        is_word = all(unicodedata.category(part)[0] in "LN" for part in folded)
        assert (words(character) == [folded]) == is_word, hex(code)


def test_words_may_stand_in_any_order() -> None:
    given = words("the quick brown fox")
    assert has_words(given, ["fox", "the"], prefix=False)
    assert not has_words(given, ["fox", "qui"], prefix=False)
    assert has_words(given, ["fox", "qui"], prefix=True)
    assert not has_words(given, ["qui", "fox"], prefix=True)


def test_a_phrase_stands_in_order_and_without_gaps() -> None:
    given = words("a b a b c")
    assert has_phrase(given, ["a", "b", "c"], prefix=False)
    assert has_phrase(given, ["c"], prefix=False)
    assert not has_phrase(given, ["a", "c"], prefix=False)
    assert not has_phrase(given, ["b", "c", "d"], prefix=False)
    assert has_phrase(words("card declined"), ["card", "decl"], prefix=True)
    assert not has_phrase(words("card declined"), ["car", "decl"], prefix=True)
