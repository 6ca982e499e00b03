"""The registry resource: what is shown, what is accepted, what is refused, and what was."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore
from server.registries import (
    API_VERSION,
    TEXT,
    WHOLE,
    append,
    evolve,
    installed,
    lens,
    name_of,
    post,
    problems,
    registry,
    rename,
    shape,
    unchanged,
)

if TYPE_CHECKING:
    from tests.conftest import StartServer
    from tests.server.conftest import Api

JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]


def empty(path: str) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "schema": name_of(path),
        "currentVersion": 0,
        "boundaries": [],
        "schemas": {},
        "lenses": {},
    }


# -- what there is


def test_a_stream_without_a_schema_has_an_empty_registry(api: Api) -> None:
    path = api.stream({"any": "thing"})
    assert registry(api, path) == empty(path)
    assert api.get(f"{path}/_schema/history").json() == {"stream": name_of(path), "revisions": []}


def test_there_is_no_registry_without_a_stream(api: Api, code_of: Code) -> None:
    path, deleted = api.name(), api.stream()
    api.delete(deleted)
    for gone in (path, deleted):
        for answer in (api.get(f"{gone}/_schema"), api.get(f"{gone}/_schema/history"), post(api, gone, schema={})):
            assert answer.status_code == 404
            assert code_of(answer) == "not_found"


def test_the_registry_is_read_and_posted_and_nothing_else(api: Api, code_of: Code) -> None:
    path = api.stream()
    for verb in ("PUT", "DELETE"):
        refused = api.call(verb, f"{path}/_schema")
        assert refused.status_code == 405
        assert code_of(refused) == "method_not_allowed"
        assert refused.headers["allow"] == "GET, POST, OPTIONS"
    assert api.post(f"{path}/_schema/history", {}).status_code == 405


def test_unknown_parameters_are_refused(api: Api, code_of: Code) -> None:
    path = installed(api, {})
    before = registry(api, path)
    answers = [
        api.get(f"{path}/_schema", version="1"),
        api.get(f"{path}/_schema/history", dry_run="true"),
        api.call("POST", f"{path}/_schema", {"schema": True}, dryrun="true"),
        api.call("POST", f"{path}/_schema", {"schema": True}, force="true"),
    ]
    for refused in answers:
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"
    assert unchanged(api, path, before)


def test_answers_about_registries_are_not_stored(api: Api) -> None:
    path = installed(api, {})
    for answer in (api.get(f"{path}/_schema"), api.get(f"{path}/_schema/history"), post(api, path, schema={})):
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "application/json; charset=utf-8"


# -- the first schema


def test_the_first_schema_begins_with_the_first_event(api: Api) -> None:
    path, schema = api.stream(), shape(a=WHOLE)
    answer = evolve(api, path, schema)
    diff = answer.pop("diff")
    assert (
        answer
        == registry(api, path)
        == {
            **empty(path),
            "currentVersion": 1,
            "boundaries": [{"offset": 0, "version": 1}],
            "schemas": {"1": schema},
        }
    )
    assert diff["from_version"] == 0
    assert diff["to_version"] == 1
    assert [change["what"] for change in diff["changes"]] == ["schema_installed"]


def test_the_first_schema_needs_an_empty_stream(api: Api, code_of: Code) -> None:
    path = api.stream({"a": 1})
    refused = post(api, path, schema=shape(a=WHOLE))
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert problems(refused) == ["/schema"]
    assert registry(api, path) == empty(path)
    assert api.post(path, ["anything"]).status_code == 204


def test_the_first_schema_may_come_with_a_lens_that_has_nothing_to_carry(api: Api, code_of: Code) -> None:
    path = api.stream()
    early = post(api, path, schema={}, lens=lens(path, 1))
    assert early.status_code == 409
    assert code_of(early) == "conflict"
    assert post(api, path, schema={}, lens=lens(path, 0)).status_code == 200
    assert registry(api, path)["lenses"] == {}


def test_schemas_and_lenses_are_kept_as_they_were_given(api: Api) -> None:
    path = api.stream()
    first = (
        b'{"x-note":{"z":1,"a":[2,1]},"type":"object","maximum":18446744073709551617,'
        b'"properties":{"b":true,"a":{}},"title":"\\u00e9 / \\"q\\""}'
    )
    assert api.post(f"{path}/_schema", b'{"schema":' + first + b"}", JSON).status_code == 200
    served = api.get(f"{path}/_schema").content
    assert first.replace(b"\\u00e9", "é".encode()) in served
    described = {**lens(path, 1), "description": "nothing to do"}
    assert post(api, path, schema={"type": "object"}, lens=described).status_code == 200
    assert registry(api, path)["lenses"]["1"] == described


@pytest.mark.parametrize("kind", ["application/octet-stream", "text/plain", "application/vnd.api+json"])
def test_a_schema_needs_a_json_stream(api: Api, code_of: Code, kind: str) -> None:
    path = api.octets(kind=kind)
    for body in ({"schema": {}}, {"routingKey": {"jsonPointer": "", "required": False}}):
        refused = post(api, path, **body)
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"
    assert registry(api, path) == empty(path)


def test_json_with_a_charset_is_json(api: Api) -> None:
    path = api.name()
    assert api.put(path, headers={"content-type": "application/json; charset=utf-8"}).status_code == 201
    evolve(api, path, shape(a=WHOLE))
    assert api.post(path, [{"a": "no"}]).status_code == 400


def test_a_large_update_is_taken_too(api: Api) -> None:
    path = api.stream()
    body = b'{"schema":{"type":"object"}' + b" " * 400_000 + b"}"
    assert api.post(f"{path}/_schema", body, JSON).status_code == 200
    assert registry(api, path)["schemas"] == {"1": {"type": "object"}}


# -- the next schema


def test_the_next_version_begins_where_the_stream_ends(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1}, {"a": 2}, {"a": 3})
    second, carrier = shape(b=WHOLE), lens(path, 1, rename("a", "b"))
    answer = post(api, path, schema=second, lens=carrier).json()
    append(api, path, {"b": 4})
    evolve(api, path, shape("c", b=WHOLE, c=TEXT))
    found = registry(api, path)
    assert found["boundaries"] == [
        {"offset": 0, "version": 1},
        {"offset": 3, "version": 2},
        {"offset": 4, "version": 3},
    ]
    assert answer["currentVersion"] == 2 and found["currentVersion"] == 3
    assert found["schemas"]["2"] == second
    assert found["lenses"]["1"] == carrier
    assert set(found["schemas"]) == {"1", "2", "3"} and set(found["lenses"]) == {"1", "2"}


def test_versions_that_hold_no_event_share_their_boundary(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    for old, new in ("ab", "bc", "cd"):
        evolve(api, path, shape(**{new: WHOLE}), rename(old, new))
    assert {edge["offset"] for edge in registry(api, path)["boundaries"]} == {0}
    append(api, path, {"d": 1})
    assert api.get(path).json() == [{"d": 1}]
    assert api.get(path, schema_version=1).json() == [{"a": 1}]


@pytest.mark.parametrize(("start", "end"), [(0, 1), (2, 3), (1, 3), (1, 1), (2, 1), (0, 2), (7, 8)])
def test_a_lens_between_other_versions_conflicts(api: Api, code_of: Code, start: int, end: int) -> None:
    path = installed(api, shape(a=WHOLE))
    before = registry(api, path)
    refused = post(api, path, schema=shape(b=WHOLE), lens=lens(path, start, rename("a", "b"), end=end))
    assert refused.status_code == 409
    assert code_of(refused) == "conflict"
    assert "lens version mismatch" in refused.json()["error"]["message"]
    assert unchanged(api, path, before)


def test_a_lens_of_another_stream_is_refused(api: Api, code_of: Code) -> None:
    path = installed(api, shape(a=WHOLE))
    before = registry(api, path)
    refused = post(api, path, schema=shape(b=WHOLE), lens=lens("/v1/stream/other", 1, rename("a", "b")))
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert problems(refused) == ["/lens/schema"]
    assert unchanged(api, path, before)


@pytest.mark.parametrize(
    "wider",
    [
        shape("b", a=WHOLE, b=TEXT),
        shape("a", a=WHOLE),
        shape(a={"type": "number"}),
        {"type": "object"},
        True,
        {**shape(a=WHOLE), "title": "the same"},
    ],
)
def test_a_change_that_breaks_nothing_needs_no_lens(api: Api, wider: Any) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1})
    diff = evolve(api, path, wider)["diff"]
    assert diff["lens"] == {"document": lens(path, 1), "written": True}
    assert registry(api, path)["lenses"] == {"1": lens(path, 1)}
    assert diff["classification"] in ("additive", "widening", "identical")
    assert api.get(path).json() == [{"a": 1}]


def test_a_change_that_breaks_something_needs_a_lens(api: Api, code_of: Code) -> None:
    path = installed(api, shape(a=WHOLE, b=WHOLE))
    before = registry(api, path)
    refused = post(api, path, schema=shape(a=TEXT, c=WHOLE))
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    reasons = refused.json()["error"]["problems"]
    assert {reason["code"] for reason in reasons} == {"lens_required"}
    assert len(reasons) >= 3  # another type, a member that is gone, and one that is new
    assert unchanged(api, path, before)


def test_posting_the_current_schema_again_changes_nothing(api: Api) -> None:
    schema = shape(a=WHOLE, b=TEXT)
    path = installed(api, schema)
    append(api, path, {"a": 1, "b": ""})
    before, history = registry(api, path), api.get(f"{path}/_schema/history").json()
    turned = dict(reversed(list(schema.items())))
    for again in (schema, turned):
        diff = evolve(api, path, again)["diff"]
        assert diff["classification"] == "identical"
        assert diff["changes"] == []
        assert diff["from_version"] == diff["to_version"] == 1
    assert registry(api, path) == before
    assert api.get(f"{path}/_schema/history").json() == history


def test_posting_an_older_schema_again_is_a_change(api: Api) -> None:
    first, second = shape(a=WHOLE), shape(b=WHOLE)
    path = installed(api, first)
    evolve(api, path, second, rename("a", "b"))
    assert post(api, path, schema=first).status_code == 400
    evolve(api, path, first, rename("b", "a"))
    assert registry(api, path)["schemas"] == {"1": first, "2": second, "3": first}


# -- plans


def test_a_dry_run_says_what_the_change_then_does(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1})
    before = registry(api, path)
    body = {
        "schema": shape(b=WHOLE),
        "lens": lens(path, 1, rename("a", "b")),
        "routingKey": {"jsonPointer": "/k", "required": False},
    }
    planned = api.call("POST", f"{path}/_schema", body, dry_run="true").json()
    assert unchanged(api, path, before)
    assert api.post(path, [{"b": 1}]).status_code == 400
    done = api.call("POST", f"{path}/_schema", body, dry_run="false").json()
    led_to = planned.pop("registry")
    assert done.pop("diff") == planned
    assert done == led_to == registry(api, path)
    assert planned["lens"] == {"document": body["lens"], "written": False}


def test_a_dry_run_of_what_cannot_be_done_says_why(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    before = registry(api, path)
    body = {"schema": shape(a=TEXT), "lens": lens(path, 1)}
    planned = api.call("POST", f"{path}/_schema", body, dry_run="1")
    refused = api.post(f"{path}/_schema", body)
    assert planned.status_code == 200
    assert refused.status_code == 400
    assert planned.json()["refusals"] == refused.json()["error"]["problems"]
    assert planned.json()["registry"] == before
    assert unchanged(api, path, before)


def test_a_dry_run_of_the_first_schema_leaves_the_stream_without(api: Api) -> None:
    path = api.stream()
    planned = api.call("POST", f"{path}/_schema", {"schema": {"type": "object"}}, dry_run="true").json()
    assert planned["from_version"] == 0
    assert planned["to_version"] == 1
    assert registry(api, path) == empty(path)
    append(api, path, "not an object")


@pytest.mark.parametrize("flag", ["", "yes", "2", "tru"])
def test_a_dry_run_is_asked_for_in_plain_words(api: Api, code_of: Code, flag: str) -> None:
    path = api.stream()
    refused = api.call("POST", f"{path}/_schema", {"schema": {}}, dry_run=flag)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert registry(api, path) == empty(path)


# -- history


def test_the_history_has_every_revision_and_its_time(api: Api) -> None:
    path = api.stream()
    seen = []
    for body in (
        {"routingKey": {"jsonPointer": "/k", "required": False}},
        {"schema": shape("k", k=TEXT)},
        {"schema": shape("k", "l", k=TEXT, l=TEXT)},
        {"routingKey": None},
    ):
        answer = post(api, path, **body).json()
        answer.pop("diff")
        seen.append(answer)
    assert post(api, path, routingKey=None).status_code == 200  # already so: no revision
    revisions = api.get(f"{path}/_schema/history").json()["revisions"]
    assert [entry["registry"] for entry in revisions] == seen
    assert [entry["revision"] for entry in revisions] == [1, 2, 3, 4]
    times = [dt.datetime.fromisoformat(entry["at"]) for entry in revisions]
    assert times == sorted(times)


def test_a_name_that_is_used_again_begins_without_a_registry(api: Api) -> None:
    path = installed(api, shape(a=WHOLE), routingKey={"jsonPointer": "/a", "required": False})
    api.delete(path)
    assert api.put(path, ["anything"]).status_code == 201
    assert registry(api, path) == empty(path)
    assert api.get(f"{path}/_schema/history").json()["revisions"] == []
    append(api, path, 1, stream_key="k")
    assert api.get(path).json() == ["anything", 1]


# -- who may


def test_a_key_that_reads_sees_the_registry_and_does_not_change_it(start_server: StartServer, api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    path = installed(api, shape(a=WHOLE))
    store = KeyStore(server.data_dir / "keys.db")

    def bearer(*scopes: str, prefix: str = "") -> dict[str, str]:
        return {"authorization": f"Bearer {store.create(user_id='ada', scopes=scopes, prefix=prefix)[1]}"}

    reader, writer, elsewhere = bearer("read"), bearer("write"), bearer("read", "write", prefix="other/")
    store.close()
    wider = {"schema": {"type": "object"}}

    def status(verb: str, target: str, key: dict[str, str]) -> int:
        return int(api.call(verb, f"{path}/{target}", wider if verb == "POST" else None, key).status_code)

    assert [status("GET", target, reader) for target in ("_schema", "_schema/history")] == [200, 200]
    assert [status("POST", target, reader) for target in ("_schema", "_schema?dry_run=true")] == [403, 403]
    assert [status(verb, "_schema", elsewhere) for verb in ("GET", "POST")] == [403, 403]
    assert registry(api, path)["currentVersion"] == 1
    assert status("POST", "_schema", writer) == 200
    assert registry(api, path)["currentVersion"] == 2
