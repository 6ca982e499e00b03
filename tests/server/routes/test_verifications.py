"""Dry runs on data over HTTP: a server that looks alone, and one whose history a worker looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from headrace.server.routes.route_table import openapi_document
from headrace.storage.keys import KeyStore
from server.registries import WHOLE, append, evolve, installed, lens, name_of, registry, rename, shape
from support.plain_worker import perform

if TYPE_CHECKING:
    import httpx2
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api

DOCUMENT = openapi_document()
ONE = "/v1/stream/{name}/_schema/verifications/{id}"
SOON = {
    "storage__seal_age_s": "0",
    "storage__seal_rows": "20",
    "pipeline__min_rows": "0",
    "pipeline__unit_bytes": "100",
}
POSITIVE = shape(n={"type": "integer", "minimum": 1})
Code = Callable[[Any], str]


@pytest.fixture(scope="module")
def soon(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that publishes at once, and leaves whatever is published to workers first."""
    started = type(server)(tmp_path_factory.mktemp("soon") / "data", SOON).start()
    yield started
    started.kill()


def dry_run(api: Api, path: str, *ops: dict[str, Any], schema: Any = POSITIVE, **more: Any) -> httpx2.Response:
    """Ask for a dry run on data."""
    body = {"schema": schema, **more}
    if ops:
        body["lens"] = lens(path, registry(api, path)["currentVersion"], *ops)
    return api.post(f"{path}/_schema?dry_run=true&on_data=true", body)


