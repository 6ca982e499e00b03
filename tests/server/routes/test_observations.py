"""Storing entities over HTTP: answers, refusals, keys of users, and bodies of any length."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from conftest import ServerProcess
    from server.conftest import Api, Wire

Payload = dict[str, Any]
_numbers = itertools.count(1)


class Type:
    """An entity type of its own for each test."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.api, self.name = api, f"gadget_{next(_numbers)}x"
        fields = {"email": {"type": "string"}, "age": {"type": "number", "constraints": {"max": 150}}}
        self.definition: Payload = {"fields": fields, "canonical_name_fields": ["email"], **options}
        self.register("1.0.0")

    def register(self, version: str, **fields: str) -> None:
        self.definition["fields"] |= {name: {"type": kind} for name, kind in fields.items()}
        payload = {
            "entity_type": self.name, "schema_version": version, "schema_definition": self.definition,
            "reducer_config": {"merge_policies": {}}, "activate": True,
        }  # fmt: skip
        assert self.api.post("/v1/entity-types", payload).status_code == 200

    def entity(self, email: str, **fields: Any) -> Payload:
        return {"entity_type": self.name, "email": email, **fields}

    def post(self, *entities: Payload, **said: Any) -> httpx2.Response:
        return self.api.post("/v1/observations", {"entities": list(entities), **said})

    def store(self, *entities: Payload, **said: Any) -> Payload:
        answer = self.post(*entities, **said)
        assert answer.status_code == 200, answer.text
        told: Payload = answer.json()
        return told

    def observations(self) -> list[Payload]:
        found: list[Payload] = []
        offset = "-1"
        while True:
            answer = self.api.get(f"/v1/stream/entities/{self.name}", offset=offset)
            found += answer.json()
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return found


@pytest.fixture
def gadget(api: Api) -> Type:
    return Type(api)


def actions(answer: Payload) -> list[str]:
    return [entity["action"] for entity in answer["entities"]]


def test_entities_are_stored_and_read_back(gadget: Type) -> None:
    answer = gadget.store(gadget.entity("a@b.c", age=1, nick="x"), gadget.entity("d@e.f"))
    assert actions(answer) == ["created", "created"] and answer["unknown_fields_count"] == 1
    stored = gadget.observations()
    assert [one["id"] for one in stored] == [one["observation_id"] for one in answer["entities"]]
    source = gadget.api.get(f"/v1/sources/{answer['source_id']}").json()
    assert source["complete"] and source["entities"][0] == gadget.entity("a@b.c", age=1, nick="x")


@pytest.mark.parametrize("count", [600, 5000], ids=["in a thread", "through the bridge"])
def test_long_requests_are_stored_whole(gadget: Type, count: int) -> None:
    entities = [gadget.entity(f"{n}@example.com", age=n % 150, note="n" * 60) for n in range(count)]
    answer = gadget.store(*entities, idempotency_key=gadget.name)
    assert actions(answer) == ["created"] * count
    assert gadget.store(*entities, idempotency_key=gadget.name) == answer
    assert actions(gadget.store(*entities[:3], {**entities[0], "age": 1}))[3] == "updated"
    source = gadget.api.get(f"/v1/sources/{answer['source_id']}").json()
    assert source["complete"] and source["entities"] == entities


def test_a_long_request_with_one_bad_entity_changes_nothing(gadget: Type) -> None:
    entities = [gadget.entity(f"{n}@example.com", note="n" * 200) for n in range(600)]
    refused = gadget.post(*entities, gadget.entity("x@y.z", age=151))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "ERR_CONSTRAINT_VIOLATION"
    assert error["item"] == 600
    assert error["field"] == "age"
    assert gadget.observations() == []


