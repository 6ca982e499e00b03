"""Routing keys that events carry themselves: taken entry by entry, and found again exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from server.registries import TEXT, WHOLE, append, evolve, installed, post, problems, registry, rename, shape

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]


def keyed(api: Api, pointer: str = "/user", *, required: bool = False) -> str:
    """A stream whose events carry their keys, without a schema."""
    path = api.stream()
    answer = post(api, path, routingKey={"jsonPointer": pointer, "required": required})
    assert answer.status_code == 200, answer.text
    return path


def pages(api: Api, path: str, **query: str) -> list[Any]:
    """Everything a read finds, page by page."""
    found: list[Any] = []
    offset = query.pop("offset", "-1")
    while True:
        page = api.get(path, offset=offset, **query)
        assert page.status_code == 200, page.text
        found += page.json()
        assert page.headers["stream-next-offset"] > offset or "stream-up-to-date" in page.headers
        offset = page.headers["stream-next-offset"]
        if "stream-up-to-date" in page.headers:
            return found


# -- set and cleared


def test_a_routing_key_is_set_changed_and_cleared_at_any_time(api: Api) -> None:
    path = api.stream({"user": "before"})
    first, other = ({"jsonPointer": pointer, "required": False} for pointer in ("/user", "/team"))
    for setting in (first, other, None, first):
        answer = post(api, path, routingKey=setting)
        assert answer.status_code == 200
        assert registry(api, path).get("routingKey") == answer.json().get("routingKey") == setting
        assert registry(api, path)["currentVersion"] == 0
    assert [change["what"] for change in answer.json()["diff"]["changes"]] == ["routing_key_set"]
    assert len(api.get(f"{path}/_schema/history").json()["revisions"]) == 4


def test_setting_the_same_key_again_changes_nothing(api: Api) -> None:
    path = keyed(api)
    again = post(api, path, routingKey={"required": False, "jsonPointer": "/user"})
    assert again.json()["diff"]["classification"] == "identical"
    assert len(api.get(f"{path}/_schema/history").json()["revisions"]) == 1


def test_stored_events_keep_the_keys_they_were_stored_with(api: Api) -> None:
    path = api.stream()
    append(api, path, {"user": "ada", "team": "x"}, stream_key="header")
    post(api, path, routingKey={"jsonPointer": "/user", "required": False})
    append(api, path, {"user": "ada", "team": "y"})
    post(api, path, routingKey={"jsonPointer": "/team", "required": False})
    append(api, path, {"user": "ada", "team": "z"})
    post(api, path, routingKey=None)
    append(api, path, {"user": "ada", "team": "w"}, stream_key="header")
    found = {key: [event["team"] for event in api.get(path, key=key).json()] for key in ("header", "ada", "z", "y")}
    assert found == {"header": ["x", "w"], "ada": ["y"], "z": ["z"], "y": []}


def test_a_key_in_a_header_is_refused_where_events_carry_theirs(api: Api, code_of: Code) -> None:
    path = keyed(api)
    refused = api.post(path, [{"user": "ada"}], {"stream-key": "ada"})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == "Stream-Key"
    assert api.get(path).json() == []
    append(api, path, {"user": "ada"}, stream_key="")  # an empty one is none
    post(api, path, routingKey=None)
    append(api, path, {"user": "ada"}, stream_key="header")
    assert api.get(path, key="header").json() == [{"user": "ada"}]


# -- taken from events


@pytest.mark.parametrize(
    ("pointer", "event", "key"),
    [
        ("/user", {"user": "ada"}, "ada"),
        ("/user/id", {"user": {"id": "x", "other": 1}}, "x"),
        ("/a~1b/c~0d", {"a/b": {"c~d": "escaped"}}, "escaped"),
        ("/tags/1", {"tags": ["a", "b", "c"]}, "b"),
        ("/0", {"0": "a member"}, "a member"),
        ("/0/k", [{"k": "in an array"}], "in an array"),
        ("", "the event itself", "the event itself"),
        ("/", {"": "no name"}, "no name"),
        ("/user", {"user": "x" * 512}, "x" * 512),
        ("/user", {"user": "ключ /?&#%20"}, "ключ /?&#%20"),
        ("/user", {"user": "a\nb\u0000c"}, "a\nb\u0000c"),
    ],
)
def test_the_key_is_what_stands_at_the_pointer(api: Api, pointer: str, event: Any, key: str) -> None:
    path = keyed(api, pointer, required=True)
    append(api, path, event)
    assert api.get(path, key=key).json() == [event]
    assert api.get(f"{path}/pk/{quote(key, safe='')}").json() == [event]
    assert api.get(path, key=key + "x").json() == api.get(path, key=key[:-1] or "y").json() == []


@pytest.mark.parametrize("event", [{}, {"other": 1}, [], 1, "text", None, [{"user": "ada"}]])
def test_an_event_without_the_key_is_refused_only_where_one_is_required(api: Api, event: Any) -> None:
    optional, required = keyed(api), keyed(api, required=True)
    append(api, optional, event)
    assert api.get(optional).json() == [event]
    refused = api.post(required, [{"user": "ada"}, event])
    assert refused.status_code == 400
    assert refused.json()["error"]["failures"] == [{"index": 1, "pointer": "/user", "reason": "routing key missing"}]
    assert api.get(required).json() == []


@pytest.mark.parametrize("value", [1, 1.5, True, None, [], {}, ["ada"], "", "x" * 513, "é" * 257])
def test_what_cannot_be_a_key_is_refused_required_or_not(api: Api, value: Any) -> None:
    for required in (False, True):
        path = keyed(api, required=required)
        refused = api.post(path, [{"user": "ada"}, {"user": value}, {"user": "bob"}])
        assert refused.status_code == 400
        (failure,) = refused.json()["error"]["failures"]
        assert failure["index"] == 1
        assert failure["pointer"] == "/user"
        assert "routing key must" in failure["reason"]
        assert api.get(path).json() == []


def test_every_event_whose_key_is_wrong_is_named(api: Api) -> None:
    path = keyed(api, required=True)
    refused = api.post(path, [{"user": "a"}, {"user": 1}, {}, {"user": "b"}, {"user": None}])
    assert [failure["index"] for failure in refused.json()["error"]["failures"]] == [1, 2, 4]


def test_keys_are_taken_from_what_fits_the_schema(api: Api) -> None:
    path = installed(api, shape("note", user=TEXT, note=WHOLE), routingKey={"jsonPointer": "/user", "required": True})
    assert api.post(path, [{"user": "ada", "note": "x"}]).status_code == 400
    assert api.post(path, [{"user": "", "note": 1}]).status_code == 400  # a text, and no key
    append(api, path, {"user": "ada", "note": 1})
    assert api.get(path, key="ada").json() == [{"user": "ada", "note": 1}]


def test_a_routing_key_the_schema_knows_nothing_of_is_no_error(api: Api) -> None:
    path = installed(api, shape(a=WHOLE), routingKey={"jsonPointer": "/user", "required": False})
    append(api, path, {"a": 1})
    assert api.get(path, key="1").json() == []


def test_a_pointer_that_is_none_is_refused(api: Api) -> None:
    path = api.stream()
    for pointer in ("user", "#/user", "/a~", "/a~2b", " /a"):
        refused = post(api, path, routingKey={"jsonPointer": pointer, "required": False})
        assert refused.status_code == 400
        assert problems(refused) == ["/routingKey/jsonPointer"]


# -- found again


MIXED = [{"user": user, "n": n} for n, user in enumerate("abacabad" * 3)] + [{"n": 24}, {"user": "a", "n": 25}]


def numbers(events: list[Any]) -> list[int]:
    return [event["n"] for event in events]


def of(user: str | None) -> list[int]:
    return [event["n"] for event in MIXED if event.get("user") == user]


def mixed(api: Api) -> str:
    path = keyed(api)
    append(api, path, *MIXED[:10])
    append(api, path, *MIXED[10:11])
    append(api, path, *MIXED[11:])
    return path


def test_events_of_one_key_are_picked_out_of_mixed_appends(api: Api) -> None:
    path = mixed(api)
    for user in ("a", "b", "c", "d", "e", "ab", "A"):
        assert numbers(api.get(path, key=user).json()) == of(user)
        assert numbers(api.get(f"{path}/pk/{user}").json()) == of(user)
    for user in "abcd":
        assert numbers(api.get(path, key=user, live="long-poll", offset="-1").json()) == of(user)
    assert numbers(api.get(path).json()) == numbers(api.get(path, key="").json()) == list(range(26))


def test_the_key_in_the_path_wins(api: Api) -> None:
    path = mixed(api)
    assert numbers(api.get(f"{path}/pk/b", key="a").json()) == of("b")


@pytest.mark.parametrize("budget", ["1", "40", "100", "1000"])
def test_small_pages_find_each_event_once(start_server: StartServer, api_of: Any, budget: str) -> None:
    api = api_of(start_server(limits__read_bytes=budget))
    path = mixed(api)
    for user in ("a", "b", "d", "none"):
        assert numbers(pages(api, path, key=user)) == of(user)
    assert numbers(pages(api, path)) == list(range(26))


def test_reading_goes_on_from_any_offset_inside_an_append(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="1"))
    path, places, offset = mixed(api), [], "-1"
    for _ in MIXED:
        offset = api.get(path, offset=offset).headers["stream-next-offset"]
        places.append(offset)
    for position, place in enumerate(places, 1):
        assert numbers(pages(api, path, key="a", offset=place)) == [n for n in of("a") if n >= position]


def test_raw_reads_pick_the_same_events(api: Api) -> None:
    path = keyed(api)
    assert api.post(path, b'[{"user":"a", "x":1.0},{"user":"b"},{"user":"a","x":1e2}]', JSON).status_code == 204
    assert api.get(path, key="a", format="raw").content == b'{"user":"a", "x":1.0}{"user":"a","x":1e2}'
    assert api.get(path, key="a").content == b'[{"user":"a", "x":1.0},{"user":"a","x":1e2}]'


def test_slices_of_different_keys_have_different_tags(api: Api) -> None:
    path = mixed(api)
    tags = {user: api.get(path, key=user).headers["etag"] for user in ("a", "b", "")}
    assert len(set(tags.values())) == 3
    assert api.get(path, {"if-none-match": tags["a"]}, key="a").status_code == 304
    assert api.get(path, {"if-none-match": tags["a"]}, key="b").status_code == 200


def test_a_waiting_reader_of_a_key_gets_its_events_only(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path = keyed(api)
    poll = connect(server).request("GET", f"{path}/pk/a?live=long-poll&offset=now&timeout=8s")
    stream = connect(server).request("GET", f"{path}?live=sse&offset=now&key=a")
    assert stream.head()[0] == 200
    eventually(lambda: api.metric("headrace_watchers") == 2)
    append(api, path, {"user": "b"}, {"n": 1})
    tail = append(api, path, {"user": "b"}, {"user": "a", "n": 2}, {"user": "a", "n": 3}, {"user": "c"})
    answer = poll.answer()
    assert answer.status == 200
    assert answer.headers["stream-next-offset"] == tail
    assert answer.body == b'[{"user": "a", "n": 2},{"user": "a", "n": 3}]'
    seen: list[Any] = []
    while len(seen) < 2:
        event = stream.event()
        assert event is not None
        seen += event.json if event.kind == "data" else []
    assert numbers(seen) == [2, 3]


def test_keys_outlive_the_names_of_members(api: Api) -> None:
    path = installed(api, shape(user=TEXT, n=WHOLE), routingKey={"jsonPointer": "/user", "required": True})
    append(api, path, {"user": "ada", "n": 1}, {"user": "bob", "n": 2})
    evolve(
        api,
        path,
        shape(name=TEXT, n=WHOLE),
        rename("user", "name"),
        routingKey={"jsonPointer": "/name", "required": True},
    )
    append(api, path, {"name": "bob", "n": 3}, {"name": "ada", "n": 4})
    assert api.get(path, key="ada").json() == [{"name": "ada", "n": 1}, {"name": "ada", "n": 4}]
    assert api.get(path, key="bob", schema_version=1).json() == [{"user": "bob", "n": 2}, {"user": "bob", "n": 3}]


def test_keys_survive_a_restart_and_reach_through_forks(start_server: StartServer, api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    path, branch = mixed(api), api.name()
    assert api.put(branch, headers={"stream-forked-from": path}).status_code == 201
    append(api, branch, {"user": "c", "n": 100}, {"user": "a", "n": 101})
    server.kill()
    api = api_of(server.start())
    assert numbers(api.get(path, key="a").json()) == of("a")
    assert numbers(api.get(branch, key="a").json()) == [*of("a"), 101]
    assert api.post(branch, [{"user": 1}]).status_code == 400
