"""Postings and stored columns of columns tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from format.companion.events import DEFINITION, FIELDS, Event, columns_of
from headrace.extract.postings import (
    VALUE_BITS,
    describe_companion,
    is_indexed,
    of_field,
    postings,
    stored_columns,
    term,
)


def lists(field: str, events: list[Event]) -> dict[str, list[int]]:
    table = of_field(columns_of(events), field, DEFINITION)
    return dict(zip(table.column("term").to_pylist(), table.column("rows").to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Größe", "Größe"),
        ("", ""),
        (5, "5"),
        (-(2**63), "-9223372036854775808"),
        (True, "true"),
        (False, "false"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (1e20, "1e+20"),
        (5e-324, "5e-324"),
        (-2.5, "-2.5"),
    ],
)
def test_a_term_is_the_text_of_a_value(value: Any, text: str) -> None:
    assert term(value) == text


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("status", [2**63 - 1, -(2**63), 0, -1]),
        ("duration", [1.0, 0.1, 1e20, 5e-324, -2.5, 1e16, 123456789.125]),
        ("error", [True, False]),
        ("service", ["", "a", "\0", "'\"", "\U0001f600", "é"]),
    ],
)
def test_every_value_is_found_under_its_term(field: str, values: list[Any]) -> None:
    events = [Event({field: [value]}) for value in values]
    assert lists(field, events) == {term(value): [row] for row, value in enumerate(values)}


def test_terms_are_in_the_order_of_code_points_whatever_the_values() -> None:
    events = [
        Event({"status": [value], "service": [text]}) for value, text in [(9, "\uffff"), (-1, "\U00010000"), (10, "Z")]
    ]
    assert list(lists("status", events)) == ["-1", "10", "9"]
    assert list(lists("service", events)) == ["Z", "\uffff", "\U00010000"]


def test_a_value_that_an_event_has_twice_is_one_posting() -> None:
    assert lists("service", [Event({"service": ["a", "b", "a"]}), Event({"service": ["a"]})]) == {"a": [0, 1], "b": [0]}


def test_every_occurrence_of_a_word_has_a_position() -> None:
    events = [Event({"message": ["One two one", "", "one"]}), Event({}), Event({"message": ["-", "two"]})]
    table = of_field(columns_of(events), "message", DEFINITION)
    assert table.select(["term", "rows", "positions"]).to_pylist() == [
        {"term": "one", "rows": [0, 0, 0], "positions": [0, 2, 2 << VALUE_BITS]},
        {"term": "two", "rows": [0, 2], "positions": [1, 1 << VALUE_BITS]},
    ]


def test_positions_of_the_last_values_there_may_be_wrap_around_and_stay_in_order() -> None:
    table = of_field(columns_of([Event({"message": ["x"] * 4_095})]), "message", DEFINITION)
    positions = table.column("positions").combine_chunks().flatten().to_numpy()
    assert (positions.view("uint32") == [ordinal << VALUE_BITS for ordinal in range(4_095)]).all()


def test_odd_events_are_in_no_postings_but_the_lexicon() -> None:
    events = [Event({"service": ["a"], "message": ["word"]}, key="k", is_odd=True), Event({"service": ["b"]})]
    table = postings(columns_of(events), DEFINITION)
    assert table.select(["field", "term"]).to_pylist() == [
        {"field": "", "term": "k"},
        {"field": "service", "term": "b"},
    ]


def test_fields_are_sorted_and_only_those_have_postings_that_may_be_asked_for_terms() -> None:
    values = {"time": [1], "service": ["a"], "service.name": ["b"], "request": ["c"], "mute": ["d"], "message": ["e"]}
    table = postings(columns_of([Event(values, key="k")]), DEFINITION)
    assert table.column("field").to_pylist() == ["", "message", "request", "service", "service.name"]
    assert {name for name in FIELDS if not is_indexed(DEFINITION, name)} == {"time", "mute"}


def test_words_are_found_in_slices_and_chunks_of_a_table() -> None:
    events = [Event({"message": [f"m{row} all"], "why": [f"w{row}", "all"]}, key=f"k{row}") for row in range(6)]
    table = columns_of(events)
    chunked = pa.concat_tables([table.slice(0, 2), table.slice(2, 1), table.slice(3)]).slice(1, 4)
    assert postings(chunked, DEFINITION).equals(postings(columns_of(events[1:5]), DEFINITION))
    assert stored_columns(chunked).equals(stored_columns(columns_of(events[1:5], 1_001)))


def test_more_terms_than_sixteen_bits_can_count_are_in_order() -> None:
    words = [f"w{number}" for number in range(70_000)]
    table = of_field(columns_of([Event({"message": [" ".join(words)]})]), "message", DEFINITION)
    assert table.column("term").to_pylist() == sorted(words)
    positions = table.column("positions").combine_chunks().flatten().to_pylist()
    assert [words[position] for position in positions] == sorted(words)


def test_stored_columns_count_words_and_drop_keys() -> None:
    events = [Event({"message": ["a b", "c"], "why": ["-"], "status": [1]}, key="k"), Event({})]
    table = stored_columns(columns_of(events))
    assert "key" not in table.column_names and "w.message" not in table.column_names
    assert table.column("n.message").to_pylist() == [3, None]
    assert table.column("n.why").to_pylist() == [0, None]
    assert table.column("f.status").to_pylist() == [1, None]
    assert table.schema.field("n.message").type == pa.int32()


def test_a_companion_is_described_by_what_its_events_hold() -> None:
    values = {"time": [30, 10], "message": ["a b"], "service": ["x"]}
    events = [Event(values), Event({"time": [20]}), Event({}, is_odd=True)]
    info = describe_companion(columns_of(events), DEFINITION, first_seq=7, through_version=1, level=2, segments=3)
    assert info.first_seq == 7
    assert info.end_seq == 10
    assert info.level == 2
    assert info.segments == 3
    assert info.odd == 1
    assert info.times == (10, 30)
    assert info.words == {"message": (1, 2), "why": (0, 0)}
    assert info.fields["time"].many is True
    assert info.fields["time"].indexed is False
    assert info.fields["time"].kind == "date"
    assert info.fields["service"].many is False
    assert info.fields["service"].indexed is True
    assert info.fields["status"].hash == DEFINITION.field_hash("status", 1)
    assert info.rollups == {"requests": DEFINITION.rollup_hash("requests", 1)}


def test_nothing_becomes_nothing() -> None:
    table = columns_of([])
    assert postings(table, DEFINITION).num_rows == stored_columns(table).num_rows == 0
    assert describe_companion(table, DEFINITION, first_seq=0, through_version=0).times is None
    assert pc.sum(stored_columns(table).column("n.message")).as_py() is None
