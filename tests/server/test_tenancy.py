"""A user never sees or changes another's rows, on any route that the OpenAPI document knows.

Every documented route of entities, types, sources, erasures and streams is asked by one user about what another has.
Nothing that is answered tells of it, and afterwards everything is as it was. A route that is added without a line here
fails the first test.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.server.routes.route_table import openapi_document
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from conftest import ServerProcess
    from server.conftest import Api

SECRET = "anns-secret"
TYPE, OWN = "guest", "diary"
PATIENCE_S = 20.0
PREFIXES = ("/v1/entit", "/v1/sources", "/v1/erasures", "/v1/observations", "/v1/stream/{name}")
VERBS = ("get", "put", "post", "delete", "head")
ONE, KIND, STREAM = "/v1/entities/{id}", "/v1/entity-types/{entity_type}", "/v1/stream/{name}"
RUN = KIND + "/migrations/{run_id}"
SCHEMA = {"fields": {"email": {"type": "string"}, "note": {"type": "string"}}, "canonical_name_fields": ["email"]}
VERSION = {"schema_version": "1.0.0"}
REGISTERED: dict[str, Any] = {
    "entity_type": TYPE, "schema_version": "9.0.0", "schema_definition": SCHEMA, "activate": True,
    "reducer_config": {"merge_policies": {}},
}  # fmt: skip
ADDED = {"fields_to_add": [{"field_name": "more", "field_type": "string"}]}

#: What each route is asked with: a body, or None; "{mine}" and "{yours}" stand for the ids of two users' entities.
ROUTES: dict[tuple[str, str], Any] = {
    ("get", "/v1/entities"): None,
    ("get", ONE): None,
    ("get", ONE + "/observations"): None,
    ("get", ONE + "/provenance/{field}"): None,
    ("get", "/v1/entities/duplicates"): None,
    ("post", "/v1/entities/merge"): {"from_entity_id": "{mine}", "to_entity_id": "{yours}"},
    ("post", "/v1/entities/merge/undo"): {"from_entity_id": "{mine}"},
    ("post", "/v1/entities/split"): {
        "entity_id": "{mine}", "predicate": {"fields": {"note": SECRET}}, "to_entity_id": "{yours}",
    },
    ("post", "/v1/entities/split/undo"): {"entity_id": "{mine}", "split_id": "s"},
    ("post", ONE + "/correct"): {"field": "note", "value": "changed"},
    ("post", ONE + "/delete"): {},
    ("post", ONE + "/restore"): {},
    ("post", ONE + "/erase"): {},
    ("get", "/v1/erasures"): None,
    ("get", "/v1/erasures/{id}"): None,
    ("get", "/v1/sources/{id}"): None,
    ("post", "/v1/observations"): {"entities": [{"entity_type": TYPE, "note": "x", "_meta": {"target_id": "{mine}"}}]},
    ("get", "/v1/entity-types"): None,
    ("post", "/v1/entity-types"): REGISTERED,
    ("get", KIND): None,
    ("get", KIND + "/versions"): None,
    ("get", KIND + "/history"): None,
    ("get", KIND + "/export"): None,
    ("post", KIND + "/update"): ADDED,
    ("post", KIND + "/activate"): VERSION,
    ("post", KIND + "/deactivate"): VERSION,
    ("get", KIND + "/candidates"): None,
    ("post", KIND + "/enhance"): {"dry_run": False, "force": True},
    ("get", KIND + "/enhancement"): None,
    ("post", KIND + "/enhancement"): {"enabled": True},
    ("get", KIND + "/recommendations"): None,
    ("post", KIND + "/recommendations"): {"field": "odd", "status": "rejected"},
    ("post", KIND + "/migrate"): {"fields": ["note"]},
    ("get", KIND + "/migrations"): None,
    ("get", RUN): None,
    ("post", RUN + "/undo"): {},
    ("post", KIND + "/reconcile"): {"dry_run": False},
    ("get", STREAM): None,
    ("post", STREAM): [{"email": "x"}],
    ("put", STREAM): b"",
    ("delete", STREAM): None,
    ("head", STREAM): None,
    ("get", STREAM + "/pk/{key}"): None,
    ("post", STREAM + "/_retention"): {"age": "1s"},
    ("post", STREAM + "/_seal"): b"",
    ("get", STREAM + "/_plan"): None,
    ("get", STREAM + "/_plan/rows"): None,
    ("get", STREAM + "/_schema"): None,
    ("post", STREAM + "/_schema"): {"schema": {}},
    ("get", STREAM + "/_schema/history"): None,
    ("get", STREAM + "/_schema/verifications/{id}"): None,
    ("get", STREAM + "/_details"): None,
    ("get", STREAM + "/_index_status"): None,
    ("get", STREAM + "/_routing_keys"): None,
    ("get", STREAM + "/_search"): None,
    ("post", STREAM + "/_search"): {"q": "user_id:ann"},
    ("post", STREAM + "/_aggregate"): {"rollup": "r", "from": "0", "to": "1", "interval": "1m"},
    ("get", STREAM + "/_profile"): None,
    ("post", STREAM + "/_profile"): {"profile": {"kind": "generic"}},
    ("post", STREAM + "/_otlp/v1/traces"): {"resourceSpans": []},
    ("get", STREAM + "/touch/meta"): None,
    ("post", STREAM + "/touch/templates/activate"): {"templates": []},
    ("post", STREAM + "/touch/wait"): {"cursor": "now"},
}  # fmt: skip
QUERIES: dict[str, dict[str, str]] = {
    "/v1/entities": {"entity_type": TYPE},
    "/v1/entities/duplicates": {"entity_type": TYPE},
    STREAM + "/_search": {"q": "user_id:ann"},
}
#: Changes of types that are everybody's unless something else is said.
GLOBAL = [KIND + "/update", KIND + "/activate", KIND + "/deactivate", KIND + "/reconcile", "/v1/entity-types"]


def documented() -> set[tuple[str, str]]:
    paths = openapi_document()["paths"].items()
    return {(verb, path) for path, item in paths if path.startswith(PREFIXES) for verb in VERBS if verb in item}


def test_every_route_is_asked_here() -> None:
    assert documented() == set(ROUTES)


class World:
    """Ann has an entity, a source, a schema of her own, settings, a migration and an erasure; Ben asks for them."""

    def __init__(self, api: Api, keys: KeyStore) -> None:
        self.api = api
        self.ann, self.ben = self._key(keys, "ann"), self._key(keys, "ben")
        self.admin = self._key(keys, "root", "read", "write", "admin")
        for name in (TYPE, OWN):
            self.register(name, self.admin, "1.0.0", scope="global")
        self.register(OWN, self.ann, "1.1.0", scope="user", secret=True)
        self.mine = self.store(self.ann, "ann@x.org", note=SECRET, odd=f"{SECRET} odd")
        self.yours = self.store(self.ben, "ben@x.org", note="plain")
        lost = self.store(self.ann, "lost@x.org")
        told = self.done("GET", f"/v1/entities/{self.mine}/observations", self.ann)
        self.source = str(told["observations"][0]["source"]["source_id"])
        self.erasure = str(self.done("POST", f"/v1/entities/{lost}/erase", self.ann, {})["erasure_id"])
        self._wait_for_erasure()
        path = f"/v1/entity-types/{TYPE}"
        self.done("POST", f"{path}/enhancement", self.ann, {"enabled": False, "threshold": 77})
        self.run = str(self.done("POST", f"{path}/migrate", self.ann, {"fields": ["note"]})["run_id"])

    @staticmethod
    def _key(keys: KeyStore, user: str, *scopes: str) -> dict[str, str]:
        _, token = keys.create(user_id=user, scopes=list(scopes or ("read", "write")), prefix="")
        return {"authorization": f"Bearer {token}"}

    def _wait_for_erasure(self) -> None:
        limit = time.monotonic() + PATIENCE_S
        while not self.done("GET", f"/v1/erasures/{self.erasure}", self.ann)["complete"]:
            assert time.monotonic() < limit
            time.sleep(0.05)

    def done(self, method: str, path: str, key: dict[str, str], body: Any = None, **query: Any) -> Any:
        answer = self.api.call(method, path, body, key, **query)
        assert answer.status_code < 300, (method, path, answer.text)
        return answer.json()

    def register(self, name: str, key: dict[str, str], version: str, *, scope: str, secret: bool = False) -> None:
        fields = {**SCHEMA["fields"], **({SECRET.replace("-", "_"): {"type": "string"}} if secret else {})}
        body = {
            **REGISTERED, "entity_type": name, "schema_version": version, "scope": scope,
            "schema_definition": {**SCHEMA, "fields": fields},
        }  # fmt: skip
        self.done("POST", "/v1/entity-types", key, body)

    def store(self, key: dict[str, str], email: str, **fields: Any) -> str:
        body = {"entities": [{"entity_type": TYPE, "email": email, **fields}]}
        return str(self.done("POST", "/v1/observations", key, body)["entities"][0]["entity_id"])

    def filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.filled(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.filled(one) for one in value]
        return {"{mine}": self.mine, "{yours}": self.yours}.get(value, value) if isinstance(value, str) else value

    def address(self, path: str, entity_type: str = TYPE) -> str:
        ids = {"/v1/erasures/{id}": self.erasure, "/v1/sources/{id}": self.source}
        words = {
            "id": ids.get(path, self.mine), "field": "note", "entity_type": entity_type, "run_id": self.run,
            "name": f"entities/{TYPE}", "key": self.mine,
        }  # fmt: skip
        return path.format(**words)

    def ask(self, verb: str, path: str, key: dict[str, str], **more: Any) -> Any:
        """A route, asked about what Ann has; ``more`` goes into the body of a POST, else into the query."""
        body, query = self.filled(ROUTES[verb, path]), dict(QUERIES.get(path, {}) if verb == "get" else {})
        entity_type = more.pop("entity_type", TYPE)
        if verb == "post" and isinstance(body, dict):
            body = {**body, **more}
        else:
            query |= more
        return self.api.call(verb.upper(), self.address(path, entity_type), body, key, **query)

    def seen(self) -> list[str]:
        """Everything that Ann sees of hers."""
        shown = [("get", path) for verb, path in ROUTES if verb == "get" and not path.startswith(STREAM)]
        skipped = ("/v1/entity-types", KIND + "/candidates", "/v1/erasures", "/v1/erasures/{id}")
        told = [self.ask(*one, self.ann) for one in shown if one[1] not in skipped]
        told.append(self.ask("get", KIND, self.ann, entity_type=OWN))
        # How often a type was changed by anybody is no secret.
        return [re.sub(r'"change":\d+', "", answer.text) for answer in told]


@pytest.fixture(scope="module")
def world(server: ServerProcess) -> Iterator[World]:
    from server.conftest import Api

    keys, api = KeyStore(server.data_dir / "keys.db"), Api(server.url)
    yield World(api, keys)
    keys.close()
    api.client.close()


def is_told(answer: Any, world: World) -> bool:
    """Whether an answer tells of what only Ann has; an id that was asked for may come back in an error."""
    known = [SECRET, SECRET.replace("-", "_"), "ann@x.org", "lost@x.org"]
    if answer.status_code < 400:
        known += [world.mine, world.source, world.erasure, world.run]
    return any(text in answer.text for text in known)


@pytest.mark.parametrize(("verb", "path"), sorted(documented()))
def test_nobody_sees_or_changes_what_is_anothers(world: World, verb: str, path: str) -> None:
    before = world.seen()
    assert any(SECRET in text for text in before)
    for more in ({}, {"user_id": "ann"}, {"scope": "user", "user_id": "ann"}, {"entity_type": OWN}):
        answer = world.ask(verb, path, world.ben, **more)
        assert not is_told(answer, world), answer.text
        assert answer.status_code != 500, answer.text
        if "user_id" in more and not path.startswith(STREAM):
            assert answer.status_code in (400, 403), answer.text
    assert world.seen() == before


@pytest.mark.parametrize(("verb", "path"), sorted(one for one in documented() if one[1].startswith(STREAM)))
def test_streams_of_entities_take_an_admin(world: World, verb: str, path: str) -> None:
    answer = world.ask(verb, path, world.ben)
    assert answer.status_code == 403
    if verb == "get" and path in (STREAM, STREAM + "/pk/{key}"):
        assert SECRET in world.ask(verb, path, world.admin).text


def others() -> list[str]:
    """Every documented address that is asked for with GET and has no parts to fill in, besides those above."""
    return sorted(
        path for path, item in openapi_document()["paths"].items()
        if "get" in item and "{" not in path and ("get", path) not in ROUTES
    )  # fmt: skip


@pytest.mark.parametrize("path", others())
def test_no_other_route_tells_that_there_are_streams_of_entities(world: World, path: str) -> None:
    answer = world.api.get(path, world.ben)
    assert not is_told(answer, world) and f"entities/{TYPE}" not in answer.text


def test_streams_are_listed_without_those_of_entities_unless_an_admin_asks(world: World) -> None:
    names = ["a-before", "entities-like", "z-after"]
    for name in names:
        assert world.api.put(f"/v1/stream/{name}", b"", {**world.ben, "content-type": "text/plain"}).status_code < 300

    def listed(key: dict[str, str], **query: Any) -> list[str]:
        found: list[str] = []
        while page := world.api.get("/v1/streams", key, after=found[-1] if found else "", **query).json():
            found += [one["name"] for one in page]
        return found

    entities = [f"entities/{name}" for name in sorted((TYPE, OWN))]
    for limit in (1, 2, 100):
        assert [name for name in listed(world.ben, limit=limit) if name in (*names, *entities)] == names
        assert [name for name in listed(world.admin, limit=limit) if name in entities] == entities
    assert listed(world.ben, prefix="entities/") == []


@pytest.mark.parametrize("pattern", ["entities/**", "entities/*", f"entities/{TYPE}"])
def test_nobody_subscribes_to_the_entities_of_others(world: World, pattern: str) -> None:
    body = {"type": "pull-wake", "pattern": pattern, "wake_stream": "bens-wakes"}
    path = "/v1/stream/__ds/subscriptions/"
    assert world.api.call("PUT", f"{path}bens", body, world.ben).status_code == 403
    told = world.done("PUT", f"{path}admins-{pattern.replace('/', '-')}", world.admin, body)
    assert f"entities/{TYPE}" in [one["path"] for one in told["streams"]]


@pytest.mark.parametrize("pattern", ["**", "*/*", f"**/{TYPE}"])
def test_a_pattern_does_not_take_streams_of_entities_along(world: World, pattern: str) -> None:
    name = f"bens-{len(pattern)}"
    assert world.api.put(f"/v1/stream/{name}/{TYPE}", b"", {**world.ben, "content-type": "text/plain"}).is_success
    body = {"type": "pull-wake", "pattern": pattern, "wake_stream": "bens-wakes"}
    told = world.done("PUT", f"/v1/stream/__ds/subscriptions/{name}", world.ben, body)
    linked = [one["path"] for one in told["streams"]]
    assert f"{name}/{TYPE}" in linked and not [path for path in linked if path.startswith(("entities/", "__"))]
    world.store(world.ann, f"{name}@x.org")
    again = world.done("GET", f"/v1/stream/__ds/subscriptions/{name}", world.ben)
    assert not [one for one in again["streams"] if one["path"].startswith("entities/")]


def test_the_account_of_who_did_what_is_for_admins(world: World) -> None:
    assert world.api.get("/v1/stream/__registry__", world.ben).status_code == 403
    assert world.api.call("POST", "/v1/stream/__registry__/_search", {"q": "*"}, world.ben).status_code == 403
    assert world.api.get("/v1/stream/__registry__", world.admin).status_code == 200


@pytest.mark.parametrize("path", ["/v1/entities", "/v1/entities/duplicates"])
def test_a_type_that_only_another_has_is_like_one_that_nobody_has(world: World, path: str) -> None:
    body = {"entities": [{"entity_type": "anns_alone", "name": "n"}]}
    world.done("POST", "/v1/observations", world.ann, body)
    assert world.api.get(path, world.ann, entity_type="anns_alone").status_code == 200
    told = [world.api.get(path, world.ben, entity_type=name) for name in ("anns_alone", "nobodys_at_all")]
    assert [answer.status_code for answer in told] == [404, 404]
    assert told[0].text == told[1].text.replace("nobodys_at_all", "anns_alone")


def test_the_stream_of_a_type_is_not_forked_by_others(world: World) -> None:
    headers = {**world.ben, "stream-forked-from": f"/v1/stream/entities/{TYPE}"}
    answer = world.api.put("/v1/stream/bens/copy", b"", headers)
    assert answer.status_code == 403
    assert world.api.get("/v1/stream/bens/copy", world.ben).status_code == 404


@pytest.mark.parametrize("path", GLOBAL)
def test_what_is_everybodys_is_changed_by_admins_alone(world: World, path: str) -> None:
    answer = world.ask("post", path, world.ben)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), answer.text
