from __future__ import annotations

from pathlib import Path

import pytest

from headrace.format.manifest import Segment
from headrace.format.object_names import segment_key, segment_name
from headrace.storage import database
from headrace.storage.published import Backlog, DeletedStream, Published, SegmentObject
from headrace.storage.streams import DELETED, StreamRow, Streams
from headrace.storage.wal import Row, Wal, pack_body
from headrace.types import MAX_AHEAD_US

INCARNATION = "42"


@pytest.fixture
def connection(tmp_path: Path) -> database.Connection:
    connection = database.connect(tmp_path / "log.db", cache_bytes=1 << 20)
    database.migrate(connection)
    return connection


@pytest.fixture
def published(connection: database.Connection) -> Published:
    """The streams 1 and 2, of which the first has three segments of ten entries."""
    streams = Streams(connection)
    for name, incarnation in (("s", INCARNATION), ("t", "43")):
        row = StreamRow(name=name, content_type="x/y", created_us=5, epochs="[[42,0]]", incarnation=incarnation)
        streams.insert(row)
    published = Published(connection)
    for first in (0, 10, 20):
        published.add(1, _segment(first))
    return published


def _segment(first: int, count: int = 10, name: str = "x") -> Segment:
    """Entries of ten bytes, one each microsecond."""
    return Segment(
        name=segment_name(first, count, name),
        first_seq=first,
        count=count,
        bytes=100,
        payload_bytes=10 * count,
        before_bytes=10 * first,
        total_bytes=10 * (first + count),
        min_us=first,
        max_us=first + count - 1,
        sha256="0" * 64,
    )


def _row(stream: int, seq: int, count: int, at_us: int, total: int, body: bytes) -> Row:
    return stream, seq, count, at_us, 0, None, None, None, total, *pack_body(body)


def _firsts(found: list[SegmentObject]) -> list[int]:
    return [placed.segment.first_seq for placed in found]


def _first(found: SegmentObject | None) -> int | None:
    return None if found is None else found.segment.first_seq


def test_a_segment_is_found_by_what_it_holds(published: Published) -> None:
    for seq, first in ((0, 0), (9, 0), (10, 10), (29, 20), (30, None)):
        assert _first(published.holding(1, seq)) == first
    assert published.holding(2, 0) is None
    found = published.holding(1, 5)
    assert found == SegmentObject(segment_key("s", INCARNATION, _segment(0).name), _segment(0))


def test_nothing_is_found_in_a_gap(published: Published) -> None:
    published.remove(1, [_segment(10)])
    assert published.holding(1, 10) is None
    assert _firsts(published.following(1, 10, 100)) == [20]
    assert _firsts(published.following(1, 9, 100)) == [0, 20]


@pytest.mark.parametrize(
    ("start", "end", "limit", "expected"),
    [
        (0, 30, -1, [0, 10, 20]),
        (9, 10, -1, [0]),
        (10, 11, -1, [10]),
        (15, 21, -1, [10, 20]),
        (0, 30, 2, [0, 10]),
        (30, 40, -1, []),
        (5, 5, -1, []),
    ],
)
def test_the_segments_of_a_range_are_found_in_order(
    published: Published, start: int, end: int, limit: int, expected: list[int]
) -> None:
    assert [first for first in _firsts(published.following(1, start, end, limit)) if start < end] == expected


def test_a_segment_is_found_by_time_and_by_size(published: Published) -> None:
    for us, first in ((-1, 0), (9, 0), (10, 10), (29, 20), (30, None)):
        assert _first(published.first_from(1, us)) == first
    for size, first in ((0, 0), (99, 0), (100, 10), (299, 20), (300, None)):
        assert _first(published.first_beyond(1, size)) == first
    assert _first(published.last(1)) == 20
    assert published.last(2) is None


def test_a_segment_takes_the_place_of_those_it_repeats(published: Published) -> None:
    published.add(1, _segment(20, 15, "longer"))
    assert _firsts(published.following(1, 0, 100)) == [0, 10, 20]
    assert published.holding(1, 34) == published.last(1)
    published.add(1, _segment(10, 30, "both"))
    assert _firsts(published.following(1, 0, 100)) == [0, 10]


def test_a_mark_stays_until_the_manifest_tells_the_truth(published: Published) -> None:
    published.mark(2, 7)
    published.mark(1, 5)
    published.mark(1, 9)  # it has not told the truth since 5
    assert [published.marked(until_us, 9, 10) for until_us in (4, 5, 7)] == [[], [1], [1, 2]]
    assert published.marked(9, 9, 1) == [1]
    published.unmark(1, 9)
    assert published.marked(9, 99, 10) == [2]


def test_a_mark_of_a_clock_that_was_ahead_is_due_at_once_and_goes_like_others(published: Published) -> None:
    published.mark(1, 5)
    published.mark(2, 9 + MAX_AHEAD_US + 1)
    assert published.marked(9, 9, 10) == [2, 1]
    assert published.marked(9, 9, 1) == [2]
    published.unmark(2, 9)
    assert published.marked(9, 9, 10) == [1]