def fits(answer: httpx2.Response, path: str, verb: str, status: int) -> Any:
    """The body of an answer, after holding it against the OpenAPI document."""
    assert answer.status_code == status, answer.text
    described = DOCUMENT["paths"][path][verb]["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema_rs.validate(described | {"components": DOCUMENT["components"]}, answer.json())
    return answer.json()


def begun(api: Api, path: str, *ops: dict[str, Any], **more: Any) -> Any:
    """The plan, and the verification that has begun."""
    return fits(dry_run(api, path, *ops, **more), "/v1/stream/{name}/_schema", "post", 202)


def now(api: Api, path: str, id: str) -> Any:
    return fits(api.get(f"{path}/_schema/verifications/{id}"), ONE, "get", 200)


@pytest.fixture
def ended(eventually: Callable[..., None]) -> Callable[[Api, str, Any], Any]:
    """What was found in the end."""

    def wait(api: Api, path: str, told: Any) -> Any:
        id = told["verification"]["id"]
        eventually(lambda: now(api, path, id)["state"] != "running")
        return now(api, path, id)

    return wait


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


def test_a_change_is_held_against_every_event(api: Api, ended: Callable[..., Any]) -> None:
    path = installed(api, shape(n=WHOLE))
    before = registry(api, path)
    offsets = [append(api, path, event) for event in numbers(1, 0, 5, -3)]
    told = begun(api, path)
    assert [refusal["code"] for refusal in told["refusals"]] == ["lens_required"]
    assert told["registry"] == before
    found = ended(api, path, told)
    assert found["state"] == "done"
    assert found["events"] == 4
    assert found["total"] == 4
    assert found["through_offset"] == offsets[-1]
    assert found["failing"] == {"lens": 0, "schema": 2, "key": 0}
    reason = "value is less than the minimum of 1"
    assert found["failures"] == [
        {"offset": offsets[seq], "seq": seq, "cause": "schema", "pointer": "/n", "reason": reason} for seq in (1, 3)
    ]
    assert found["stream"] == name_of(path)
    assert found["from_version"] == 1
    assert found["to_version"] == 2
    assert registry(api, path) == before, "nothing is changed"


def test_the_data_may_carry_what_the_proof_refuses(api: Api, ended: Callable[..., Any]) -> None:
    path = installed(api, shape("m", n=WHOLE, m=WHOLE))
    append(api, path, *({"n": 1, "m": number} for number in range(5)))
    told = begun(api, path, rename("m", "k"), schema=shape(n=WHOLE, k=WHOLE))
    assert {refusal["code"] for refusal in told["refusals"]} == {"lens_unsound"}
    found = ended(api, path, told)
    assert found["state"] == "done"
    assert found["failing"] == {"lens": 0, "schema": 0, "key": 0}
    append(api, path, {"n": 1})
    found = ended(api, path, begun(api, path, rename("m", "k"), schema=shape(n=WHOLE, k=WHOLE)))
    assert found["failing"] == {"lens": 1, "schema": 0, "key": 0}
    assert [(one["seq"], one["cause"], one["pointer"]) for one in found["failures"]] == [(5, "lens", "/m")]


def test_what_is_proven_is_carried(api: Api, ended: Callable[..., Any]) -> None:
    path = installed(api, shape(n=WHOLE))
    append(api, path, *numbers(1, 2))
    evolve(api, path, shape(m=WHOLE), rename("n", "m"))
    append(api, path, {"m": 3})
    told = begun(api, path, rename("m", "k"), schema=shape(k=WHOLE))
    assert told["refusals"] == []
    assert told["registry"]["currentVersion"] == 3
    found = ended(api, path, told)
    assert found["events"] == 3
    assert found["failures"] == []
    assert found["from_version"] == 2


def test_workers_look_at_history_and_the_server_at_the_tail(
    soon: ServerProcess, api_of: Callable[..., Api], eventually: Callable[..., None], ended: Callable[..., Any]
) -> None:
    api = api_of(soon)
    path = installed(api, shape(n=WHOLE))
    for start in range(0, 100, 20):
        append(api, path, *numbers(*range(start, start + 20)))
    eventually(lambda: api.get(f"{path}/_details").json()["stream"]["uploaded_through"] == "99")
    told = begun(api, path, schema=shape(n={"type": "integer", "maximum": 49}))
    leased = fits(api.post("/v1/work/lease", {"worker": "w", "jobs": ["verify"]}), "/v1/work/lease", "post", 200)
    append(api, path, *numbers(7, 70))
    assert [(unit["job"], unit["first_seq"]) for unit in leased["units"]] == [("verify", n) for n in range(0, 100, 20)]
    results = [perform(unit, leased["store"]) for unit in leased["units"]]
    body = {"token": leased["lease"]["token"], "results": results}
    committed = api.post(f"/v1/work/leases/{leased['lease']['id']}/commit", body).json()
    assert {one["outcome"] for one in committed["results"]} == {"committed"}
    found = ended(api, path, told)
    assert found["state"] == "done"
    assert found["events"] == 102
    assert found["failing"] == {"lens": 0, "schema": 51, "key": 0}
    assert [one["seq"] for one in found["failures"]] == [*range(50, 100), 101]
    offsets = [one["offset"] for one in found["failures"]]
    assert all(earlier < later for earlier, later in pairwise(offsets))
    assert found["through_offset"] == offsets[-1] == api.offset(path)


def test_a_server_without_workers_looks_at_history_too(
    soon: ServerProcess, api_of: Callable[..., Api], eventually: Callable[..., None], ended: Callable[..., Any]
) -> None:
    api = api_of(soon)
    path = installed(api, shape(n=WHOLE))
    append(api, path, *numbers(*range(20)))
    eventually(lambda: api.get(f"{path}/_details").json()["stream"]["uploaded_through"] == "19")
    found = ended(api, path, begun(api, path))
    assert found["state"] == "done"
    assert found["events"] == 20
    assert found["failing"]["schema"] == 1


def test_the_first_hundred_are_named_and_all_are_counted(api: Api, ended: Callable[..., Any]) -> None:
    path = installed(api, shape(n=WHOLE))
    append(api, path, *numbers(*(-number for number in range(250))))
    found = ended(api, path, begun(api, path))
    assert found["failing"]["schema"] == 250
    assert len(found["failures"]) == 100
    assert [one["seq"] for one in found["failures"]] == list(range(100))


@pytest.mark.parametrize(
    "body",
    [
        {"routingKey": {"jsonPointer": "/n", "required": False}},
        {"schema": shape(n=WHOLE)},
        {"schema": {"type": "nonsense"}},
        {"schema": POSITIVE, "lens": {"ops": []}},
    ],
)
def test_where_events_can_be_held_against_nothing_there_is_only_a_plan(api: Api, body: dict[str, Any]) -> None:
    path = installed(api, shape(n=WHOLE))
    told = api.post(f"{path}/_schema?dry_run=true&on_data=true", body)
    assert told.status_code == 200
    assert told.json()["verification"] is None
    plain = api.post(f"{path}/_schema?dry_run=true", body).json()
    assert {**plain, "verification": None} == told.json()


@pytest.mark.parametrize(
    ("query", "field"),
    [("on_data=true", "on_data"), ("on_data=1&dry_run=0", "on_data"), ("dry_run=true&on_data=maybe", "on_data")],
)
def test_only_a_dry_run_is_made_on_data(api: Api, code_of: Code, query: str, field: str) -> None:
    path = installed(api, shape(n=WHOLE))
    refused = api.post(f"{path}/_schema?{query}", {"schema": POSITIVE})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == field
    assert registry(api, path)["currentVersion"] == 1


def test_a_body_that_cannot_be_read_is_refused_as_always(api: Api, code_of: Code) -> None:
    path = installed(api, shape(n=WHOLE))
    for body in (b"{", b"[]", b"{}", b'{"schemas": {}}'):
        refused = api.post(f"{path}/_schema?dry_run=true&on_data=true", body, {"content-type": "application/json"})
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"


def test_a_verification_belongs_to_its_stream(api: Api, code_of: Code, ended: Callable[..., Any]) -> None:
    path, other = installed(api, shape(n=WHOLE)), installed(api, shape(n=WHOLE))
    told = begun(api, path)
    ended(api, path, told)
    one = f"_schema/verifications/{told['verification']['id']}"
    for place in (f"{other}/{one}", f"{path}/_schema/verifications/nobody", f"{path}/_schema/verifications"):
        missing = api.get(place)
        assert (missing.status_code, code_of(missing)) == (404, "not_found"), place
    assert code_of(api.get(f"{path}/{one}", x="1")) == "bad_request"
    refused = api.call("DELETE", f"{path}/{one}")
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, OPTIONS"
    assert api.delete(path).status_code == 204
    assert api.get(f"{path}/{one}").status_code == 404


def test_a_change_meanwhile_ends_a_verification(
    soon: ServerProcess, api_of: Callable[..., Api], eventually: Callable[..., None]
) -> None:
    api = api_of(soon)
    path = installed(api, shape(n=WHOLE))
    append(api, path, *numbers(1))
    eventually(lambda: api.get(f"{path}/_details").json()["stream"]["uploaded_through"] == "0")
    told = begun(api, path)
    evolve(api, path, shape("m", n=WHOLE, m=WHOLE))
    found = now(api, path, told["verification"]["id"])
    assert found["state"] == "failed"
    assert found["ended_at"] is not None
    assert "schema version 2" in found["reason"]


def test_who_may_write_may_begin_and_who_may_read_may_look(
    start_server: StartServer, api_of: Callable[..., Api]
) -> None:
    server = start_server()
    api = api_of(server)
    path = installed(api, shape(n=WHOLE))
    store = KeyStore(server.data_dir / "keys.db")
    keys = {scope: store.create(user_id="ada", scopes=[scope], prefix="")[1] for scope in ("read", "write")}
    store.close()

    def call(scope: str, method: str, place: str, body: Any = None) -> httpx2.Response:
        return api.call(method, place, body, {"authorization": f"Bearer {keys[scope]}"})

    place = f"{path}/_schema?dry_run=true&on_data=true"
    assert call("read", "POST", place, {"schema": POSITIVE}).status_code == 403
    told = call("write", "POST", place, {"schema": POSITIVE})
    assert told.status_code == 202
    one = f"{path}/_schema/verifications/{told.json()['verification']['id']}"
    assert call("read", "GET", one).status_code == 200


def test_a_killed_server_goes_on_with_what_it_was_asked_for(
    start_server: StartServer, api_of: Callable[..., Api], eventually: Callable[..., None], ended: Callable[..., Any]
) -> None:
    server = start_server(**SOON)
    api = api_of(server)
    path = installed(api, shape(n=WHOLE))
    append(api, path, *numbers(*range(20)))
    eventually(lambda: api.get(f"{path}/_details").json()["stream"]["uploaded_through"] == "19")
    told = begun(api, path)
    server.kill()
    again = api_of(server.start())
    append(again, path, *numbers(-1))
    found = ended(again, path, told)
    assert found["state"] == "done"
    assert found["events"] == 21
    assert found["failing"]["schema"] == 2


SCHEMAS = "/v1/stream/{name}/_schema"


def unshaped(api: Api, *values: int) -> str:
    """A stream without a schema, with events."""
    return api.stream(*numbers(*values))


def install(api: Api, path: str, schema: Any, **more: Any) -> httpx2.Response:
    return api.post(f"{path}/_schema?first_on_data=true", {"schema": schema, **more})


def test_first_schema_needs_an_empty_stream_or_the_option(api: Api) -> None:
    path = unshaped(api, 1, 2)
    refused = api.post(f"{path}/_schema", {"schema": POSITIVE})
    assert refused.status_code == 400
    assert "first_on_data=true" in refused.json()["error"]["message"]
    done = fits(install(api, path, POSITIVE), SCHEMAS, "post", 200)
    assert done["boundaries"] == [{"offset": 0, "version": 1}]
    assert (done["diff"]["from_version"], done["diff"]["to_version"]) == (0, 1)
    assert api.get(f"{path}?schema_version=1").json() == numbers(1, 2)
    assert api.post(path, [{"n": 0}]).status_code == 400


def test_first_schema_that_events_do_not_fit_is_a_conflict_that_names_them(api: Api) -> None:
    path = unshaped(api, 1, 0, -1)
    before = api.offset(path)
    refused = install(api, path, POSITIVE)
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert error["code"] == "events_do_not_fit"
    assert error["field"] == "/schema"
    assert error["events"] == 3
    assert error["failing"] == {"lens": 0, "schema": 2, "key": 0}
    assert [(failure["seq"], failure["pointer"]) for failure in error["failures"]] == [(1, "/n"), (2, "/n")]
    assert error["failures"][-1]["offset"] == before
    assert registry(api, path)["currentVersion"] == 0
    assert api.post(path, [{"n": "text"}]).status_code == 204


def test_first_schema_has_a_routing_key_only_if_the_events_have_it(api: Api) -> None:
    path = unshaped(api, 1)
    key = {"jsonPointer": "/n", "required": False}
    refused = install(api, path, shape(n=WHOLE), routingKey=key).json()["error"]
    assert refused["failing"]["key"] == 1
    assert refused["failures"][0]["reason"] == "routing key must be string"
    key["jsonPointer"] = "/who"
    done = fits(install(api, path, shape(n=WHOLE), routingKey=key), SCHEMAS, "post", 200)
    assert done["routingKey"] == key


def test_dry_run_of_a_first_schema_changes_nothing(api: Api, ended: Callable[..., Any]) -> None:
    path = unshaped(api, 1, 0)
    plan = api.post(f"{path}/_schema?dry_run=true&first_on_data=true", {"schema": POSITIVE}).json()
    assert plan["refusals"] == []
    assert plan["reasons"]
    asked = api.post(f"{path}/_schema?dry_run=true&on_data=true&first_on_data=true", {"schema": POSITIVE})
    found = ended(api, path, fits(asked, SCHEMAS, "post", 202))
    assert found["failing"] == {"lens": 0, "schema": 1, "key": 0}
    assert registry(api, path)["currentVersion"] == 0


def test_long_proof_of_a_first_schema_answers_with_its_progress(
    soon: ServerProcess, api_of: Callable[..., Api], eventually: Callable[..., None], ended: Callable[..., Any]
) -> None:
    api = api_of(soon)
    path = unshaped(api, *range(1, 21))
    eventually(lambda: api.get(f"{path}/_details").json()["stream"]["uploaded_through"] == "19")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(install, api, path, POSITIVE)
        leases: list[Any] = []

        def leased() -> bool:
            answer = api.post("/v1/work/lease", {"worker": "w", "jobs": ["verify"]}).json()
            leases.extend([answer] if answer["units"] else [])
            return bool(leases)

        eventually(leased)
        told = fits(asked.result(), SCHEMAS, "post", 202)
    assert told["verification"]["state"] == "running"
    results = [perform(unit, leases[0]["store"]) for unit in leases[0]["units"]]
    body = {"token": leases[0]["lease"]["token"], "results": results}
    assert api.post(f"/v1/work/leases/{leases[0]['lease']['id']}/commit", body).status_code == 200
    assert ended(api, path, told)["events"] == 20
    append(api, path, {"n": 7})
    assert fits(install(api, path, POSITIVE), SCHEMAS, "post", 200)["currentVersion"] == 1