def test_a_packed_body_is_unpacked(gadget: Type) -> None:
    body = gzip.compress(json.dumps({"entities": [gadget.entity("a@b.c")]}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert gadget.api.post("/v1/observations", body, headers).status_code == 200


@pytest.mark.parametrize("case", ["strict", "target", "key", "item key", "second type"])
def test_what_is_refused_makes_no_types(api: Api, case: str) -> None:
    known, fresh = Type(api), f"fresh_{next(_numbers)}x"
    known.store(known.entity("a@x.org"), idempotency_key=f"key of {fresh}")
    known.store({**known.entity("b@x.org"), "_meta": {"idempotency_key": f"item key of {fresh}"}})
    refused: dict[str, tuple[Payload, Payload]] = {
        "strict": (known.entity("a@x.org", age=3), {"strict": True}),
        "target": ({**known.entity("c@x.org"), "_meta": {"target_id": "ent_" + "0" * 24}}, {}),
        "key": (known.entity("c@x.org"), {"idempotency_key": f"key of {fresh}"}),
        "item key": ({**known.entity("c@x.org"), "_meta": {"idempotency_key": f"item key of {fresh}"}}, {}),
        "second type": ({"entity_type": f"taken_{fresh}", "name": "n"}, {}),
    }
    assert api.client.put(f"/v1/stream/entities/taken_{fresh}", headers={"content-type": "text/plain"}).is_success
    entity, said = refused[case]
    answer = known.post({"entity_type": fresh, "name": "first"}, entity, **said)
    assert answer.status_code in (400, 409), answer.text
    assert api.get(f"/v1/entity-types/{fresh}").status_code == 404
    assert api.get(f"/v1/stream/entities/{fresh}").status_code == 404
    assert known.post({"entity_type": fresh, "name": "first"}).json()["entities"][0]["action"] == "created"


def test_what_is_refused_says_where(gadget: Type, code_of: Callable[..., str]) -> None:
    api = gadget.api
    assert code_of(api.post("/v1/observations", b"{}", {"content-type": "text/plain"})) == "unsupported_media_type"
    assert code_of(api.call("POST", "/v1/observations", {"entities": [{}]})) == "bad_request"
    assert code_of(api.call("POST", "/v1/observations", {"entities": [gadget.entity("a@b.c")]}, x="1")) == "bad_request"
    assert api.get("/v1/observations").status_code == 405
    refused = gadget.post(gadget.entity("a@b.c"), {"entity_type": gadget.name, "_meta": {"depth": 1}})
    assert refused.json()["error"]["field"] == "depth" and "entity 2" in refused.json()["error"]["message"]
    unnamed = gadget.post({"entity_type": gadget.name, "age": 1})
    assert code_of(unnamed) == "ERR_STORE_RESOLUTION_FAILED"
    assert unnamed.json()["error"]["issues"][0]["hint"]["required_identity_fields"]["required"] == ["email"]
    assert gadget.observations() == []


def test_a_known_key_is_answered_again_or_refused(gadget: Type, code_of: Callable[..., str]) -> None:
    first = gadget.post(gadget.entity("a@b.c"), idempotency_key=gadget.name)
    again = gadget.post(gadget.entity("a@b.c"), idempotency_key=gadget.name)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    other = gadget.post(gadget.entity("a@b.c", age=1), idempotency_key=gadget.name)
    assert other.status_code == 409
    assert code_of(other) == "ERR_IDEMPOTENCY_COLLISION"


def test_a_dry_run_writes_nothing(gadget: Type) -> None:
    answer = gadget.store(gadget.entity("a@b.c"), {"entity_type": f"{gadget.name}y", "name": "n"}, commit=False)
    assert actions(answer) == ["would_create", "would_create"] and answer["dry_run"]
    assert gadget.observations() == []
    assert gadget.api.get(f"/v1/entity-types/{gadget.name}y").status_code == 404


def test_a_type_is_inferred_from_what_is_stored_even_if_no_name_could_be_a_field(api: Api) -> None:
    name = f"wine_{next(_numbers)}x"
    answer = api.post("/v1/observations", {"entities": [{"entity_type": name, "First Name!": "Rioja", "": None}]})
    assert answer.status_code == 200, answer.text
    source = api.get(f"/v1/sources/{answer.json()['source_id']}").json()
    assert source["entities"] == [{"entity_type": name, "First Name!": "Rioja", "": None}]
    registered = api.get(f"/v1/entity-types/{name}").json()
    assert registered["schema_version"] == "1.0.0" and registered["scope"] == "user"


def test_many_at_once_infer_a_type_once(api: Api) -> None:
    name = f"wine_{next(_numbers)}x"

    def store(number: int) -> int:
        entity = {"entity_type": name, "name": f"n{number}", f"field_{number}": number}
        return api.post("/v1/observations", {"entities": [entity]}).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(store, range(24))) == {200}
    assert [one["schema_version"] for one in api.get(f"/v1/entity-types/{name}/versions").json()["versions"]] == [
        "1.0.0"
    ]


def test_every_observation_is_stored_under_a_version_that_held_while_schemas_change(api: Api) -> None:
    gadget = Type(api)

    def store(number: int) -> str:
        return str(gadget.store(gadget.entity(f"{number}@b.c", f3=str(number)))["entities"][0]["schema_version"])

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(store, number) for number in range(60)]
        for number in range(1, 6):
            gadget.register(f"1.{number}.0", **{f"f{number}": "string"})
        told = {one.result() for one in found}
    stored = gadget.observations()
    versions = [tuple(map(int, one["schema_version"].split("."))) for one in stored]
    assert len(stored) == 60 and versions == sorted(versions)
    assert {one["schema_version"] for one in stored} == told
    assert all(("f3" in one["fields"]) == (one["schema_version"] >= "1.3.0") for one in stored)


