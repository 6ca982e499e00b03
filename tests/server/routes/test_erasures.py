"""Erasures over HTTP: a plan first, then an entity that is gone, and at last a report."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from headrace.server.routes.route_table import openapi_document

if TYPE_CHECKING:
    from server.conftest import Api

_numbers = itertools.count(1)
DOCUMENT = openapi_document()
PATIENCE_S = 20.0


@pytest.fixture
def kind(api: Api) -> str:
    name = f"patient_{next(_numbers)}x"
    payload = {
        "entity_type": name, "schema_version": "1.0.0", "activate": True, "reducer_config": {"merge_policies": {}},
        "schema_definition": {
            "fields": {"email": {"type": "string"}, "note": {"type": "string"}}, "canonical_name_fields": ["email"]
        },
    }  # fmt: skip
    assert api.post("/v1/entity-types", payload).status_code == 200
    return name


def stored(api: Api, kind: str, email: str, **facts: Any) -> str:
    body = {"entities": [{"entity_type": kind, "email": email, "note": "xyzzy"}], **facts}
    answer = api.post("/v1/observations", body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["entities"][0]["entity_id"])


def described(path: str, verb: str, answer: Any) -> Any:
    """The document of an answer, as the OpenAPI document has it."""
    described = DOCUMENT["paths"][path][verb]["responses"][str(answer.status_code)]
    schema = described["content"]["application/json"]["schema"] | {"components": DOCUMENT["components"]}
    jsonschema_rs.validate(schema, answer.json())
    return answer.json()


def ended(api: Api, erasure_id: str) -> Any:
    limit = time.monotonic() + PATIENCE_S
    while True:
        found = described("/v1/erasures/{id}", "get", api.get(f"/v1/erasures/{erasure_id}"))
        if found["complete"]:
            return found
        assert time.monotonic() < limit, found
        time.sleep(0.05)


def test_an_entity_is_planned_to_go_then_gone_then_reported(api: Api, kind: str) -> None:
    gone, kept = stored(api, kind, "a@x.org", idempotency_key=f"{kind} 1"), stored(api, kind, "b@x.org")
    route = "/v1/entities/{id}/erase"
    planned = described(route, "post", api.post(f"/v1/entities/{gone}/erase", {"dry_run": True}))
    assert planned["plan"]["ids"] == [gone]
    assert planned["plan"]["observations"] == 1
    assert planned["plan"]["idempotency_answers"] == 1
    assert api.get(f"/v1/entities/{gone}").status_code == 200
    answer = api.post(f"/v1/entities/{gone}/erase", {})
    begun = described(route, "post", answer)
    assert answer.status_code == 202 and answer.headers["location"] == f"/v1/erasures/{begun['erasure_id']}"
    for path in (f"/v1/entities/{gone}", f"/v1/entities/{gone}/observations", f"/v1/entities/{gone}/provenance/note"):
        assert api.get(path).status_code == 404
    page = api.get("/v1/entities", entity_type=kind).json()
    assert [one["entity_id"] for one in page["entities"]] == [kept]
    report = ended(api, begun["erasure_id"])
    assert report["state"] == "done" and report["completed_at"] and report["report"]["log_rows"] == 1
    assert "xyzzy" in api.get(f"/v1/entities/{kept}").text
    assert api.get(f"/v1/stream/entities/{kind}").text.count("xyzzy") == 1
    listed = described("/v1/erasures", "get", api.get("/v1/erasures", limit=1))
    assert [one["erasure_id"] for one in listed["erasures"]] == [begun["erasure_id"]]
    older = described("/v1/erasures", "get", api.get("/v1/erasures", after=listed["after"]))
    assert begun["erasure_id"] not in [one["erasure_id"] for one in older["erasures"]]


def test_what_was_found_before_is_not_found_after(api: Api, kind: str) -> None:
    gone, kept = stored(api, kind, "a@x.org"), stored(api, kind, "b@x.org")

    def found() -> list[list[str]]:
        """The entities that every way of asking the stream of a type finds."""
        path = f"/v1/stream/entities/{kind}"
        hits = api.post(f"{path}/_search", {"q": "kind:observation"}).json()["hits"]
        filtered = api.get(path, filter="kind:observation").json()
        keys = api.get(f"{path}/_routing_keys").json()["keys"]
        return [sorted(one["source"]["entity_id"] for one in hits), sorted(one["entity_id"] for one in filtered), keys]

    assert found() == [sorted([gone, kept])] * 3
    ended(api, api.post(f"/v1/entities/{gone}/erase", {}).json()["erasure_id"])
    assert found() == [[kept]] * 3


def test_streams_of_entities_are_not_forked(api: Api, kind: str) -> None:
    stored(api, kind, "a@x.org")
    headers = {"stream-forked-from": f"/v1/stream/entities/{kind}", "content-type": "application/json"}
    answer = api.put(f"/v1/stream/copy-of-{kind}", headers=headers)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "managed_stream"
    assert api.get(f"/v1/stream/copy-of-{kind}").status_code == 404
    refused = api.call("DELETE", f"/v1/stream/entities/{kind}").json()["error"]
    assert refused["code"] == "managed_stream"
    assert "/v1/entity-types" in refused["message"]


def test_an_entity_is_erased_once(api: Api, kind: str) -> None:
    gone = stored(api, kind, "a@x.org")
    assert api.post(f"/v1/entities/{gone}/erase", {}).status_code == 202
    again = api.post(f"/v1/entities/{gone}/erase", {})
    assert again.status_code == 404
    assert again.json()["error"]["code"] == "RESOURCE_NOT_FOUND"
    assert api.post(f"/v1/entities/{gone}/erase", {"dry_run": True}).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/entities/nobody/erase", {}, 404),
        ("/v1/entities/nobody/erase", {"sure": True}, 400),
        ("/v1/entities/nobody/erase?dry_run=true", {}, 400),
        ("/v1/entities/nobody/erase", b"{}", 415),
    ],
)
def test_what_cannot_be_erased_is_refused(api: Api, path: str, body: Any, status: int) -> None:
    assert api.post(path, body).status_code == status


def test_an_erasure_that_is_not_there_is_not_found(api: Api) -> None:
    assert api.get("/v1/erasures/erasure_none").status_code == 404
    assert api.get("/v1/erasures", after="erasure_none").status_code == 404
    assert api.get("/v1/erasures", limit=0).status_code == 400
    assert api.get("/v1/erasures", depth=1).status_code == 400
