"""Rows of the past over HTTP: at once where few events are folded, later where many are."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from server.pipelines import Pipeline

if TYPE_CHECKING:
    from conftest import ServerProcess, StartServer
    from server.conftest import Api

EARLY, LATE = "2001-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
DESCRIPTORS: list[dict[str, Any]] = [
    {"kind": "event", "name": "Order", "schema": {"user": "str", "amount": "f64"}},
    {
        "kind": "table",
        "name": "Users",
        "key": ["user"],
        "upstreams": ["Order"],
        "agg": {"total": {"op": "sum", "params": {"field": "amount"}}, "n": {"op": "count", "params": {}}},
    },
]


@pytest.fixture
def pipeline(api: Api) -> Pipeline:
    made = Pipeline(api)
    assert made.register().status_code == 200
    return made


def push(pipeline: Pipeline, *events: dict[str, Any]) -> None:
    assert pipeline.api.post(f"/v1/push/{pipeline.event}", list(events)).status_code == 200


def order(user: str, amount: float) -> dict[str, Any]:
    return {"user": user, "amount": amount, "n": 1}


def ask(pipeline: Pipeline, body: Any) -> Any:
    return pipeline.api.post(f"/v1/tables/{pipeline.table}/history", body)


def test_rows_come_in_the_order_of_the_questions(pipeline: Pipeline) -> None:
    del pipeline.descriptors[pipeline.event]["cold_after"]
    assert pipeline.register(force=True).status_code == 200
    push(pipeline, order("a", 1.0), order("b", 2.0))
    between = datetime.now(UTC).isoformat()
    push(pipeline, order("a", 3.0))
    moments = [("a", LATE), ("a", EARLY), (["b"], LATE), ("a", between), ("nobody", LATE)]
    rows = [{"key": key, "at": at} for key, at in moments]
    answer = ask(pipeline, {"rows": rows, "features": ["count"]})
    assert answer.status_code == 200
    assert answer.json()["results"] == [{"count": 2}, {}, {"count": 1}, {"count": 1}, {}]
    assert answer.headers["headrace-coverage"] == "complete" and answer.json()["complete"]
    assert answer.json()["events_from"] < between


def test_a_row_as_of_a_moment_is_told_with_how_far_back_events_reach(pipeline: Pipeline) -> None:
    push(pipeline, order("a", 1.0))
    between = pipeline.api.post("/v1/get", {"table": pipeline.table, "key": "a", "explain": True})
    assert between.json()["row"]["count"] == 1
    asked = {"table": pipeline.table, "key": "a"}
    early = pipeline.api.post("/v1/get", {**asked, "as_of": EARLY, "explain": True})
    assert early.json()["row"] == {}
    assert early.headers["headrace-coverage"] == "complete"
    told = early.json()["explain"]
    assert told["as_of"] == EARLY and told["events_from"] == early.headers["headrace-events-from"]


def test_a_row_has_what_was_known_at_a_moment(pipeline: Pipeline) -> None:
    push(pipeline, order("a", 1.0))
    between = datetime.now(UTC).isoformat()
    push(pipeline, order("a", 3.0))
    question = {"table": pipeline.table, "key": "a", "as_of": datetime.now(UTC).isoformat(), "explain": True}
    assert pipeline.api.post("/v1/get", question).json()["row"]["count"] == 2
    known = pipeline.api.post("/v1/get", {**question, "as_known_at": between}).json()
    assert known["row"]["count"] == 1 and known["explain"]["as_known_at"]
    rows = [{"key": "a", "at": question["as_of"]}, {"key": "a", "at": question["as_of"], "as_known_at": EARLY}]
    answer = ask(pipeline, {"rows": rows, "features": ["count"], "as_known_at": between})
    assert answer.json()["results"] == [{"count": 1}, {}]


def test_what_was_known_needs_a_moment_and_is_for_one_row(pipeline: Pipeline) -> None:
    question = {"table": pipeline.table, "key": "a", "as_known_at": EARLY}
    for path, body in (("/v1/get", question), ("/v1/batch_get", {"requests": [question]})):
        answer = pipeline.api.post(path, body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "bad_request" and error["field"] == "as_known_at"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"rows": [{"key": "a", "at": "yesterday"}]}, "bad_request"),
        ({"rows": [{"key": "a"}]}, "bad_request"),
        ({"rows": [{"key": 7, "at": LATE}]}, "key_shape_mismatch"),
        ({"rows": [], "features": ["other"]}, "feature_not_in_table"),
        ({"rows": [], "colour": "blue"}, "bad_request"),
        ({"rows": [{"key": "a", "at": LATE, "as_known_at": "soon"}]}, "bad_request"),
        ({"rows": [], "as_known_at": 7}, "bad_request"),
        ({"rows": [{"key": "a", "at": LATE}] * 10_001}, "batch_too_large"),
    ],
)
def test_a_question_that_does_not_fit_is_refused(pipeline: Pipeline, body: Any, code: str) -> None:
    answer = ask(pipeline, body)
    assert answer.status_code in (400, 413) and answer.json()["error"]["code"] == code


def test_an_unknown_table_or_question_is_not_found(pipeline: Pipeline) -> None:
    answer = pipeline.api.post("/v1/tables/Nothing/history", {"rows": []})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_table"
    assert pipeline.api.get(f"/v1/tables/{pipeline.table}/history/abc").status_code == 404
    assert pipeline.api.get(f"/v1/tables/{pipeline.table}/history/abc?x=1").status_code == 400


def test_a_long_history_is_answered_later_by_the_server_where_no_worker_comes(start_server: StartServer) -> None:
    server: ServerProcess = start_server(features__fold_rows="2", storage__seal_rows="4")
    with httpx2.Client(base_url=server.url) as http:
        assert http.post("/v1/register", json={"descriptors": DESCRIPTORS}).status_code == 200
        for number in range(12):
            assert http.post("/v1/push/Order", json={"user": "a", "amount": number}).status_code == 200
        rows = [{"key": "a", "at": LATE}, {"key": "a", "at": EARLY}]
        asked = http.post("/v1/tables/Users/history", json={"rows": rows})
        assert asked.status_code == 202
        assert asked.json()["history"]["state"] == "running"
        ends = monotonic() + 30
        while (told := http.get(asked.headers["location"]).json())["state"] == "running":
            assert monotonic() < ends
            sleep(0.05)
        assert told["results"] == [{"total": 66.0, "n": 12}, {}]
        assert told["rows"] == 2
        assert told["total"] == 2
        assert told["complete"] is True
        assert told["reason"] is None