def test_a_field_is_corrected_and_an_entity_deleted_and_restored(gadget: Type, code_of: Callable[..., str]) -> None:
    entity = gadget.store(gadget.entity("a@b.c", age=1))["entities"][0]["entity_id"]
    path = f"/v1/entities/{entity}"
    post = gadget.api.post
    corrected = post(f"{path}/correct", {"field": "age", "value": 2, "idempotency_key": "c"})
    assert corrected.status_code == 200 and corrected.json()["action"] == "corrected"
    assert post(f"{path}/correct", {"field": "age", "value": 2, "idempotency_key": "c"}).json() == corrected.json()
    assert (
        post(f"{path}/correct", {"fields": {"age": None, "nick": "x"}, "entity_type": gadget.name}).status_code == 200
    )
    assert post(f"{path}/delete").json()["action"] == "deleted"
    assert post(f"{path}/restore", {}).json()["action"] == "restored"
    kinds = [one["kind"] for one in gadget.observations()]
    assert kinds == ["observation", "correction", "correction", "deletion", "restoration"]
    for bad in (
        {},
        {"field": "age"},
        {"value": 1},
        {"fields": {}},
        {"field": "a", "value": 1, "fields": {"a": 1}},
        {"x": 1},
    ):
        assert code_of(post(f"{path}/correct", bad)) == "bad_request", bad
    assert code_of(post(f"{path}/correct", {"field": "age", "value": 1, "entity_type": "other"})) == "bad_request"
    assert code_of(post(f"{path}/correct", {"field": "age", "value": 151})) == "ERR_CONSTRAINT_VIOLATION"
    assert code_of(post("/v1/entities/ent_x/correct", {"field": "age", "value": 1})) == "RESOURCE_NOT_FOUND"


def test_an_admin_appends_to_the_stream_of_a_type(gadget: Type) -> None:
    path = f"/v1/stream/entities/{gadget.name}"
    answer = gadget.api.post(path, [{"email": "a@b.c", "nick": "x"}])
    assert answer.status_code == 204, answer.text
    assert gadget.observations()[0]["user_id"] == "local"
    assert (
        gadget.store({"entity_type": gadget.name, "email": "a@b.c", "nick": "x"})["entities"][0]["action"]
        == "unchanged"
    )


# -- users


class Keys:
    """Keys of users, to send with requests."""

    def __init__(self, server: ServerProcess) -> None:
        self._store = KeyStore(server.data_dir / "keys.db")

    def header(self, user: str, scope: str = "write", prefix: str = "") -> dict[str, str]:
        _, token = self._store.create(user_id=user, scopes=[scope], prefix=prefix)
        return {"authorization": f"Bearer {token}"}


@pytest.fixture
def keys(server: ServerProcess) -> Iterator[Keys]:
    made = Keys(server)
    yield made
    made._store.close()


def test_users_store_their_own_entities_and_see_nothing_of_others(gadget: Type, keys: Keys) -> None:
    api, ann, ben = gadget.api, keys.header("ann"), keys.header("ben")
    body = {"entities": [gadget.entity("a@b.c")]}
    mine, yours = (api.post("/v1/observations", body, key).json() for key in (ann, ben))
    assert actions(mine) == actions(yours) == ["created"] and mine["source_id"] != yours["source_id"]
    assert api.get(f"/v1/sources/{mine['source_id']}", ann).json()["complete"]
    assert api.get(f"/v1/sources/{mine['source_id']}", ben).status_code == 404
    path = f"/v1/entities/{mine['entities'][0]['entity_id']}"
    for verb, said in (("correct", {"field": "age", "value": 1}), ("delete", {}), ("restore", {})):
        assert api.post(f"{path}/{verb}", said, ben).status_code == 404
        assert api.post(f"{path}/{verb}", said, ann).status_code == 200
    target = {"entities": [{**gadget.entity("a@b.c"), "_meta": {"target_id": mine["entities"][0]["entity_id"]}}]}
    assert api.post("/v1/observations", target, ben).status_code == 400


