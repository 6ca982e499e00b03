"""What streams with a profile answer: reads by key, lexicons, searches and rollups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.server.conftest import Api

FROM, TO = "2026-03-25T10:00:00Z", "2026-03-25T11:00:00Z"


def installed(api: Api, kind: str, **settings: Any) -> str:
    path = api.stream()
    assert api.post(f"{path}/_profile", {"profile": {"kind": kind, **settings}}).status_code == 200
    return path


def request(number: int, **more: Any) -> dict[str, Any]:
    at = f"2026-03-25T10:{number:02}:00.000Z"
    return {"timestamp": at, "service": "Checkout", "requestId": f"r-{number}", "duration": 100 + number, **more}


def aggregate(api: Api, path: str, **question: Any) -> Any:
    answer = api.post(f"{path}/_aggregate", {"from": FROM, "to": TO, **question})
    assert answer.status_code == 200, answer.text
    return answer.json()["buckets"]


# -- evlog


def test_an_event_is_read_by_its_request_and_by_its_trace(api: Api) -> None:
    path = installed(api, "evlog")
    api.post(path, [request(1, traceId="t-1"), {"traceContext": {"traceId": "t-2"}}, {"message": "alone"}])
    assert [event["requestId"] for event in api.get(path, key="r-1").json()] == ["r-1"]
    assert [event["traceId"] for event in api.get(path, key="t-2").json()] == ["t-2"]
    assert api.get(f"{path}/_routing_keys").json()["keys"] == ["r-1", "t-2"]
    assert api.get(f"{path}/_index_status").json()["routing_key_lexicon"]["configured"] is True


def test_stream_key_comes_before_what_the_profile_suggests(api: Api) -> None:
    path = installed(api, "evlog")
    api.post(path, [request(1)], {"stream-key": "mine"})
    assert api.get(f"{path}/_routing_keys").json()["keys"] == ["mine"]


def test_events_are_found_by_fields_aliases_and_words(api: Api) -> None:
    path = installed(api, "evlog")
    api.post(
        path,
        [
            request(1, status=402, message="Payment failed", why="Card declined by issuer", environment="prod"),
            request(2, status=200, error={"message": "ignored timeout"}),
        ],
    )
    for query, found in (
        ('service:checkout status:>=400 req:r-1 why:"card declined"', ["r-1"]),
        ("level:error env:prod", ["r-1"]),
        ("payment", ["r-1"]),
        ("timeout", ["r-2"]),
        (f'ts:>="{FROM}"', ["r-2", "r-1"]),
    ):
        hits = api.get(f"{path}/_search", q=query, sort="timestamp:desc").json()["hits"]
        assert [hit["source"]["requestId"] for hit in hits] == found, query
    filtered = api.get(path, filter="service:checkout status:>=400").json()
    assert [event["requestId"] for event in filtered] == ["r-1"]


def test_requests_are_summed_up_by_service_level_and_status_class(api: Api) -> None:
    path = installed(api, "evlog")
    api.post(path, [request(number, status=status) for number, status in enumerate((200, 204, 301, 404, 500, 503))])
    api.post(path, [request(30, service="cart", status=200), request(31, service="cart")])
    (bucket,) = aggregate(api, path, rollup="requests", interval="1h", group_by=["service"])
    checkout = next(group["measures"] for group in bucket["groups"] if group["key"]["service"] == "checkout")
    counts = {name: measure["count"] for name, measure in checkout.items()}
    assert counts == {
        "requests": 6, "errors": 2, "latency": 6, "1xx": 0, "2xx": 2, "3xx": 1, "4xx": 1, "5xx": 2,
    }  # fmt: skip
    assert checkout["latency"]["min"] == 100
    assert checkout["latency"]["max"] == 105
    (bucket,) = aggregate(api, path, rollup="requests", interval="1h", group_by=["level"], measures=["requests"])
    assert {group["key"]["level"]: group["measures"]["requests"]["count"] for group in bucket["groups"]} == {
        "error": 2,
        "info": 5,
        "warn": 1,
    }


def test_what_is_no_object_refuses_the_whole_append(api: Api) -> None:
    path = installed(api, "evlog")
    answer = api.post(path, [request(1), "text"])
    assert answer.status_code == 400
    assert answer.json()["error"]["failures"][0]["index"] == 1
    assert api.get(path).json() == []


def test_new_settings_hold_for_events_from_then_on(api: Api) -> None:
    path = installed(api, "evlog")
    api.post(path, [{"ssn": "1"}])
    api.post(f"{path}/_profile", {"profile": {"kind": "evlog", "redactKeys": ["ssn"]}})
    api.post(path, [{"ssn": "2"}])
    assert [event["context"]["ssn"] for event in api.get(path).json()] == ["1", "[REDACTED]"]


def test_a_long_body_is_normalised_too(api: Api) -> None:
    path = installed(api, "evlog")
    events = [request(number % 60, pad="x" * 1000) for number in range(200)]
    assert api.post(path, events).status_code == 204
    first = api.get(path).json()[0]
    assert first["context"] == {"pad": "x" * 1000}


# -- metrics


def interval(second: int, **more: Any) -> dict[str, Any]:
    start = 1_774_432_800_000 + second * 1000
    window = {"windowStart": start, "windowEnd": start + 10_000}
    return {"metric": "latency", "unit": "ms", **window, "count": 2, "sum": 300, "min": 100, "max": 200, **more}


def test_intervals_are_merged_into_one_summary(api: Api) -> None:
    path = installed(api, "metrics")
    histogram = {"64": 1, "128": 1}
    api.post(path, [interval(0, stream="a", buckets=histogram), interval(10, stream="a", max=900, sum=1000)])
    api.post(path, [interval(20, stream="b", count=0, sum=0)])
    question = {"rollup": "metrics", "interval": "1m", "group_by": ["stream"]}
    (bucket,) = aggregate(api, path, **question)
    merged = {group["key"]["stream"]: group["measures"]["value"] for group in bucket["groups"]}
    assert merged["a"]["count"] == 4
    assert merged["a"]["sum"] == 1300
    assert merged["a"]["min"] == 100
    assert merged["a"]["max"] == 900
    assert merged["a"]["avg"] == 325
    assert merged["a"]["histogram"] == {"64": 1, "128": 1}
    assert merged["b"]["count"] == 0


def test_a_series_is_a_routing_key_and_is_found_by_its_dimensions(api: Api) -> None:
    path = installed(api, "metrics")
    api.post(path, [interval(0, attributes={"zone": "a"}), interval(0, attributes={"zone": "b"})])
    registry = api.get(f"{path}/_schema").json()
    assert registry["routingKey"] == {"jsonPointer": "/seriesKey", "required": True}
    keys = api.get(f"{path}/_routing_keys").json()["keys"]
    assert keys == ["summary|delta|latency|ms|||zone=a", "summary|delta|latency|ms|||zone=b"]
    assert len(api.get(path, key=keys[0]).json()) == 1
    hits = api.get(f"{path}/_search", q='name:latency dims:"zone=b"').json()["hits"]
    assert [hit["source"]["attributes"] for hit in hits] == [{"zone": "b"}]


def test_metrics_may_come_later_and_touch_no_stored_event(api: Api) -> None:
    path = api.stream({"old": True})
    answer = api.call("POST", f"{path}/_profile", {"profile": {"kind": "metrics"}}, dry_run="true")
    assert any("no schema" in reason for reason in answer.json()["reasons"])
    assert api.post(f"{path}/_profile", {"profile": {"kind": "metrics"}}).status_code == 200
    api.post(path, [interval(0)])
    first, second = api.get(path).json()
    assert first == {"old": True}
    assert second["seriesKey"] == "summary|delta|latency|ms|||"
    assert api.get(f"{path}/_routing_keys").json()["keys"] == ["summary|delta|latency|ms|||"]
