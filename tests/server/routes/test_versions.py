"""Reads in a version of one's own choice: which there are, what has no form in them, and how long to keep answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace.storage.keys import KeyStore
from server.registries import TEXT, WHOLE, append, evolve, installed, post, rename, shape

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

Code = Callable[[Any], str]
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]

FOREVER = "immutable, max-age=31536000"
START = "0" * 26


def renamed(api: Api) -> str:
    """A stream with two events before its member was renamed, and two after."""
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1})
    append(api, path, {"a": 2})
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    append(api, path, {"b": 3})
    append(api, path, {"b": 4})
    return path


# -- which versions there are


@pytest.mark.parametrize("version", ["0", "3", "-1", "+1", "1.0", "01", "", " 1", "x", "latest", "9" * 30, "１"])
@pytest.mark.parametrize("live", ["false", "long-poll", "sse"])
def test_a_version_that_is_not_there_is_refused(api: Api, code_of: Code, version: str, live: str) -> None:
    refused = api.get(renamed(api), schema_version=version, offset="-1", live=live)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == "schema_version"


def test_a_stream_without_a_schema_has_no_versions(api: Api, code_of: Code) -> None:
    plain, keyed, octets = api.stream(1), api.stream({}), api.octets(b"x")
    post(api, keyed, routingKey={"jsonPointer": "/k", "required": False})
    for path in (plain, keyed, octets):
        for version in ("0", "1"):
            refused = api.get(path, schema_version=version)
            assert refused.status_code == 400
            assert code_of(refused) == "bad_request"


def test_a_version_may_be_asked_for_with_every_other_question(api: Api) -> None:
    path = renamed(api)
    second = api.get(path, offset="-1").headers["stream-next-offset"]
    assert api.get(path, schema_version=1, offset="now").json() == []
    assert api.get(path, schema_version=1, offset=second).json() == []
    assert api.get(path, schema_version=1, since="2020-01-01T00:00:00Z").json() == [{"a": n} for n in (1, 2, 3, 4)]
    assert api.get(path, schema_version=1, key="none").json() == []
    raw = api.get(path, schema_version=1, format="raw").content
    assert [json.loads(part) for part in raw.replace(b"}{", b"}\n{").splitlines()] == [{"a": n} for n in (1, 2, 3, 4)]


# -- what has no form in a version


def widened(api: Api, *, key: bool = False) -> str:
    """A stream whose second version allows what its first did not."""
    path = installed(api, shape("k", a={"type": "integer", "maximum": 9}, k=TEXT))
    if key:
        post(api, path, routingKey={"jsonPointer": "/k", "required": False})
    append(api, path, {"a": 1, "k": "x"})
    evolve(api, path, shape("k", a=WHOLE, k=TEXT))
    return path


def values(api: Api, path: str, **query: Any) -> list[int]:
    answer = api.get(path, **query)
    assert answer.status_code == 200, answer.text
    return [event["a"] for event in answer.json()]


def refusal(answer: Any, code_of: Code) -> dict[str, Any]:
    assert answer.status_code == 409
    assert code_of(answer) == "not_representable"
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_an_event_that_cannot_go_back_is_named_after_what_comes_before_it(api: Api, code_of: Code) -> None:
    path = widened(api)
    before = append(api, path, {"a": 2})
    at = append(api, path, {"a": 10})
    append(api, path, {"a": 3})
    first = api.get(path, schema_version=1)
    assert [event["a"] for event in first.json()] == [1, 2]
    assert first.headers["stream-next-offset"] == before
    assert "stream-up-to-date" not in first.headers
    error = refusal(api.get(path, schema_version=1, offset=before), code_of)
    assert error["offset"] == at
    assert error["pointer"] == "/a"
    assert error["schema_version"] == 1
    assert at in error["message"]
    rest = api.get(path, schema_version=1, offset=at)
    assert [event["a"] for event in rest.json()] == [3]
    assert rest.headers["stream-up-to-date"] == "true"
    assert values(api, path) == [1, 2, 10, 3]


def test_events_within_one_append_are_told_apart(api: Api, code_of: Code) -> None:
    path = widened(api)
    append(api, path, *({"a": a} for a in (2, 10, 11, 3, 12)))
    seen, skipped, offset = [], [], "-1"
    for _ in range(10):
        answer = api.get(path, schema_version=1, offset=offset)
        if answer.status_code == 200:
            seen += [event["a"] for event in answer.json()]
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                break
        else:
            offset = refusal(answer, code_of)["offset"]
            skipped.append(offset)
    assert seen == [1, 2, 3]
    assert len(skipped) == 3
    assert offset == api.offset(path) == skipped[-1]
    assert sorted(skipped) == skipped


def test_the_very_first_event_may_be_the_one(api: Api, code_of: Code) -> None:
    path = installed(api, shape(a={"type": "integer", "maximum": 9}))
    evolve(api, path, shape(a=WHOLE))
    append(api, path, {"a": 10}, {"a": 1})
    error = refusal(api.get(path, schema_version=1), code_of)
    assert values(api, path, schema_version=1, offset=error["offset"]) == [1]


def test_an_op_that_cannot_be_undone_is_said_so(api: Api, code_of: Code) -> None:
    path = installed(api, shape(a=WHOLE, b=WHOLE))
    evolve(api, path, shape(a=WHOLE), {"op": "remove", "path": "/b", "schema": WHOLE})
    append(api, path, {"a": 1})
    error = refusal(api.get(path, schema_version=1), code_of)
    assert error["offset"] == api.offset(path)
    assert api.get(path).json() == [{"a": 1}]


def test_events_of_other_keys_are_in_nobodys_way(api: Api, code_of: Code) -> None:
    path = widened(api, key=True)
    append(api, path, {"a": 10, "k": "y"}, {"a": 2, "k": "x"}, {"a": 11, "k": "y"}, {"a": 3, "k": "x"})
    assert values(api, path, schema_version=1, key="x") == [1, 2, 3]
    first = refusal(api.get(path, schema_version=1, key="y"), code_of)
    second = refusal(api.get(path, schema_version=1, key="y", offset=first["offset"]), code_of)
    assert values(api, path, schema_version=1, key="y", offset=second["offset"]) == []


def test_a_long_poll_says_it_too(
    server: ServerProcess, api: Api, connect: Connect, code_of: Code, eventually: Eventually
) -> None:
    path = widened(api)
    waiting = connect(server).request("GET", f"{path}?live=long-poll&offset=now&schema_version=1&timeout=8s")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    at = append(api, path, {"a": 10})
    answer = waiting.answer()
    assert answer.status == 409
    assert answer.code() == "not_representable"
    assert json.loads(answer.body)["error"]["offset"] == at
    assert api.metric("headrace_watchers") == 0


def test_sse_ends_before_it_and_the_next_request_is_told_why(
    server: ServerProcess, api: Api, connect: Connect, code_of: Code, eventually: Eventually
) -> None:
    path = widened(api)
    wire = connect(server).request("GET", f"{path}?live=sse&offset=-1&schema_version=1")
    assert wire.head()[0] == 200
    events = [wire.event(), wire.event()]
    eventually(lambda: api.metric("headrace_watchers") == 1)
    at = append(api, path, {"a": 2}, {"a": 10})
    while (event := wire.event()) is not None:
        events.append(event)
    seen = [entry["a"] for event in events if event is not None and event.kind == "data" for entry in event.json]
    assert seen == [1, 2]
    last = events[-1]
    assert last is not None and last.kind == "control" and "upToDate" not in last.json
    refused = api.get(path, live="sse", offset=last.json["streamNextOffset"], schema_version="1")
    assert refusal(refused, code_of)["offset"] == at
    again = connect(server).request("GET", f"{path}?live=sse&offset={at}&schema_version=1")
    assert again.head()[0] == 200


# -- how long answers may be kept


def control(api: Api, path: str, **query: Any) -> str:
    return str(api.get(path, **query).headers["cache-control"])


def test_the_tag_carries_the_version_that_is_served(api: Api) -> None:
    path = renamed(api)
    one, two, newest = (
        api.get(path, **query).headers["etag"] for query in ({"schema_version": 1}, {"schema_version": 2}, {})
    )
    assert one != two == newest
    assert api.get(path, {"if-none-match": newest}).status_code == 304
    assert api.get(path, {"if-none-match": one}, schema_version=1).status_code == 304
    assert api.get(path, {"if-none-match": one}).status_code == 200
    evolve(api, path, shape(c=WHOLE), rename("b", "c"))
    fresh = api.get(path, {"if-none-match": newest})
    assert fresh.status_code == 200
    assert fresh.json()[0] == {"c": 1}
    assert fresh.headers["etag"] not in (one, two)
    assert api.get(path, {"if-none-match": one}, schema_version=1).status_code == 304
    assert api.get(path, {"if-none-match": two}, schema_version=2).status_code == 304


def test_what_is_not_sent_again_says_where_it_ends_like_what_was_sent(api: Api) -> None:
    path = renamed(api)
    found = api.get(path, schema_version=1)
    again = api.get(path, {"if-none-match": found.headers["etag"]}, schema_version=1)
    assert again.status_code == 304
    assert again.content == b""
    for name in ("etag", "stream-next-offset", "stream-end-offset", "stream-up-to-date", "cache-control"):
        assert again.headers[name] == found.headers[name]


def test_only_what_names_its_version_is_kept_for_ever(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="8"))
    path, plain = renamed(api), api.stream({"a": 1}, {"a": 2}, {"a": 3})
    one = api.get(path).headers["stream-next-offset"]
    assert control(api, path, offset=one) == "max-age=60"
    for version in (1, 2):
        assert control(api, path, offset=one, schema_version=version) == FOREVER
    after = api.get(plain).headers["stream-next-offset"]
    assert control(api, plain, offset=after) == FOREVER
    assert control(api, path, offset="now") == control(api, path, offset="now", schema_version=1) == "no-store"


def test_the_tail_of_a_stream_with_a_schema_is_asked_for_again(api: Api) -> None:
    path = renamed(api)
    tail = api.offset(path)
    assert control(api, path) == control(api, path, offset=tail) == "no-cache"
    assert control(api, path, offset=tail, schema_version=1) == "no-cache"
    api.post(path, headers={"stream-closed": "true"})
    assert control(api, path, offset=tail) == "max-age=60"


def test_a_slice_that_is_kept_for_ever_stays_what_it_was(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="8"))
    path = renamed(api)
    kept: dict[tuple[str, int], Any] = {}
    for version in (1, 2):
        offset = api.get(path, schema_version=version).headers["stream-next-offset"]
        while control(api, path, offset=offset, schema_version=version) == FOREVER:
            found = kept[offset, version] = api.get(path, offset=offset, schema_version=version)
            offset = found.headers["stream-next-offset"]
    assert len(kept) == 4
    evolve(api, path, shape(c=TEXT), rename("b", "c"), _to_text("/c"))
    append(api, path, {"c": "5"})
    for (offset, version), found in kept.items():
        again = api.get(path, offset=offset, schema_version=version)
        assert again.content == found.content
        assert again.headers["etag"] == found.headers["etag"]


def _to_text(path: str) -> dict[str, Any]:
    builtins = {"forward": {"builtin": "int_to_string"}, "backward": {"builtin": "string_to_int"}}
    return {"op": "convert", "path": path, "fromType": "integer", "toType": "string", **builtins}


def test_the_start_of_a_stream_is_not_kept_for_ever_in_any_version(api: Api) -> None:
    path = renamed(api)  # retention may move the start
    for query in ({}, {"offset": "-1"}, {"offset": START}):
        assert "immutable" not in control(api, path, schema_version=1, **query)


def test_a_routing_key_alone_changes_no_event(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="8"))
    path = api.stream({"a": 1}, {"a": 2}, {"a": 3})
    post(api, path, routingKey={"jsonPointer": "/k", "required": False})
    one = api.get(path).headers["stream-next-offset"]
    assert control(api, path, offset=one) == FOREVER


def test_answers_to_callers_with_keys_are_private(start_server: StartServer, api_of: Any) -> None:
    server = start_server(limits__read_bytes="8")
    api = api_of(server)
    path = renamed(api)
    one = api.get(path).headers["stream-next-offset"]
    store = KeyStore(server.data_dir / "keys.db")
    key = {"authorization": f"Bearer {store.create(user_id='ada', scopes=['read'])[1]}"}
    store.close()
    assert api.get(path, key, offset=one).headers["cache-control"] == "private, max-age=60"
    assert api.get(path, key, offset=one, schema_version=1).headers["cache-control"] == f"private, {FOREVER}"
    assert api.get(path, offset=one).headers["cache-control"] == "max-age=60"