def test_an_admin_acts_for_a_user_and_nobody_else_does(gadget: Type, keys: Keys, code_of: Callable[..., str]) -> None:
    api, ann, ben = gadget.api, keys.header("ann"), keys.header("ben")
    body = {"entities": [gadget.entity("z@b.c")], "user_id": "ann"}
    assert code_of(api.post("/v1/observations", body, ben)) == "forbidden"
    answer = api.post("/v1/observations", body).json()
    entity = answer["entities"][0]["entity_id"]
    said = {"field": "age", "value": 1, "user_id": "ann"}
    assert code_of(api.post(f"/v1/entities/{entity}/correct", said, ben)) == "forbidden"
    assert api.post(f"/v1/entities/{entity}/correct", said).status_code == 200
    assert api.get(f"/v1/sources/{answer['source_id']}", ann).status_code == 200
    assert api.get(f"/v1/sources/{answer['source_id']}", user_id="ann").status_code == 200
    assert api.get(f"/v1/sources/{answer['source_id']}", ben, user_id="ann").status_code == 403


def test_nobody_is_acted_for_whose_name_is_longer_than_a_key_can_have(
    gadget: Type, code_of: Callable[..., str]
) -> None:
    for user, status in (("u" * 128, 200), ("u" * 129, 400)):
        assert gadget.post(gadget.entity("u@b.c"), user_id=user).status_code == status
    assert code_of(gadget.post(gadget.entity("u@b.c"), user_id="u" * 129)) == "bad_request"


def test_keys_that_may_not_write_or_open_other_streams_store_nothing(gadget: Type, keys: Keys) -> None:
    body = {"entities": [gadget.entity("a@b.c")]}
    refused = [
        keys.header("ann", "read"),
        keys.header("ann", "write", "events/"),
        keys.header("ann", "write", "entities/x"),
    ]
    for key in refused:
        assert gadget.api.post("/v1/observations", body, key).status_code == 403
    assert (
        gadget.api.post("/v1/observations", body, keys.header("ann", "write", f"entities/{gadget.name}")).status_code
        == 200
    )


def test_streams_of_entities_are_for_admins_on_every_route(gadget: Type, keys: Keys) -> None:
    api, ann, admin = gadget.api, keys.header("ann"), keys.header("root", "admin")
    gadget.store(gadget.entity("a@b.c"))
    path = f"/v1/stream/entities/{gadget.name}"
    asked: list[tuple[str, str, Any]] = [
        ("GET", path, None), ("HEAD", path, None), ("POST", path, [{"email": "x@y.z"}]),
        ("GET", f"{path}/pk/x", None), ("GET", f"{path}/_schema", None), ("GET", f"{path}/_schema/history", None),
        ("GET", f"{path}/_details", None), ("GET", f"{path}/_index_status", None),
        ("GET", f"{path}/_routing_keys", None),
        ("POST", f"{path}/_search", {"q": "kind:observation"}), ("GET", f"{path}/_search?q=kind:observation", None),
        ("POST", f"{path}/_aggregate", {}), ("GET", f"{path}/_profile", None),
    ]  # fmt: skip
    for method, place, body in asked:
        assert api.call(method, place, body, ann).status_code == 403, (method, place)
        assert api.call(method, place, body, admin).status_code != 403, (method, place)
    fork = {**ann, "stream-forked-from": path, "content-type": "application/json"}
    assert api.put(api.name(), headers=fork).status_code == 403
    for method, place in (("PUT", path), ("DELETE", path), ("POST", f"{path}/_retention")):
        assert api.call(method, place, None, ann).status_code in (403, 409), (method, place)


# -- the shape of requests on the wire


def test_pipelined_requests_are_answered_in_order(
    gadget: Type, server: ServerProcess, connect: Callable[..., Wire]
) -> None:
    wire = connect(server)
    for number in range(5):
        body = json.dumps({"entities": [gadget.entity(f"{number}@b.c", note="n" * 40_000 * (number % 3))]}).encode()
        wire.append("/v1/observations", body)
    answers = [json.loads(wire.answer().body) for _ in range(5)]
    assert [one["entities"][0]["canonical_name"] for one in answers] == [f"{gadget.name}:{n}@b.c" for n in range(5)]


def test_answers_to_keys_survive_a_restart(
    start_server: Callable[..., ServerProcess], api_of: Callable[..., Api]
) -> None:
    server = start_server()
    gadget = Type(api_of(server))
    first = gadget.post(gadget.entity("a@b.c"), idempotency_key="k").content
    server.kill()
    gadget.api = api_of(server.start())
    assert gadget.post(gadget.entity("a@b.c"), idempotency_key="k").content == first
    assert len(gadget.observations()) == 1
