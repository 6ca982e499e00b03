"""Rows of tables and derived events, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from server.pipelines import Pipeline

if TYPE_CHECKING:
    from server.conftest import Api


LAST = {"op": "last", "params": {"field": "n"}}


def fine(number: int, user: str = "u") -> dict[str, Any]:
    return {"user": user, "amount": float(number), "n": number}


@pytest.fixture
def pipeline(api: Api) -> Pipeline:
    made = Pipeline(api)
    features = {"events": {"op": "count", "params": {}}}
    made.descriptors |= {
        f"Pairs{made.table}": {
            "kind": "table", "name": f"Pairs{made.table}", "key": ["user", "n"], "upstreams": [made.event],
            "agg": features,
        },
        f"Whole{made.table}": {
            "kind": "table", "name": f"Whole{made.table}", "key": ["n"], "upstreams": [made.event],
            "agg": {**features, "last": LAST},
        },
        f"All{made.table}": {
            "kind": "table", "name": f"All{made.table}", "key": [], "upstreams": [made.event], "agg": features,
        },
    }  # fmt: skip
    assert made.register().status_code == 200
    made.push(fine(1), fine(2), fine(3, "v"))
    return made


def get(pipeline: Pipeline, table: str, key: Any, **more: Any) -> Any:
    return pipeline.api.post("/v1/get", {"table": table, "key": key, **more})


def test_a_row_is_flat_and_says_that_it_is_complete(pipeline: Pipeline) -> None:
    answer = get(pipeline, pipeline.table, "u")
    assert answer.status_code == 200
    assert answer.json() == {"count": 2, "total": 3.0, "whole": 3}
    assert answer.headers["headrace-coverage"] == "complete"
    assert answer.headers["cache-control"] == "no-store"
    assert get(pipeline, pipeline.table, ["u"]).json() == answer.json()
    assert get(pipeline, pipeline.table, "nobody").json() == {}


def test_some_features_are_asked_for(pipeline: Pipeline) -> None:
    assert get(pipeline, pipeline.table, "u", features=["whole"]).json() == {"whole": 3}
    refused = get(pipeline, pipeline.table, "u", features=["whole", "half"])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "feature_not_in_table"


def test_keys_have_several_parts_or_none_or_are_numbers(pipeline: Pipeline) -> None:
    assert get(pipeline, f"Pairs{pipeline.table}", ["u", 2]).json() == {"events": 1}
    assert get(pipeline, f"Whole{pipeline.table}", 2).json() == {"events": 1, "last": 2}
    for nothing in ("", []):
        assert get(pipeline, f"All{pipeline.table}", nothing).json() == {"events": 3}
    assert pipeline.api.post("/v1/get", {"table": f"All{pipeline.table}"}).json() == {"events": 3}


def test_integers_are_what_their_digits_say_however_they_are_spelled(pipeline: Pipeline) -> None:
    api, whole, row = pipeline.api, f"Whole{pipeline.table}", {"events": 2, "last": 2**53 + 1}
    json = {"content-type": "application/json"}
    for spelled in ("9007199254740993.0", "900719925474099.3e1"):
        body = f'{{"user":"exact","amount":2,"n":{spelled}}}'.encode()
        assert api.post(f"/v1/push/{pipeline.event}", body, json).status_code == 200
    now = datetime.now(UTC).isoformat()
    for spelled in ("9007199254740993", "9007199254740993.0"):
        one = f'{{"table":"{whole}","key":{spelled}}}'
        assert api.post("/v1/get", one.encode(), json).json() == row
        many = api.post("/v1/batch_get", f'{{"requests":[{one}]}}'.encode(), json)
        assert many.json()["results"] == [row]
        asked = f'{{"rows":[{{"key":{spelled},"at":"{now}"}}]}}'
        past = api.post(f"/v1/tables/{whole}/history", asked.encode(), json)
        assert past.json()["results"] == [row]
    assert get(pipeline, whole, 2**53).json() == {}
    for refused in ("9007199254740992.5", "1e-400", "2.0000000000000000001"):
        answer = api.post("/v1/get", f'{{"table":"{whole}","key":{refused}}}'.encode(), json)
        assert answer.status_code == 400
        assert answer.json()["error"]["field"] == "body"
    found = api.get(f"/v1/stream/events/{pipeline.derived}").json()
    assert [event["n"] for event in found if event["user"] == "exact"] == [2**53 + 1] * 2


def test_defaults_are_what_their_digits_say(api: Api) -> None:
    made = Pipeline(api)
    made.descriptors[made.table]["agg"]["last"] = LAST
    text = msgspec.json.encode({"descriptors": list(made.descriptors.values()), "app": made.app}).decode()
    json = {"content-type": "application/json"}

    def registered(default: str) -> Any:
        given = text.replace('"n":"i64"', f'"n":{{"type":"i64","default":{default}}}')
        return api.post("/v1/register", given.encode(), json)

    assert registered("9007199254740992.5").status_code == 400
    assert registered("9007199254740993.0").status_code == 200
    made.push({"user": "u", "amount": 1.0})
    row = made.row(made.table)
    assert row is not None
    assert row["last"] == 2**53 + 1


@pytest.mark.parametrize(("table", "key"), [("Pairs", "u"), ("Pairs", ["u"]), ("Whole", "2"), ("", ["u", 1]), ("", 7)])
def test_a_key_of_another_shape_is_refused(pipeline: Pipeline, table: str, key: Any) -> None:
    refused = get(pipeline, f"{table}{pipeline.table}", key)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "key_shape_mismatch"


def test_how_a_row_came_about_is_told_beside_it(pipeline: Pipeline) -> None:
    answer = get(pipeline, pipeline.table, "u", explain=True).json()
    assert set(answer) == {"row", "explain"}
    assert answer["row"] == {"count": 2, "total": 3.0, "whole": 3}
    assert set(answer["explain"]["features"]) == {"count", "total", "whole"}


def test_what_cannot_be_asked_is_refused(pipeline: Pipeline, code_of: Callable[[Any], str]) -> None:
    assert code_of(get(pipeline, "Nobody", "u")) == "unknown_table"
    assert code_of(get(pipeline, pipeline.event, "u")) == "unknown_table"
    assert get(pipeline, pipeline.table, "u", bogus=1).status_code == 400
    assert pipeline.api.call("POST", "/v1/get", b"{}", {"content-type": "text/plain"}).status_code == 415
    assert pipeline.api.call("POST", "/v1/get", b"{", {"content-type": "application/json"}).status_code == 400
    assert pipeline.api.get("/v1/get").status_code == 405
    assert pipeline.api.post("/v1/getter", {}).status_code == 404


def test_many_rows_come_in_the_order_they_are_asked_for(pipeline: Pipeline) -> None:
    requests = [
        {"table": pipeline.table, "key": "v"},
        {"table": f"All{pipeline.table}", "key": ""},
        {"table": pipeline.table, "key": "nobody"},
        {"table": pipeline.table, "key": "u", "features": ["count"]},
    ]
    answer = pipeline.api.post("/v1/batch_get", {"requests": requests})
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [{"count": 1, "total": 3.0, "whole": 3}, {"events": 3}, {}, {"count": 2}],
    }
    assert answer.headers["headrace-coverage"] == "complete"
    assert pipeline.api.post("/v1/batch_get", {"requests": []}).json() == {"results": []}


def test_a_batch_is_answered_whole_or_refused_with_the_place(pipeline: Pipeline) -> None:
    good = {"table": pipeline.table, "key": "u"}
    for bad, code in (
        ({"table": "Nobody", "key": "u"}, "unknown_table"),
        ({"table": pipeline.table, "key": 7}, "key_shape_mismatch"),
        ({**good, "features": ["x"]}, "feature_not_in_table"),
    ):
        refused = pipeline.api.post("/v1/batch_get", {"requests": [good, bad]})
        assert refused.json()["error"]["code"] == code
        assert refused.json()["error"]["path"] == "requests[1]"
    many = pipeline.api.post("/v1/batch_get", {"requests": [good] * 10_001})
    assert many.status_code == 400
    assert many.json()["error"]["code"] == "batch_too_large"


# -- derived events


def derived(pipeline: Pipeline) -> str:
    return f"/v1/stream/events/{pipeline.derived}"


def test_a_derived_event_is_read_with_the_offsets_of_its_source(pipeline: Pipeline) -> None:
    api, source = pipeline.api, f"/v1/stream/events/{pipeline.event}"
    answer = api.get(derived(pipeline))
    assert [(event["user"], event["amount"]) for event in answer.json()] == [("u", 2.0), ("v", 3.0)]
    assert answer.headers["stream-next-offset"] == api.offset(source) == api.offset(derived(pipeline))
    assert api.get(derived(pipeline), offset=answer.headers["stream-next-offset"]).json() == []
    pipeline.push(fine(0), fine(9))
    later = api.get(derived(pipeline), offset=answer.headers["stream-next-offset"])
    assert [event["amount"] for event in later.json()] == [9.0]


def test_a_derived_event_is_mapped(pipeline: Pipeline) -> None:
    given = pipeline.changed()
    given["view"] = {
        "kind": "derivation",
        "name": f"View{pipeline.event}",
        "upstreams": [pipeline.derived],
        "output_kind": "event",
        "ops": [
            {"op": "with_columns", "exprs": {"double": "(amount * 2.0)"}},
            {"op": "rename", "mapping": {"user": "who"}},
            {"op": "select", "fields": ["who", "double", "note"]},
        ],
    }
    assert pipeline.register(given).status_code == 200
    assert pipeline.api.get(f"/v1/stream/events/View{pipeline.event}").json() == [
        {"who": "u", "double": 4.0, "note": None},
        {"who": "v", "double": 6.0, "note": None},
    ]


def test_another_definition_has_another_tag(pipeline: Pipeline) -> None:
    api, before = pipeline.api, pipeline.api.get(derived(pipeline))
    headers = {"if-none-match": before.headers["etag"]}
    assert api.get(derived(pipeline), headers).status_code == 304
    given = pipeline.changed()
    given[pipeline.derived]["ops"][0]["expr"] = "(amount > 2.0)"
    assert pipeline.register(given, force=True).status_code == 200
    after = api.get(derived(pipeline), headers)
    assert [event["amount"] for event in after.json()] == [3.0]
    source = api.get(f"/v1/stream/events/{pipeline.event}", headers)
    assert source.status_code == 200


def test_a_long_poll_waits_for_an_event_that_is_let_through(pipeline: Pipeline) -> None:
    api, tail = pipeline.api, pipeline.api.offset(derived(pipeline))
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(api.get(derived(pipeline), offset=tail, live="long-poll", timeout="5s"))
    )
    waiting.start()
    pipeline.push(fine(0))
    pipeline.push(fine(5))
    waiting.join()
    assert [event["amount"] for event in found[0].json()] == [5.0]


def test_derived_events_are_followed(pipeline: Pipeline) -> None:
    query = {"offset": "-1", "live": "sse"}
    with pipeline.api.client.stream("GET", derived(pipeline), params=query) as answer:
        lines = answer.iter_lines()
        assert any('"amount":3.0' in line for line in lines)
        pipeline.push(fine(0), fine(8))
        assert next(line for line in lines if "amount" in line).count('"amount"') == 1


def test_what_speaks_of_a_schema_is_asked_of_the_source(pipeline: Pipeline) -> None:
    assert pipeline.api.get(derived(pipeline), schema_version=1).status_code == 400
    assert pipeline.api.post(derived(pipeline), [fine(1)]).status_code == 409


# -- the past


def test_a_row_is_asked_for_as_it_was(pipeline: Pipeline) -> None:
    api = pipeline.api
    moment = api.get("/v1/registry/history", limit=1000).json()["versions"][-1]["at"]
    before = get(pipeline, pipeline.table, "u", as_of=moment)
    assert before.status_code == 200
    assert before.json() == {}
    assert before.headers["headrace-coverage"] == "complete"
    assert before.headers["headrace-events-from"] > moment
    events_from = before.headers["headrace-events-from"]
    later = get(pipeline, pipeline.table, "u", as_of=events_from, features=["count"], explain=True).json()
    assert later["row"] == {"count": 2} and later["explain"]["complete"] is True
    assert get(pipeline, pipeline.table, "u", as_of="2200-01-01T00:00:00Z").json() == {}  # nobody came for so long
    assert get(pipeline, pipeline.table, "u", as_of="yesterday").status_code == 400
    assert get(pipeline, pipeline.table, 7, as_of=moment).json()["error"]["code"] == "key_shape_mismatch"
