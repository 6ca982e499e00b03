"""Search fields and routing keys follow their data through a lens, and the plan says what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs

from headrace.server.routes.route_table import openapi_document
from server.registries import TEXT, WHOLE, append, evolve, installed, lens, post, registry, rename, shape

if TYPE_CHECKING:
    from tests.server.conftest import Api

OLD = shape(at=WHOLE, user=TEXT, duration_ms=WHOLE)
NEW = shape(at=WHOLE, account=TEXT, latency_ms=WHOLE)
OPS = [rename("duration_ms", "latency_ms"), rename("user", "account")]
KEY = {"jsonPointer": "/user", "required": True}


def bound(kind: str, place: str, version: int = 1, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": version, "jsonPointer": place}], "exact": True, **more}


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "at",
    "fields": {
        "at": bound("date", "/at", column=True),
        "ms": bound("integer", "/duration_ms", column=True, aggregatable=True),
    },
    "rollups": {"load": {"intervals": ["1m"], "measures": {"ms": {"kind": "summary", "field": "ms"}}}},
}
EVENTS = [{"at": at * 1000, "user": f"u{at % 2}", "duration_ms": at} for at in range(4)]


def made(api: Api) -> str:
    path = installed(api, OLD, search=SEARCH, routingKey=KEY)
    append(api, path, *EVENTS)
    return path


def planned(api: Api, path: str, schema: Any, *ops: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"schema": schema, "lens": lens(path, 1, *ops), **more}
    answer = api.post(f"{path}/_schema?dry_run=true", body)
    assert answer.status_code == 200, answer.text
    plan: dict[str, Any] = answer.json()
    assert plan["refusals"] == []
    return plan


def answers(api: Api, path: str) -> Any:
    found = api.get(f"{path}/_search", q="ms:>1", track_total_hits="true").json()
    filtered = api.get(path, filter="ms:>=2").json()
    request = {"rollup": "load", "interval": "1m", "from": 0, "to": 60_000}
    bucket = api.post(f"{path}/_aggregate", request).json()["buckets"][0]["groups"][0]["measures"]["ms"]
    hits = sorted(hit["fields"]["ms"] for hit in found["hits"])
    assert found["coverage"]["complete"]
    return hits, found["total"], len(filtered), bucket["count"], bucket["sum"]


def test_a_renamed_field_and_key_answer_as_before(api: Api) -> None:
    path = made(api)
    before = answers(api, path)
    assert before == ([2, 3], {"value": 2, "relation": "eq"}, 2, 4, 6)
    plan = planned(api, path, NEW, *OPS)
    done = evolve(api, path, NEW, *OPS)
    assert answers(api, path) == before
    assert plan["impact"] == []
    assert done["diff"]["impact"] == []
    assert done["diff"]["changes"] == plan["changes"]
    moved = {change["what"]: change["pointer"] for change in plan["changes"] if change["what"].endswith("_moved")}
    assert moved == {"binding_moved": "/search/fields/ms/bindings", "routing_key_moved": "/routingKey"}
    written = [
        {"version": 1, "jsonPointer": "/duration_ms"},
        {"version": 2, "jsonPointer": "/latency_ms"},
    ]
    for shown in (plan["registry"], done, registry(api, path)):
        assert shown["search"]["fields"]["ms"]["bindings"] == written
        assert shown["routingKey"] == {"jsonPointer": "/account", "required": True}
    append(api, path, {"at": 5000, "account": "u1", "latency_ms": 9})
    assert answers(api, path) == ([2, 3, 9], {"value": 3, "relation": "eq"}, 3, 5, 15)
    assert [event["latency_ms"] for event in api.get(f"{path}/pk/u1").json()] == [1, 3, 9]


def test_the_plan_does_not_call_new_what_the_lens_fills(api: Api) -> None:
    path = made(api)
    plan = planned(api, path, NEW, *OPS)
    added = [change["reason"] for change in plan["changes"] if change["what"] == "property_added"]
    assert added == [
        "/account: is required from now on; the lens gives it to older events",
        "/latency_ms: is required from now on; the lens gives it to older events",
    ]


def test_what_a_lens_takes_away_is_listed_before_it_is_applied(api: Api) -> None:
    path = made(api)
    gone = [{"op": "remove", "path": f"/{name}", "schema": {}} for name in ("duration_ms", "at", "user")]
    plan = planned(api, path, shape(), *gone)
    assert [(one["subject"], one["effect"], one["from_version"], one["op"]) for one in plan["impact"]] == [
        ("/routingKey", "lost", 2, "/lens/ops/2"),
        ("/search/fields/at", "lost", 2, "/lens/ops/1"),
        ("/search/fields/ms", "lost", 2, "/lens/ops/0"),
        ("/search/rollups/load", "lost", 2, "/lens/ops/1"),
    ]
    destructive = {change["what"] for change in plan["changes"] if change["classification"] == "destructive"}
    assert {"routing_key_lost", "primary_timestamp_lost"} <= destructive
    assert plan["registry"]["search"] == SEARCH


def test_losing_the_primary_timestamp_alone_is_destructive(api: Api) -> None:
    path = installed(api, {"type": "object"}, search=SEARCH)
    plan = planned(api, path, {"type": "object"}, {"op": "remove", "path": "/at", "schema": {}, "optional": True})
    assert plan["classification"] == "destructive"
    assert [change["what"] for change in plan["changes"]] == ["primary_timestamp_lost"]


def test_a_conversion_is_listed_as_changed_or_as_lost(api: Api) -> None:
    path = installed(api, shape(at=WHOLE, duration_ms={"enum": [1, 2]}), search=SEARCH)

    def effects(to: str, table: dict[str, Any]) -> list[tuple[str, str]]:
        op = {"op": "convert", "path": "/duration_ms", "fromType": "integer", "toType": to}
        convert = {**op, "forward": {"map": table}, "backward": {"map": {}}}
        plan = planned(api, path, shape(at=WHOLE, duration_ms={"type": to}), convert)
        return [(one["subject"], one["effect"]) for one in plan["impact"]]

    both = ["/search/fields/ms", "/search/rollups/load"]
    assert effects("integer", {"1": 1, "2": 20}) == [(name, "changed") for name in both]
    assert effects("string", {"1": "one", "2": "two"}) == [(name, "lost") for name in both]
    assert effects("string", {"1": "1", "2": "2"}) == []


def test_a_binding_that_comes_with_the_change_wins(api: Api) -> None:
    path = made(api)
    own = {**SEARCH, "fields": {**SEARCH["fields"], "ms": bound("integer", "/at", 2, column=True, aggregatable=True)}}
    plan = planned(api, path, NEW, *OPS, search=own)
    assert plan["registry"]["search"] == own
    assert [(one["subject"], one["effect"]) for one in plan["impact"]] == [
        ("/search/fields/ms", "changed"),
        ("/search/rollups/load", "changed"),
    ]
    right = {**SEARCH["fields"], "ms": bound("integer", "/latency_ms", 2, column=True, aggregatable=True)}
    assert planned(api, path, NEW, *OPS, search={**SEARCH, "fields": right})["impact"] == []


def test_the_same_search_with_the_next_schema_follows_too(api: Api) -> None:
    path = made(api)
    before = answers(api, path)
    evolve(api, path, NEW, *OPS, search=SEARCH)
    assert answers(api, path) == before
    revisions = len(api.get(f"{path}/_schema/history").json()["revisions"])
    # Sent again, with or without the schema, it means the same.
    for body in ({"schema": NEW, "search": SEARCH}, {"search": SEARCH}):
        assert post(api, path, **body).json()["diff"]["changes"] == []
    assert len(api.get(f"{path}/_schema/history").json()["revisions"]) == revisions
    assert answers(api, path) == before


def test_plans_and_details_are_as_the_document_of_the_api_says(api: Api) -> None:
    path = made(api)
    plan = planned(
        api, path, shape(), *({"op": "remove", "path": f"/{name}", "schema": {}} for name in OLD["required"])
    )
    spec = openapi_document()
    paths = spec["paths"]
    told = paths["/v1/stream/{name}/_schema"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema_rs.validate({**told["anyOf"][1], "components": spec["components"]}, plan)
    assert set(spec["components"]["schemas"]["PlannedImpact"]["required"]) == set(plan["impact"][0])
    assert api.get(f"{path}/_details").json()["emptied_fields"] == []
