"""The newest entries of a stream: how many, what they cannot be combined with, and how long they may be kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.server.routes.reads import MAX_LAST
from server.registries import WHOLE, append, evolve, installed, rename, shape

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

Code = Callable[[Any], str]
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]

START = "0" * 26
FOREVER = "immutable, max-age=31536000"


@pytest.fixture(scope="module")
def sealing_api(api: Api, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Requests to a server that publishes everything as soon as it can, in small segments."""
    eager = {"storage__seal_age_s": "0", "storage__seal_rows": "8", "limits__read_bytes": "400"}
    started = type(server)(tmp_path_factory.mktemp("sealing") / "data", eager).start()
    connected = type(api)(started.url)
    yield connected
    connected.client.close()
    started.kill()


def await_sealed(api: Api, path: str, eventually: Eventually) -> None:
    eventually(lambda: api.get(f"{path}/_details").json()["stream"]["wal_rows"] == "0")


# -- which entries


@pytest.mark.parametrize(("count", "expected"), [(1, [5]), (3, [3, 4, 5]), (5, [1, 2, 3, 4, 5]), (6, [1, 2, 3, 4, 5])])
def test_the_newest_entries_come_oldest_first(api: Api, count: int, expected: list[int]) -> None:
    path = api.stream()
    api.post(path, [1, 2, 3])
    api.post(path, [4, 5])
    answer = api.get(path, last=count)
    assert answer.json() == expected
    assert answer.headers["stream-next-offset"] == answer.headers["stream-end-offset"] == api.offset(path)
    assert answer.headers["stream-up-to-date"] == "true"
    assert api.get(path, offset=answer.headers["stream-start-offset"]).json() == expected


def test_an_entry_of_bytes_is_what_one_request_appended(api: Api) -> None:
    path = api.octets(b"one;", b"two;two;", b"three;")
    assert api.get(path, last=2).content == b"two;two;three;"
    text = api.octets(b"a\nb\n", b"c\n", kind="text/plain")
    assert api.get(text, last=1).text == "c\n"


def test_an_empty_stream_has_none(api: Api) -> None:
    answer = api.get(api.stream(), last=3)
    assert answer.json() == []
    assert answer.headers["stream-start-offset"] == answer.headers["stream-next-offset"] == START
    assert answer.headers["stream-up-to-date"] == "true"


def test_a_closed_stream_says_so(api: Api) -> None:
    path = api.stream(1, 2)
    api.post(path, headers={"stream-closed": "true"})
    answer = api.get(path, last=1)
    assert answer.json() == [2]
    assert answer.headers["stream-closed"] == "true"


def test_a_stream_that_is_not_there_is_404_and_a_deleted_one_with_forks_410(api: Api) -> None:
    path, fork = api.stream(1, 2), api.name()
    assert api.get(api.name(), last=1).status_code == 404
    assert api.put(fork, headers={"stream-forked-from": path}).status_code == 201
    api.delete(path)
    assert api.get(path, last=1).status_code == 410
    assert api.get(fork, last=1).json() == [2]


def test_the_newest_entries_of_a_fork_may_lie_in_its_source(sealing_api: Api, eventually: Eventually) -> None:
    api = sealing_api
    path, fork = api.stream(*range(20)), api.name()
    await_sealed(api, path, eventually)
    assert api.put(fork, headers={"stream-forked-from": path}).status_code == 201
    assert api.get(fork, last=10).json() == list(range(10, 20))
    api.post(path, ["not the fork's"])
    api.post(fork, [20, 21])
    assert api.get(fork, last=4).json() == [18, 19, 20, 21]
    assert api.get(fork, last=100).json() == list(range(22))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 17, 40, 41, 100])
def test_cold_segments_are_read_in_one_answer(sealing_api: Api, eventually: Eventually, count: int) -> None:
    path = sealing_api.stream(*range(40))
    await_sealed(sealing_api, path, eventually)
    answer = sealing_api.get(path, last=count)
    assert answer.json() == list(range(40))[-count:]
    assert answer.headers["stream-up-to-date"] == "true"


