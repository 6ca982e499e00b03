from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.extract.match.evaluate import WordLookup
from headrace.extract.postings import in_memory
from headrace.query.definition import Definition
from headrace.query.values import has_phrase, has_words
from headrace.schema.registry import Boundary, Registry
from query.declarations import DOCUMENT
from support.reference_columns import table

REGISTRY = Registry(
    schema="s",
    current_version=3,
    search=DOCUMENT,
    boundaries=tuple(Boundary(0, version) for version in (1, 2, 3)),
    schemas=dict.fromkeys((1, 2, 3), True),
    breaks=(1, 2),
)
DEFINITION = Definition.of(REGISTRY)
assert DEFINITION is not None
SEARCH = DEFINITION.search

some_words = st.lists(st.sampled_from(["a", "ab", "b", "ba"]), max_size=4)
values = st.lists(some_words, max_size=3)
asked = st.lists(st.sampled_from(["a", "ab", "b", "c"]), min_size=1, max_size=3)


def texts(rows: list[list[list[str]]]) -> WordLookup:
    assert DEFINITION is not None
    documents = [{"message": [" ".join(value) for value in row]} for row in rows]
    return WordLookup(in_memory(table(SEARCH, documents), DEFINITION, 0, 3))


@given(st.lists(values, min_size=1, max_size=6), asked, st.booleans())
def test_words_are_found_in_one_value_and_phrases_in_a_row(
    rows: list[list[list[str]]], words: list[str], prefix: bool
) -> None:
    made = texts(rows)
    holding = [at for at, row in enumerate(rows) if any(has_words(value, words, prefix=prefix) for value in row)]
    assert made.holding("message", words, prefix=prefix).tolist() == holding
    times = Counter(
        at
        for at, row in enumerate(rows)
        for value in row
        for start in range(len(value) - len(words) + 1)
        if has_phrase(value[start : start + len(words)], words, prefix=prefix)
    )
    found = made.phrase("message", words, prefix=prefix)
    assert dict(zip(found.rows.tolist(), found.times.tolist(), strict=True)) == times


@given(st.lists(values, min_size=1, max_size=6), st.sampled_from(["a", "b", "c"]), st.booleans())
def test_a_word_is_counted_where_it_stands(rows: list[list[list[str]]], word: str, prefix: bool) -> None:
    found = texts(rows).word("message", word, prefix=prefix)
    counts = [sum(held.startswith(word) if prefix else held == word for value in row for held in value) for row in rows]
    assert dict(zip(found.rows.tolist(), found.times.tolist(), strict=True)) == {
        at: count for at, count in enumerate(counts) if count
    }
    if len(found.rows):
        assert found.of(found.rows).tolist() == found.times.tolist()
        assert found.of(found.rows[-1:]).tolist() == found.times[-1:].tolist()


def test_a_phrase_does_not_go_on_in_the_next_value() -> None:
    # The last word that a value can have stands just before the first of the next.
    made = texts([[["x"] * (2**20 - 1) + ["a"], ["b"]], [["a"], ["b"]], [["a", "b"]]])
    assert made.phrase("message", ["a", "b"], prefix=False).rows.tolist() == [2]


@pytest.mark.parametrize("gap", [1, 100])
def test_counts_are_looked_up_for_few_rows_and_for_many(gap: int) -> None:
    rows = [[["a"] * (1 + at % 3)] if at % gap == 0 else [] for at in range(10 * gap)]
    found = texts(rows).word("message", "a", prefix=False)
    every = found.rows[::2]
    assert found.of(every).tolist() == [1 + int(at) % 3 for at in every]
