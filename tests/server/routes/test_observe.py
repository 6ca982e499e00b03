"""One request, looked up by its id, its trace or a span: events and spans joined, and what is said about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.otlp_exports import CHILD, ROOT, TRACE, export, span

if TYPE_CHECKING:
    from tests.server.conftest import Api

PROTOBUF = {"content-type": "application/x-protobuf"}


def installed(api: Api, kind: str) -> str:
    path = api.stream()
    assert api.post(f"{path}/_profile", {"profile": {"kind": kind}}).status_code == 200
    return path.removeprefix("/v1/stream/")


@pytest.fixture
def pair(api: Api) -> tuple[str, str]:
    """Streams of events and spans that tell of three requests, one of them in both."""
    events, traces = installed(api, "evlog"), installed(api, "otel-traces")
    at = {"timestamp": "2026-02-25T12:00:00.050Z", "service": "shop"}
    api.post(
        f"/v1/stream/{events}",
        [
            {**at, "requestId": "r-1", "traceId": TRACE, "spanId": ROOT, "message": "declined", "status": 402},
            {**at, "requestId": "r-1", "message": "before the trace"},
            {**at, "requestId": "r-2", "message": "alone"},
        ],
    )
    failed = [("exception", {"exception.message": "no funds"})]
    root = span(given={"request.id": "r-1", "http.request.method": "POST"}, events=failed, status=(2, "failed"))
    child = span(span=CHILD, parent=ROOT, name="charge", kind=3, millis=40)
    lonely = span(trace="a" * 32, given={"request.id": "r-3"})
    body = export(root, child, child, lonely)
    assert api.post(f"/v1/stream/{traces}/_otlp/v1/traces", body, PROTOBUF).status_code == 200
    return events, traces


def observe(api: Api, pair: tuple[str, str], lookup: Any, **more: Any) -> Any:
    streams = {"events": pair[0], "traces": pair[1]}
    answer = api.post("/v1/observe/request", {"streams": streams, "lookup": lookup, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("lookup", [{"requestId": "r-1"}, {"traceId": TRACE}, {"spanId": CHILD}])
def test_a_request_is_found_by_any_of_its_ids(api: Api, pair: tuple[str, str], lookup: dict[str, str]) -> None:
    found = observe(api, pair, lookup)
    assert found["lookup"]["traceId"] == TRACE
    assert found["lookup"]["requestId"] == "r-1"
    assert found["evlog"]["primary"]["message"] == "declined"
    trace = found["trace"]
    assert [one["spanId"] for one in trace["spans"]] == [ROOT, CHILD]
    assert trace["rootSpanId"] == ROOT
    assert trace["tree"][0]["children"][0]["spanId"] == CHILD
    assert trace["criticalPath"] == [ROOT, CHILD]
    assert trace["duplicateSpans"] == [CHILD]
    assert trace["partial"] is False
    assert trace["missingParents"] == []
    assert [error["message"] for error in trace["errors"]] == ["no funds"]
    told = found["summary"]
    assert told["service"] == "shop"
    assert told["status"] == 402
    assert told["method"] == "POST"
    assert told["duration"] == 123
    kinds = [item["kind"] for item in found["timeline"]]
    assert kinds.count("otel.span.start") == 2 and "otel.exception" in kinds and "evlog.event" in kinds
    assert found["coverage"]["warnings"] == []
    assert found["coverage"]["traces"]["complete"] is True


def test_all_events_of_a_request_match(api: Api, pair: tuple[str, str]) -> None:
    matches = observe(api, pair, {"requestId": "r-1"})["evlog"]["matches"]
    assert [match["event"]["message"] for match in matches] == ["declined", "before the trace"]
    stream = f"/v1/stream/{pair[0]}"
    assert api.get(stream, offset=matches[0]["offset"]).json()[0]["message"] == "before the trace"


def test_what_has_only_events_or_only_spans_is_found_and_said(api: Api, pair: tuple[str, str]) -> None:
    found = observe(api, pair, {"requestId": "r-2"})
    assert found["evlog"]["primary"]["message"] == "alone"
    assert found["trace"]["spans"] == []
    assert any("no spans" in warning for warning in found["coverage"]["warnings"])
    found = observe(api, pair, {"requestId": "r-3"})
    assert [one["traceId"] for one in found["trace"]["spans"]] == ["a" * 32]
    assert found["evlog"]["primary"] is None
    found = observe(api, pair, {"traceId": "f" * 32})
    assert len(found["coverage"]["warnings"]) == 2


def test_limits_are_kept_and_said(api: Api, pair: tuple[str, str]) -> None:
    found = observe(api, pair, {"requestId": "r-1"}, limits={"events": 1, "spans": 1})
    assert len(found["evlog"]["matches"]) == 1
    assert len(found["trace"]["spans"]) == 1
    assert found["trace"]["partial"] is True
    assert found["coverage"]["events"]["limit_reached"] is True
    assert found["coverage"]["events"]["total"] == {"value": 1, "relation": "gte"}


def test_time_bounds_the_search(api: Api, pair: tuple[str, str]) -> None:
    late = {"from": "2026-02-25T13:00:00Z"}
    assert observe(api, pair, {"requestId": "r-1"}, time=late)["evlog"]["matches"] == []
    padded = {**late, "paddingMs": 3_600_000}
    assert len(observe(api, pair, {"requestId": "r-1"}, time=padded)["evlog"]["matches"]) == 2


def test_parts_can_be_left_out(api: Api, pair: tuple[str, str]) -> None:
    body = {"streams": {"traces": pair[1]}, "lookup": {"spanId": ROOT}, "include": {"events": False, "timeline": False}}
    found = api.post("/v1/observe/request", body).json()
    assert found["evlog"] is None
    assert found["timeline"] is None
    assert found["coverage"]["events"] is None
    assert found["trace"]["rootSpanId"] == ROOT
    raw = observe(api, pair, {"traceId": TRACE}, include={"raw": True})["timeline"]
    assert all("raw" in item["data"] for item in raw if item["kind"] in ("evlog.event", "otel.span.start"))


def test_streams_must_tell_what_is_asked(api: Api, pair: tuple[str, str]) -> None:
    streams = {"events": pair[1], "traces": pair[1]}
    answer = api.post("/v1/observe/request", {"streams": streams, "lookup": {"requestId": "r"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "streams.events"
    streams = {"events": "nowhere", "traces": pair[1]}
    assert api.post("/v1/observe/request", {"streams": streams, "lookup": {"requestId": "r"}}).status_code == 404
    assert api.post("/v1/observe/request", {"lookup": {}}).status_code == 400
    assert api.get("/v1/observe/request").status_code == 405


def test_an_id_with_marks_of_the_query_language_is_an_id(api: Api, pair: tuple[str, str]) -> None:
    odd = 'a"b\\c* (d):e'
    api.post(f"/v1/stream/{pair[0]}", [{"requestId": odd, "message": "odd"}])
    assert observe(api, pair, {"requestId": odd})["evlog"]["primary"]["message"] == "odd"
