"""The account of who did what: everything that changes more than data is told in ``__registry__``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.server.routes.route_table import ROUTES
from headrace.storage.keys import KeyStore
from server.conftest import Api
from server.pipelines import Pipeline
from server.registries import name_of
from server.routes.test_entity_types import Kind

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

REGISTRY = "/v1/stream/__registry__"
JSON = {"content-type": "application/json"}
PATIENCE_S = 10.0
#: What a change is called in the account, by operation.
RECORDED_AS = {route.name: route.recorded_as for route in ROUTES if route.recorded_as}

Facts = dict[str, Any]
Act = Callable[[Api], Facts]
ACTS: dict[str, tuple[Act, str]] = {}


def recorded(*operations: str) -> Callable[[Act], Act]:
    """The function does these operations, the last of which is recorded with the facts that it gives."""

    def known(act: Act) -> Act:
        ACTS.update(dict.fromkeys(operations, (act, RECORDED_AS[operations[-1]])))
        return act

    return known


@pytest.fixture(scope="module")
def server(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may be reset."""
    directory = tmp_path_factory.mktemp("account") / "data"
    running = type(server)(directory, {"features__test_mode": "true"}).start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def ada(server: ServerProcess) -> Iterator[Api]:
    """An operator with a key of her own."""
    keys = KeyStore(server.data_dir / "keys.db")
    _, token = keys.create(user_id="ada", scopes=["admin"])
    keys.close()
    api = Api(server.url)
    api.client.headers["authorization"] = f"Bearer {token}"
    yield api
    api.client.close()


def done(answer: Any) -> Any:
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def notes_after(api: Api, offset: str, what: str, **facts: Any) -> list[Facts]:
    """Notes of this kind with these facts, as soon as there are any."""
    until = time.monotonic() + PATIENCE_S
    while True:
        answer = api.get(REGISTRY, offset=offset)
        notes = answer.json() if answer.status_code == 200 else []
        found = [note for note in notes if note["what"] == what and facts.items() <= note.items()]
        if found:
            return found
        assert time.monotonic() < until, f"{what} {facts} is not told: {notes}"
        time.sleep(0.05)


def end(api: Api) -> str:
    """Where the account ends."""
    answer = api.head(REGISTRY)
    return str(answer.headers["stream-next-offset"]) if answer.status_code == 200 else "-1"


# -- what is done


@recorded("create_stream")
def _create(api: Api) -> Facts:
    return {"stream": name_of(api.stream()), "content_type": "application/json"}


@recorded("delete_stream")
def _delete(api: Api) -> Facts:
    path = api.stream()
    done(api.delete(path))
    return {"stream": name_of(path)}


@recorded("retain_stream")
def _retain(api: Api) -> Facts:
    path = api.stream()
    done(api.post(f"{path}/_retention", {"age": "1h"}))
    return {"stream": name_of(path), "retention": {"age_us": 3_600_000_000, "bytes": None}}


@recorded("change_schema")
def _schema(api: Api) -> Facts:
    path = api.stream()
    done(api.post(f"{path}/_schema", {"schema": {"type": "object"}}))
    return {"stream": name_of(path), "version": 1}


@recorded("change_profile")
def _profile(api: Api) -> Facts:
    path = api.stream()
    done(api.post(f"{path}/_profile", {"profile": {"kind": "evlog"}}))
    return {"stream": name_of(path), "profile": {"kind": "evlog"}, "version": 1}


@recorded("register_features")
def _register(api: Api) -> Facts:
    pipeline = Pipeline(api)
    version = done(pipeline.register())["registry_version"]
    return {"version": version, "app": pipeline.app, "action": "register", "added": sorted(pipeline.descriptors)}


@recorded("rollback_features")
def _rollback(api: Api) -> Facts:
    pipeline = Pipeline(api)
    version = done(pipeline.register())["registry_version"]
    back = {"version": version - 1, "app": pipeline.app, "force": True}
    return {"version": done(api.post("/v1/registry/rollback", back))["registry_version"], "action": "rollback"}


@recorded("reset_features")
def _reset(api: Api) -> Facts:
    done(Pipeline(api).register())
    return {"version": done(api.post("/v1/reset", {}))["registry_version"], "added": []}


@recorded("register_entity_type")
def _entity_type(api: Api) -> Facts:
    kind = Kind(api)
    done(kind.register())
    return {"entity_type": kind.name, "action": "register", "version": "1.0.0"}


