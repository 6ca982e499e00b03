"""Sources by name over HTTP: given with observations, shown with values, and asked for in lists."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from conftest import ServerProcess
    from server.conftest import Api

_numbers = itertools.count(1)
_OTHER = "9f0c2b1e-0000-4000-8000-000000000001"


class Customers:
    """A type of its own on the shared server, with names of sources that no other test uses."""

    def __init__(self, api: Api) -> None:
        number = next(_numbers)
        self.api, self.type = api, f"customer{number}x"
        self.crm_a, self.crm_b = f"crm-a {number}", f"crm-b/{number}?"
        self.register("1.0.0", {})

    def register(self, version: str, priorities: dict[str, int]) -> None:
        payload = {
            "entity_type": self.type,
            "schema_version": version,
            "schema_definition": {
                "fields": {"email": {"type": "string"}, "name": {"type": "string"}, "tags": {"type": "array"}},
                "canonical_name_fields": ["email"],
            },
            "reducer_config": {
                "merge_policies": {"tags": {"strategy": "merge_array"}},
                "source_priorities": priorities,
            },
            "activate": True,
        }
        assert self.api.post("/v1/entity-types", payload).status_code == 200

    def post(self, *entities: dict[str, Any], headers: dict[str, str] | None = None, **options: Any) -> Any:
        body = {"entities": [{"entity_type": self.type, **entity} for entity in entities], **options}
        return self.api.post("/v1/observations", body, headers)

    def store(self, *entities: dict[str, Any], **options: Any) -> Any:
        answer = self.post(*entities, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def id(self, *entities: dict[str, Any], **options: Any) -> str:
        return str(self.store(*entities, **options)["entities"][0]["entity_id"])

    def history(self, entity_id: str, **query: Any) -> list[dict[str, Any]]:
        answer = self.api.get(f"/v1/entities/{entity_id}/observations", **query)
        assert answer.status_code == 200, answer.text
        observations: list[dict[str, Any]] = answer.json()["observations"]
        return observations

    def listed(self, **query: Any) -> list[str]:
        answer = self.api.get("/v1/entities", entity_type=self.type, **query)
        assert answer.status_code == 200, answer.text
        return [entity["entity_id"] for entity in answer.json()["entities"]]


@pytest.fixture
def customers(api: Api) -> Customers:
    return Customers(api)


def error_of(answer: Any) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error.get("field", "")


def test_a_name_is_shown_wherever_the_source_is(customers: Customers) -> None:
    stored = customers.store({"email": "ada@x.org", "name": "Ada", "tags": ["a"]}, source=customers.crm_a)
    assert stored["source"] == stored["source_id"] == customers.crm_a
    ada = customers.id({"email": "ada@x.org", "tags": ["b"], "_meta": {"source": customers.crm_b}})
    unnamed = customers.store({"email": "ada@x.org", "tags": ["c"]})
    assert "source" not in unnamed and unnamed["source_id"].startswith("src_")
    customers.api.post(f"/v1/entities/{ada}/correct", {"field": "name", "value": "Ada L."})
    sources = customers.api.get(f"/v1/entities/{ada}").json()["sources"]
    unnamed_id = unnamed["source_id"]
    assert sources == {
        "email": [unnamed_id], "name": [], "tags": [unnamed_id, customers.crm_b, customers.crm_a]
    }  # fmt: skip
    history = customers.history(ada)
    assert [one["source"] and one["source"]["name"] for one in history] == [
        None, None, customers.crm_b, customers.crm_a,
    ]  # fmt: skip
    provenance = customers.api.get(f"/v1/entities/{ada}/provenance/tags").json()["observations"]
    assert [one["source"]["name"] for one in provenance] == [None, customers.crm_b, customers.crm_a]
    for observation in provenance:
        source = customers.api.get(observation["source"]["href"]).json()
        assert source["source_id"] == observation["source"]["source_id"]
        assert source["name"] == observation["source"]["name"]
    assert customers.listed(source=customers.crm_a) == customers.listed(source=unnamed_id) == [ada]


def test_the_id_of_a_source_stays_valid_and_is_the_name(customers: Customers) -> None:
    entity = {"email": "ada@x.org", "name": "Ada"}
    first = customers.store(entity, source_id=_OTHER, observed_at="2026-01-01T00:00:00Z")
    again = customers.store(entity, source=_OTHER, source_id=_OTHER, observed_at="2026-01-01T00:00:00Z")
    assert again["entities"][0]["action"] == "unchanged" and first["source"] == again["source"] == _OTHER
    own = {**entity, "_meta": {"source": _OTHER, "observed_at": "2026-01-01T00:00:00Z"}}
    assert customers.store(own)["entities"][0]["action"] == "unchanged"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"source": ""}, "bad_request"),
        ({"source": " crm"}, "bad_request"),
        ({"source": "c\trm"}, "bad_request"),
        ({"source": "x" * 257}, "bad_request"),
        ({"source": 5}, "bad_request"),
        ({"source": "src_" + "0" * 64}, "bad_request"),
        ({"source": "e\u0301"}, "bad_request"),
        ({"source": "crm-a", "source_id": "crm-b"}, "source_mismatch"),
    ],
)
def test_what_is_no_name_is_refused_and_stores_nothing(
    customers: Customers, options: dict[str, Any], code: str
) -> None:
    entity = {"email": "ada@x.org"}
    assert error_of(customers.post(entity, **options)) == (400, code, "source")
    refused = customers.post(entity, {**entity, "_meta": options})
    assert error_of(refused) == (400, code, "source")
    assert "entity 2, _meta" in refused.json()["error"]["message"]
    assert customers.listed() == []


def test_lists_are_filtered_by_a_source_that_there_is(customers: Customers) -> None:
    ada = customers.id({"email": "ada@x.org", "name": "Ada"}, source=customers.crm_a)
    bob = customers.id({"email": "bob@x.org", "name": "Bob"}, source=customers.crm_b)
    customers.store({"email": "ada@x.org", "tags": ["b"]}, source=customers.crm_b)
    assert customers.listed(source=customers.crm_a) == [ada]
    assert customers.listed(source=customers.crm_b) == [ada, bob]
    assert [one["fields"]["name"] for one in customers.history(ada, source=customers.crm_a)] == ["Ada"]
    first_page = customers.api.get(f"/v1/entities/{ada}/observations", source=customers.crm_a, limit="1").json()
    assert first_page["after"] is None
    # A value that another source has replaced is not shown, so it lists no entity; the history still has it.
    customers.store({"email": "ada@x.org", "name": "Ada L."}, source=customers.crm_b)
    assert customers.listed(source=customers.crm_a) == []
    assert len(customers.history(ada, source=customers.crm_a)) == 1
    for path in ("/v1/entities", f"/v1/entities/{ada}/observations"):
        assert error_of(customers.api.get(path, source="no such source"))[:2] == (404, "not_found")


def test_a_split_moves_what_a_named_source_said(customers: Customers) -> None:
    ada = customers.id({"email": "ada@x.org", "name": "Ada"}, source=customers.crm_a)
    customers.store({"email": "ada@x.org", "name": "Bob"}, source=customers.crm_b)
    body = {"entity_id": ada, "predicate": {"source": customers.crm_b}, "to_canonical_name": "bob@x.org"}
    mismatched = {**body, "predicate": {"source": customers.crm_b, "source_id": "other"}}
    assert error_of(customers.api.post("/v1/entities/split", mismatched)) == (400, "source_mismatch", "source")
    bob = customers.api.post("/v1/entities/split", body).json()["to_entity_id"]
    shown = {id: customers.api.get(f"/v1/entities/{id}").json()["sources"]["name"] for id in (ada, bob)}
    assert shown == {ada: [customers.crm_a], bob: [customers.crm_b]}


def test_priorities_of_sources_by_name_count_whatever_came_with_observations(customers: Customers) -> None:
    ada = customers.id({"email": "ada@x.org", "tags": ["a"]}, source=customers.crm_a, source_priority=900)
    customers.store({"email": "ada@x.org", "tags": ["b"]}, source=customers.crm_b)

    def tags(version: str, **priorities: int) -> list[str]:
        named = {getattr(customers, name): priority for name, priority in priorities.items()}
        customers.register(version, named)
        entity = customers.api.get(f"/v1/entities/{ada}").json()
        assert entity["sources"]["tags"] == [
            customers.crm_a if tag == "a" else customers.crm_b for tag in entity["snapshot"]["tags"]
        ]
        shown: list[str] = entity["snapshot"]["tags"]
        return shown

    assert tags("1.1.0") == ["a"]
    assert tags("1.2.0", crm_b=1000) == ["b"]
    assert tags("1.3.0", crm_a=5, crm_b=5) == ["b", "a"]
    assert tags("1.4.0", crm_a=5) == ["b"]


def test_a_request_with_a_key_is_the_same_by_name_and_by_id(customers: Customers) -> None:
    key = f"key of {customers.type}"
    first = customers.post({"email": "ada@x.org"}, source=customers.crm_a, idempotency_key=key)
    again = customers.post({"email": "ada@x.org"}, source_id=customers.crm_a, idempotency_key=key)
    assert again.content == first.content and again.headers["idempotency-replayed"] == "true"
    other = customers.post({"email": "ada@x.org"}, source=customers.crm_b, idempotency_key=key)
    assert error_of(other)[:2] == (409, "ERR_IDEMPOTENCY_COLLISION")


def test_a_name_is_a_source_of_each_user(customers: Customers, server: ServerProcess) -> None:
    store = KeyStore(server.data_dir / "keys.db")
    try:
        ann, ben = (
            {"authorization": f"Bearer {store.create(user_id=user, scopes=['read', 'write'], prefix='')[1]}"}
            for user in ("ann", "ben")
        )
        assert customers.post({"email": "ada@x.org"}, headers=ann, source=customers.crm_a).status_code == 200
        assert error_of(customers.api.get("/v1/entities", ben, source=customers.crm_a))[:2] == (404, "not_found")
        assert customers.post({"email": "bob@x.org"}, headers=ben, source=customers.crm_a).status_code == 200
        for header, email in ((ann, "ada@x.org"), (ben, "bob@x.org")):
            listed = customers.api.get("/v1/entities", header, source=customers.crm_a).json()["entities"]
            assert [entity["snapshot"]["email"] for entity in listed] == [email]
    finally:
        store.close()


def test_many_clients_that_use_a_name_first_make_one_source(customers: Customers) -> None:
    def store(number: int) -> int:
        return int(customers.post({"email": f"u{number}@x.org"}, source=customers.crm_a).status_code)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(store, [*range(40), *range(40)])) == {200}
    listed = customers.listed(source=customers.crm_a, limit="500")
    href = customers.history(listed[0])[0]["source"]["href"]
    source = customers.api.get(href).json()
    assert source["complete"] and len(source["entities"]) == len(listed) == 40
