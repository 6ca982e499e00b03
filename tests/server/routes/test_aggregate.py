"""Aggregates over HTTP: buckets, groups, measures, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from server.registries import append, installed

if TYPE_CHECKING:
    from tests.conftest import StartServer
    from tests.server.conftest import Api

MINUTE = 60_000
BASE = 1_774_432_800_000  # 2026-03-25T10:00:00Z


def field(kind: str, pointer: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **more}


_NUMBER = {"column": True, "exact": True, "aggregatable": True}
SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "fields": {
        "time": field("date", "/time", column=True),
        "service": field("keyword", "/service", exact=True),
        "zone": field("keyword", "/zone", exact=True),
        "status": field("integer", "/status", **_NUMBER),
        "latency": field("float", "/latency", **_NUMBER),
    },
    "rollups": {
        "requests": {
            "dimensions": ["service", "zone"],
            "intervals": ["1m", "1h"],
            "measures": {
                "requests": {"kind": "count"},
                "failed": {"kind": "count", "include": "status:>=500"},
                "latency": {"kind": "summary", "field": "latency", "histogram": "log2_v1"},
                "codes": {"kind": "summary", "field": "status"},
                "spread": {"kind": "quantiles", "field": "latency"},
                "different": {"kind": "distinct", "field": "status"},
            },
        },
        "operators": {
            "dimensions": ["service"],
            "intervals": ["1m"],
            "measures": {
                "common": {"kind": "top_k", "field": "status", "k": 1},
                "ok": {"kind": "ratio", "include": "status:200"},
                "middle": {"kind": "quantile", "field": "latency", "q": 0.5},
                "spread": {"kind": "std", "field": "latency", "include": "status:>=200"},
                "cells": {"kind": "histogram", "field": "latency", "buckets": [10, 100]},
                "last": {"kind": "last_seen"},
            },
        },
        "paid": {"include": "status:200", "intervals": ["1m"], "measures": {"n": {"kind": "count"}}},
        "parts": {
            "intervals": ["1m"],
            "measures": {
                "sizes": {
                    "kind": "summary_parts",
                    "countJsonPointer": "/s/count",
                    "sumJsonPointer": "/s/sum",
                    "minJsonPointer": "/s/min",
                    "maxJsonPointer": "/s/max",
                    "histogramJsonPointer": "/s/histogram",
                }
            },
        },
    },
}
EVENTS: list[dict[str, Any]] = [
    {"time": BASE + 10_000, "service": "api", "zone": "eu", "status": 200, "latency": 3},
    {"time": BASE + 20_000, "service": "api", "zone": "us", "status": 503, "latency": 200},
    {"time": BASE + 70_000, "service": "api", "status": 200, "latency": 150.5},
    {"time": BASE + 80_000, "service": "web", "zone": "eu", "status": 200},
    {"time": BASE + 90_000, "zone": "eu", "status": 2**60, "latency": "0.25"},
    {"time": BASE + 130_000, "service": ["api", "web"], "status": 200, "latency": 1},
    {"service": "api", "status": 200, "latency": 1},
    {
        "time": BASE + 3 * MINUTE,
        "s": {"count": 3, "sum": 12, "min": 1, "max": 8, "histogram": {"1": 1, "4": 1, "8": 1}},
    },
    {"time": BASE + 3 * MINUTE, "s": {"count": 1, "sum": 4, "min": 4, "max": 4, "histogram": {"4": 1}}},
]


@pytest.fixture(scope="module")
def path(api: Api) -> str:
    path = installed(api, {"type": "object"}, search=SEARCH)
    append(api, path, *EVENTS[:4])
    append(api, path, *EVENTS[4:])
    return path


def ask(api: Api, path: str, start: int = 0, end: int = 2 * MINUTE, **more: Any) -> list[dict[str, Any]]:
    body = {"rollup": "requests", "from": BASE + start, "to": BASE + end, "interval": "1m", **more}
    answer = api.post(f"{path}/_aggregate", body)
    assert answer.status_code == 200, answer.text
    coverage = answer.json()["coverage"]
    assert coverage["complete"] is True
    assert coverage["possible_missing_events_upper_bound"] == 0
    found: list[dict[str, Any]] = answer.json()["buckets"]
    return found


def counts(buckets: list[dict[str, Any]], measure: str = "requests") -> list[tuple[str, dict[str, Any], int]]:
    return [
        (bucket["start"][11:16], group["key"], group["measures"][measure]["count"])
        for bucket in buckets
        for group in bucket["groups"]
    ]


def test_events_are_counted_in_panes_of_time(api: Api, path: str) -> None:
    assert counts(ask(api, path)) == [("10:00", {}, 2), ("10:01", {}, 3)]
    assert counts(ask(api, path), "failed") == [("10:00", {}, 1), ("10:01", {}, 1)]
    hour = ask(api, path, 0, 60 * MINUTE, interval="1h", measures=["requests"])
    assert counts(hour) == [("10:00", {}, 7)]
    assert hour[0]["start"] == "2026-03-25T10:00:00.000Z"
    assert hour[0]["end"] == "2026-03-25T11:00:00.000Z"


def test_edges_count_only_what_lies_inside_but_keep_their_panes(api: Api, path: str) -> None:
    buckets = ask(api, path, 15_000, 75_000, measures=["requests"])
    assert counts(buckets) == [("10:00", {}, 1), ("10:01", {}, 1)]
    assert buckets[0]["start"] == "2026-03-25T10:00:00.000Z"
    assert counts(ask(api, path, 25_000, 30_000)) == []


def test_groups_are_those_of_some_dimensions_and_absent_values_are_null(api: Api, path: str) -> None:
    by_service = ask(api, path, group_by=["service"], measures=["requests"])
    assert counts(by_service) == [
        ("10:00", {"service": "api"}, 2),
        ("10:01", {"service": "api"}, 1),
        ("10:01", {"service": "web"}, 1),
        ("10:01", {"service": None}, 1),
    ]
    both = ask(api, path, 0, MINUTE, group_by=["zone", "service", "zone"], measures=["requests"])
    assert counts(both) == [
        ("10:00", {"service": "api", "zone": "eu"}, 1),
        ("10:00", {"service": "api", "zone": "us"}, 1),
    ]


def test_a_summary_has_count_sum_bounds_and_a_histogram(api: Api, path: str) -> None:
    first = ask(api, path, 0, MINUTE, measures=["latency"])[0]["groups"][0]["measures"]
    assert list(first) == ["latency"]
    assert first["latency"] == {
        "count": 2, "sum": 203, "min": 3, "max": 200, "avg": 101.5, "p50": 2, "p95": 128, "p99": 128,
        "histogram": {"2": 1, "128": 1},
    }  # fmt: skip


def test_an_event_without_one_measure_counts_for_the_others(api: Api, path: str) -> None:
    found = ask(api, path, MINUTE, 2 * MINUTE, group_by=["service"])[0]["groups"]
    web = next(group for group in found if group["key"] == {"service": "web"})["measures"]
    assert web["requests"]["count"] == 1
    assert web["latency"]["count"] == 0
    assert web["latency"]["avg"] is None


def test_integers_are_summed_exactly(api: Api, path: str) -> None:
    codes = ask(api, path, MINUTE, 2 * MINUTE, measures=["codes"])[0]["groups"][0]["measures"]["codes"]
    assert codes["sum"] == 2**60 + 400
    assert codes["max"] == 2**60
    assert codes["min"] == 200


def test_sketches_tell_quantiles_and_distinct_counts(api: Api, path: str) -> None:
    found = ask(api, path, 0, 60 * MINUTE, interval="1h", measures=["spread", "different"])[0]["groups"][0]["measures"]
    assert found["different"] == {"distinct": 3}
    assert found["spread"]["count"] == 4
    assert found["spread"]["min"] == 0.25
    assert found["spread"]["max"] == 200


def test_summaries_of_summaries_are_merged(api: Api, path: str) -> None:
    found = ask(api, path, 3 * MINUTE, 4 * MINUTE, rollup="parts")[0]["groups"][0]["measures"]["sizes"]
    assert found["count"] == 4
    assert found["sum"] == 16
    assert found["min"] == 1
    assert found["max"] == 8
    assert found["avg"] == 4
    assert found["histogram"] == {"1": 1, "4": 2, "8": 1}


def test_an_include_chooses_the_events_of_a_rollup(api: Api, path: str) -> None:
    assert counts(ask(api, path, 0, 60 * MINUTE, rollup="paid"), "n") == [
        ("10:00", {}, 1), ("10:01", {}, 2), ("10:02", {}, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("service:api", [("10:00", {}, 2), ("10:01", {}, 1)]),
        ("service:api zone:eu", [("10:00", {}, 1)]),
        ("status:>=500", [("10:00", {}, 1), ("10:01", {}, 1)]),
        ("-service:api", [("10:01", {}, 2)]),
        ("service:nobody", []),
        (None, [("10:00", {}, 2), ("10:01", {}, 3)]),
    ],
)
def test_a_query_narrows_the_events(api: Api, path: str, q: str | None, expected: list[Any]) -> None:
    assert counts(ask(api, path, q=q, measures=["requests"])) == expected


def test_times_are_read_in_every_spelling(api: Api, path: str) -> None:
    spelled = [("2026-03-25T10:00:00Z", "2026-03-25T12:01:00+02:00"), (f"{BASE}000000", f"{BASE + MINUTE}000000")]
    for start, end in [*spelled, (BASE, BASE + MINUTE + 0.5)]:
        body = {"rollup": "requests", "from": start, "to": end, "interval": "1m", "measures": ["requests"]}
        answer = api.post(f"{path}/_aggregate", body)
        assert counts(answer.json()["buckets"]) == [("10:00", {}, 2)]
        assert answer.json()["from"] == "2026-03-25T10:00:00.000Z"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rollup": None}, "rollup"),
        ({"rollup": "nothing"}, "rollup"),
        ({"rollup": 5}, "rollup"),
        ({"from": "yesterday"}, "from"),
        ({"from": True}, "from"),
        ({"to": BASE}, "to"),
        ({"to": 1e300}, "to"),
        ({"interval": "2m"}, "interval"),
        ({"interval": 60}, "interval"),
        ({"group_by": "service"}, "group_by"),
        ({"group_by": ["status"]}, "group_by/0"),
        ({"measures": []}, "measures"),
        ({"measures": ["nothing"]}, "measures/0"),
        ({"q": "unknown:1"}, "q"),
        ({"q": "(("}, "q"),
        ({"q": 5}, "q"),
        ({"rollups": "x"}, "rollups"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_its_name(
    api: Api, path: str, change: dict[str, Any], name: str
) -> None:
    body = {"rollup": "requests", "from": BASE, "to": BASE + MINUTE, "interval": "1m", **change}
    given = {key: value for key, value in body.items() if value is not None or key == "q"}
    answer = api.post(f"{path}/_aggregate", given)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, name), answer.text


def test_bodies_and_streams_that_cannot_be_aggregated_are_refused(api: Api, path: str) -> None:
    assert api.post(f"{path}/_aggregate", b"{", {"content-type": "application/json"}).status_code == 400
    assert api.post(f"{path}/_aggregate", []).status_code == 400
    assert api.post(f"{api.stream()}/_aggregate", {}).status_code == 400
    assert api.post("/v1/stream/nobody-has-this/_aggregate", {}).status_code == 404
    assert api.get(f"{path}/_aggregate").status_code == 405


def test_the_answer_says_what_it_covers(api: Api, path: str) -> None:
    body = {"rollup": "requests", "from": BASE, "to": BASE + MINUTE, "interval": "1m"}
    coverage = api.post(f"{path}/_aggregate", body).json()["coverage"]
    assert set(coverage) >= {
        "mode", "complete", "stream_head_offset", "visible_through_offset", "visible_through_primary_timestamp_max",
        "oldest_omitted_append_at", "possible_missing_events_upper_bound", "possible_missing_uploaded_segments",
        "possible_missing_sealed_rows", "possible_missing_wal_rows", "used_rollups", "indexed_segments",
        "scanned_segments", "scanned_tail_docs", "index_families_used",
    }  # fmt: skip
    assert coverage["mode"] == "complete"
    assert coverage["stream_head_offset"] == coverage["visible_through_offset"] == api.offset(path)
    assert coverage["scanned_tail_docs"] + coverage["scanned_segments"] > 0


def test_an_event_counts_in_the_very_next_answer(api: Api) -> None:
    path = installed(api, {"type": "object"}, search=SEARCH)
    for n in range(1, 6):
        append(api, path, {"time": BASE + n, "status": n})
        assert counts(ask(api, path, measures=["requests"])) == [("10:00", {}, n)]


def test_more_groups_than_an_answer_holds_are_refused(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__aggregate_groups="3"))
    path = installed(api, {"type": "object"}, search=SEARCH)
    append(api, path, *EVENTS)
    assert len(ask(api, path, 0, MINUTE, group_by=["zone"])[0]["groups"]) == 2
    body = {"rollup": "requests", "from": BASE, "to": BASE + 2 * MINUTE, "interval": "1m", "group_by": ["zone"]}
    answer = api.post(f"{path}/_aggregate", body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "too_many_groups"
    assert error["field"] == "group_by"
    assert error["limit"] == 3
    assert "shorter range" in error["message"]


def test_an_aggregate_whose_time_is_over_answers_what_it_has(start_server: StartServer, api_of: Any) -> None:
    patient = start_server()
    path = installed(api_of(patient), {"type": "object"}, search=SEARCH)
    append(api_of(patient), path, *EVENTS)
    patient.stop()
    api = api_of(start_server(server__resolver_timeout_s="0.000001"))
    body = {"rollup": "requests", "from": BASE, "to": BASE + 2 * MINUTE, "interval": "1m"}
    # The first answer loads what computes answers, for which a busy machine may need longer than it waits.
    answers = (api.post(f"{path}/_aggregate", body) for _ in range(5))
    answer = next(answer for answer in answers if answer.status_code == 200)
    assert answer.json()["buckets"] == []
    coverage = answer.json()["coverage"]
    assert coverage["complete"] is False
    assert coverage["possible_missing_events_upper_bound"] == len(EVENTS)


def test_operators_of_features_are_measures(api: Api, path: str) -> None:
    first, second = ask(api, path, rollup="operators")
    assert first["groups"] == [
        {
            "key": {},
            "measures": {
                "common": {"top_k": [{"value": 200, "count": 1}]},
                "ok": {"ratio": 0.5},
                "middle": {"quantile": 101.5},
                "spread": {"std": 98.5},
                "cells": {"histogram": {"<10": 1, "10-100": 0, ">=100": 1}},
                "last": {"last_seen": BASE + 20_000},
            },
        }
    ]
    assert second["groups"][0]["measures"]["common"] == {"top_k": [{"value": 200, "count": 2}]}
    by_service = ask(api, path, rollup="operators", group_by=["service"], measures=["ok"])[1]["groups"]
    assert by_service == [
        {"key": {"service": "api"}, "measures": {"ok": {"ratio": 1.0}}},
        {"key": {"service": "web"}, "measures": {"ok": {"ratio": 1.0}}},
        {"key": {"service": None}, "measures": {"ok": {"ratio": 0.0}}},
    ]