@recorded("update_entity_type", "migrate_entity_type", "undo_entity_type_migration")
def _migrate(api: Api) -> Facts:
    kind = Kind(api)
    done(kind.register())
    done(kind.post("update", scope="user", fields_to_add=[{"field_name": "nick", "field_type": "string"}]))
    run = done(kind.post("migrate", fields=["nick"]))["run_id"]
    done(kind.post(f"migrations/{run}/undo"))
    for action in ("update", "migrate"):
        notes_after(api, "-1", "entity_type_changed", entity_type=kind.name, action=action, user_id="ada")
    return {"entity_type": kind.name, "action": "undo", "user_id": "ada"}


@recorded("activate_entity_type", "deactivate_entity_type")
def _activate(api: Api) -> Facts:
    kind = Kind(api)
    done(kind.register())
    done(kind.post("deactivate", schema_version="1.0.0"))
    done(kind.post("activate", schema_version="1.0.0"))
    notes_after(api, "-1", "entity_type_changed", entity_type=kind.name, action="deactivate")
    return {"entity_type": kind.name, "action": "activate"}


@recorded(
    "enhance_entity_type",
    "set_entity_type_enhancement",
    "decide_entity_type_recommendation",
)
def _enhance(api: Api) -> Facts:
    kind = Kind(api)
    done(kind.register())
    done(kind.post("enhancement", scope="user", threshold=2))
    for number in range(3):
        entity = {"entity_type": kind.name, "email": f"{number}@x.yz", "nick": f"n{number}"}
        done(api.post("/v1/observations", {"entities": [entity]}))
    done(kind.post("recommendations", scope="user", field="nick", status="approved"))
    assert done(kind.post("enhance", scope="user", dry_run=False))["fields_added"] == ["nick"]
    for action in ("enhancement", "recommend"):
        notes_after(api, "-1", "entity_type_changed", entity_type=kind.name, action=action, user_id="ada")
    return {"entity_type": kind.name, "action": "update", "user_id": "ada", "version": "1.1.0"}


@recorded("reconcile_entity_type")
def _reconcile(api: Api) -> Facts:
    kind = Kind(api)
    done(kind.register())
    for user in ("u1", "u2", "u3"):
        field = {"field_name": "nick", "field_type": "string"}
        done(kind.post("update", scope="user", user_id=user, fields_to_add=[field]))
        entities = [{"entity_type": kind.name, "email": f"{number}@{user}.yz"} for number in range(50)]
        done(api.post("/v1/observations", {"entities": entities, "user_id": user}))
    assert done(kind.post("reconcile", dry_run=False))["fields_added"] == ["nick"]
    return {"entity_type": kind.name, "action": "update", "user_id": None, "version": "1.1.0"}


@recorded("erase_entity")
def _erase(api: Api) -> Facts:
    kind = Kind(api)
    done(kind.register())
    stored = done(api.post("/v1/observations", {"entities": [{"entity_type": kind.name, "email": "a@b.cd"}]}))
    erasure = done(api.post(f"/v1/entities/{stored['entities'][0]['entity_id']}/erase", {}))["erasure_id"]
    return {"entity_type": kind.name, "erasure": erasure}


@recorded("pause_work", "resume_work")
def _pause(api: Api) -> Facts:
    offset = end(api)
    done(api.post("/v1/work/pause"))
    done(api.post("/v1/work/resume"))
    notes_after(api, offset, "work_paused", who="ada")
    return {}


@recorded("run_work")
def _run(api: Api) -> Facts:
    path = api.stream()
    done(api.post(f"{path}/_profile", {"profile": {"kind": "evlog"}}))
    done(api.post("/v1/work/run", {"stream": name_of(path)}))
    return {"stream": name_of(path)}


@recorded("put_subscription", "link_subscription", "unlink_subscription", "delete_subscription")
def _subscribe(api: Api) -> Facts:
    wakes, linked = name_of(api.stream()), name_of(api.stream())
    one = f"/v1/stream/__ds/subscriptions/of-{wakes}"
    offset = end(api)
    done(api.put(one, {"type": "pull-wake", "pattern": "none/*", "wake_stream": wakes}))
    done(api.post(f"{one}/streams", {"streams": [linked]}))
    done(api.delete(f"{one}/streams/{linked}"))
    done(api.delete(one))
    facts = {"who": "ada", "subscription": f"of-{wakes}"}
    notes_after(api, offset, "subscription_created", **facts, type="pull-wake")
    notes_after(api, offset, "subscription_changed", **facts, linked=[linked])
    notes_after(api, offset, "subscription_changed", **facts, unlinked=[linked])
    return {"subscription": f"of-{wakes}"}


