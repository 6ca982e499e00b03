"""Sources over streams that are there already, over HTTP: who may bind them, read them and see what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.schema.lens.carry import CarryEffect
from headrace.schema.plan import Plan, ValueImpact
from headrace.schema.registry import Registry
from headrace.server.http.auth import Principal
from headrace.server.routes.schemas import plan_as_shown
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from conftest import ServerProcess
    from server.conftest import Api

FIELDS = {"user": {"type": "str", "pointer": "/user/id"}, "ms": "i64"}
SCHEMA = {
    "type": "object",
    "properties": {
        "user": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        "ms": {"type": "integer"},
        "note": {"type": "string"},
    },
    "required": ["user", "ms", "note"],
    "additionalProperties": False,
}
NOTELESS = {**SCHEMA, "properties": {"user": SCHEMA["properties"]["user"], "note": {"type": "string"}}}
NOTELESS["required"] = ["user", "note"]
LENS = {
    "apiVersion": "durable.lens/v1",
    "from": 1,
    "to": 2,
    "ops": [{"op": "remove", "path": "/ms", "schema": {"type": "integer"}, "default": 0}],
}


class World:
    """A stream with events, and a pipeline over it."""

    def __init__(self, api: Api, keys: KeyStore, entries: list[Any]) -> None:
        self.api, self._keys = api, keys
        self.path = api.stream(*entries)
        self.stream = self.path.removeprefix("/v1/stream/")
        name = "".join(character for character in self.stream if character.isalnum())
        self.app, self.event, self.table = f"app-{name}", f"Request{name}", f"Users{name}"

    def source(self, **facts: Any) -> dict[str, Any]:
        return {"kind": "event", "name": self.event, "schema": FIELDS, "stream": self.stream, **facts}

    def register(self, *, headers: dict[str, str] | None = None, **facts: Any) -> Any:
        agg = {"n": {"op": "count"}, "total": {"op": "sum", "params": {"field": "ms"}}}
        users = {"kind": "table", "name": self.table, "upstreams": [self.event], "key": ["user"], "agg": agg}
        body = {"app": self.app, "descriptors": [self.source(**facts), users]}
        return self.api.post("/v1/register", body, headers=headers)

    def row(self, key: str, headers: dict[str, str] | None = None) -> Any:
        return self.api.post("/v1/get", {"table": self.table, "key": key}, headers=headers)

    def key(self, *scopes: str, prefix: str = "") -> dict[str, str]:
        _, token = self._keys.create(user_id="u", scopes=list(scopes), prefix=prefix)
        return {"Authorization": f"Bearer {token}"}


def request(user: str, ms: Any) -> dict[str, Any]:
    return {"user": {"id": user}, "ms": ms, "note": "n"}


@pytest.fixture
def world(api: Api, server: ServerProcess) -> Iterator[World]:
    keys = KeyStore(server.data_dir / "keys.db")
    yield World(api, keys, [request("a", 1), request("b", "x"), request("a", 2)])
    keys.close()


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_rows_count_history_and_appends_and_what_does_not_fit_is_listed(world: World) -> None:
    assert world.register().json()["plan"]["streams"] == [
        {"event": world.event, "change": "bound", "stream": world.stream}
    ]
    assert world.row("a").json() == {"n": 2, "total": 3}
    world.api.post(world.path, [request("a", 4)])
    answer = world.row("a")
    assert (answer.json(), answer.headers["headrace-coverage"]) == ({"n": 3, "total": 7}, "complete")
    told = world.api.get(f"/v1/registry/events/{world.event}").json()
    assert told["fields"]["user"] == {"pointer": "/user/id", "lost_at": None}
    (first,) = told["unfit"]["first"]
    assert (told["unfit"]["count"], told["unfit"]["complete"], first["reason"]) == (1, True, "/ms is no i64")
    registered = world.api.get("/v1/registry", app=world.app).json()["descriptors"]
    fields = {**FIELDS, "user": {"type": "str", "required": True, "pointer": "/user/id"}}
    assert world.source(schema=fields) in registered


def test_what_needs_a_push_is_refused(world: World) -> None:
    refusals = {"dedupe_key": "user", "keep_events_for": "1d"}
    for member, value in refusals.items():
        answer = world.register(**{member: value})
        assert code(answer) == (400, f"{member}_needs_push")
        assert answer.json()["error"]["errors"][0]["path"] == f"descriptors[0].{member}"
    bad = {**FIELDS, "user": {"type": "str", "pointer": "user"}}
    assert code(world.register(schema=bad)) == (400, "validation_failed")
    world.register()
    assert code(world.api.post(f"/v1/push/{world.event}", {"user": "a", "ms": 1})) == (409, "push_not_supported")


def test_reading_takes_the_scope_of_the_stream(world: World) -> None:
    elsewhere = world.key("read", "write", prefix="elsewhere/")
    assert world.register(headers=elsewhere).status_code == 403
    assert world.register(headers=world.key("read", "write")).status_code == 200
    assert world.row("a", world.key("read")).status_code == 200
    assert world.row("a", elsewhere).status_code == 403
    moment = {"rows": [{"key": "a", "at": "2030-01-01T00:00:00Z"}]}
    for headers, status in ((world.key("read"), 200), (elsewhere, 403)):
        assert world.api.post(f"/v1/tables/{world.table}/history", moment, headers=headers).status_code == status
        assert world.api.get(f"/v1/registry/events/{world.event}", headers=headers).status_code == status
    shown = world.api.get("/v1/registry", headers=elsewhere).json()["descriptors"]
    assert world.event not in [node["name"] for node in shown]


def test_rows_of_a_deleted_stream_say_that_it_is_gone(world: World) -> None:
    world.register()
    assert world.row("a").status_code == 200
    world.api.delete(world.path)
    assert code(world.row("a")) == (410, "source_gone")
    world.api.put(world.path, [request("a", 5)], headers={"content-type": "application/json"})
    assert code(world.row("a")) == (410, "source_gone")
    assert code(world.register()) == (409, "source_gone")


def test_who_may_not_read_the_stream_sees_how_many_features_a_change_affects() -> None:
    named = ValueImpact("/features/Users/total", CarryEffect.LOST, 2, "total of Users ends")
    other = ValueImpact("/search/fields/ms", CarryEffect.CHANGED, 2, "ms has other values")
    plan = Plan(subject="s", from_version=1, to_version=2, registry=Registry.empty("s"), impact=(other, named, named))
    reader, stranger = Principal("u", frozenset(["read"])), Principal("u", frozenset(["write"]))
    assert plan_as_shown(plan, reader, "s") == plan.dump()
    first, hidden = plan_as_shown(plan, stranger, "s")["impact"]
    assert (first, hidden["subject"], hidden["effect"]) == (other.dump(), "/features", "lost")
    assert hidden["reason"].startswith("2 features")


def test_a_plan_names_the_features_that_it_ends(api: Api, server: ServerProcess) -> None:
    keys = KeyStore(server.data_dir / "keys.db")
    world = World(api, keys, [])
    assert world.api.post(f"{world.path}/_schema", {"schema": SCHEMA}).status_code == 200
    world.api.post(world.path, [request("a", 1)])
    assert world.register().status_code == 200
    body = {"schema": NOTELESS, "lens": {**LENS, "schema": world.stream}}
    full = world.api.post(f"{world.path}/_schema?dry_run=true", body).json()["impact"]
    assert [(each["subject"], each["effect"]) for each in full] == [(f"/features/{world.table}/total", "lost")]
    assert world.api.post(f"{world.path}/_schema", body).status_code == 200
    world.api.post(world.path, [{"user": {"id": "a"}, "note": "n"}])
    answer = world.row("a")
    assert (answer.json(), answer.headers["headrace-coverage"]) == ({"n": 2, "total": 1}, "ended")
    keys.close()
