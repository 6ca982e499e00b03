"""What users test their features with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import testing
from headrace.errors import BadRequest, TooLarge


@hr.event
class Visit:
    user: str


@hr.table(key="user")
def Visits(visit: Visit):  # type: ignore[no-untyped-def]
    return visit.agg(ever=hr.count(), recent=hr.count(window="64s"), since=hr.time_since())


def test_windows_follow_the_virtual_clock() -> None:
    with testing.app() as app:
        app.register(Visits)
        app.push(Visit, {"user": "u1"})
        assert app.get(Visits, "u1") == {"ever": 1, "recent": 1, "since": 0}
        app.clock.advance("63s")
        assert app.get(Visits, "u1") == {"ever": 1, "recent": 1, "since": 63_000}
        app.clock.advance("1s")
        assert app.get(Visits, "u1") == {"ever": 1, "recent": 0, "since": 64_000}


def test_replay_pushes_each_event_at_its_moment() -> None:
    with testing.app() as app:
        app.register(Visits)
        moments = ["2026-03-01T10:00:00Z", datetime(2026, 3, 1, 10, 1, tzinfo=UTC), "2026-03-01T10:01:30Z"]
        pushed = testing.replay(app, [(moment, Visit, {"user": "u1"}) for moment in moments])
        assert len({one.offset for one in pushed}) == 3
        assert app.get(Visits, "u1") == {"ever": 3, "recent": 2, "since": 0}


def test_data_stays_where_a_path_is_given(tmp_path: Path) -> None:
    with testing.app(tmp_path) as app:
        app.register(Visits)
        app.push(Visit, {"user": "u1"})
    with testing.app(tmp_path, at="2026-01-01T00:00:10Z") as app:
        assert app.get(Visits, "u1")["since"] == 10_000


def test_settings_are_those_of_the_server() -> None:
    with testing.app(limits__body_bytes="100") as app, pytest.raises(TooLarge):
        app.client.stream("notes").create(body={"long": "x" * 200})


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(BadRequest, match="unknown setting"), testing.app(limits__nonsense="1"):
        pass


def test_two_servers_have_two_clocks() -> None:
    with testing.app() as one, testing.app() as other:
        one.clock.advance(timedelta(days=1))
        assert other.clock.now_us() == testing.VirtualClock().now_us()
        assert repr(one.clock) == "VirtualClock('2026-01-02T00:00:00Z')"


def test_time_does_not_go_back() -> None:
    clock = testing.VirtualClock("2026-01-02T00:00:00Z")
    clock.set("2026-01-02T00:00:00Z")
    with pytest.raises(ValueError, match="time does not go back"):
        clock.set("2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ({"a": 0.1 + 0.2, "b": "x"}, {"b": "x", "a": 0.3}),
        ({"a": 3}, {"a": 3.0}),
        ({"a": [1.0, {"x": 1 / 3}]}, {"a": [1, {"x": 0.333333333333}]}),
        ({"a": None}, {"a": None}),
        ({}, {}),
    ],
)
def test_rows_that_differ_by_a_breath_are_equal(got: Any, wanted: Any) -> None:
    testing.assert_row(got, wanted)


@pytest.mark.parametrize(
    ("got", "wanted", "said"),
    [
        ({"a": 1.0}, {"a": 1.1}, "a: 1.0, wanted 1.1"),
        ({}, {"a": 1}, "a: is missing, wanted 1"),
        ({"a": 1}, {}, "a: 1 was not wanted"),
        ({"a": True}, {"a": 1}, "a: True, wanted 1"),
        ({"a": None}, {"a": 0}, "a: None, wanted 0"),
        ({"a": [1, 2]}, {"a": [1]}, r"a: \[1, 2\], wanted \[1\]"),
        ({"a": {"x": 1}}, {"a": {"y": 1}}, "a: {'x': 1}, wanted {'y': 1}"),
    ],
)
def test_rows_that_differ_are_told_apart(got: Any, wanted: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        testing.assert_row(got, wanted)
