from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore
from server.pipelines import Pipeline

if TYPE_CHECKING:
    from server.conftest import Api

WIRE = Path(__file__).parents[3] / "examples" / "wire"


def wire(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WIRE / name).read_text())
    return found


@pytest.fixture
def pipeline(api: Api) -> Pipeline:
    made = Pipeline(api)
    assert made.register().status_code == 200
    return made


def test_the_examples_are_answered_as_they_say(start_server: Any, api_of: Callable[..., Api]) -> None:
    api = api_of(start_server())
    first = api.post("/v1/register", wire("register-fraud-team.request.json"))
    assert first.status_code == 200
    assert first.json()["registry_version"] == 1
    assert first.json()["removed"] == first.json()["changed"] == []

    dry = api.post("/v1/register", wire("register-dry-run.request.json"))
    assert dry.status_code == 200
    assert dry.json()["status"] == "ok"
    assert dry.json()["registry_version"] == 1
    assert dry.json()["changed"]
    assert api.get("/v1/registry").json()["registry_version"] == 1

    forced = wire("register-force.request.json")
    conflict = api.post("/v1/register", {**forced, "force": False})
    assert conflict.status_code == 409
    assert conflict.json() == wire("register-conflict.error.json")
    answer = api.post("/v1/register", forced)
    assert answer.status_code == 200
    assert answer.json()["registry_version"] == 2
    assert answer.json()["removed"] == conflict.json()["removed"]
    assert answer.json()["changed"] == conflict.json()["changed"]


def test_what_is_registered_can_be_registered_again_as_it_is_told(pipeline: Pipeline) -> None:
    version = pipeline.version()
    told = list(pipeline.registered().values())
    again = pipeline.api.post("/v1/register", {"nodes": told[::-1], "app": pipeline.app})
    assert again.status_code == 200
    assert again.json()["registry_version"] == version


def test_force_holds_for_one_call(pipeline: Pipeline) -> None:
    given = pipeline.changed()
    del given[pipeline.table]["agg"]["whole"]
    assert pipeline.register(given, force=True).status_code == 200
    del given[pipeline.table]["agg"]["total"]
    assert pipeline.register(given).status_code == 409


@pytest.mark.parametrize(
    ("break_it", "code", "path"),
    [
        (lambda p, g: g[p.table].update(bogus=1), "schema_invalid", "descriptors[2].bogus"),
        (lambda p, g: g[p.table].update(kind="upsert"), "unsupported_node_kind", "descriptors[2].kind"),
        (lambda p, g: g[p.table].update(upstreams=["Nobody"]), "missing_upstream", "descriptors[2].upstreams"),
        (lambda p, g: g[p.derived].update(upstreams=[p.derived]), "registration_cycle", "descriptors[1].upstreams"),
        (lambda p, g: g[p.event]["schema"].update(user="text"), "unknown_field_type", "descriptors[0].schema.user"),
    ],
    ids=["unknown key", "kind", "upstream", "cycle", "type"],
)
def test_what_is_wrong_is_told_with_the_envelope(pipeline: Pipeline, break_it: Any, code: str, path: str) -> None:
    version, given = pipeline.version(), pipeline.changed()
    break_it(pipeline, given)
    for terms in ({}, {"dry_run": True}, {"force": True}):
        answer = pipeline.register(given, **terms)
        assert answer.status_code == 400
        body = answer.json()
        assert {name: body[name] for name in ("status", "registry_version", "added", "removed", "changed")} == {
            "status": "invalid", "registry_version": version, "added": [], "removed": [], "changed": [],
        }  # fmt: skip
        assert body["error"]["code"] == body["error"]["errors"][0]["code"] == code
        assert body["error"]["errors"][0]["path"].startswith(path)
    assert pipeline.version() == version


