"""Long bodies that are checked aside: the stream goes on meanwhile, and they still find their place in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx2

from server.registries import TEXT, WHOLE, append, evolve, installed, post, registry, rename, shape, stored, version_at

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

JSON = {"content-type": "application/json"}
Connect = Callable[..., "Wire"]

MANY = 100_000


def body(event: bytes, count: int = MANY) -> bytes:
    return b"[" + b",".join([event] * count) + b"]"


@contextmanager
def meanwhile(ask: Callable[[], httpx2.Response]) -> Iterator[tuple[threading.Thread, list[httpx2.Response]]]:
    """Ask in another thread; afterwards there is an answer."""
    answers: list[httpx2.Response] = []
    asking = threading.Thread(target=lambda: answers.append(ask()))
    asking.start()
    try:
        yield asking, answers
    finally:
        asking.join()
    assert answers


def test_a_stream_stays_one_while_a_long_body_is_checked(start_server: StartServer, api_of: Any) -> None:
    """However little is kept in memory, both appends must meet in one place."""
    api = api_of(start_server(limits__cached_streams="1"))
    others = [api.stream() for _ in range(150)]
    path, small = api.stream(), 0
    # A key inside an array is looked for step by step.
    assert post(api, path, routingKey={"jsonPointer": "/0", "required": True}).status_code == 200
    with meanwhile(lambda: api.post(path, body(b'["a"]', 500_000), JSON)) as (asking, answers):
        while asking.is_alive():
            for other in others:
                assert api.head(other).status_code == 200
            append(api, path, ["b"])
            small += 1
    assert answers[0].status_code == 204, answers[0].text
    assert len(api.get(path, key="b").json()) == small
    append(api, path, ["c"])
    assert api.get(path, key="c").json() == [["c"]]


def test_what_a_connection_sends_later_comes_later(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = installed(api, shape(n=WHOLE))
    wire = connect(server)
    wire.append(path, body(b'{"n":1}')).append(path, b'[{"n":2}]').append(path, body(b'{"n":3}'))
    places = []
    for _ in range(3):
        answer = wire.answer("POST")
        assert answer.status == 204
        places.append(answer.headers["stream-next-offset"])
    assert places == sorted(places)
    rows = stored(server.data_dir, registry(api, path)["schema"])
    assert [(seq, events[0]["n"]) for seq, _, _, events in rows] == [(0, 1), (MANY, 2), (MANY + 1, 3)]


def test_a_schema_that_changes_while_a_long_body_is_checked_counts_for_it(server: ServerProcess, api: Api) -> None:
    path = installed(api, shape(a=WHOLE, k=TEXT), routingKey={"jsonPointer": "/k", "required": True})
    bodies = [body(b'{"a":1,"k":"x"}', count) for count in (20_000, 40_000, MANY)]
    for version, long in enumerate(bodies, 1):
        names = "abcd"
        old, new = names[version - 1], names[version]
        with meanwhile(lambda long=long, old=old: api.post(path, long.replace(b'"a"', f'"{old}"'.encode()), JSON)) as (  # type: ignore[misc]
            _,
            answers,
        ):
            evolve(api, path, shape(**{new: WHOLE, "k": TEXT}), rename(old, new))
        assert answers[0].status_code in (204, 400)
    document = registry(api, path)
    for seq, count, version, events in stored(server.data_dir, document["schema"]):
        assert version == version_at(document, seq) == version_at(document, seq + count - 1)
        assert set(events[0]) == {"abcd"[version - 1], "k"}
    assert all(set(event) == {"d", "k"} for event in api.get(path).json())


def test_a_stream_that_is_deleted_while_a_long_body_is_checked_stays_so(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    with meanwhile(lambda: api.post(path, body(b'{"a":1}'), JSON)) as (_, answers):
        assert api.delete(path).status_code == 204
        assert api.put(path, ["anew"]).status_code == 201
    assert answers[0].status_code in (204, 404, 400)
    found = api.get(path)
    assert found.json()[0] == "anew"
    assert registry(api, path)["currentVersion"] == 0


def test_a_producer_with_long_bodies_is_held_to_its_sequence(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    triple = {"producer-id": "p", "producer-epoch": "0"}
    long, bad = body(b'{"a":1}', 20_000), body(b'{"a":"x"}', 20_000)
    assert api.post(path, bad, {**JSON, **triple, "producer-seq": "0"}).status_code == 400
    assert api.post(path, long, {**JSON, **triple, "producer-seq": "0"}).status_code == 200
    assert api.post(path, bad, {**JSON, **triple, "producer-seq": "0"}).status_code == 204  # a repetition
    assert api.post(path, long, {**JSON, **triple, "producer-seq": "2"}).status_code == 409
    assert api.post(path, long, {**JSON, **triple, "producer-seq": "1"}).status_code == 200


def test_a_long_body_that_does_not_fit_is_refused_like_a_short_one(api: Api) -> None:
    path = installed(api, shape(a=WHOLE), routingKey={"jsonPointer": "/k", "required": False})
    events = body(b'{"a":1}').replace(b'{"a":1}]', b'{"a":"x"}]')
    refused = api.post(path, events, JSON)
    assert refused.status_code == 400
    assert [(f["index"], f["pointer"]) for f in refused.json()["error"]["failures"]] == [(MANY - 1, "/a")]
    keyed = api.post(path, body(b'{"a":1}'), {**JSON, "stream-key": "k"})
    assert keyed.status_code == 400
    assert keyed.json()["error"]["field"] == "Stream-Key"
    closing = api.post(path, events, {**JSON, "stream-closed": "true"})
    assert closing.status_code == 400 and "stream-closed" not in api.head(path).headers
    assert api.get(path).json() == []


def test_a_question_whose_time_is_over_is_answered_once_and_the_next_one_gets_its_own_answer(
    start_server: StartServer, api_of: Any, connect: Connect
) -> None:
    server = start_server(server__resolver_timeout_s="0.05")
    api, wire = api_of(server), connect(server)
    fields = {"a": ("integer", "/a"), "at": ("date", "/at")}
    search = {
        "primaryTimestampField": "at",
        "fields": {
            name: {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], "column": True}
            for name, (kind, pointer) in fields.items()
        },
    }
    path = api.stream()
    assert post(api, path, schema={"type": "object"}, search=search).status_code == 200
    # The first question reads all of these, which takes longer than that.
    assert api.post(path, body(b'{"a": 1}', 3 * MANY), JSON).status_code == 204
    other = api.stream()
    append(api, other, {"b": 1})
    wire.request("GET", f"{path}/_search?q=a:1").request("GET", other)
    late = wire.answer()
    assert late.status == 408
    assert late.code() == "request_timeout"
    assert wire.answer().body == b'[{"b": 1}]'
    for _ in range(20):
        assert wire.request("HEAD", path).answer("HEAD").status == 200  # and not what was found too late
