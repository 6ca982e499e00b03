from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.engine.log.lifecycle import Create
from headrace.server.http.auth import LOCAL
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request, RequestHead, ResolvedRoute
from headrace.server.http.target import Target
from headrace.server.routes.streams import StreamRoutes
from headrace.storage.streams import StreamRow
from server.callers import Caller
from support.engine_rig import Rig

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

START = "0" * 26
JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]


def in_a_while(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def test_a_new_stream_is_described_in_the_answer(api: Api) -> None:
    path = api.name()
    created = api.put(path, headers={"content-type": "text/plain; charset=utf-8"})
    assert created.status_code == 201
    assert created.headers["location"] == api.url + path
    assert created.headers["content-type"] == "text/plain; charset=utf-8"
    assert created.headers["stream-next-offset"] == START
    assert "stream-closed" not in created.headers
    assert created.content == b""


def test_the_default_type_is_octets(api: Api) -> None:
    path = api.name()
    assert api.put(path).headers["content-type"] == "application/octet-stream"
    assert api.head(path).headers["content-type"] == "application/octet-stream"


def test_a_second_put_confirms_and_ignores_its_body(api: Api) -> None:
    path = api.name()
    assert api.put(path, [1, 2]).status_code == 201
    again = api.put(path, [3])
    assert again.status_code == 200
    assert again.headers["location"] == api.url + path
    assert again.headers["stream-next-offset"] == api.offset(path)
    assert api.get(path).json() == [1, 2]


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        ({"content-type": "text/plain"}, {"content-type": "text/html"}, "Content-Type"),
        ({"stream-ttl": "60"}, {"stream-ttl": "61"}, "Stream-TTL"),
        ({"stream-ttl": "60"}, {}, "Stream-TTL"),
        ({}, {"stream-ttl": "60"}, "Stream-TTL"),
        ({"stream-expires-at": "2999-01-01T00:00:00Z"}, {}, "Stream-Expires-At"),
        ({}, {"stream-closed": "true"}, "Stream-Closed"),
        ({"stream-closed": "true"}, {}, "Stream-Closed"),
    ],
)
def test_a_put_that_differs_conflicts_and_says_where(
    api: Api, code_of: Code, first: dict[str, str], second: dict[str, str], field: str
) -> None:
    path = api.name()
    assert api.put(path, headers=first).status_code == 201
    refused = api.put(path, headers=second)
    assert refused.status_code == 409
    assert code_of(refused) == "conflict"
    assert refused.json()["error"]["field"] == field


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"content-type": "text/plain"}, {"content-type": "TEXT/Plain; charset=latin-1"}),
        ({"stream-ttl": "3600"}, {"stream-ttl": "1h"}),
        ({"stream-ttl": "90s"}, {"stream-ttl": "1m30s"}),
        ({"stream-expires-at": "2999-01-01T01:00:00+01:00"}, {"stream-expires-at": "2999-01-01T00:00:00.000Z"}),
        ({"stream-closed": "true"}, {"stream-closed": "TRUE"}),
        ({"stream-retention-age": "1h"}, {"stream-retention-age": "2h"}),
        ({"stream-retention-bytes": "10"}, {}),
    ],
)
def test_a_put_that_means_the_same_is_confirmed(api: Api, first: dict[str, str], second: dict[str, str]) -> None:
    path = api.name()
    assert api.put(path, headers=first).status_code == 201
    assert api.put(path, headers=second).status_code == 200


def test_the_first_body_is_there_at_once(api: Api) -> None:
    path = api.name()
    created = api.put(path, b' [{"a":1}, 2 ] ', JSON)
    assert created.status_code == 201
    assert created.headers["stream-next-offset"] == api.offset(path)
    assert api.get(path).json() == [{"a": 1}, 2]


def test_an_empty_array_makes_an_empty_stream(api: Api) -> None:
    path = api.name()
    assert api.put(path, []).headers["stream-next-offset"] == START
    assert api.get(path).json() == []


@pytest.mark.parametrize("body", [b"{", b"[1,]", b'"\xff"', b"NaN", b"[" * 20_000 + b"]" * 20_000])
def test_a_bad_body_creates_nothing(api: Api, code_of: Code, body: bytes) -> None:
    path = api.name()
    refused = api.put(path, body, JSON)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.head(path).status_code == 404
    assert api.put(path, headers={"content-type": "text/plain"}).status_code == 201