# -- and told


def test_every_operation_that_changes_more_than_data_is_recorded() -> None:
    assert ACTS.keys() == RECORDED_AS.keys()


@pytest.mark.parametrize("operation", sorted(ACTS))
def test_what_is_done_is_told_with_who_and_when(ada: Api, operation: str) -> None:
    act, what = ACTS[operation]
    offset, began = end(ada), time.time()
    facts = act(ada)
    (note,) = notes_after(ada, offset, what, **facts)
    assert note["who"] == "ada"
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began - 1)) <= note["at"]


def test_a_fork_is_told_with_where_it_comes_from(ada: Api) -> None:
    path, fork = ada.stream(), ada.name()
    done(ada.post(f"{path}/_profile", {"profile": {"kind": "evlog", "redactKeys": ["pin"]}}))
    done(ada.put(fork, headers={**JSON, "stream-forked-from": path}))
    (note,) = notes_after(ada, "-1", "stream_created", stream=name_of(fork))
    assert note["forked_from"] == name_of(path)
    assert note["profile"] == {"kind": "evlog", "redactKeys": ["pin"]}


def test_a_stream_that_begins_closed_is_told_to_be(ada: Api) -> None:
    path = ada.stream(headers={"stream-closed": "true"})
    notes_after(ada, "-1", "stream_closed", stream=name_of(path), who="ada")
    assert len(notes_after(ada, "-1", "stream_created", stream=name_of(path))) == 1


def test_streams_of_event_sources_come_change_and_go_in_the_account(ada: Api) -> None:
    pipeline = Pipeline(ada)
    done(pipeline.register())
    stream = f"events/{pipeline.event}"
    notes_after(ada, "-1", "stream_created", stream=stream, who="ada", version=1)
    more = pipeline.changed()
    more[pipeline.event]["schema"]["more"] = {"type": "str", "required": False}
    done(pipeline.register(more))
    notes_after(ada, "-1", "schema_changed", stream=stream, who="ada", version=2)
    done(pipeline.register({}, force=True))
    notes_after(ada, "-1", "stream_deleted", stream=stream, who="ada")


def test_the_stream_of_an_entity_type_is_told_of(ada: Api) -> None:
    kind = Kind(ada)
    done(kind.register())
    notes_after(ada, "-1", "stream_created", stream=f"entities/{kind.name}", who="ada")


def test_a_plan_is_not_told(ada: Api) -> None:
    path, pipeline = ada.stream(), Pipeline(ada)
    done(ada.call("POST", f"{path}/_profile", {"profile": {"kind": "evlog"}}, dry_run="true"))
    done(pipeline.register(dry_run=True))
    done(ada.delete(path))
    notes_after(ada, "-1", "stream_deleted", stream=name_of(path))
    notes = ada.get(REGISTRY).json()
    assert [note["what"] for note in notes if note.get("stream") == name_of(path)] == [
        "stream_created",
        "stream_deleted",
    ]
    assert not [note for note in notes if note.get("app") == pipeline.app]


def test_keys_are_told_of_while_the_server_runs_and_never_their_tokens(ada: Api, server: ServerProcess) -> None:
    keys = KeyStore(server.data_dir / "keys.db")
    key, token = keys.create(user_id="bob", scopes=["read"], prefix="a/", name="laptop")
    keys.revoke(key.id)
    keys.revoke(key.id)
    keys.close()
    notes_after(ada, "-1", "key_revoked", key=key.id)
    made, ended = (note for note in ada.get(REGISTRY).json() if note.get("key") == key.id)
    facts = {"key": key.id, "user_id": "bob", "scopes": ["read"], "prefix": "a/", "name": "laptop"}
    assert made == {"at": made["at"], "who": "local", "what": "key_created", **facts}
    assert ended == {"at": ended["at"], "who": "local", "what": "key_revoked", **facts}
    assert token not in ada.get(REGISTRY).text