def test_a_mark_that_is_not_further_ahead_than_clocks_differ_waits_and_stays(published: Published) -> None:
    published.mark(2, 9 + MAX_AHEAD_US)
    assert published.marked(9, 9, 10) == []
    published.unmark(2, 9)  # it may have come after what was published
    assert published.marked(9 + MAX_AHEAD_US, 9 + MAX_AHEAD_US, 10) == [2]


def test_a_backlog_waits_since_times_that_are_not_further_ahead_than_clocks_differ(
    connection: database.Connection, published: Published
) -> None:
    ahead_us = 99 + MAX_AHEAD_US
    Wal(connection).insert([_row(1, 30, 1, ahead_us, 303, b"abc"), _row(2, 0, 1, ahead_us + 1, 2, b"xy")])
    assert [backlog.since_us for backlog in published.backlogs(0, 10, 99)] == [ahead_us, 5]
    for column in ("created_us", "published_us"):
        Streams(connection).update(2, **{column: ahead_us})
        assert published.backlogs(1, 1, 99)[0].since_us == ahead_us
        Streams(connection).update(2, **{column: ahead_us + 1})
        assert published.backlogs(1, 1, 99)[0].since_us == 0
        Streams(connection).update(2, **{column: 0})


def test_what_is_due_is_found_without_looking_at_what_is_not(
    connection: database.Connection, published: Published
) -> None:
    def steps() -> int:
        taken = [0]

        def count() -> bool:
            taken[0] += 1
            return False

        connection.set_progress_handler(count, 1)
        assert published.marked(10, 10**9, 5) == [1, 2]
        connection.set_progress_handler(None)
        return taken[0]

    published.mark(1, 9)
    published.mark(2, 10)
    alone = steps()
    with connection:
        for stream in range(3, 5_000):
            published.mark(stream, stream * 11)
    assert steps() < alone + 10


def test_a_backlog_counts_entries_bytes_and_since_when_they_wait(
    connection: database.Connection, published: Published
) -> None:
    assert published.backlogs(0, 10, 99) == []
    rows = [_row(1, 30, 3, 50, 303, b"abc"), _row(1, 33, 1, 60, 308, b"defgh"), _row(2, 0, 1, 2, 2, b"xy")]
    Wal(connection).insert(rows)
    assert published.backlogs(0, 10, 99) == [
        Backlog(1, 4, 8, 50, "s"),
        Backlog(2, 1, 2, 5, "t"),  # it came before its stream
    ]
    assert published.backlogs(0, 1, 99) == [Backlog(1, 4, 8, 50, "s")]
    assert published.backlogs(1, 1, 99) == [Backlog(2, 1, 2, 5, "t")]
    assert published.backlogs(2, 1, 99) == []
    Streams(connection).update(1, published_us=55)
    assert published.backlogs(0, 1, 99) == [Backlog(1, 4, 8, 55, "s")]


def test_a_backlog_counts_the_bytes_that_came_however_they_are_stored(
    connection: database.Connection, published: Published
) -> None:
    Wal(connection).insert([_row(1, 0, 1, 50, 5_000, b"x" * 5_000)])
    assert published.backlog(1) == Backlog(1, 1, 5_000, 50)


def test_leftovers_wait_and_are_forgotten_one_by_one(published: Published) -> None:
    published.discard(["a", "b"], 5)
    published.discard(["b", "c"], 8)  # b was left over before
    assert published.leftovers(7, 10) == [("a", 5), ("b", 5)]
    assert len(published.leftovers(8, 2)) == 2
    assert published.leftovers(8, 10, after="b") == [("c", 8)]
    published.forget(["a", "b"])
    assert published.leftovers(8, 10) == [("c", 8)]


def test_graves_are_dug_once_and_filled(connection: database.Connection, published: Published) -> None:
    published.mark_stream_deleted(1)
    assert published.deleted_streams(10) == []  # it was never published
    Streams(connection).update(1, generation=1)
    published.mark_stream_deleted(1)
    published.mark_deleted(DeletedStream(INCARNATION, "s"))
    assert published.deleted_streams(10) == [DeletedStream(INCARNATION, "s")]
    published.unmark_deleted(DeletedStream(INCARNATION, "s"))
    assert published.deleted_streams(10) == []


def test_a_segment_is_an_orphan_if_its_stream_lives_and_does_not_list_it(
    connection: database.Connection, published: Published
) -> None:
    assert not published.is_orphan(INCARNATION, _segment(10).name)
    assert published.is_orphan(INCARNATION, _segment(10, 10, "other").name)
    assert not published.is_orphan("99", _segment(10).name)
    Streams(connection).update(1, state=DELETED)
    assert not published.is_orphan(INCARNATION, _segment(10, 10, "other").name)
