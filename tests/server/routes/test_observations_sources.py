"""``GET /v1/sources/{id}``: whatever was stored comes back, batch by batch."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from server.conftest import Api

Payload = dict[str, Any]
_numbers = itertools.count(1)
FIELDS = {
    "title": {"type": "string"},
    "score": {"type": "number"},
    "at": {
        "type": "date",
        "converters": [
            {"from": "number", "to": "date", "function": "timestamp_ms_to_iso", "deterministic": True},
        ],
    },
    "count": {
        "type": "number",
        "converters": [{"from": "string", "to": "number", "function": "string_to_number", "deterministic": True}],
    },
    "open": {"type": "boolean"},
    "parts": {"type": "array"},
    "place": {"type": "object"},
}


@pytest.fixture(scope="module")
def kind(api: Api) -> str:
    name = f"paper_{next(_numbers)}x"
    payload = {
        "entity_type": name, "schema_version": "1.0.0", "activate": True, "reducer_config": {"merge_policies": {}},
        "schema_definition": {"fields": FIELDS, "canonical_name_fields": ["title"]},
    }  # fmt: skip
    assert api.post("/v1/entity-types", payload).status_code == 200
    return name


numbers = st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=10) | st.sampled_from(["12", "1e3", "2026-01-01", "yes"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
names = st.sampled_from([name for name in FIELDS if name != "title"]) | st.text(min_size=1, max_size=6)
entities = st.dictionaries(names.filter(lambda name: name not in ("entity_type", "_meta", "title")), values, max_size=7)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entities, min_size=1, max_size=20))
def test_fields_and_fragments_reproduce_what_was_given_over_http_and_back(api: Api, kind: str, given: Any) -> None:
    batch = [{**one, "entity_type": kind, "title": f"t{number}"} for number, one in enumerate(given)]
    answer = api.post("/v1/observations", json.dumps({"entities": batch}).encode(), JSON)
    assert answer.status_code == 200, answer.text
    source = api.get(f"/v1/sources/{answer.json()['source_id']}").json()
    assert source["complete"] and source["entities"] == batch
    spelled = [json.dumps(one, sort_keys=True) for one in batch]
    assert [json.dumps(one, sort_keys=True) for one in source["entities"]] == spelled
    ids = {one["observation_id"] for one in answer.json()["entities"]}
    assert ids <= {one["observation_id"] for one in source["observations"]}


JSON = {"content-type": "application/json"}


def test_what_a_source_holds_is_told_with_its_observations(api: Api, kind: str) -> None:
    entity = {"entity_type": kind, "title": "Dune"}
    answer = api.post(
        "/v1/observations", {"entities": [entity], "source_id": "shelf/3?", "observed_at": "2026-01-01T00:00:00Z"}
    )
    source = api.get("/v1/sources/shelf%2F3%3F").json()
    told = answer.json()["entities"][0]
    assert source["observations"] == [
        {
            "observation_id": told["observation_id"], "entity_id": told["entity_id"], "entity_type": kind,
            "schema_version": "1.0.0", "schema_scope": "global", "observed_at": "2026-01-01T00:00:00Z", "item": 0,
        }
    ]  # fmt: skip
    assert source["entities"] == [entity] and not source["content_addressed"]


def test_a_source_that_is_not_there_is_not_found(api: Api) -> None:
    assert api.get("/v1/sources/src_nothing").status_code == 404
    assert api.get("/v1/sources/x", depth="1").status_code == 400