def test_a_body_that_is_no_json_is_refused_with_the_envelope(api: Api) -> None:
    answer = api.call("POST", "/v1/register", b"{", {"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "schema_invalid"
    assert answer.json()["status"] == "invalid"
    assert api.call("POST", "/v1/register", b"{}", {"content-type": "text/plain"}).status_code == 415


def test_apps_do_not_delete_each_others_nodes(api: Api, pipeline: Pipeline) -> None:
    other = Pipeline(api)
    answer = other.register()
    assert answer.status_code == 200
    assert answer.json()["removed"] == []
    assert set(pipeline.registered()) == set(pipeline.descriptors)
    both = api.get("/v1/registry").json()["apps"]
    assert both[pipeline.event] == pipeline.app and both[other.event] == other.app


def test_a_name_of_another_app_is_refused_even_with_force(api: Api, pipeline: Pipeline) -> None:
    other = Pipeline(api)
    given = {pipeline.event: pipeline.descriptors[pipeline.event]}
    for terms in ({}, {"force": True}):
        answer = other.register(given, **terms)
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "owned_by"
        assert answer.json()["error"]["errors"][0]["path"] == "descriptors[0].name"


def test_a_dry_run_says_why_a_call_would_be_refused_in_one_place(api: Api, pipeline: Pipeline) -> None:
    other = Pipeline(api)
    assert other.register(over(pipeline, other)).status_code == 200
    lossy, foreign = pipeline.changed(), {pipeline.event: pipeline.descriptors[pipeline.event]}
    del lossy[pipeline.table]["agg"]["whole"]
    needless = {"rest": {"kind": "event", "name": f"Rest{pipeline.event}", "schema": {"x": "str"}}}
    for code, asking, given, terms in (
        ("registration_conflict", pipeline, lossy, {}),
        ("used_by", pipeline, needless, {"force": True}),
        ("owned_by", other, foreign, {"force": True}),
        ("version_conflict", pipeline, pipeline.changed(), {"expected_version": 0}),
    ):
        dry, real = (asking.register(given, **terms, dry_run=dry_run) for dry_run in (True, False))
        assert dry.status_code == 200
        assert real.status_code == 409
        told, error = dry.json(), real.json()["error"]
        assert error["code"] == code
        assert told["status"] == "conflict"
        assert told["plan"].pop("refusals") == error["errors"]
        assert {**told, "error": error} == real.json()


def test_no_descriptors_are_those_of_an_app_that_is_to_have_none(pipeline: Pipeline) -> None:
    refused = pipeline.register({})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "registration_conflict"
    assert set(refused.json()["removed"]) == set(pipeline.descriptors)
    assert pipeline.register({}, dry_run=True).json()["status"] == "conflict"
    assert set(pipeline.registered()) == set(pipeline.descriptors)
    gone = pipeline.register({}, force=True)
    assert gone.status_code == 200
    assert set(gone.json()["removed"]) == set(pipeline.descriptors)
    assert not pipeline.registered()
    again = pipeline.register({}, force=True)
    told = [again.json()[name] for name in ("status", "registry_version", "added", "removed", "changed")]
    assert again.status_code == 200
    assert told == ["ok", gone.json()["registry_version"], [], [], []]
    for terms in ({}, {"dry_run": True}):
        wrong = pipeline.register({}, **terms)
        assert wrong.status_code == 400
        assert wrong.json()["error"]["code"] == "schema_invalid"


def over(pipeline: Pipeline, other: Pipeline) -> dict[str, Any]:
    """A table of another app over an event of this one."""
    return {other.table: {**other.descriptors[other.table], "upstreams": [pipeline.event]}}


def test_what_others_use_is_removed_only_with_cascade(api: Api, pipeline: Pipeline) -> None:
    other = Pipeline(api)
    assert other.register(over(pipeline, other)).status_code == 200
    pipeline.push({"user": "u", "amount": 1.0, "n": 1})
    assert other.row(other.table) == {"count": 1, "total": 1.0, "whole": 1}

    rest = {"rest": {"kind": "event", "name": f"Rest{pipeline.event}", "schema": {"x": "str"}}}
    refused = pipeline.register(rest, force=True)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "used_by"
    assert pipeline.register(rest, cascade=True).status_code == 409  # that alone is no force
    answer = pipeline.register(rest, force=True, cascade=True)
    assert answer.status_code == 200
    assert set(answer.json()["removed"]) == {*pipeline.descriptors, other.table}
    assert other.row(other.table) is None


def test_a_change_that_others_do_not_fit_is_refused_without_cascade(api: Api, pipeline: Pipeline) -> None:
    other = Pipeline(api)
    assert other.register(over(pipeline, other)).status_code == 200
    given = pipeline.changed()
    del given[pipeline.event]["schema"]["n"], given[pipeline.table]["agg"]["whole"]
    refused = pipeline.register(given, force=True)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "used_by"
    answer = pipeline.register(given, force=True, cascade=True)
    assert answer.status_code == 200
    assert answer.json()["removed"] == [other.table]


def test_a_change_for_another_version_is_refused(pipeline: Pipeline) -> None:
    version, given = pipeline.version(), pipeline.changed()
    given[pipeline.table]["agg"]["more"] = {"op": "count", "params": {"window": "1m"}}
    refused = pipeline.register(given, expected_version=version - 1)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "version_conflict"
    assert pipeline.register(given, expected_version=version).status_code == 200


def test_a_stream_that_has_the_name_is_not_taken_over(api: Api) -> None:
    other = Pipeline(api)
    path = f"/v1/stream/events/{other.event}"
    assert api.put(path, headers={"content-type": "application/json"}).status_code == 201
    for terms in ({"dry_run": True}, {}, {"force": True}):
        refused = other.register(**terms)
        told, dry_run = refused.json(), "dry_run" in terms
        assert refused.status_code == (200 if dry_run else 409)
        assert told["status"] == "conflict"
        assert [one["code"] for one in (told["plan"]["refusals"] if dry_run else told["error"]["errors"])] == [
            "name_taken"
        ]
    assert other.registered() == {}
    assert api.delete(path).status_code == 204
    assert other.register().status_code == 200


def test_history_tells_who_changed_what(pipeline: Pipeline) -> None:
    version, given = pipeline.version(), pipeline.changed()
    given[pipeline.table]["agg"]["more"] = {"op": "count", "params": {"window": "1m"}}
    assert pipeline.register(given).status_code == 200
    answer = pipeline.api.get("/v1/registry/history", after=version - 1, limit=2).json()
    assert answer["registry_version"] == version + 1
    first, second = answer["versions"]
    assert first["registry_version"] == version
    assert second["registry_version"] == version + 1
    assert second["who"] == "local"
    assert second["app"] == pipeline.app
    assert second["action"] == "register"
    assert second["changed"] == [{"name": pipeline.table, "added_features": ["more"]}]
    assert second["plan"]["features"][0] | {"seq": 0} == {
        "table": pipeline.table, "feature": "more", "state": "new", "born": "first_retained", "seq": 0,
    }  # fmt: skip


def test_a_rollback_is_a_change_like_any_other(pipeline: Pipeline) -> None:
    api, before, version = pipeline.api, pipeline.registered(), pipeline.version()
    pipeline.push({"user": "u", "amount": 1.0, "n": 1})
    given = pipeline.changed()
    given[pipeline.table]["agg"]["more"] = {"op": "count", "params": {"window": "1m"}}
    assert pipeline.register(given).status_code == 200
    asked = {"version": version, "app": pipeline.app}
    refused = api.post("/v1/registry/rollback", asked)
    assert refused.status_code == 409
    assert refused.json()["changed"] == [{"name": pipeline.table, "removed_features": ["more"]}]
    dry = api.post("/v1/registry/rollback", {**asked, "dry_run": True, "force": True})
    assert dry.status_code == 200
    assert dry.json()["registry_version"] == version + 1
    done = api.post("/v1/registry/rollback", {**asked, "force": True})
    assert done.status_code == 200
    assert done.json()["registry_version"] == version + 2
    assert pipeline.registered() == before
    assert pipeline.row(pipeline.table) == {"count": 1, "total": 1.0, "whole": 1}
    assert api.get("/v1/registry/history", after=version + 1).json()["versions"][0]["action"] == "rollback"
    assert api.post("/v1/registry/rollback", {"version": 10_000}).status_code == 400


def test_an_event_source_changes_only_through_the_registry(pipeline: Pipeline, code_of: Callable[[Any], str]) -> None:
    api, derived = pipeline.api, f"/v1/stream/events/{pipeline.derived}"
    path = f"/v1/stream/events/{pipeline.event}"
    refused = [
        api.put(path, headers={"content-type": "application/json"}),
        api.delete(path),
        api.post(f"{path}/_schema", {"schema": True}),
        api.post(f"{path}/_retention", {"age": "1h"}),
        api.post(path, [{"user": "u", "amount": 1.0, "n": 1}], {"stream-closed": "true"}),
        api.put(derived, headers={"content-type": "application/json"}),
        api.delete(derived),
        api.post(derived, [{"user": "u", "amount": 2.0, "n": 1}]),
    ]
    assert [(one.status_code, code_of(one)) for one in refused] == [(409, "managed_stream")] * len(refused)
    assert api.post(path, [{"user": "u", "amount": 1.0, "n": 1}]).status_code == 204
    assert api.get(path).json() == [{"user": "u", "amount": 1.0, "n": 1}]


def test_a_fork_of_an_event_source_is_a_stream_of_its_own(pipeline: Pipeline) -> None:
    api, path = pipeline.api, f"/v1/stream/events/{pipeline.event}"
    pipeline.push({"user": "u", "amount": 1.0, "n": 1, "id": "a"})
    fork = api.name()
    assert api.put(fork, headers={"stream-forked-from": path}).status_code == 201
    for _ in range(2):
        assert api.post(fork, [{"user": "u", "amount": 1.0, "n": 1, "id": "a"}]).status_code == 204
    assert len(api.get(fork).json()) == 3
    assert api.delete(fork).status_code == 204


def test_an_event_source_that_was_removed_can_come_back(pipeline: Pipeline) -> None:
    pipeline.push({"user": "u", "amount": 1.0, "n": 1})
    rest = {"rest": {"kind": "event", "name": f"Rest{pipeline.event}", "schema": {"x": "str"}}}
    assert pipeline.register(rest, force=True).status_code == 200
    path = f"/v1/stream/events/{pipeline.event}"
    assert pipeline.api.get(path).status_code == 404
    assert pipeline.api.post(f"/v1/push/{pipeline.event}", {"user": "u"}).json()["error"]["code"] == "unknown_event"
    assert pipeline.register(force=True).status_code == 200
    assert pipeline.api.get(path).json() == []
    assert pipeline.row(pipeline.table) == {}
    pipeline.push({"user": "u", "amount": 2.0, "n": 2})
    assert pipeline.row(pipeline.table) == {"count": 1, "total": 2.0, "whole": 2}


def test_a_break_is_stepped_over_and_told(pipeline: Pipeline) -> None:
    api, path = pipeline.api, f"/v1/stream/events/{pipeline.event}"
    offsets = [one["offset"] for one in pipeline.push(*({"user": "u", "amount": n + 0.5, "n": n} for n in range(2)))]
    given = pipeline.changed()
    given[pipeline.event]["schema"]["amount"] = "i64"
    given[pipeline.derived]["ops"][0]["expr"] = "(amount > 1)"
    assert pipeline.register(given, force=True).status_code == 200
    pipeline.push({"user": "u", "amount": 7, "n": 7})
    plain = api.get(path)
    assert plain.json() == [{"user": "u", "amount": 7, "n": 7}]
    assert plain.headers["stream-earliest-offset"] == offsets[-1]
    assert len(api.get(path, schema_version=1, offset="-1").json()) == 2
    assert api.get(path, last=3).json() == plain.json()
    derived = api.get(f"/v1/stream/events/{pipeline.derived}", last=3)
    assert derived.status_code == 400 and derived.json()["error"]["field"] == "last"
    assert api.get(path, offset=offsets[0]).json() == [{"user": "u", "amount": 7, "n": 7}]
    assert pipeline.row(pipeline.table) == {"count": 3, "total": 7.0, "whole": 8}


def test_pushes_see_the_old_or_the_new_pipeline(pipeline: Pipeline) -> None:
    """Events that only one of two schemas takes are pushed while the schema changes back and forth."""
    given = pipeline.changed()
    given[pipeline.event]["schema"]["city"] = {"type": "str", "required": False}
    over, outcomes = threading.Event(), []

    def push() -> None:
        while not over.is_set():
            events = [{"user": "u", "amount": 1.0, "n": 1}, {"user": "u", "amount": 1.0, "n": 1, "city": "x"}]
            answer = pipeline.api.post(f"/v1/push/{pipeline.event}", events)
            assert answer.status_code == 200, answer.text
            outcomes.append([one.get("error", {}).get("code") for one in answer.json()["results"]])

    pushing = threading.Thread(target=push)
    pushing.start()
    for _ in range(5):
        assert pipeline.register(given).status_code == 200
        assert pipeline.register(force=True).status_code == 200
    over.set()
    pushing.join()
    assert {code for outcome in outcomes for code in outcome} <= {None, "unknown_field"}
    assert all(outcome[0] is None for outcome in outcomes)
    stored = pipeline.row(pipeline.table)
    assert stored is not None and stored["count"] == sum(outcome.count(None) for outcome in outcomes)


def test_a_key_registers_what_it_may_write_and_an_operator_forces(
    start_server: Any, api_of: Callable[..., Api]
) -> None:
    server = start_server()
    api = api_of(server)
    made, other = Pipeline(api), Pipeline(api)
    assert other.register().status_code == 200
    store = KeyStore(server.data_dir / "keys.db")

    def bearer(*scopes: str, prefix: str = "") -> dict[str, str]:
        return {"authorization": f"Bearer {store.create(user_id='ada', scopes=scopes, prefix=prefix)[1]}"}

    reader, writer, admin = bearer("read"), bearer("write"), bearer("admin")
    own = bearer("write", prefix=f"events/{made.event}")
    store.close()

    def status(path: str, body: Any, key: dict[str, str]) -> int:
        return int(api.call("POST" if body else "GET", path, body, key).status_code)

    def registering(which: Pipeline, **terms: Any) -> dict[str, Any]:
        return {"descriptors": list(which.descriptors.values()), "app": which.app, **terms}

    assert status("/v1/register", registering(made), reader) == 403
    assert status("/v1/register", registering(made, dry_run=True), reader) == 403
    assert status("/v1/register", registering(other), own) == 403
    assert status("/v1/register", registering(made), own) == 200
    assert status("/v1/register", registering(made, force=True), writer) == 403
    assert status("/v1/register", registering(made, force=True), admin) == 200
    assert status("/v1/registry/rollback", {"version": 1, "dry_run": True}, writer) == 403
    assert status("/v1/registry/rollback", {"version": 1, "dry_run": True}, admin) == 200
    assert status("/v1/registry", None, reader) == status("/v1/registry/history", None, reader) == 200

    seen = api.call("GET", "/v1/registry", None, own).json()
    assert set(seen["apps"]) == {one["name"] for one in seen["descriptors"]} == set(made.descriptors)
    assert status("/v1/registry/history", None, own) == 403

    event = {"user": "u", "amount": 1.0, "n": 1}
    assert status(f"/v1/push/{made.event}", event, reader) == 403
    assert status(f"/v1/push/{other.event}", event, own) == 403
    assert status(f"/v1/push/{made.event}", event, own) == 200
    assert status("/v1/get", {"table": made.table, "key": "u"}, own) == 200
    assert status("/v1/get", {"table": other.table, "key": "u"}, own) == 403
    assert status("/v1/get", {"table": other.table, "key": "u"}, reader) == 200
    batch = {"requests": [{"table": which.table, "key": "u"} for which in (made, other)]}
    assert status("/v1/batch_get", batch, own) == 403
    assert status("/v1/batch_get", batch, reader) == 200


def test_a_conflict_says_nothing_of_nodes_that_the_key_does_not_open(
    start_server: Any, api_of: Callable[..., Api]
) -> None:
    server = start_server()
    api = api_of(server)
    made, other = Pipeline(api), Pipeline(api)
    assert made.register().status_code == other.register().status_code == 200
    assert api.put("/v1/stream/events/Plain").status_code == 201
    store = KeyStore(server.data_dir / "keys.db")
    key, whole = (
        {"authorization": f"Bearer {store.create(user_id='ada', scopes=['write'], prefix=prefix)[1]}"}
        for prefix in (f"events/{made.event}", "")
    )
    store.close()

    def registering(key: dict[str, str], **changes: Any) -> tuple[int, str]:
        """What is answered to one more table, with these changes."""
        table = {**made.descriptors[made.table], "name": f"{made.table}X", **changes}
        body = {"descriptors": [*made.descriptors.values(), table], "app": made.app, "dry_run": dry_run}
        answer = api.call("POST", "/v1/register", body, key)
        return answer.status_code, answer.text

    for dry_run in (True, False):
        for name in (other.table, other.derived, other.event):
            status, text = registering(key, name=name)
            assert status == (200 if dry_run else 409)
            assert f"the name '{name}' is taken" in text and '"owned_by"' in text
            told = json.loads(text)
            assert [told[part] for part in ("added", "removed", "changed")] == [[], [], []]
            assert not any(hidden in text.replace(name, "") for hidden in (other.app, other.event, other.table))
            assert other.app in registering(whole, name=name)[1]
        # Nor of a stream.
        derived = {**made.descriptors[made.derived], "name": "Plain"}
        body = {"descriptors": [*made.descriptors.values(), derived], "app": made.app, "dry_run": dry_run}
        told = api.call("POST", "/v1/register", body, key).json()
        assert "the name 'Plain' is taken" in json.dumps(told) and "exists already" not in json.dumps(told)
        assert told["added"] == []
        assert "exists already" in api.call("POST", "/v1/register", body, whole).text
        # Nor does an upstream that is there differ from one that is not.
        unseen, nothing = (registering(key, upstreams=[name]) for name in (other.event, "Nothing"))
        assert unseen == nothing and unseen[0] == 403
        assert registering(whole, upstreams=["Nothing"])[0] == 400
    assert registering(key)[0] == 200
