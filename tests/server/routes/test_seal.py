"""Sealing on request: what is published, who hears what of it, and what goes on meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from server.registries import name_of
from support.s3 import S3

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api

Code = Callable[[Any], str]
Eventually = Callable[..., None]
ApiOf = Callable[["ServerProcess"], "Api"]

START = "0" * 26


def seal(api: Api, path: str, status: int = 200, **query: Any) -> Any:
    answer = api.call("POST", f"{path}/_seal", **query)
    assert answer.status_code == status, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def stored(api: Api, path: str) -> tuple[int, int]:
    """How many entries of a stream are published, and how many are rows of the log still."""
    stream = api.get(f"{path}/_details").json()["stream"]
    return int(stream["uploaded_through"]) + 1, int(stream["wal_rows"])


def everything(api: Api, path: str) -> list[Any]:
    found: list[Any] = []
    offset = "-1"
    while True:
        answer = api.get(path, offset=offset)
        found += answer.json()
        if "stream-up-to-date" in answer.headers:
            return found
        offset = answer.headers["stream-next-offset"]


def test_everything_is_published_at_once_and_reads_the_same(api: Api) -> None:
    path = api.stream(1, 2)
    api.post(path, [3, 4])
    before = api.get(path)
    answer = seal(api, path)
    assert answer == {
        "stream": name_of(path),
        "state": "sealed",
        "sealed_entries": 4,
        "published_offset": api.offset(path),
        "end_offset": api.offset(path),
        "trouble": None,
    }
    assert stored(api, path) == (4, 0)
    after = api.get(path)
    assert (after.json(), after.headers["etag"]) == (before.json(), before.headers["etag"])


def test_a_stream_that_has_nothing_to_seal_says_so(api: Api) -> None:
    path = api.stream(1)
    assert seal(api, path)["state"] == "sealed"
    assert seal(api, path)["state"] == "nothing_to_seal"
    empty = seal(api, api.stream())
    assert (empty["state"], empty["sealed_entries"], empty["end_offset"]) == ("nothing_to_seal", 0, START)


def test_bytes_and_closed_streams_are_sealed_too(api: Api) -> None:
    octets = api.octets(b"one", b"two")
    assert seal(api, octets)["sealed_entries"] == 2
    assert api.get(octets).content == b"onetwo"
    closed = api.stream(1)
    api.post(closed, headers={"stream-closed": "true"})
    assert seal(api, closed)["state"] == "sealed"
    assert api.get(closed).headers["stream-closed"] == "true"


def test_what_a_fork_reads_of_its_source_is_published_with_it(api: Api) -> None:
    path, fork = api.stream(1, 2, 3), api.name()
    api.put(fork, headers={"stream-forked-from": path})
    assert seal(api, fork)["sealed_entries"] == 3
    assert stored(api, path) == (3, 0)
    api.post(fork, [4])
    assert seal(api, fork)["sealed_entries"] == 1
    assert everything(api, fork) == [1, 2, 3, 4]


def test_what_is_appended_meanwhile_is_not_waited_for_and_nothing_is_lost(api: Api) -> None:
    path = api.stream()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            assert api.post(path, [number, number + 1]).status_code == 204
            number += 2

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            at_least = api.offset(path)
            answer = seal(api, path)
            assert answer["end_offset"] >= at_least
            assert answer["published_offset"] == answer["end_offset"]
    finally:
        stop.set()
        writer.join()
    assert seal(api, path)["published_offset"] == api.offset(path)
    found = everything(api, path)
    assert found == list(range(len(found)))
    assert stored(api, path) == (len(found), 0)


def test_many_who_seal_at_once_are_all_answered(api: Api) -> None:
    paths = [api.stream(n) for n in range(4)]
    answers: list[Any] = []
    callers = [threading.Thread(target=lambda path=path: answers.append(seal(api, path))) for path in paths * 4]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(answers) == 16
    assert {answer["state"] for answer in answers} <= {"sealed", "nothing_to_seal"}
    assert all(stored(api, path) == (1, 0) for path in paths)


# -- what is refused


def test_a_stream_that_is_not_there_or_was_deleted_is_refused(api: Api, code_of: Code) -> None:
    path, fork = api.stream(1), api.name()
    missing = api.call("POST", f"{api.name()}/_seal")
    assert missing.status_code == 404 and code_of(missing) == "not_found"
    api.put(fork, headers={"stream-forked-from": path})
    api.delete(path)
    deleted = api.call("POST", f"{path}/_seal")
    assert deleted.status_code == 410 and code_of(deleted) == "gone"
    assert seal(api, fork)["state"] == "sealed"


def test_a_derived_event_names_the_stream_to_seal(api: Api, code_of: Code) -> None:
    source = {"kind": "event", "name": "Sold", "schema": {"fields": {"k": "str"}, "optional_fields": []}}
    derived = {
        "kind": "derivation",
        "name": "SoldToo",
        "output_kind": "event",
        "upstreams": ["Sold"],
        "ops": [{"op": "filter", "expr": "(k == 'x')"}],
    }
    made = api.post("/v1/register", {"nodes": [source, derived]})
    assert made.status_code == 200, made.text
    refused = api.call("POST", "/v1/stream/events/SoldToo/_seal")
    assert refused.status_code == 409 and code_of(refused) == "conflict"
    assert "events/Sold" in refused.json()["error"]["message"]
    assert seal(api, "/v1/stream/events/Sold")["state"] == "nothing_to_seal"


@pytest.mark.parametrize("timeout", ["-1", "x", "1.5", ""])
def test_a_wait_that_is_none_and_a_body_are_refused(api: Api, code_of: Code, timeout: str) -> None:
    path = api.stream(1)
    refused = api.call("POST", f"{path}/_seal", timeout=timeout)
    assert refused.status_code == 400 and refused.json()["error"]["field"] == "timeout"
    refused = api.call("POST", f"{path}/_seal", {"now": True})
    assert refused.status_code == 400 and refused.json()["error"]["field"] == "body"
    assert stored(api, path) == (0, 1)


# -- a store that does not answer, and a server that dies


def test_an_outage_of_the_store_is_told_and_what_was_asked_for_is_done_afterwards(
    bucket: S3, start_server: StartServer, api_of: ApiOf, eventually: Eventually, code_of: Code
) -> None:
    api = api_of(start_server(storage__object_store=bucket.url, storage__store_timeout_s="1"))
    path = api.stream(1, 2)
    bucket.outage.set()
    refused = api.call("POST", f"{path}/_seal", timeout="30s")
    assert refused.status_code == 503
    assert code_of(refused) == "store_unavailable"
    bucket.outage.clear()
    eventually(lambda: stored(api, path) == (2, 0), within_s=30)
    assert seal(api, path)["state"] == "nothing_to_seal"


def test_a_request_that_does_not_wait_long_enough_hears_how_far_it_is(
    bucket: S3, start_server: StartServer, api_of: ApiOf, eventually: Eventually
) -> None:
    api = api_of(start_server(storage__object_store=bucket.url, storage__store_timeout_s="20"))
    path = api.stream(1, 2)
    bucket.answers = "hang"
    bucket.outage.set()
    answer = seal(api, path, 202, timeout="100ms")
    assert (answer["state"], answer["sealed_entries"]) == ("sealing", 0)
    assert answer["published_offset"] == START < answer["end_offset"]
    assert api.post(path, [3]).status_code == 204  # appends go on
    bucket.outage.clear()
    bucket.released.set()
    eventually(lambda: stored(api, path)[0] >= 2, within_s=30)
    assert seal(api, path)["published_offset"] == api.offset(path)


@pytest.mark.crash
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.02, 0.05, 0.2])
def test_a_kill_while_sealing_loses_nothing(start_server: StartServer, api_of: ApiOf, after_s: float) -> None:
    server = start_server(storage__seal_rows="50")
    api = api_of(server)
    path = api.stream()
    for first in range(0, 500, 50):
        api.post(path, list(range(first, first + 50)))
    asked = threading.Thread(target=_ask, args=(api, path))
    asked.start()
    time.sleep(after_s)
    server.kill()
    asked.join()
    again = api_of(server.start())
    assert everything(again, path) == list(range(500))
    answer = seal(again, path)
    assert answer["published_offset"] == again.offset(path)
    assert stored(again, path) == (500, 0)
    assert everything(again, path) == list(range(500))


def _ask(api: Api, path: str) -> None:
    """Ask, whether or not the server lives to answer."""
    with contextlib.suppress(httpx2.TransportError):
        api.call("POST", f"{path}/_seal")