def test_an_answer_that_is_full_leads_on_to_the_rest(sealing_api: Api) -> None:
    path = sealing_api.stream(*(f"{n:050}" for n in range(30)))
    answer = sealing_api.get(path, last=20)
    assert "stream-up-to-date" not in answer.headers
    found, end = answer.json(), answer.headers["stream-end-offset"]
    assert len(answer.content) < 460
    while answer.headers["stream-next-offset"] != end:
        answer = sealing_api.get(path, offset=answer.headers["stream-next-offset"], before=end)
        found += answer.json()
    assert found == [f"{n:050}" for n in range(10, 30)]


def test_what_retention_removed_or_will_remove_does_not_count(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(storage__seal_age_s="0", storage__seal_rows="2"))
    path = api.stream(headers={"stream-retention-bytes": "8"})
    for n in range(10, 20):
        api.post(path, [n])
    full = api.get(path)
    assert set(range(16, 20)) <= set(full.json())
    assert api.get(path, last=4).json() == [16, 17, 18, 19]
    aged = api.stream(headers={"stream-retention-age": "1h"})
    api.post(aged, [1], {"stream-timestamp": "2020-01-01T00:00:00Z"})
    api.post(aged, [2, 3])
    answer = api.get(aged, last=3)
    assert answer.json() == [2, 3]
    assert api.get(aged, before=answer.headers["stream-start-offset"], last=3).json() == []


def test_they_come_in_the_schema_version_that_is_asked_for(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1}, {"a": 2})
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    append(api, path, {"b": 3})
    assert api.get(path, last=2).json() == [{"b": 2}, {"b": 3}]
    assert api.get(path, last=2, schema_version=1).json() == [{"a": 2}, {"a": 3}]


# -- backward


def test_a_client_reads_backward_page_by_page(api: Api) -> None:
    path = api.stream(*range(10))
    answer = api.get(path, last=4)
    pages = [answer.json()]
    while answer.json():
        begin = answer.headers["stream-start-offset"]
        if begin == START:
            break
        answer = api.get(path, last=4, before=begin)
        assert answer.headers["stream-next-offset"] == begin
        assert answer.headers["stream-end-offset"] == api.offset(path)
        assert "stream-up-to-date" not in answer.headers
        pages.append(answer.json())
    assert pages == [[6, 7, 8, 9], [2, 3, 4, 5], [0, 1]]


def test_a_read_ends_before_an_offset(api: Api) -> None:
    path = api.stream()
    offsets = [api.post(path, [n]).headers["stream-next-offset"] for n in range(6)]
    assert api.get(path, offset=offsets[1], before=offsets[3]).json() == [2, 3]
    assert api.get(path, before=offsets[0]).json() == [0]
    assert api.get(path, offset=offsets[2], before=offsets[2]).json() == []
    assert api.get(path, since="2020-01-01T00:00:00Z", before=offsets[1]).json() == [0, 1]
    whole = api.get(path, before=offsets[5])
    assert whole.json() == list(range(6))
    assert whole.headers["stream-up-to-date"] == "true"


# -- what is refused


@pytest.mark.parametrize(
    "count", ["0", "-1", "+1", "1.0", "01", "", " 1", "x", "all", "9" * 30, "１", str(MAX_LAST + 1)]
)
@pytest.mark.parametrize("live", ["false", "long-poll", "sse"])
def test_a_number_that_is_none_is_refused(api: Api, code_of: Code, count: str, live: str) -> None:
    refused = api.get(api.stream(1), last=count, live=live)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == "last"
    assert str(MAX_LAST) in refused.json()["error"]["message"]


def test_the_greatest_number_is_taken(api: Api) -> None:
    assert api.get(api.stream(1), last=MAX_LAST).json() == [1]


@pytest.mark.parametrize(
    "other",
    [{"offset": "-1"}, {"offset": "now"}, {"since": "2020-01-01T00:00:00Z"}, {"key": "k"}],
    ids=lambda other: next(iter(other)),
)
def test_what_says_where_to_begin_is_refused_beside_it(api: Api, code_of: Code, other: dict[str, str]) -> None:
    refused = api.get(api.stream(1), last=2, **other)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == "last"
    assert next(iter(other)) in refused.json()["error"]["message"]


