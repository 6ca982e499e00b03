"""Plans name every event once, in order, wherever it is; rows are the events as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.history.read_plan import PlannedRange, fetch_rows, plan_ranges
from headrace.errors import OffsetGone
from headrace.types import JSON
from support.engine_rig import Rig, array


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "node", storage={"seal_rows": 3}) as opened:
        yield opened


def ranges(rig: Rig, name: str, start: int = 0, stop: int | None = None, limit: int = 100) -> list[PlannedRange]:
    stream, connection = rig.find(name), rig.engine.connect()
    try:
        stop = stream.head.next_seq if stop is None else stop
        return plan_ranges(connection, stream, stream.head, start, stop, limit)
    finally:
        connection.close()


def spans(planned: list[PlannedRange]) -> list[tuple[int, int, bool]]:
    return [(each.first_seq, each.end_seq, each.placed is not None) for each in planned]


def rows(rig: Rig, name: str, start: int, stop: int) -> list[dict[str, Any]]:
    """All rows of a range."""
    stream, connection, collected = rig.find(name), rig.engine.connect(), []
    try:
        while start < stop:
            fetched = fetch_rows(connection, rig.engine.caches.segments, stream, stream.head, start, stop)
            collected += pa.ipc.open_stream(fetched.body).read_all().to_pylist()
            assert fetched.end_seq > start
            start = fetched.end_seq
    finally:
        connection.close()
    return collected


def test_segments_and_the_log_make_up_a_stream(rig: Rig) -> None:
    rig.create("s", JSON, array(0, 1, 2))
    rig.append("s", array(3, 4, 5))
    rig.publish("s")
    rig.append("s", array(6, 7), key="k")
    assert spans(ranges(rig, "s")) == [(0, 3, True), (3, 6, True), (6, 8, False)]
    assert spans(ranges(rig, "s", 1, 7)) == [(1, 3, True), (3, 6, True), (6, 7, False)]
    assert spans(ranges(rig, "s", 4, 5)) == [(4, 5, True)]
    assert spans(ranges(rig, "s", limit=2)) == [(0, 3, True), (3, 6, True)]
    assert ranges(rig, "s", 8) == ranges(rig, "s", 3, 3) == []
    assert all(each.bytes > 0 for each in ranges(rig, "s"))
    found = rows(rig, "s", 0, 8)
    assert [(row["seq"], row["payload"], row["key"], row["version"]) for row in found] == [
        (seq, str(seq), "k" if seq > 5 else None, 0) for seq in range(8)
    ]
    assert [row["payload"] for row in rows(rig, "s", 2, 7)] == list("23456")


def test_a_fork_leaves_its_source_within_a_segment_or_within_the_log(rig: Rig) -> None:
    rig.create("s", JSON, array(0, 1, 2))
    rig.publish("s")
    rig.append("s", array(3, 4))
    rig.fork("s", "early", 2)
    rig.fork("s", "late", 4)
    for name in ("early", "late"):
        rig.append(name, array("own"))
    assert spans(ranges(rig, "early")) == [(0, 2, True), (2, 3, False)]
    assert spans(ranges(rig, "late")) == [(0, 3, True), (3, 4, False), (4, 5, False)]
    assert [row["payload"] for row in rows(rig, "late", 0, 5)] == ["0", "1", "2", "3", '"own"']


def test_rows_are_the_same_once_they_are_sealed_and_refused_once_they_are_gone(rig: Rig) -> None:
    rig.create("s", JSON)
    for number in range(4):
        rig.append("s", array(number, "x"), key=f"k{number}")
        rig.clock.us += 1
    before = rows(rig, "s", 0, 8)
    stream, head = rig.find("s"), rig.find("s").head.copy()
    rig.publish("s")
    assert rows(rig, "s", 0, 8) == before
    rig.retain("s", size=3)
    rig.publish("s")
    connection = rig.engine.connect()
    try:
        with pytest.raises(OffsetGone):
            fetch_rows(connection, rig.engine.caches.segments, stream, head, 0, 8)
    finally:
        connection.close()
