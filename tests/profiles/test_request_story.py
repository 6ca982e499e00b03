"""Traces out of spans: roots, trees, services, the longest way, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.log.append import PLAIN
from headrace.errors import BadRequest
from headrace.profiles import table
from headrace.profiles.request_story import MAX_DEPTH, Trace, primary, read_question, summary, timeline

TRACE = "5b8efff798038103d269b633813fc60c"
START = 1_772_020_800_000_000_000


def span(number: int, parent: int | None = None, at: int = 0, millis: int = 10, **more: Any) -> dict[str, Any]:
    """A canonical span; moments in milliseconds after the start."""
    given = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "parentSpanId": None if parent is None else f"{parent:016x}",
        "name": f"span {number}",
        "startUnixNano": START + at * 1_000_000,
        "endUnixNano": START + (at + millis) * 1_000_000,
        "service": "api",
        **more,
    }
    hook = table.load("otel-traces").hook
    assert hook is not None
    return dict(json.loads(hook.normalise(json.dumps(given).encode(), PLAIN)))


def ids(*numbers: int) -> list[str]:
    return [f"{number:016x}" for number in numbers]


def shape(nodes: list[dict[str, Any]]) -> list[Any]:
    return [[int(node["spanId"], 16), shape(node["children"])] for node in nodes]


def test_children_stand_below_their_parents_in_the_order_of_time() -> None:
    trace = Trace([span(3, 1, at=5), span(1, millis=50), span(2, 1, at=1), span(4, 2, at=2)])
    assert shape(trace.tree()) == [[1, [[2, [[4, []]]], [3, []]]]]
    assert trace.tree()[0]["children"][0]["children"][0]["depth"] == 2
    assert trace.missing == [] and trace.duplicates == []


def test_a_span_whose_parent_is_not_here_is_a_root() -> None:
    trace = Trace([span(1), span(2, 9)])
    assert shape(trace.tree()) == [[1, []], [2, []]]
    assert trace.missing == ids(9)


def test_spans_that_came_twice_count_once() -> None:
    trace = Trace([span(1), span(1), span(2, 1)])
    assert list(trace.spans) == [f"{TRACE}:{one}" for one in ids(1, 2)]
    assert trace.duplicates == ids(1)


def test_spans_that_are_each_others_parents_are_shown_once_each() -> None:
    trace = Trace([span(1, 2), span(2, 1), span(3, 3)])
    assert sorted(_all(trace.tree())) == [1, 2, 3]


@given(st.lists(st.tuples(st.integers(1, 12), st.none() | st.integers(1, 12)), max_size=12))
def test_every_span_is_in_the_tree_exactly_once(edges: list[tuple[int, int | None]]) -> None:
    trace = Trace([span(number, parent) for number, parent in edges])
    assert sorted(_all(trace.tree())) == sorted({number for number, _ in edges})
    assert trace.root is None or trace.root in trace.roots
    assert len(trace.path()) == len(set(trace.path()))


def test_a_deep_trace_is_nested_only_so_far() -> None:
    deep = 3 * MAX_DEPTH
    trace = Trace([span(number, number - 1 or None, at=number) for number in range(1, deep + 1)])
    assert sorted(_all(trace.tree())) == list(range(1, deep + 1))
    assert len(trace.tree()) > 1
    assert len(trace.path()) == deep


def _all(nodes: list[dict[str, Any]]) -> list[int]:
    found, waiting = [], list(nodes)
    while waiting:
        node = waiting.pop()
        found.append(int(node["spanId"], 16))
        waiting += node["children"]
    return found


def test_the_root_is_what_looks_most_like_the_request() -> None:
    served = span(2, kind="server", http={"method": "GET"})
    trace = Trace([span(1, millis=1000), served, span(3, 9, kind="server", http={"method": "GET"}, millis=9999)])
    assert trace.root == f"{TRACE}:{served['spanId']}"


def test_the_longest_way_does_not_add_up_what_overlaps() -> None:
    # Two calls side by side of 40 ms each, and then one of 30 ms with a child that fills it.
    spans = [span(1, millis=100), span(2, 1, 0, 40), span(3, 1, 0, 40), span(4, 1, 50, 45), span(5, 4, 51, 44)]
    assert Trace(spans).path() == ids(1, 4, 5)


def test_services_that_call_each_other_are_mapped() -> None:
    failed = {"status": {"code": "error"}}
    trace = Trace([span(1), span(2, 1, service="db", **failed), span(3, 1, service="db"), span(4, 1)])
    assert trace.services() == {
        "nodes": [{"service": "api", "spans": 2, "errors": 0}, {"service": "db", "spans": 2, "errors": 1}],
        "edges": [{"from": "api", "to": "db", "spans": 2, "errors": 1}],
    }
    (error,) = trace.errors()
    assert error["spanId"] == ids(2)[0]
    assert error["isError"] is True


# -- the story


def event(**more: Any) -> dict[str, Any]:
    hook = table.load("evlog").hook
    assert hook is not None
    at = {"timestamp": "2026-02-25T12:00:00.005Z"}
    return dict(json.loads(hook.normalise(json.dumps({**at, **more}).encode(), PLAIN)))


def test_a_summary_asks_the_event_first_and_the_span_second() -> None:
    root = span(1, kind="server", http={"method": "GET", "route": "/r", "statusCode": 500}, requestId="r", millis=7)
    told = summary(event(method="POST", path="/p", service="shop", why="broken"), root)
    assert told["method"] == "POST"
    assert told["path"] == "/p"
    assert told["route"] == "/r"
    assert told["status"] == 500
    assert told["service"] == "shop"
    assert told["requestId"] == "r"
    assert told["duration"] == 7
    assert told["level"] == "error"
    assert told["error"]["why"] == "broken"
    assert summary(None, root)["service"] == "api"
    assert summary(None, None)["level"] is None


def test_the_primary_event_is_one_of_the_trace() -> None:
    one, two = event(requestId="a"), event(requestId="b", traceId="t")
    assert primary([one, two], "t") is two
    assert primary([one, two], "u") is one
    assert primary([], None) is None


def test_the_primary_event_is_one_with_a_status_rather_than_a_line_logged_meanwhile() -> None:
    line, own = event(traceId="t", message="looking"), event(traceId="t", status=200)
    elsewhere = event(traceId="u", status=500)
    assert primary([elsewhere, line, own], "t") is own
    assert primary([elsewhere, line], "t") is line
    assert primary([line, own], None) is own


def test_the_timeline_is_in_the_order_of_time() -> None:
    raised = {"timeUnixNano": START + 3_000_000, "name": "exception", "attributes": {"exception.message": "boom"}}
    noted = {"timeUnixNano": START + 1_500_000, "name": "cache"}
    trace = Trace([span(1, millis=10, events=[raised, noted])])
    items = timeline([("off", event(message="logged"))], trace, ("e", "t"), raw=False)
    assert [(item["kind"], item["title"]) for item in items] == [
        ("otel.span.start", "span 1"),
        ("otel.span.event", "cache"),
        ("otel.exception", "boom"),
        ("evlog.event", "logged"),
        ("otel.span.end", "span 1"),
    ]
    assert items[3]["source"] == {"stream": "e", "profile": "evlog", "offset": "off"}
    assert "raw" not in items[0]["data"]
    assert timeline([], trace, ("e", "t"), raw=True)[0]["data"]["raw"]["spanId"] == ids(1)[0]


# -- the question


@pytest.mark.parametrize(
    ("question", "place"),
    [
        ({"lookup": {}}, "lookup"),
        ({"lookup": {"requestId": "a", "traceId": "b"}}, "lookup"),
        ({"lookup": {"requestId": " "}}, "lookup.requestId"),
        ({"lookup": {"id": "a"}}, "lookup.id"),
        ({"streams": {"events": "e"}}, "streams.traces"),
        ({"streams": {"events": "e", "traces": "t", "logs": "l"}}, "streams.logs"),
        ({"limits": {"events": 501}}, "limits.events"),
        ({"limits": {"spans": 0}}, "limits.spans"),
        ({"time": {"from": "soon"}}, "time.from"),
        ({"time": {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}}, "time.to"),
        ({"time": {"paddingMs": 86_400_001}}, "time.paddingMs"),
        ({"include": {"events": False, "trace": False}}, "include"),
        ({"include": {"raw": "yes"}}, "include.raw"),
        ({"more": 1}, "more"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(question: Any, place: str) -> None:
    whole = {"streams": {"events": "e", "traces": "t"}, "lookup": {"requestId": "r"}, **question}
    with pytest.raises(BadRequest) as refusal:
        read_question(whole)
    assert refusal.value.facts["field"] == place


def test_a_question_says_what_is_not_said() -> None:
    asked = read_question({"streams": {"traces": "t"}, "lookup": {"spanId": "s"}, "include": {"events": False}})
    assert asked.by == "spanId"
    assert asked.id == "s"
    assert asked.events is None
    assert asked.traces == "t"
    assert asked.max_events == 100
    assert asked.max_spans == 5000
    assert asked.timeline is True
    assert asked.raw is False
    padded = {"from": "2026-01-01T00:00:01Z", "to": "2026-01-01T00:00:02Z", "paddingMs": 500}
    asked = read_question({"streams": {"events": "e", "traces": "t"}, "lookup": {"traceId": "x"}, "time": padded})
    assert asked.from_ms is not None and asked.to_ms is not None
    assert asked.to_ms - asked.from_ms == 2000
