from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.query.score import K1, STEPS, Statistics, Word, idf, saturate, scoring_clauses
from headrace.query.syntax import parse
from query.declarations import SEARCH


def statistics(query: str, *documents: Any) -> Statistics:
    made = Statistics(scoring_clauses(parse(query), SEARCH))
    for document in documents:
        made.count(document)
    return made


def test_only_what_can_give_a_score_is_counted() -> None:
    found = scoring_clauses(parse("status:500 message:a -b (c OR service:d) has:time contains:e"), SEARCH)
    assert [(one.clause.value, [(field.name, boost) for field, boost in one.fields]) for one in found] == [
        ("a", [("message", 1.0)]),
        ("c", [("message", 2.0), ("why", 1.0), ("request", 1.0)]),
    ]


def test_statistics_are_sums_over_all_events() -> None:
    found = statistics(
        'message:"a b*"', {"message": "a b"}, {"message": ["B a", "a x bc"]}, {"message": "!"}, {"message": 5}, {}
    )
    assert found.documents["message"] == 3
    assert found.words["message"] == 7
    assert found.document_frequency == {Word("message", "a", False): 2, Word("message", "b", True): 2}
    assert found.average("message") == 7 / 3


def test_a_word_is_worth_more_the_fewer_hold_it() -> None:
    assert idf(100, 1) > idf(100, 50) > idf(100, 100) > 0
    assert idf(10, 3) == math.log(1 + 7.5 / 3.5)


def test_a_word_counts_less_the_more_often_it_stands_there_and_the_longer_the_text() -> None:
    assert saturate(1, 10, 10.0) == 1.0
    assert saturate(2, 10, 10.0) - saturate(1, 10, 10.0) > saturate(3, 10, 10.0) - saturate(2, 10, 10.0) > 0
    assert saturate(1, 5, 10.0) > saturate(1, 20, 10.0)
    assert saturate(10_000, 10, 10.0) < K1 + 1


def test_the_score_is_the_sum_over_words_and_the_best_field() -> None:
    documents = [{"message": "a b"}, {"why": "a a c"}, {"message": "c"}, {"request": "a"}]
    found = statistics("a", *documents)
    message = 2 * idf(2, 1) * saturate(1, 2, 1.5)
    why = idf(1, 1) * saturate(2, 3, 3.0)
    wanted = [message, why, 0, 1.0]
    assert [found.score(document) for document in documents] == pytest.approx(wanted, abs=1 / STEPS)
    both = {"message": "a", "why": "a"}
    again = statistics("a", *documents, both)
    assert again.score(both) == pytest.approx(2 * idf(3, 2) * saturate(1, 1, 4 / 3), abs=1 / STEPS)


def test_side_by_side_and_alternatives_add_up_and_a_negation_gives_nothing() -> None:
    documents = [{"message": "a b"}, {"message": "a"}, {"message": "x y z"}]
    a, b = (statistics(f"message:{word}", *documents).score(documents[0]) for word in "ab")
    for query in ("message:a message:b", "message:a OR message:b", "message:a-b", "message:a message:b -message:x"):
        assert statistics(query, *documents).score(documents[0]) == pytest.approx(a + b, abs=2 / STEPS)


def test_a_phrase_weighs_as_much_as_its_words_and_counts_where_it_stands() -> None:
    documents = [{"message": ["a b a b", "b a"]}, {"message": "b a"}, {"message": "a x"}]
    found = statistics('message:"a b"', *documents)
    weight = idf(3, 3) + idf(3, 2)
    wanted = weight * saturate(2, 6, 10 / 3)
    assert [found.score(document) for document in documents] == pytest.approx([wanted, 0, 0], abs=1 / STEPS)


def test_a_prefix_counts_as_one_word() -> None:
    documents = [{"message": "abc abd x"}, {"message": "ab"}, {"message": "x"}]
    found = statistics("message:ab*", *documents)
    wanted = [idf(3, 2) * saturate(2, 3, 5 / 3), idf(3, 2) * saturate(1, 1, 5 / 3), 0]
    assert [found.score(document) for document in documents] == pytest.approx(wanted, abs=1 / STEPS)
