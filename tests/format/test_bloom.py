"""Filters of terms: they never deny what is there, and deny most of what is not, without reading a row group."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from format.companion.events import Event
from format.companion.files import opened, written
from headrace.errors import CorruptData
from headrace.format import bloom
from headrace.format.companion.file_reader import FileCompanion
from headrace.format.companion.layout import Limits
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import file_name

TERMS = [f"r{number * 7919 % 100_003:06}" for number in range(2_000)]
EVENTS = [Event({"request": [term], "message": [f"said {term}"]}) for term in TERMS]
LIMITS = Limits(terms=500, filtered=100)


def test_a_filter_knows_all_its_terms_and_few_others() -> None:
    stored = bloom.make_filter(pa.array(TERMS))
    assert all(bloom.may_hold_term(stored, term) for term in TERMS)
    assert sum(bloom.may_hold_term(stored, f"x{term}") for term in TERMS) < 0.06 * len(TERMS)
    assert len(stored) < 1.1 * 2_048


@pytest.mark.parametrize(
    "term", ["", "\0", "größe", "\U0001f600", "x" * 31, "x" * 32, "x" * 100, "é" * 1024, "x" * 5000]
)
def test_a_term_of_any_length_and_letters_is_known(term: str) -> None:
    assert bloom.may_hold_term(bloom.make_filter(pa.array(["a", term])), term)


def test_half_a_surrogate_pair_is_no_failure() -> None:
    assert bloom.may_hold_term(bloom.make_filter(pa.array(["a", "\ufffd"])), "\ud800") in (True, False)


def test_a_term_that_is_not_there_is_denied_without_decoding(tmp_path: Path) -> None:
    decoded = LruCache(1 << 20)
    companion = FileCompanion.opened(tmp_path, written(EVENTS, tmp_path, LIMITS), decoded)
    absent = [f"r{number:06}x" for number in range(0, 100_000, 1_000)]
    for term in absent:
        assert companion.rows("request", term).tolist() == []
        assert companion.rows("message", term).tolist() == []
        assert [part.tolist() for part in companion.occurrences("message", term, prefix=False)] == [[], []]
    assert decoded.bytes < 200_000
    first = companion.rows("request", TERMS[17])
    assert first.tolist() == [17] == companion.rows("message", TERMS[17]).tolist()


def test_every_term_is_found_however_many_row_groups_have_filters(tmp_path: Path) -> None:
    companion = opened(tmp_path, written(EVENTS, tmp_path, LIMITS))
    assert [companion.rows("request", term).tolist() for term in TERMS] == [[row] for row in range(len(TERMS))]


def test_a_damaged_filter_denies_nothing(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path, LIMITS)
    file = tmp_path / file_name(listed.name, "postings")
    whole = file.read_bytes()
    stored = bloom.make_filter(pa.array(sorted(TERMS)[:500]))
    place = whole.rindex(stored)
    file.write_bytes(whole[:place] + bytes(len(stored)) + whole[place + len(stored) :])
    with pytest.raises(CorruptData, match="not what was written"):
        opened(tmp_path, listed).rows("request", min(TERMS))


def test_other_tools_pass_over_filters(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path, LIMITS)
    file = tmp_path / file_name(listed.name, "postings")
    sql = f"SELECT count(*), min(term), max(term) FROM '{file}' WHERE field = 'request'"
    assert duckdb.execute(sql).fetchall() == [(len(TERMS), min(TERMS), max(TERMS))]
