"""Features over a stream that is there already: its events are taken as they are, and stay its owner's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.features.source import SourceGone
from headrace.types import JSON
from support.engine_rig import array
from support.feature_rig import Pipelines, event, op, table

FIELDS = {"user": {"type": "str", "pointer": "/user/id"}, "ms": "i64"}
AGG = {"n": op("count"), "total": op("sum", field="ms")}
USERS = table("Users", "Request", ["user"], AGG)


def source(fields: dict[str, Any] | None = None, stream: str = "requests", **facts: Any) -> dict[str, Any]:
    return event("Request", fields or FIELDS, stream=stream, **facts)


def request(user: Any, ms: Any, **more: Any) -> dict[str, Any]:
    return {"user": {"id": user, "name": "x"}, "ms": ms, "path": "/a", **more}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Pipelines]:
    with Pipelines(tmp_path, features={"fold_rows": 2}) as rig:
        rig.create("requests", JSON)
        yield rig


def append(rig: Pipelines, *events: Any, stream: str = "requests") -> None:
    rig.clock.us += 1_000_000
    rig.append(stream, array(*events))


def test_history_and_what_comes_later_count(rig: Pipelines) -> None:
    append(rig, request("a", 1), request("b", 2), request("a", 3))
    rig.register(source(), USERS)
    assert rig.get("Users", "a") == {"n": 2, "total": 4}
    append(rig, request("a", 10))
    assert rig.get("Users", "a") == {"n": 3, "total": 14}
    assert rig.get("Users", "b") == {"n": 1, "total": 2}
    assert rig.get("Users", "c") == {}


def test_history_in_segments_is_backfilled_by_workers(rig: Pipelines) -> None:
    append(rig, *(request("ab"[number % 2], number) for number in range(10)))
    rig.publish("requests")
    rig.register(source(), USERS)
    assert rig.work() > 0
    assert rig.states("Users")
    append(rig, request("a", 100))
    assert rig.answer("Users", "a") == ({"n": 6, "total": 120}, True, None)
    rig.reopen()
    assert rig.get("Users", "a") == {"n": 6, "total": 120}


def test_events_that_do_not_fit_are_left_out(rig: Pipelines) -> None:
    odd = [{"ms": 1}, request("a", "x"), request(None, 1), {"user": "a", "ms": 1}, 3, [1], request("a", 2**63)]
    append(rig, request("a", 1), *odd, request("a", 2.0))
    rig.register(source(), USERS)
    assert rig.get("Users", "a") == {"n": 2, "total": 3}
    rig.publish("requests")
    rig.work()
    append(rig, *odd, request("a", 3))
    rig.reopen()
    assert rig.get("Users", "a") == {"n": 3, "total": 6}


def test_two_sources_over_one_stream_decode_its_events_each_their_own_way(rig: Pipelines) -> None:
    paths = event("Path", {"path": "str", "ms": "f64"}, stream="requests")
    append(rig, request("a", 1), request("b", 2.5))
    rig.register(source(), USERS, paths, table("Paths", "Path", ["path"], AGG))
    append(rig, request("a", 3))
    assert rig.get("Users", "a") == {"n": 2, "total": 4}
    assert rig.get("Users", "b") == {}
    assert rig.get("Paths", "/a") == {"n": 3, "total": 6.5}
    rig.publish("requests")
    rig.work()
    append(rig, request("b", 4))
    assert rig.get("Users", "b") == {"n": 1, "total": 4}
    assert rig.get("Paths", "/a") == {"n": 4, "total": 10.5}


def refused(rig: Pipelines, *descriptors: dict[str, Any], **terms: Any) -> set[tuple[str, str]]:
    try:
        rig.register(*descriptors, **terms)
    except AssertionError as reason:
        return {(problem.code, problem.path) for problem in reason.args[0]}
    raise AssertionError("it is not refused")


def test_only_streams_of_json_that_belong_to_no_registry_of_entities_are_sources(rig: Pipelines) -> None:
    rig.create("bytes")
    for stream in ("entities/contact", "__headrace_details__", "bytes", "events/Request"):
        assert refused(rig, source(stream=stream)) == {("stream_not_supported", "descriptors[0].stream")}
    assert refused(rig, source(stream="nothing")) == {("unknown_stream", "descriptors[0].stream")}


def test_rows_of_a_deleted_stream_say_so_and_force_binds_to_the_new_one(rig: Pipelines) -> None:
    append(rig, request("a", 1))
    rig.register(source(), USERS)
    assert rig.get("Users", "a") == {"n": 1, "total": 1}
    rig.delete("requests")
    with pytest.raises(SourceGone):
        rig.get("Users", "a")
    rig.create("requests", JSON)
    append(rig, request("a", 7))
    with pytest.raises(SourceGone):
        rig.get("Users", "a")
    assert refused(rig, source(), USERS) == {("source_gone", "descriptors[0].stream")}
    rig.register(source(), USERS, force=True)
    assert rig.get("Users", "a") == {"n": 1, "total": 7}
