"""Companions in memory."""

from __future__ import annotations

import threading

import pytest

from format.companion.events import DEFINITION, FIRST_SEQ, Event, columns_of
from headrace.extract.postings import in_memory
from headrace.format.companion.memory import MemoryCompanion

EVENTS = [Event({"time": [60_000 + row], "service": [f"s{row % 3}"], "message": [f"word{row}"]}) for row in range(9)]


def made() -> MemoryCompanion:
    return in_memory(columns_of(EVENTS), DEFINITION, FIRST_SEQ, 1)


def test_it_holds_what_the_definition_says_and_nothing_else() -> None:
    companion = made()
    assert companion.fields["service"].hash == DEFINITION.field_hash("service", 1)
    assert "unheard" not in companion.fields
    assert companion.info.rollups == {"requests": DEFINITION.rollup_hash("requests", 1)}
    assert companion.first_seq == FIRST_SEQ
    assert companion.end_seq == FIRST_SEQ + 9
    assert companion.through_version == 1


def test_panes_are_those_of_the_rollup_with_the_interval() -> None:
    [panes] = made().panes("requests", 60_000) or ()
    assert panes.select(["pane", "measure", "count"]).to_pylist() == [{"pane": 60_000, "measure": "all", "count": 9}]
    assert made().panes("unheard", 60_000) is None


@pytest.mark.parametrize("field", ["unheard", "mute", "time"])
def test_asking_for_terms_of_a_field_without_postings_is_an_error_and_no_empty_answer(field: str) -> None:
    with pytest.raises(KeyError):
        made().rows(field, "x")
    with pytest.raises(KeyError):
        made().rows_with_prefix(field, "x")
    with pytest.raises(KeyError):
        made().rows_containing(field, "x")


def test_asking_for_positions_of_values_is_an_error() -> None:
    with pytest.raises(KeyError):
        made().occurrences("service", "s1", prefix=False)


def test_threads_get_the_same_answers() -> None:
    companion, found = made(), []

    def ask() -> None:
        found.append((companion.rows("service", "s1").tolist(), companion.rows_with_prefix("message", "word").tolist()))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [([1, 4, 7], [*range(9)])] * 8


def test_a_companion_of_no_events_answers_with_nothing() -> None:
    companion = in_memory(columns_of([]), DEFINITION, 5, 0)
    assert companion.first_seq == 5
    assert companion.end_seq == 5
    assert companion.rows("service", "x").tolist() == companion.present("service").tolist() == []
    assert companion.rows_containing("message", "- x").tolist() == companion.irregular_rows().tolist() == []
    assert companion.keys(None, 10) == companion.groups("f.service") == []
    assert [part.tolist() for part in companion.occurrences("message", "w", prefix=True)] == [[], []]