def test_a_stream_may_be_born_closed_with_its_whole_content(api: Api, code_of: Code) -> None:
    path = api.name()
    created = api.put(path, [1], {"stream-closed": "True"})
    assert created.status_code == 201
    assert created.headers["stream-closed"] == "true"
    assert api.get(path).headers["stream-closed"] == "true"
    refused = api.post(path, [2])
    assert refused.status_code == 409
    assert code_of(refused) == "stream_closed"


def test_the_key_of_a_put_belongs_to_its_body(api: Api) -> None:
    path = api.name()
    assert api.put(path, [1, 2], {"stream-key": "k"}).status_code == 201
    assert api.post(path, [3]).status_code == 204
    assert api.get(path, key="k").json() == [1, 2]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("0", None), ("1", "1"), ("60", "60"), ("90s", "90"), ("2m", "120"), ("1h30m", "5400"), ("2000ms", "2"),
     ("1d", "86400")],
)  # fmt: skip
def test_a_lifetime_is_seconds_or_a_duration(api: Api, given: str, seconds: str | None) -> None:
    path = api.name()
    assert api.put(path, headers={"stream-ttl": given}).status_code == 201
    assert api.head(path).headers.get("stream-ttl") == seconds


@pytest.mark.parametrize(
    "given",
    ["", " ", "-1", "+60", "060", "60.5", "1e3", "abc", "1500ms", "1w", "1h 30m", "h", "9" * 30, "٣", "3_0",
     "99999999999"],
)  # fmt: skip
def test_a_lifetime_that_is_none_is_refused(server: ServerProcess, connect: Callable[..., Wire], given: str) -> None:
    refused = connect(server)
    refused.send(f"PUT /v1/stream/ttl HTTP/1.1\r\nHost: {refused.host}\r\nStream-TTL: {given}\r\n\r\n".encode())
    answer = refused.answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"


@pytest.mark.parametrize("given", ["2999-01-01", "tomorrow", "2999-13-01T00:00:00Z", "2999-01-01T00:00:00", "-5", ""])
def test_an_end_that_is_no_time_is_refused(api: Api, code_of: Code, given: str) -> None:
    refused = api.put(api.name(), headers={"stream-expires-at": given})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_an_end_may_be_unix_nanoseconds(api: Api) -> None:
    path = api.name()
    assert api.put(path, headers={"stream-expires-at": "32472144000000000000"}).status_code == 201
    assert api.head(path).headers["stream-expires-at"] == "2999-01-01T00:00:00Z"


def test_lifetime_and_end_exclude_each_other(api: Api, code_of: Code) -> None:
    both = {"stream-ttl": "60", "stream-expires-at": in_a_while(60)}
    refused = api.put(api.name(), headers=both)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


@pytest.mark.parametrize("header", [{"stream-ttl": "0"}, {"stream-expires-at": "2001-01-01T00:00:00Z"}])
def test_a_stream_that_is_over_at_once_is_still_answered(api: Api, header: dict[str, str]) -> None:
    path = api.name()
    assert api.put(path, [1], header).status_code == 201
    assert api.head(path).status_code == 404
    assert api.put(path, [2]).status_code == 201
    assert api.get(path).json() == [2]


def test_an_expired_stream_is_gone_for_every_verb_and_its_name_is_free(
    api: Api, code_of: Code, eventually: Callable[..., None]
) -> None:
    path = api.name()
    assert api.put(path, [1], {"stream-expires-at": in_a_while(0.5)}).status_code == 201
    old = api.offset(path)
    eventually(lambda: api.head(path).status_code == 404)
    for response in (api.get(path), api.post(path, [2]), api.delete(path), api.post(path + "/_retention", {})):
        assert response.status_code == 404
        assert code_of(response) == "not_found"
    assert path.rpartition("/")[2] not in [stream["name"] for stream in api.get("/v1/streams", limit=1000).json()]
    again = api.put(path, [3])
    assert again.status_code == 201
    assert again.headers["stream-next-offset"] > old
    assert api.get(path).json() == [3]
    assert code_of(api.get(path, offset=old)) == "offset_fenced"