def test_a_key_in_the_path_and_a_filter_are_refused_beside_it(api: Api, code_of: Code) -> None:
    fields = {
        "at": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/at"}]},
        "a": {"kind": "integer", "exact": True, "bindings": [{"version": 1, "jsonPointer": "/a"}]},
    }
    search = {"primaryTimestampField": "at", "fields": fields}
    path = installed(api, shape(a=WHOLE, at=WHOLE), search=search)
    for refused in (api.get(f"{path}/pk/k", last=1), api.get(path, last=1, filter="a:1")):
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"
        assert refused.json()["error"]["field"] == "last"


@pytest.mark.parametrize("before", ["-1", START, "now", "", "x"])
def test_an_offset_that_nothing_lies_before_is_refused(api: Api, code_of: Code, before: str) -> None:
    for query in ({}, {"last": 2}):
        refused = api.get(api.stream(1), before=before, **query)
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"
        assert refused.json()["error"]["field"] == "before"


def test_an_end_before_the_beginning_or_of_a_live_read_is_refused(api: Api) -> None:
    path = api.stream()
    first, second = (api.post(path, [n]).headers["stream-next-offset"] for n in range(2))
    for query in ({"offset": second}, {"offset": "-1", "live": "sse"}, {"last": 1, "live": "long-poll"}):
        refused = api.get(path, before=first, **query)
        assert refused.status_code == 400
        assert refused.json()["error"]["field"] == "before"
    other = api.offset(api.stream(1))
    api.delete(path)
    api.put(path, [1], {"content-type": "application/json"})
    assert api.get(path, before=second).status_code == 410
    assert other


# -- caching


def test_the_newest_entries_are_asked_for_again_after_each_append(api: Api) -> None:
    path = api.stream(1, 2, 3)
    answer = api.get(path, last=2)
    assert answer.headers["cache-control"] == "no-cache"
    tag = answer.headers["etag"]
    assert api.get(path, {"if-none-match": tag}, last=2).status_code == 304
    assert api.get(path, last=3).headers["etag"] != tag
    api.post(path, [4])
    changed = api.get(path, {"if-none-match": tag}, last=2)
    assert changed.status_code == 200 and changed.json() == [3, 4]
    api.post(path, headers={"stream-closed": "true"})
    closed = api.get(path, {"if-none-match": changed.headers["etag"]}, last=2)
    assert closed.status_code == 200
    assert closed.headers["cache-control"] == "no-cache"


def test_what_lies_before_an_offset_never_changes(api: Api) -> None:
    path = api.stream()
    offsets = [api.post(path, [n]).headers["stream-next-offset"] for n in range(4)]
    for query in ({"last": 1, "before": offsets[1]}, {"offset": offsets[0], "before": offsets[1]}):
        answer = api.get(path, **query)
        assert answer.json() == [1]
        assert answer.headers["cache-control"] == FOREVER
    for query in ({"last": 1, "before": offsets[3]}, {"before": offsets[1]}):
        assert api.get(path, **query).headers["cache-control"] == "no-cache"


# -- followed


def test_a_long_poll_answers_with_the_newest_entries_and_waits_where_there_are_none(
    api: Api, server: ServerProcess, connect: Connect, eventually: Eventually
) -> None:
    path = api.stream(1, 2, 3)
    answer = api.get(path, last=2, live="long-poll")
    assert answer.json() == [2, 3]
    assert answer.headers["cache-control"] == "no-store"
    assert api.get(path, offset=answer.headers["stream-start-offset"]).json() == [2, 3]
    empty = api.stream()
    waiting = connect(server).request("GET", f"{empty}?last=2&live=long-poll&timeout=8s")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    api.post(empty, [1])
    assert waiting.answer().body == b"[1]"


def test_events_begin_with_the_newest_entries_and_go_on(api: Api, server: ServerProcess, connect: Connect) -> None:
    path = api.stream(1, 2, 3)
    wire = connect(server).request("GET", f"{path}?last=2&live=sse")
    status, headers = wire.head()
    assert status == 200
    assert api.get(path, offset=headers["stream-start-offset"]).json() == [2, 3]
    assert _data(wire) == [2, 3]
    api.post(path, [4])
    assert _data(wire) == [4]


def _data(wire: Wire) -> Any:
    event = wire.event()
    while event is not None and event.kind != "data":
        event = wire.event()
    assert event is not None
    return json.loads(event.data)
