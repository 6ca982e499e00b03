from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.format.companion.layout import Companion, PartFile
from headrace.format.manifest import Segment
from headrace.storage import database
from headrace.storage.database import Connection
from headrace.storage.derived import Companions
from headrace.storage.published import ContainedSegments, Published, SegmentSpan


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = database.connect(tmp_path / "t.db", cache_bytes=1 << 20)
    database.migrate(opened)
    for stream, edges in {1: (0, 10, 30, 35), 2: (0, 100)}.items():
        for first, end in pairwise(edges):
            Published(opened).add(stream, segment(first, end))
    yield opened
    opened.close()


def segment(first: int, end: int) -> Segment:
    return Segment(
        name=f"{first:016}-{end - first}-x",
        first_seq=first,
        count=end - first,
        bytes=1,
        payload_bytes=1,
        before_bytes=0,
        total_bytes=1,
        min_us=first,
        max_us=end - 1,
        sha256="",
    )


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [
        (0, 35, SegmentSpan(3, 0, 35)),
        (0, 10, SegmentSpan(1, 0, 10)),
        (9, 11, SegmentSpan(2, 0, 30)),
        (12, 20, SegmentSpan(1, 10, 30)),
        (34, 99, SegmentSpan(1, 30, 35)),
        (35, 40, SegmentSpan(0, 35, 40)),
    ],
)
def test_segments_that_hold_some_of_a_range_are_touched(
    connection: Connection, first: int, end: int, found: SegmentSpan
) -> None:
    assert Published(connection).overlapping(1, first, end) == found


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [
        (0, 35, ContainedSegments(3, 34)),
        (0, 30, ContainedSegments(2, 29)),
        (1, 34, ContainedSegments(1, 29)),
        (10, 29, ContainedSegments(0, None)),
        (35, 40, ContainedSegments(0, None)),
    ],
)
def test_segments_are_within_a_range_as_a_whole(
    connection: Connection, first: int, end: int, found: ContainedSegments
) -> None:
    assert Published(connection).contained(1, first, end) == found


def test_a_stream_without_segments_has_none(connection: Connection) -> None:
    assert Published(connection).overlapping(3, 5, 9) == SegmentSpan(0, 5, 9)
    assert Published(connection).contained(3, 0, 9) == ContainedSegments(0, None)


def test_every_companion_that_comes_is_newer(connection: Connection) -> None:
    counts, companions = Published(connection), Companions(connection)
    seen = [counts.newest_companion()]
    for stream in (1, 2):
        part = PartFile(1, "")
        facts = {"first_seq": 0, "count": 1, "level": 0, "through_version": 0, "fields": {}, "rollups": {}}
        shape = {"keys": True, "columns": part, "postings": part, "panes": None, "times": None, "segments": 1}
        companions.add(stream, Companion(name=f"{0:016}-1-a{stream}", words={}, **facts, **shape))  # type: ignore[arg-type]
        seen.append(counts.newest_companion())
    assert seen == sorted(set(seen))