def test_the_window_slides_with_reads_and_writes_but_not_with_head(api: Api, eventually: Callable[..., None]) -> None:
    path = api.name()
    assert api.put(path, [1], {"stream-ttl": "1"}).status_code == 201
    deadline = api.head(path).headers["stream-expires-at"]
    assert api.head(path).headers["stream-expires-at"] == deadline
    accesses: list[Callable[[], Any]] = [
        lambda: api.get(path),
        lambda: api.get(path, offset="now"),
        lambda: api.get(path, live="long-poll", offset="now", timeout="1ms"),
        lambda: api.post(path, [2]),
        lambda: api.post(path, headers={"stream-closed": "true"}),
    ]
    for access in accesses:
        assert access().status_code in (200, 204)
        moved = api.head(path).headers["stream-expires-at"]
        assert moved > deadline
        deadline = moved
    assert api.put(path, headers={**JSON, "stream-ttl": "1"}).status_code == 409  # it is closed, and alive
    until = time.monotonic() + 0.9
    while time.monotonic() < until:
        assert api.head(path).headers["stream-ttl"] == "1"
        time.sleep(0.1)
    eventually(lambda: api.head(path).status_code == 404)


@pytest.mark.parametrize(
    "kind",
    ["text", "text/", "/plain", "te xt/plain", "text/pl ain", ";", "text/plain\xe9", "a/b/c", "a//b", "text/pl(ain"],
)
def test_a_type_that_is_none_is_refused(server: ServerProcess, connect: Callable[..., Wire], kind: str) -> None:
    answer = connect(server).request("PUT", "/v1/stream/kind", b"", f"Content-Type: {kind}").answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"


def test_one_of_two_different_creators_at_once_is_told_of_the_conflict(
    server: ServerProcess, api: Api, connect: Callable[..., Wire]
) -> None:
    one, other = connect(server), connect(server)
    outcomes = set()
    for _ in range(60):
        path = api.name()
        barrier = threading.Barrier(2)

        def create(wire: Wire, kind: str, barrier: threading.Barrier = barrier, path: str = path) -> None:
            barrier.wait()
            wire.request("PUT", path, b"x", f"Content-Type: text/{kind}")

        threads = [threading.Thread(target=create, args=pair) for pair in ((one, "plain"), (other, "html"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcomes.add(tuple(sorted((one.answer().status, other.answer().status))))
    assert outcomes == {(201, 409)}


def test_a_creation_that_a_deletion_races_is_answered_as_a_creation(
    server: ServerProcess, api: Api, connect: Callable[..., Wire]
) -> None:
    creator, deleter = connect(server), connect(server)
    statuses = set()
    for _ in range(100):
        path = api.name()
        creator.request("PUT", path, b"x" * 200_000, "Content-Type: text/plain")
        for _ in range(20):
            deleter.request("DELETE", path)
        created = creator.answer()
        statuses.add(created.status)
        assert created.headers["location"].endswith(path)
        assert sorted(deleter.answer().status for _ in range(20))[1:] == [404] * 19
    assert statuses == {201}


def test_the_answer_to_a_creation_tells_of_what_was_created_though_that_is_deleted_by_now(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        row = StreamRow("s", "text/plain", 1, "[]", closed=1)
        created: Create = rig.settle(lambda done: rig.engine.log.create(row, done, body=b"x", count=1))
        next_offset = rig.find("s").offset_at(1)
        streams = StreamRoutes(rig.engine)

        async def answered() -> Reply:
            caller, head = Caller(), RequestHead("PUT", b"", [], {})
            streams._created(
                Request(head, ResolvedRoute(streams.put, Target("s", "", None), {}, LOCAL, 0), b"", caller), created
            )
            return await caller.answered

        rig.delete("s")
        alone = rig.run(answered())
        rig.create("s", "text/html", b"other")
        beside_another = rig.run(answered())
    for reply in (alone, beside_another):
        assert reply.status == 201
        assert reply.headers["content-type"] == "text/plain"
        assert reply.headers["stream-next-offset"] == next_offset
        assert reply.headers["stream-closed"] == "true"


def test_many_equal_creators_at_once_make_one_stream(server: ServerProcess, connect: Callable[..., Wire]) -> None:
    wires = [connect(server) for _ in range(20)]
    for wire in wires:
        wire.request("PUT", "/v1/stream/shared", b"x", "Content-Type: text/plain")
    assert sorted(wire.answer().status for wire in wires) == [200] * 19 + [201]
    assert wires[0].request("GET", "/v1/stream/shared").answer().body == b"x"


@pytest.mark.parametrize("header", ["stream-seq", "producer-id", "producer-epoch", "producer-seq", "if-match"])
def test_headers_of_an_append_are_refused_rather_than_ignored(api: Api, code_of: Code, header: str) -> None:
    path = api.name()
    refused = api.put(path, [1], {header: "1"})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.head(path).status_code == 404
