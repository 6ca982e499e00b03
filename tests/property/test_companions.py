"""Companions in memory and in files, whole and merged from pieces, held against a look at every event."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from format.companion.events import DEFINITION, FIELDS, FIRST_SEQ, Event, Oracle, columns_of, indexed_fields
from format.companion.files import HASHES, ROLLUPS, made, opened
from headrace.extract.postings import in_memory
from headrace.format.companion.layout import Limits
from headrace.format.companion.merge import merge
from headrace.format.companion.reader import CompanionReader
from headrace.query.search import Kind

LETTERS = st.sampled_from("aAbé\0 \"'ß\U0001f600_ςİ")
SHORT = st.one_of(st.sampled_from(["", "a", "ab", "b", "é", "\0", '"', "k" * 70, "k" * 70 + "x"]), st.text(LETTERS))
INTEGERS = st.one_of(st.integers(-3, 3), st.sampled_from([2**63 - 1, -(2**63), 10**12]))
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.KEYWORD: SHORT,
    Kind.TEXT: st.lists(SHORT, max_size=5).map(" ".join),
    Kind.INTEGER: INTEGERS,
    Kind.DATE: INTEGERS,
    Kind.FLOAT: st.one_of(
        st.sampled_from([0.0, 1.0, 0.1, 1e20, -1e-9]),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0),
    ),
    Kind.BOOL: st.booleans(),
}


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events whose fields are absent, single or many-valued; often no event at all has many values."""
    most = {name: draw(st.sampled_from([0, 1, 1, 3])) for name in FIELDS}
    rows = st.fixed_dictionaries(
        {name: st.lists(VALUES[field.kind], max_size=most[name]) for name, field in FIELDS.items()}
    )
    odd = st.sampled_from([False] * draw(st.integers(1, 9)) + [True])
    return draw(st.lists(st.builds(Event, rows, st.none() | SHORT, odd), min_size=1, max_size=25))


def differences(companion: CompanionReader, events: list[Event]) -> list[str]:
    """The questions to which a companion answers something else than the oracle."""
    oracle, wrong = Oracle(events), []

    def ask(question: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            wrong.append(f"{question}: {found!r}, not {wanted!r}")

    assert companion.first_seq == FIRST_SEQ
    assert companion.end_seq == FIRST_SEQ + len(events)
    for name in ["", *(field.name for field in indexed_fields())]:
        asked = sorted({"", "a", "zzz", "\ud800", *oracle.terms(name)})
        for term in asked:
            ask(f"rows {name} {term!r}", companion.rows(name, term).tolist(), oracle.rows(name, term))
            for prefix in {term, term[:1]}:
                found = companion.rows_with_prefix(name, prefix).tolist()
                ask(f"prefix {name} {prefix!r}", found, oracle.rows_with_prefix(name, prefix))
            if name and FIELDS[name].kind is Kind.TEXT:
                for is_prefix in (False, True):
                    pairs = companion.occurrences(name, term, prefix=is_prefix)
                    found = list(zip(*(part.tolist() for part in pairs), strict=True))
                    ask(f"occurrences {name} {term!r}", found, oracle.occurrences(name, term, prefix=is_prefix))
                    rows = companion.occurrence_rows(name, term, prefix=is_prefix).tolist()
                    ask(f"occurrence rows {name} {term!r}", rows, [row for row, _ in found])
            if name and FIELDS[name].contains:
                for part in {term, term[1:], f"{term} ", f" {term}", f"{term[-1:]} a"}:
                    found = companion.rows_containing(name, part).tolist()
                    ask(f"containing {name} {part!r}", found, oracle.rows_containing(name, part))
    for name, field in FIELDS.items():
        ask(f"present {name}", companion.present(name).tolist(), oracle.present(name))
        is_text = field.kind is Kind.TEXT
        for column in [f"n.{name}" if is_text else f"f.{name}", *([f"f.{name}"] if is_text and field.contains else [])]:
            ask(f"column {column}", list(values_of(companion, column)), oracle.column(column))
        if is_text:
            ask(f"words {name}", companion.words(name), oracle.words(name))
    ask("odd", companion.irregular_rows().tolist(), oracle.irregular_rows())
    for after, limit in [(None, 100), ("a", 2), (None, 1), ("", 3), ("zzz", 1)]:
        ask(f"keys {after!r} {limit}", companion.keys(after, limit), oracle.keys(after, limit))
    return wrong


def values_of(companion: CompanionReader, column: str) -> list[Any]:
    """A stored column, every value in a list, with the bounds of every row group checked."""
    found: list[Any] = []
    for number, group in enumerate(companion.groups(column)):
        assert group.start == len(found)
        part = [
            value if value is None or isinstance(value, list) else [value]
            for value in columns(companion, column, number)
        ]
        assert len(part) == group.stop - group.start
        values = [value for values in part if values is not None for value in values]
        assert group.nulls == part.count(None)
        assert group.least is None or group.least == min(values)
        assert group.greatest is None or group.greatest == max(values)
        assert group.least is not None or not values or max(map(len, values)) > 64
        found += part
    return found


def columns(companion: CompanionReader, column: str, group: int) -> list[Any]:
    found: list[Any] = companion.column(column, group).to_pylist()
    return found


TINY = st.builds(
    Limits,
    rows=st.integers(1, 9),
    column_bytes=st.integers(1, 2_000),
    postings=st.integers(1, 9),
    terms=st.integers(1, 5),
    term_bytes=st.integers(1, 300),
)


@given(histories(), TINY)
def test_a_companion_in_files_answers_like_a_look_at_every_event(events: list[Event], limits: Limits) -> None:
    with TemporaryDirectory() as directory:
        assert differences(made(events, Path(directory), limits), events) == []


@given(histories(), st.sets(st.integers(1, 24), max_size=15), TINY, TINY)
def test_companions_merged_answer_like_the_whole(
    events: list[Event], cuts: set[int], limits: Limits, merged_limits: Limits
) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(events)), len(events)]
    with TemporaryDirectory() as name:
        directory = Path(name)
        pieces = [
            made(events[start:stop], directory, limits, first_seq=FIRST_SEQ + start) for start, stop in pairwise(edges)
        ]
        listed = merge(pieces, directory, unique="m", level=1, fields=HASHES, rollups=ROLLUPS, limits=merged_limits)
        whole, companion = made(events, directory, limits), opened(directory, listed)
        assert differences(companion, events) == []
        assert companion.info == msgspec.structs.replace(whole.info, level=1)


@given(histories())
def test_a_companion_in_memory_answers_like_a_look_at_every_event(events: list[Event]) -> None:
    companion = in_memory(columns_of(events), DEFINITION, FIRST_SEQ, 1)
    assert differences(companion, events) == []
