from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.storage import database
from headrace.storage.database import Connection
from headrace.storage.streams import DELETED, SOFT_DELETED, StreamRow, Streams
from headrace.storage.wal import Wal


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    database.migrate(connection)
    yield connection
    connection.close()


@pytest.fixture
def streams(connection: Connection) -> Streams:
    return Streams(connection)


def _row(name: str, **facts: Any) -> StreamRow:
    return StreamRow(name=name, content_type="text/plain", created_us=1, epochs="[[0,0]]", **facts)


def test_a_row_is_read_back_as_it_was_stored(streams: Streams) -> None:
    row = _row("a", ttl_s=5, retention_bytes=7, closed=1, closed_by='["p",0,1]', next_seq=3, stream_seq="x")
    row.id = streams.insert(row)
    assert streams.by_name("a") == streams.by_id(row.id) == row
    assert streams.by_name("b") is None


def test_the_newest_row_of_the_wal_knows_the_head_better(streams: Streams, connection: Connection) -> None:
    stream = streams.insert(_row("a"))
    Wal(connection).insert(
        [(stream, 0, 2, 11, 0, None, None, "q", 5, b"ab", None), (stream, 2, 3, 12, 0, None, None, "r", 9, b"cd", None)]
    )
    found = streams.by_name("a")
    assert found is not None
    assert found.next_seq == 5
    assert found.last_us == 12
    assert found.bytes == 9
    assert found.stream_seq == "r"


def test_an_old_row_that_stays_for_a_fork_does_not_set_the_head_back(streams: Streams, connection: Connection) -> None:
    stream = streams.insert(_row("a", next_seq=9, last_us=20, bytes=30, stream_seq="z"))
    Wal(connection).insert([(stream, 0, 2, 11, 0, None, None, "q", 5, b"ab", None)])
    found = streams.by_name("a")
    assert found is not None
    assert found.next_seq == 9
    assert found.last_us == 20
    assert found.bytes == 30
    assert found.stream_seq == "z"


def test_a_name_can_be_taken_once(streams: Streams) -> None:
    streams.insert(_row("a"))
    with pytest.raises(database.SQLiteError):
        streams.insert(_row("a"))


def test_a_page_has_living_streams_with_a_prefix_in_name_order(streams: Streams) -> None:
    for name in ("b/2", "b/1", "a", "b/é", "c", "b/3"):
        streams.insert(_row(name))
    streams.insert(_row("b/deleted", state=DELETED))
    streams.insert(_row("b/soft", state=SOFT_DELETED))
    streams.insert(_row("b/over", deadline_us=5))
    page = streams.page(prefix="b/", after="", now_us=10, limit=3)
    assert [row.name for row in page] == ["b/1", "b/2", "b/3"]
    assert [row.name for row in streams.page(prefix="b/", after="b/3", now_us=10, limit=3)] == ["b/é"]
    assert [row.name for row in streams.page(prefix="", after="b/é", now_us=10, limit=3)] == ["c"]


def test_a_sliding_window_may_have_moved_in_memory_so_the_page_keeps_its_stream(streams: Streams) -> None:
    streams.insert(_row("a", ttl_s=1, deadline_us=5))
    assert [row.name for row in streams.page(prefix="", after="", now_us=10, limit=3)] == ["a"]


def test_streams_are_due_when_their_deadline_has_passed(streams: Streams) -> None:
    for name, deadline_us in (("late", 9), ("early", 3), ("later", 11), ("never", None)):
        streams.insert(_row(name, deadline_us=deadline_us))
    assert [row.name for row in streams.due(10, limit=10)] == ["early", "late"]


def test_forks_count_until_they_are_gone_for_good(streams: Streams) -> None:
    parent = streams.insert(_row("p"))
    fork = streams.insert(_row("f", parent=parent, fork_seq=4))
    assert streams.forks(parent) == [(fork, 4)]
    streams.update(fork, state=SOFT_DELETED)
    assert streams.forks(parent) == [(fork, 4)]
    streams.update(fork, state=DELETED)
    assert streams.forks(parent) == []


def test_an_id_is_never_used_twice(streams: Streams) -> None:
    first = streams.insert(_row("a"))
    streams.remove(first)
    assert streams.insert(_row("a")) > first


def test_a_producer_has_its_last_epoch_and_number(streams: Streams) -> None:
    streams.save_producers([(1, "p", 0, 5)])
    streams.save_producers([(1, "p", 1, 0)])
    assert streams.producer(1, "p") == (1, 0)
    assert streams.producer(2, "p") is None


def test_purging_removes_rows_and_producers_of_discarded_streams_in_slices(
    streams: Streams, connection: Connection
) -> None:
    gone, kept = streams.insert(_row("gone")), streams.insert(_row("kept"))
    wal = Wal(connection)
    wal.insert(
        [(stream, seq, 1, 0, 0, None, None, None, seq, b"x", None) for stream in (gone, kept) for seq in range(5)]
    )
    streams.save_producers([(gone, "p", 0, 0), (kept, "p", 0, 0)])
    streams.remove(gone)
    assert streams.purge(3) > 0
    assert len(list(wal.scan(gone, 0, 9))) == 2
    while streams.purge(3):
        pass
    assert list(wal.scan(gone, 0, 9)) == []
    assert streams.producer(gone, "p") is None
    assert len(list(wal.scan(kept, 0, 9))) == 5
    assert streams.producer(kept, "p") == (0, 0)


def test_tombstones_are_dropped_when_they_are_old(streams: Streams) -> None:
    streams.insert(_row("old", state=DELETED, deadline_us=5))
    streams.insert(_row("young", state=DELETED, deadline_us=15))
    streams.insert(_row("alive", deadline_us=5))
    assert streams.drop_tombstones(10, limit=10) == 1
    assert streams.by_name("old") is None
    assert streams.by_name("young") is not None
    assert streams.by_name("alive") is not None


def test_numbers_are_kept_by_name(streams: Streams) -> None:
    assert streams.meta("n", default=7) == 7
    streams.set_meta("n", 8)
    streams.set_meta("n", 9)
    assert streams.meta("n") == 9


def test_streams_of_an_older_database_are_kept_and_their_numbers_are_never_given_again(tmp_path: Path) -> None:
    by_number = 15
    old = database.connect(tmp_path / "old.db", cache_bytes=1 << 20)
    for text in database.migrations()[:by_number]:
        old.execute(text)
    old.pragma("user_version", by_number)
    told = [
        _row(name, managed=f"{name}!", stream_seq="x", generation=3, last_us=7) for name in ("b", "a", "ü/c", "last")
    ]
    columns = StreamRow.__struct_fields__
    for number, row in enumerate(told, start=5):
        row.id = number
        values = tuple(getattr(row, column) for column in columns)
        old.execute(f"INSERT INTO streams ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", values)
    old.execute("DELETE FROM streams WHERE name = 'last'")

    database.migrate(old)
    streams = Streams(old)
    assert [streams.by_name(row.name) for row in told] == [*told[:-1], None]
    assert [streams.by_id(row.id) for row in told] == [*told[:-1], None]
    assert streams.insert(_row("new")) == told[-1].id + 1
    old.close()
