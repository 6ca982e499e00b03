"""Observations that name the event of a stream that they were made from: each event is stored once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from server.conftest import Api

_numbers = itertools.count(1)
OFFSET = "00000000000000000004000000"
OTHER_OFFSET = "00000000000000000008000000"


class People:
    """A type of its own on the shared server, and a source that no other test uses."""

    def __init__(self, api: Api) -> None:
        number = next(_numbers)
        self.api, self.type, self.source = api, f"origin{number}x", f"stream {number}"
        self.register("1.0.0", ["email"])

    def register(self, version: str, names: list[str]) -> None:
        definition = {
            "fields": {"email": {"type": "string"}, "name": {"type": "string"}},
            "canonical_name_fields": names,
        }
        payload = {
            "entity_type": self.type,
            "schema_version": version,
            "schema_definition": definition,
            "reducer_config": {"merge_policies": {}},
            "activate": True,
            "force": True,
        }
        assert self.api.post("/v1/entity-types", payload).status_code == 200

    def post(self, *entities: dict[str, Any], **options: Any) -> Any:
        body = {"entities": [{"entity_type": self.type, **entity} for entity in entities], **options}
        return self.api.post("/v1/observations", body)

    def actions(self, *entities: dict[str, Any], **options: Any) -> list[str]:
        answer = self.post(*entities, **{"source": self.source, **options})
        assert answer.status_code == 200, answer.text
        return [entity["action"] for entity in answer.json()["entities"]]


@pytest.fixture
def people(api: Api) -> People:
    return People(api)


def made(offset: str = OFFSET, stream: str = "requests", **origin: Any) -> dict[str, Any]:
    return {"origin": {"stream": stream, "offset": offset, **origin}}


def test_an_event_is_stored_once_whatever_it_says_and_whoever_it_is_about(people: People) -> None:
    assert people.actions({"email": "ada@x.org", "name": "Ada", "_meta": made()}) == ["created"]
    assert people.actions({"email": "ada@x.org", "name": "Ada L.", "_meta": made()}) == ["unchanged"]
    people.register("2.0.0", ["name"])  # the same event is about another entity now
    assert people.actions({"email": "ada@x.org", "name": "Ada", "_meta": made()}) == ["unchanged"]
    moment = {**made(), "observed_at": "2026-01-01T00:00:00Z"}
    assert people.actions({"name": "Ada", "_meta": moment}, source_priority=5) == ["unchanged"]


def test_another_offset_stream_source_mapping_or_type_is_another_observation(people: People, api: Api) -> None:
    ada = {"email": "ada@x.org"}
    assert people.actions({**ada, "_meta": made()}) == ["created"]
    assert people.actions({**ada, "_meta": made(OTHER_OFFSET)}) == ["updated"]
    assert people.actions({**ada, "_meta": made(stream="orders")}) == ["updated"]
    assert people.actions({**ada, "_meta": made(mapping="m")}) == ["updated"]
    assert people.actions({**ada, "_meta": made()}, source=f"{people.source} b") == ["updated"]
    assert People(api).actions({**ada, "_meta": made()}, source=people.source) == ["created"]
    assert people.actions(ada) == ["updated"]  # without an origin it is the content that counts
    assert people.actions({**ada, "_meta": made()}, commit=False) == ["would_match_existing"]


def test_history_and_provenance_name_the_event(people: People) -> None:
    stored = people.post({"email": "ada@x.org", "_meta": made(mapping="m")}, source=people.source).json()
    address = f"/v1/entities/{stored['entities'][0]['entity_id']}"
    [observation] = people.api.get(f"{address}/observations").json()["observations"]
    assert observation["origin"] == {"stream": "requests", "offset": OFFSET}
    [observation] = people.api.get(f"{address}/provenance/email").json()["observations"]
    assert observation["origin"] == {"stream": "requests", "offset": OFFSET}
    people.actions({"email": "ada@x.org"})
    newest = people.api.get(f"{address}/observations").json()["observations"][0]
    assert "origin" not in newest


@pytest.mark.parametrize(
    ("origin", "field"),
    [
        ({"stream": "requests"}, "origin"),
        ({"stream": "", "offset": OFFSET}, "origin.stream"),
        ({"stream": "requests", "offset": "5"}, "origin.offset"),
        ({"stream": "requests", "offset": OFFSET.replace("4", "g")}, "origin.offset"),
        ({"stream": "requests", "offset": OFFSET.replace("4", "1")}, "origin.offset"),
        ({"stream": "requests", "offset": OFFSET, "life": 1}, "origin"),
    ],
)
def test_an_origin_that_is_none_is_refused_by_the_number_of_its_entity(
    people: People, origin: dict[str, Any], field: str
) -> None:
    entities = [{"email": "bob@x.org"}, {"email": "ada@x.org", "_meta": {"origin": origin}}]
    answer = people.post(*entities, source=people.source)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["item"]) == (400, "bad_request", 1)
    assert error["field"] == field
    assert people.api.get("/v1/entities", entity_type=people.type).json()["entities"] == []


def test_an_origin_needs_a_source_with_a_name(people: People) -> None:
    answer = people.post({"email": "ada@x.org", "_meta": made()})
    assert answer.status_code == 400 and answer.json()["error"]["field"] == "source"
    assert people.actions({"email": "ada@x.org", "_meta": {**made(), "source": people.source}}, source=None) == [
        "created"
    ]


def test_two_entities_of_one_event_are_refused_unless_they_say_the_same(people: People) -> None:
    first, second = {"email": "ada@x.org", "_meta": made()}, {"email": "bob@x.org", "_meta": made()}
    answer = people.post(first, second, source=people.source)
    assert answer.status_code == 400 and answer.json()["error"]["item"] == 1
    assert people.actions(first, first) == ["created", "unchanged"]
