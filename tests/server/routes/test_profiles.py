"""The profile resource: what is shown, installed, planned, refused and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore
from server.conftest import Api

if TYPE_CHECKING:
    from tests.conftest import StartServer

API_VERSION = "durable.streams/profile/v1"
Code = Callable[[Any], str]


def install(api: Api, path: str, **profile: Any) -> Any:
    return api.post(f"{path}/_profile", {"apiVersion": API_VERSION, "profile": profile})


def evlog(api: Api, **settings: Any) -> str:
    path = api.stream()
    assert install(api, path, kind="evlog", **settings).status_code == 200
    return path


def kind_of(api: Api, path: str) -> str:
    return str(api.get(f"{path}/_profile").json()["profile"]["kind"])


# -- what there is


def test_a_stream_is_generic_until_someone_says_otherwise(api: Api) -> None:
    found = api.get(f"{api.stream()}/_profile")
    assert found.json() == {"apiVersion": API_VERSION, "profile": {"kind": "generic"}}


def test_an_installed_profile_is_shown_everywhere_in_one_spelling(api: Api) -> None:
    path = api.stream()
    answer = install(api, path, kind="evlog", redactKeys=[" sessionToken ", "SESSIONTOKEN"])
    resource = {"apiVersion": API_VERSION, "profile": {"kind": "evlog", "redactKeys": ["sessiontoken"]}}
    assert answer.json() == resource
    assert api.get(f"{path}/_profile").json() == resource
    details = api.get(f"{path}/_details").json()
    assert details["profile"] == resource
    assert details["stream"]["profile"] == "evlog"
    assert api.get(f"{path}/_index_status").json()["profile"] == "evlog"
    listed = api.get("/v1/streams", prefix=path.removeprefix("/v1/stream/")).json()[0]
    assert listed["profile"] == "evlog"


def test_the_counterpart_of_a_stream_is_listed(api: Api) -> None:
    path = evlog(api, observability={"request": {"tracesStream": "spans"}})
    name = path.removeprefix("/v1/stream/")
    pair = {"request": {"events_stream": name, "traces_stream": "spans"}}
    assert api.get("/v1/streams", prefix=name).json()[0]["observability"] == pair
    assert api.get(f"{path}/_details").json()["stream"]["observability"] == pair


# -- what is refused


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"profile": {"kind": "evlog", "extra": True}}, "profile.extra"),
        ({"profile": {"kind": "generic", "redactKeys": []}}, "profile.redactKeys"),
        ({"profile": {"kind": "nonsense"}}, "evlog"),
        ({"profile": {}}, "profile.kind"),
        ({"profile": "evlog"}, "profile"),
        ({"kind": "evlog"}, "kind"),
        ([], "object"),
        ({"apiVersion": "v9", "profile": {"kind": "generic"}}, "apiVersion"),
        ({"profile": {"kind": "evlog", "redactKeys": "token"}}, "profile.redactKeys"),
        ({"profile": {"kind": "evlog", "redactKeys": [" "]}}, "profile.redactKeys.0"),
        ({"profile": {"kind": "evlog", "redactKeys": ["message"]}}, "profile.redactKeys.0"),
        ({"profile": {"kind": "evlog", "redactKeys": [f"k{n}" for n in range(65)]}}, "profile.redactKeys"),
        ({"profile": {"kind": "evlog", "correlation": {"x": 1}}}, "profile.correlation.x"),
        ({"profile": {"kind": "evlog", "correlation": {"traceContextFields": ["a.b"]}}}, "traceContextFields.0"),
        ({"profile": {"kind": "evlog", "correlation": {"parseTraceparent": "no"}}}, "parseTraceparent"),
        ({"profile": {"kind": "evlog", "observability": {"request": {"tracesStream": ""}}}}, "request.tracesStream"),
    ],
)
def test_what_nobody_knows_is_refused_by_name(api: Api, code_of: Code, body: Any, told: str) -> None:
    path = api.stream()
    answer = api.post(f"{path}/_profile", body)
    assert answer.status_code == 400
    assert code_of(answer) == "bad_request"
    assert told in answer.json()["error"]["message"]
    assert kind_of(api, path) == "generic"


def test_everything_that_is_wrong_is_said_at_once(api: Api) -> None:
    answer = install(api, api.stream(), kind="evlog", extra=1, redactKeys=5)
    assert {problem["pointer"] for problem in answer.json()["error"]["problems"]} == {
        "/profile/extra",
        "/profile/redactKeys",
    }


def test_a_profile_of_documents_needs_a_json_stream(api: Api) -> None:
    answer = install(api, api.octets(kind="text/plain"), kind="evlog")
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]


def test_a_profile_with_a_schema_comes_before_the_first_event(api: Api) -> None:
    answer = install(api, api.stream({"ok": True}), kind="evlog")
    assert answer.status_code == 400
    assert "before appending data" in answer.json()["error"]["message"]


def test_a_stream_whose_schema_fits_no_envelope_is_left_alone(api: Api) -> None:
    path = api.stream()
    shape = {"schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}}
    assert api.post(f"{path}/_schema", shape).status_code == 200
    answer = install(api, path, kind="evlog")
    assert answer.status_code == 400
    assert "do not fit" in answer.json()["error"]["message"]


def test_there_is_no_profile_without_a_stream(api: Api, code_of: Code) -> None:
    assert code_of(api.get(f"{api.name()}/_profile")) == "not_found"
    assert code_of(install(api, api.name(), kind="generic")) == "not_found"


def test_parameters_that_nobody_knows_are_refused(api: Api) -> None:
    path = api.stream()
    assert api.get(f"{path}/_profile", dry_run="true").status_code == 400
    assert api.call("POST", f"{path}/_profile", {"profile": {"kind": "generic"}}, force="1").status_code == 400


# -- plans


def test_a_dry_run_says_everything_and_changes_nothing(api: Api) -> None:
    path = api.stream()
    answer = api.call("POST", f"{path}/_profile", {"profile": {"kind": "evlog"}}, dry_run="true")
    plan = answer.json()
    assert plan["from_version"] == 0
    assert plan["to_version"] == 1
    assert plan["profile"] == {"kind": "evlog"}
    assert {change["what"] for change in plan["changes"]} == {"profile_set", "schema_installed", "search_set"}
    assert plan["registry"]["currentVersion"] == 1
    assert plan["refusals"] == []
    assert kind_of(api, path) == "generic"
    assert api.get(f"{path}/_schema").json()["currentVersion"] == 0


def test_a_dry_run_of_what_is_refused_gives_the_reasons(api: Api) -> None:
    path = api.stream({"ok": True})
    plan = api.call("POST", f"{path}/_profile", {"profile": {"kind": "evlog"}}, dry_run="true").json()
    assert plan["refusals"][0]["pointer"] == "/profile/kind"


def test_installing_again_changes_nothing(api: Api) -> None:
    path = evlog(api)
    before = api.get(f"{path}/_schema/history").json()
    assert install(api, path, kind="evlog").status_code == 200
    assert api.get(f"{path}/_schema/history").json() == before
    plan = api.call("POST", f"{path}/_profile", {"profile": {"kind": "evlog"}}, dry_run="true").json()
    assert plan["classification"] == "identical"


def test_an_evolved_schema_is_never_lost(api: Api) -> None:
    path = evlog(api)
    api.post(path, [{"message": "one"}])
    schema = api.get(f"{path}/_schema").json()["schemas"]["1"]
    schema["properties"]["region"] = {"type": ["string", "null", "integer"]}
    changed = api.post(f"{path}/_schema", {"schema": schema})
    assert changed.status_code == 200, changed.text
    evolved = api.get(f"{path}/_schema").json()
    assert evolved["currentVersion"] == 2
    for settings in ({"kind": "evlog", "redactKeys": ["ssn"]}, {"kind": "generic"}, {"kind": "evlog"}):
        assert install(api, path, **settings).status_code == 200
        assert api.get(f"{path}/_schema").json() == evolved
    api.post(path, [{"message": "two"}])
    assert [event["message"] for event in api.get(path).json()] == ["one", "two"]


def test_back_to_generic_keeps_data_and_schema(api: Api) -> None:
    path = evlog(api, redactKeys=["ssn"])
    api.post(path, [{"message": "kept"}])
    schema, events = api.get(f"{path}/_schema").json(), api.get(path).json()
    assert install(api, path, kind="generic").json()["profile"] == {"kind": "generic"}
    assert api.get(f"{path}/_schema").json() == schema
    assert api.get(path).json() == events
    assert api.post(path, [{"message": "no envelope"}]).status_code == 400
    assert api.post(path, events).status_code == 204


def test_a_routing_key_that_was_set_stays(api: Api) -> None:
    path = api.stream()
    key = {"jsonPointer": "/service", "required": False}
    assert api.post(f"{path}/_schema", {"routingKey": key}).status_code == 200
    assert install(api, path, kind="evlog").status_code == 200
    assert api.get(f"{path}/_schema").json()["routingKey"] == key
    api.post(path, [{"service": "api", "requestId": "r"}])
    assert api.get(f"{path}/_routing_keys").json()["keys"] == ["api"]


# -- who may, and what survives


def test_a_managed_stream_shows_its_profile_and_keeps_it(api: Api, code_of: Code) -> None:
    node = {"kind": "event", "name": "Profiled", "schema": {"id": "str"}}
    registered = api.post("/v1/register", {"nodes": [node]})
    assert registered.status_code == 200, registered.text
    path = "/v1/stream/events/Profiled"
    assert kind_of(api, path) == "generic"
    answer = install(api, path, kind="evlog")
    assert answer.status_code == 409
    assert code_of(answer) == "managed_stream"


def test_a_reader_may_see_a_profile_and_not_change_it(start_server: StartServer, tmp_path: Any) -> None:
    server = start_server(data="keyed")
    keys = KeyStore(tmp_path / "keyed" / "keys.db")
    _, token = keys.create(user_id="ada", scopes=["read"], prefix="", name="")
    keys.close()
    with talking(server.url) as api:
        path = api.stream()
        reader = {"authorization": f"Bearer {token}"}
        assert api.get(f"{path}/_profile", headers=reader).status_code == 200
        refused = api.post(f"{path}/_profile", {"profile": {"kind": "evlog"}}, reader)
        assert refused.status_code == 403


def test_a_fork_has_the_profile_of_its_source(api: Api) -> None:
    path = evlog(api, redactKeys=["ssn"])
    api.post(path, [{"message": "one"}])
    fork = api.name()
    headers = {"content-type": "application/json", "stream-forked-from": path}
    assert api.put(fork, headers=headers).status_code == 201
    assert api.get(f"{fork}/_profile").json() == api.get(f"{path}/_profile").json()
    api.post(fork, [{"ssn": "1-2"}])
    assert api.get(fork).json()[1]["context"] == {"ssn": "[REDACTED]"}


def test_a_profile_survives_a_restart(start_server: StartServer) -> None:
    server = start_server(data="kept")
    with talking(server.url) as api:
        path = evlog(api, redactKeys=["ssn"])
        resource = api.get(f"{path}/_profile").json()
    server.stop()
    with talking(start_server(data="kept").url) as api:
        assert api.get(f"{path}/_profile").json() == resource
        api.post(path, [{"ssn": "1-2", "requestId": "r-1"}])
        event = api.get(path, key="r-1").json()[0]
        assert event["context"] == {"ssn": "[REDACTED]"}


@contextlib.contextmanager
def talking(url: str) -> Iterator[Api]:
    api = Api(url)
    try:
        yield api
    finally:
        api.client.close()
