"""Entities as they are read, over HTTP: one, many, their observations, and which are the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from conftest import ServerProcess
    from server.conftest import Api

_numbers = itertools.count(1)


class Contacts:
    """A type of its own on the shared server."""

    def __init__(self, api: Api, **definition: Any) -> None:
        self.api, self.type = api, f"person{next(_numbers)}x"
        fields = {"email": "string", "name": "string", "born": "date", "boss": "string", "tags": "array"}
        self.definition = {
            "fields": {name: {"type": kind} for name, kind in fields.items()},
            "canonical_name_fields": ["email"],
            "temporal_fields": [{"field": "born", "event_type": "birth"}],
            "reference_fields": [{"field": "boss", "target_entity_type": self.type}],
            **definition,
        }
        self.register("1.0.0", {"tags": {"strategy": "merge_array"}})

    def register(self, version: str, policies: dict[str, Any], scope: str = "global") -> None:
        answer = self.api.post(
            "/v1/entity-types",
            {
                "entity_type": self.type,
                "schema_version": version,
                "schema_definition": self.definition,
                "reducer_config": {"merge_policies": policies},
                "activate": True,
                "scope": scope,
            },
        )
        assert answer.status_code < 300, answer.text

    def store(self, email: str, **fields: Any) -> dict[str, Any]:
        meta = {"_meta": fields.pop("meta")} if "meta" in fields else {}
        entity = {"entity_type": self.type, "email": email, **fields, **meta}
        answer = self.api.post("/v1/observations", {"entities": [entity]})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["entities"][0]
        return found

    def id(self, email: str, **fields: Any) -> str:
        return str(self.store(email, **fields)["entity_id"])

    def get(self, entity_id: str, **query: Any) -> Any:
        return self.api.get(f"/v1/entities/{entity_id}", **query)

    def snapshot(self, entity_id: str, **query: Any) -> Any:
        answer = self.get(entity_id, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()["snapshot"]

    def page(self, **query: Any) -> Any:
        return self.api.get("/v1/entities", entity_type=self.type, **query).json()


@pytest.fixture
def contacts(api: Api) -> Contacts:
    return Contacts(api)


def refused(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_date_is_its_first_moment(contacts: Contacts) -> None:
    stored = contacts.store("ada@x.org", name="Ada", meta={"observed_at": "2024-02-29"})
    (observation,) = contacts.api.get(f"/v1/entities/{stored['entity_id']}/observations").json()["observations"]
    assert observation["observed_at"].startswith("2024-02-29T00:00:00")
    entity = {"entity_type": contacts.type, "email": "ada@x.org", "_meta": {"observed_at": "2023-02-29"}}
    answer = contacts.api.post("/v1/observations", {"entities": [entity]})
    assert answer.status_code == 400
    assert "observed_at" in answer.json()["error"]["message"]


def test_an_entity_is_told_with_where_its_values_are_from(contacts: Contacts) -> None:
    first = contacts.store("ada@x.org", name="Ada", tags=["a"], meta={"observed_at": "2024-01-01T00:00:00Z"})
    second = contacts.store("ada@x.org", tags=["b"], meta={"observed_at": "2024-02-01T00:00:00Z"})
    stored = contacts.api.get(f"/v1/entities/{first['entity_id']}/observations").json()["observations"]
    second_source, first_source = (one["source"]["source_id"] for one in stored)
    answer = contacts.get(first["entity_id"])
    assert answer.headers["headrace-coverage"] == "complete"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "entity_id": first["entity_id"],
        "entity_type": contacts.type,
        "canonical_name": f"{contacts.type}:ada@x.org",
        "schema_version": "1.0.0",
        "snapshot": {"email": "ada@x.org", "name": "Ada", "tags": ["b", "a"]},
        "provenance": {
            "email": second["observation_id"],
            "name": first["observation_id"],
            "tags": f"{second['observation_id']},{first['observation_id']}",
        },
        "sources": {"email": [second_source], "name": [first_source], "tags": [second_source, first_source]},
        "computed_at": "2024-02-01T00:00:00Z",
        "observation_count": 2,
        "last_observation_at": "2024-02-01T00:00:00Z",
        "merged_from": [],
        "events": [],
        "links": [],
    }


def test_values_give_dated_events_and_links(contacts: Contacts) -> None:
    boss = contacts.id("boss@x.org")
    answer = contacts.get(contacts.id("ada@x.org", born="1815-12-10", boss="boss@x.org")).json()
    assert answer["events"] == [{"field": "born", "event_type": "birth", "at": "1815-12-10"}]
    link = {"field": "boss", "relationship_type": "REFERS_TO", "target_entity_type": contacts.type}
    assert answer["links"] == [{**link, "value": "boss@x.org", "target_id": boss}]


def test_the_past_is_told_by_observed_and_by_ingest_time(contacts: Contacts) -> None:
    late = contacts.store("ada@x.org", name="New", meta={"observed_at": "2024-02-01T00:00:00Z"})
    ada = late["entity_id"]
    ingested = contacts.api.get(f"/v1/entities/{ada}/observations").json()["observations"][0]["ingested_at"]
    contacts.store("ada@x.org", name="Old", meta={"observed_at": "2024-01-01T00:00:00Z"})
    assert contacts.snapshot(ada)["name"] == "New"
    assert contacts.snapshot(ada, as_of="2024-01-15T00:00:00Z")["name"] == "Old"
    assert contacts.snapshot(ada, at_ingested=ingested)["name"] == "New"
    assert refused(contacts.get(ada, as_of="2023-01-01T00:00:00Z")) == (404, "RESOURCE_NOT_FOUND")
    assert refused(contacts.get(ada, at_ingested=ingested, as_of="2024-01-15T00:00:00Z"))[0] == 404


def test_head_tells_of_an_entity_what_get_does_but_for_the_body(contacts: Contacts, api: Api) -> None:
    entity_id = contacts.store("ada@x.org")["entity_id"]
    got, head = contacts.get(entity_id), api.head(f"/v1/entities/{entity_id}")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(got.content))
    assert contacts.get(entity_id).json() == got.json()


def test_an_entity_is_shown_under_a_named_version(contacts: Contacts) -> None:
    ada = contacts.id("ada@x.org", tags=["a"])
    contacts.id("ada@x.org", tags=["b"])
    contacts.register("2.0.0", {})
    assert contacts.snapshot(ada)["tags"] == ["b"]
    assert contacts.get(ada, schema_version="1.0").json()["schema_version"] == "1.0.0"
    assert contacts.snapshot(ada, schema_version="1.0.0")["tags"] == ["b", "a"]
    assert contacts.snapshot(ada, schema_version="2.0.0")["tags"] == ["b"]
    assert contacts.get(ada, schema_version="9.9.9").status_code == 404


def test_versions_of_one_number_are_told_apart_by_their_scopes(contacts: Contacts) -> None:
    ada = contacts.id("ada@x.org", tags=["a"])
    contacts.register("1.0.0", {"tags": {"strategy": "last_write"}}, "user")
    contacts.id("ada@x.org", tags=["b"])
    contacts.api.post(f"/v1/entities/{ada}/correct", {"field": "name", "value": "Ada"})
    told = contacts.api.get(f"/v1/entities/{ada}/observations", order="oldest").json()["observations"]
    assert [(one["schema_version"], one["schema_scope"]) for one in told] == [
        ("1.0.0", "global"), ("1.0.0", "user"), ("1.0.0", "user"),
    ]  # fmt: skip
    assert contacts.snapshot(ada, schema_version="1.0.0")["tags"] == ["b"]
    assert contacts.snapshot(ada, schema_version="1.0.0", scope="user")["tags"] == ["b"]
    assert contacts.snapshot(ada, schema_version="1.0.0", scope="global")["tags"] == ["b", "a"]
    assert refused(contacts.get(ada, schema_version="1.0.0", scope="mine")) == (400, "bad_request")
    assert refused(contacts.get(ada, scope="user")) == (400, "bad_request")
    contacts.register("2.0.0", {})
    assert contacts.get(ada, schema_version="2.0.0", scope="user").status_code == 404


def test_an_answer_explains_itself(contacts: Contacts) -> None:
    ada = contacts.id("ada@x.org")
    told = contacts.get(ada, explain="true").json()["explain"]
    assert told["from"] in ("states", "observations") and told["members"] == [ada]
    assert refused(contacts.get(ada, explain="maybe")) == (400, "bad_request")
    assert refused(contacts.get(ada, colour="red")) == (400, "bad_request")


@pytest.mark.parametrize("id", ["ent_" + "0" * 24, "ent_nothing", "somebody", "ENT_" + "0" * 24])
def test_an_entity_that_is_not_there_is_not_found(api: Api, id: str) -> None:
    assert refused(api.get(f"/v1/entities/{id}")) == (404, "RESOURCE_NOT_FOUND")


def test_a_deleted_entity_is_not_found_until_it_is_restored(contacts: Contacts) -> None:
    ada = contacts.id("ada@x.org", name="Ada")
    assert contacts.api.post(f"/v1/entities/{ada}/delete").status_code == 200
    contacts.id("ada@x.org", name="Ada again")
    assert refused(contacts.get(ada)) == (404, "RESOURCE_NOT_FOUND")
    assert contacts.page()["entities"] == []
    assert contacts.api.post(f"/v1/entities/{ada}/restore").status_code == 200
    assert contacts.snapshot(ada)["name"] == "Ada again"


def test_a_list_goes_on_by_keys(contacts: Contacts) -> None:
    ids = [contacts.id(f"u{number}@x.org", name=f"N{number % 2}") for number in range(7)]
    found, after = [], None
    while True:
        page = contacts.page(limit=3, **({} if after is None else {"after": after}))
        found += [one["entity_id"] for one in page["entities"]]
        after = page["after"]
        if after is None:
            break
    assert found == ids
    assert len(contacts.page(**{"field.name": "N1"})["entities"]) == 3
    assert len(contacts.page(search="U3@")["entities"]) == 1
    assert len(contacts.page(canonical_name=f"{contacts.type}:u3@x.org")["entities"]) == 1
    everything = contacts.api.get("/v1/entities", limit=500).json()["entities"]
    assert set(ids) <= {one["entity_id"] for one in everything}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"after": "x"}, (400, "INVALID_CURSOR")),
        ({"after": "ent_" + "0" * 24}, (400, "INVALID_CURSOR")),
        ({"limit": "0"}, (400, "bad_request")),
        ({"limit": "501"}, (400, "bad_request")),
        ({"page": "1"}, (400, "bad_request")),
        ({"entity_type": "nothing_of_this_kind"}, (404, "RESOURCE_NOT_FOUND")),
    ],
)
def test_a_list_that_cannot_be_is_refused(api: Api, query: dict[str, str], expected: tuple[int, str]) -> None:
    assert refused(api.get("/v1/entities", **query)) == expected


def test_observations_of_an_entity_come_page_by_page(contacts: Contacts) -> None:
    made = [contacts.store("ada@x.org", name=f"N{number}", colour="red") for number in range(5)]
    contacts.id("bob@x.org")
    path = f"/v1/entities/{made[0]['entity_id']}/observations"
    newest = contacts.api.get(path, limit=3).json()
    rest = contacts.api.get(path, limit=3, after=newest["after"]).json()
    assert rest["after"] is None
    ids = [one["id"] for one in newest["observations"] + rest["observations"]]
    assert ids == [one["observation_id"] for one in made[::-1]]
    oldest = contacts.api.get(path, order="oldest").json()["observations"]
    assert [one["id"] for one in oldest] == ids[::-1]
    one = oldest[0]
    assert one["fields"]["name"] == "N0" and one["schema_version"] == "1.0.0"
    assert [fragment["key"] for fragment in one["fragments"]] == ["colour"]
    source = contacts.api.get(one["source"]["href"]).json()
    assert source["source_id"] == one["source_id"]
    assert refused(contacts.api.get(path, after="nonsense")) == (400, "INVALID_CURSOR")


def test_a_value_leads_to_its_observations_and_their_sources(contacts: Contacts) -> None:
    first = contacts.store("ada@x.org", tags=["a"])
    second = contacts.store("ada@x.org", tags=["b"])
    told = contacts.api.get(f"/v1/entities/{first['entity_id']}/provenance/tags").json()
    assert told["value"] == ["b", "a"]
    ids = [one["id"] for one in told["observations"]]
    assert ids == [second["observation_id"], first["observation_id"]]
    for one in told["observations"]:
        source = contacts.api.get(one["source"]["href"]).json()
        assert source["entities"][0]["tags"] == one["fields"]["tags"]
    missing = contacts.api.get(f"/v1/entities/{first['entity_id']}/provenance/name")
    assert refused(missing) == (404, "RESOURCE_NOT_FOUND")


def test_entities_are_merged_and_apart_again(contacts: Contacts) -> None:
    ada, countess, bob = (contacts.id(f"{name}@x.org", tags=[name]) for name in ("ada", "countess", "bob"))
    pair = {"from_entity_id": countess, "to_entity_id": ada}
    assert contacts.api.post("/v1/entities/merge", pair).status_code == 200
    merged = contacts.get(ada).json()
    assert sorted(merged["snapshot"]["tags"]) == ["ada", "countess"]
    assert merged["merged_from"] == [countess] and merged["observation_count"] == 2
    asked = contacts.get(countess).json()
    assert asked["entity_id"] == ada
    assert asked["requested_entity_id"] == countess
    assert [one["entity_id"] for one in contacts.page()["entities"]] == [ada, bob]
    told = contacts.api.get(f"/v1/entities/{ada}/observations").json()["observations"]
    assert [one["kind"] for one in told] == ["merge", "observation", "observation"]
    again = contacts.api.post("/v1/entities/merge", pair)
    assert refused(again) == (409, "ENTITY_ALREADY_MERGED")
    into = contacts.api.post("/v1/entities/merge", {"from_entity_id": bob, "to_entity_id": countess})
    assert refused(into) == (409, "MERGE_TARGET_ALREADY_MERGED")
    assert contacts.api.post("/v1/entities/merge/undo", {"from_entity_id": countess}).status_code == 200
    assert contacts.snapshot(ada)["tags"] == ["ada"] and contacts.snapshot(countess)["tags"] == ["countess"]
    assert refused(contacts.api.post("/v1/entities/merge/undo", {"from_entity_id": countess})) == (409, "conflict")


def test_merges_follow_each_other(contacts: Contacts) -> None:
    a, b, c = (contacts.id(f"{name}@x.org", tags=[name]) for name in "abc")
    contacts.api.post("/v1/entities/merge", {"from_entity_id": a, "to_entity_id": b})
    contacts.api.post("/v1/entities/merge", {"from_entity_id": b, "to_entity_id": c})
    assert sorted(contacts.snapshot(a)["tags"]) == ["a", "b", "c"]
    contacts.api.post("/v1/entities/merge/undo", {"from_entity_id": b})
    assert sorted(contacts.snapshot(a)["tags"]) == ["a", "b"] and contacts.snapshot(c)["tags"] == ["c"]


def test_what_cannot_be_merged_is_refused(contacts: Contacts) -> None:
    ada, other = contacts.id("ada@x.org"), Contacts(contacts.api).id("ada@x.org")
    assert refused(contacts.api.post("/v1/entities/merge", {"from_entity_id": ada, "to_entity_id": ada}))[0] == 400
    assert refused(contacts.api.post("/v1/entities/merge", {"from_entity_id": ada, "to_entity_id": other}))[0] == 400
    nobody = "ent_" + "0" * 24
    missing = contacts.api.post("/v1/entities/merge", {"from_entity_id": ada, "to_entity_id": nobody})
    assert refused(missing) == (404, "RESOURCE_NOT_FOUND")


def test_observations_are_moved_to_another_entity_and_back(contacts: Contacts) -> None:
    first = contacts.store("ada@x.org", name="Ada", tags=["a"])
    second = contacts.store("ada@x.org", name="Bob", tags=["b"])
    ada = first["entity_id"]
    asked = {"entity_id": ada, "predicate": {"fields": {"name": "Bob"}}, "to_canonical_name": "bob@x.org"}
    split = contacts.api.post("/v1/entities/split", asked).json()
    assert split["observations"] == [second["observation_id"]]
    bob = split["to_entity_id"]
    assert contacts.snapshot(ada)["tags"] == ["a"] and contacts.snapshot(bob)["tags"] == ["b"]
    assert contacts.id("bob@x.org", tags=["c"]) == bob
    assert contacts.snapshot(bob)["tags"] == ["c", "b"]
    undo = {"entity_id": ada, "split_id": split["split_id"]}
    assert contacts.api.post("/v1/entities/split/undo", undo).status_code == 200
    assert contacts.snapshot(ada)["tags"] == ["b", "a"] and contacts.snapshot(bob)["tags"] == ["c"]
    assert refused(contacts.api.post("/v1/entities/split/undo", undo)) == (409, "conflict")


def test_a_split_that_means_nothing_is_refused(contacts: Contacts) -> None:
    ada = contacts.id("ada@x.org")
    for asked in (
        {"entity_id": ada, "predicate": {}, "to_canonical_name": "bob"},
        {"entity_id": ada, "predicate": {"observation_ids": ["none"]}, "to_canonical_name": "bob"},
        {"entity_id": ada, "predicate": {"source_id": "none"}, "to_canonical_name": "bob"},
        {"entity_id": ada, "predicate": {"fields": {"email": "ada@x.org"}}},
        {"entity_id": ada, "predicate": {"fields": {"email": "ada@x.org"}}, "to_entity_id": ada},
    ):
        assert refused(contacts.api.post("/v1/entities/split", asked))[0] == 400


def test_duplicates_are_found_by_name_or_by_declared_fields(contacts: Contacts) -> None:
    left, right = contacts.id("ada.lovelace@x.org"), contacts.id("ada.lovelacee@x.org")
    contacts.id("bob@x.org")
    told = contacts.api.get("/v1/entities/duplicates", entity_type=contacts.type).json()
    (pair,) = told["duplicates"]
    assert {one["entity_id"] for one in pair["entities"]} == {left, right} and pair["similarity"] > 0.9
    named = Contacts(contacts.api, duplicate_detection_fields=["name"], duplicate_detection_threshold=0.9)
    one, other = named.id("x1@x.org", name="Ada Lovelace"), named.id("y2@y.org", name="Ada Lovelace")
    told = named.api.get("/v1/entities/duplicates", entity_type=named.type).json()
    assert [{one["entity_id"] for one in pair["entities"]} for pair in told["duplicates"]] == [{one, other}]
    assert refused(contacts.api.get("/v1/entities/duplicates")) == (400, "bad_request")
    assert refused(contacts.api.get("/v1/entities/duplicates", entity_type=contacts.type, threshold="2"))[0] == 400


@pytest.mark.parametrize(
    ("policy", "better", "worse"),
    [
        ({"strategy": "last_write"}, {"observed_at": "2024-02-01T00:00:00Z"}, {"source_priority": 999}),
        ({"strategy": "highest_priority"}, {"source_priority": 200}, {"observed_at": "2024-02-01T00:00:00Z"}),
        ({"strategy": "highest_priority"}, {"observation_source": "sensor"}, {"observation_source": "sync"}),
        ({"strategy": "most_specific"}, {"specificity_score": 0.9}, {"source_priority": 999}),
        (
            {"strategy": "most_specific", "tie_breaker": "source_priority"},
            {"source_priority": 200},
            {"observation_source": "sensor"},
        ),
    ],
)
def test_policies_decide_whatever_the_order(
    contacts: Contacts, policy: dict[str, str], better: dict[str, Any], worse: dict[str, Any]
) -> None:
    contacts.register("1.1.0", {"name": policy})
    early = {"observed_at": "2024-01-01T00:00:00Z"}
    for email, told in (("a@x.org", [better, worse]), ("b@x.org", [worse, better])):
        for meta in told:
            name = "better" if meta is better else "worse"
            id = contacts.id(email, name=name, meta={**early, "source_id": f"s{name}", **meta})
        assert contacts.snapshot(id)["name"] == "better"


def test_a_null_that_wins_clears_a_field_from_any_path(contacts: Contacts) -> None:
    ada = contacts.id("ada@x.org", name="Ada", boss="bob")
    contacts.id("ada@x.org", name=None)
    told = contacts.get(ada).json()
    assert "name" not in told["snapshot"] and "name" not in told["provenance"]
    contacts.api.post(f"/v1/entities/{ada}/correct", {"field": "boss", "value": None})
    contacts.id("ada@x.org", name="Ada again", boss="cyd")
    assert contacts.snapshot(ada) == {"email": "ada@x.org", "name": "Ada again"}


def test_a_correction_beats_later_writes_and_a_later_correction_replaces_it(contacts: Contacts) -> None:
    ada = contacts.id("ada@x.org", tags=["a"])
    for value in (["x", "y"], ["z"]):
        contacts.api.post(f"/v1/entities/{ada}/correct", {"field": "tags", "value": value})
        contacts.id("ada@x.org", tags=["later"], meta={"source_priority": 5000})
        assert contacts.snapshot(ada)["tags"] == value


# -- users


class Keys:
    """Keys of users, to send with requests."""

    def __init__(self, server: ServerProcess) -> None:
        self._store = KeyStore(server.data_dir / "keys.db")

    def header(self, user: str, *scopes: str, prefix: str = "") -> dict[str, str]:
        _, token = self._store.create(user_id=user, scopes=list(scopes or ("read", "write")), prefix=prefix)
        return {"authorization": f"Bearer {token}"}

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def keys(server: ServerProcess) -> Iterator[Keys]:
    made = Keys(server)
    yield made
    made.close()


def stored(contacts: Contacts, email: str, key: dict[str, str], **fields: Any) -> str:
    body = {"entities": [{"entity_type": contacts.type, "email": email, **fields}]}
    answer = contacts.api.post("/v1/observations", body, key)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["entities"][0]["entity_id"])


def test_nobody_sees_or_changes_entities_of_others_on_any_route(contacts: Contacts, keys: Keys) -> None:
    api, ann, ben = contacts.api, keys.header("ann"), keys.header("ben")
    mine, other, yours = (
        stored(contacts, "a@x.org", ann, name="Ada"),
        stored(contacts, "o@x.org", ann, name="Oda"),
        stored(contacts, "b@x.org", ben),
    )
    path = f"/v1/entities/{mine}"
    assert api.get(path, ann).json()["snapshot"]["name"] == "Ada"
    for asked in (path, f"{path}/observations", f"{path}/provenance/name"):
        assert refused(api.get(asked, ben)) == (404, "RESOURCE_NOT_FOUND")
        assert refused(api.get(asked, ben, user_id="ann")) == (403, "forbidden")
        assert api.get(asked, user_id="ann").status_code == 200
    page = api.get("/v1/entities", ben, entity_type=contacts.type).json()
    assert [one["entity_id"] for one in page["entities"]] == [yours]
    assert refused(api.get("/v1/entities", ben, after=mine)) == (400, "INVALID_CURSOR")
    told = api.get("/v1/entities/duplicates", ben, entity_type=contacts.type).json()
    assert told["compared"] == 1
    predicate = {"fields": {"name": "Ada"}}
    for route, body in (
        ("merge", {"from_entity_id": mine, "to_entity_id": yours}),
        ("merge", {"from_entity_id": yours, "to_entity_id": mine}),
        ("merge/undo", {"from_entity_id": mine}),
        ("split", {"entity_id": mine, "predicate": predicate, "to_entity_id": yours}),
        ("split/undo", {"entity_id": mine, "split_id": "s"}),
    ):
        assert refused(api.post(f"/v1/entities/{route}", body, ben)) == (404, "RESOURCE_NOT_FOUND")
    asked = {"from_entity_id": other, "to_entity_id": mine}
    assert refused(api.post("/v1/entities/merge", {**asked, "user_id": "ann"}, ben)) == (403, "forbidden")
    assert api.post("/v1/entities/merge", asked, ann).status_code == 200


def test_keys_that_open_other_streams_or_may_only_read_do_no_more(contacts: Contacts, keys: Keys) -> None:
    api, ann = contacts.api, keys.header("ann")
    mine = stored(contacts, "a@x.org", ann)
    events = keys.header("ann", "read", prefix="events/")
    for path in (f"/v1/entities/{mine}", f"/v1/entities/{mine}/observations", f"/v1/entities/{mine}/provenance/email"):
        assert refused(api.get(path, events)) == (403, "forbidden")
    narrow = keys.header("ann", "read", prefix="entities/none")
    assert api.get("/v1/entities", narrow).json()["entities"] == []
    reader = keys.header("ann", "read")
    other = stored(contacts, "b@x.org", ann)
    asked = {"from_entity_id": other, "to_entity_id": mine}
    assert refused(api.post("/v1/entities/merge", asked, reader)) == (403, "forbidden")


@pytest.mark.parametrize("path", ["/v1/entities/none/provenance/a%0Ab", "/v1/sources/a%0Ab", "/v1/sources/a%0A"])
def test_a_line_break_in_a_path_is_a_character_like_others(api: Api, path: str) -> None:
    assert refused(api.get(path)) == refused(api.get(path.replace("%0A", "-")))
