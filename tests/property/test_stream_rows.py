"""Rows of streams that are read together are those that are read one by one, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage import database
from headrace.storage.streams import StreamRow, Streams
from headrace.storage.wal import Wal

# SQLite ends a text at a NUL; neither names nor headers have one.
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**40)
HEADS = st.none() | st.tuples(COUNTS, NUMBERS, COUNTS, st.none() | TEXTS)


def _rows(name: str) -> st.SearchStrategy[StreamRow]:
    return st.builds(
        StreamRow,
        name=st.just(name),
        content_type=TEXTS,
        created_us=NUMBERS,
        epochs=TEXTS,
        state=st.integers(0, 2),
        ttl_s=st.none() | NUMBERS,
        closed_by=st.none() | TEXTS,
        fork_origin=st.none() | TEXTS,
        next_seq=COUNTS,
        last_us=NUMBERS,
        bytes=COUNTS,
        stream_seq=st.none() | TEXTS,
        profile=TEXTS,
        incarnation=TEXTS,
        managed=TEXTS,
    )


@st.composite
def _stored(draw: st.DrawFn) -> list[tuple[StreamRow, tuple[int, int, int, str | None] | None]]:
    names = draw(st.lists(TEXTS, unique=True, max_size=6))
    return [(draw(_rows(name)), draw(HEADS)) for name in names]


@given(stored=_stored(), others=st.lists(TEXTS, max_size=3))
def test_rows_that_are_read_together_are_those_that_are_read_one_by_one(
    stored: list[tuple[StreamRow, tuple[int, int, int, str | None] | None]],
    others: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path: Path = tmp_path_factory.mktemp("rows") / "headrace.db"
    connection = database.connect(path, cache_bytes=1 << 20)
    try:
        database.migrate(connection)
        connection.pragma("synchronous", "OFF")
        streams = Streams(connection)
        for row, head in stored:
            number = streams.insert(row)
            if head is not None:
                seq, at_us, size, stream_seq = head
                Wal(connection).insert([(number, seq, 1, at_us, 0, None, None, stream_seq, size, b"x", None)])
        names = [row.name for row, _ in stored] + others
        for logged in (True, False):
            one_by_one = {name: streams.by_name(name, logged=logged) for name in names}
            together = {row.name: row for row in streams.by_names(names, logged=logged)}
            assert together == {name: row for name, row in one_by_one.items() if row is not None}
            assert set(together) >= {row.name for row, _ in stored}
    finally:
        connection.close()
