from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace import testing
from headrace.server.routes import live_reads
from headrace.server.routes.live_reads import cursor

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Event, Wire

MiB = 1024 * 1024
JSON = {"content-type": "application/json"}
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]


def poll(wire: Wire, path: str, query: str = "offset=now", *lines: str) -> Wire:
    return wire.request("GET", f"{path}?live=long-poll&{query}", b"", *lines)


def subscribe(wire: Wire, path: str, query: str = "offset=-1") -> dict[str, str]:
    status, headers = wire.request("GET", f"{path}?live=sse&{query}").head()
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert "content-length" not in headers
    return headers


def expect(wire: Wire, kind: str) -> Event:
    event = wire.event()
    assert event is not None and event.kind == kind
    return event


# -- long-polls


@pytest.mark.parametrize("mode", ["long-poll", "true", "1"])
def test_what_is_there_is_answered_at_once(api: Api, mode: str) -> None:
    path = api.stream(1, 2)
    found = api.get(path, live=mode, offset="-1")
    assert found.status_code == 200
    assert found.json() == [1, 2]
    assert found.headers["stream-cursor"].isdigit()
    assert found.headers["stream-next-offset"] == api.offset(path)


def test_a_live_read_needs_a_place(api: Api, code_of: Callable[[Any], str]) -> None:
    path = api.stream(1)
    for mode in ("long-poll", "sse", "true"):
        refused = api.get(path, live=mode)
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"
    assert api.get(path, live="long-poll", since="2020-01-01T00:00:00Z").json() == [1]


def test_an_append_wakes_who_waits(server: ServerProcess, api: Api, connect: Connect, eventually: Eventually) -> None:
    path = api.stream(1)
    waiting = [poll(connect(server), path, "offset=now&timeout=8s") for _ in range(5)]
    eventually(lambda: api.metric("headrace_watchers") == 5)
    tail = api.post(path, [2]).headers["stream-next-offset"]
    for wire in waiting:
        answer = wire.answer()
        assert answer.status == 200
        assert answer.body == b"[2]"
        assert answer.headers["stream-next-offset"] == tail
    assert api.metric("headrace_watchers") == 0


def test_a_wait_without_news_ends_empty_at_the_tail(api: Api) -> None:
    path = api.stream(1)
    waited = api.get(path, live="long-poll", offset="now", timeout="50ms")
    assert waited.status_code == 204
    assert waited.content == b""
    assert waited.headers["stream-next-offset"] == waited.headers["stream-end-offset"] == api.offset(path)
    assert waited.headers["stream-up-to-date"] == "true"
    assert waited.headers["stream-cursor"].isdigit()
    assert "content-type" not in waited.headers


def test_closing_ends_the_wait(server: ServerProcess, api: Api, connect: Connect, eventually: Eventually) -> None:
    path = api.stream(1)
    waiting = poll(connect(server), path)
    eventually(lambda: api.metric("headrace_watchers") == 1)
    api.post(path, headers={"stream-closed": "true"})
    answer = waiting.answer()
    assert answer.status == 204
    assert answer.headers["stream-closed"] == "true"
    again = poll(connect(server), path).answer()
    assert again.status == 204
    assert again.headers["stream-closed"] == "true"


def test_the_last_entries_come_before_the_end(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path = api.stream(1)
    waiting = poll(connect(server), path)
    eventually(lambda: api.metric("headrace_watchers") == 1)
    api.post(path, [2], {"stream-closed": "true"})
    answer = waiting.answer()
    assert answer.status == 200
    assert answer.body == b"[2]"
    assert answer.headers["stream-closed"] == "true"


def test_deletion_ends_the_wait(server: ServerProcess, api: Api, connect: Connect, eventually: Eventually) -> None:
    path = api.stream(1)
    waiting, streaming = poll(connect(server), path), connect(server)
    subscribe(streaming, path, "offset=now")
    expect(streaming, "control")
    eventually(lambda: api.metric("headrace_watchers") == 2)
    api.delete(path)
    answer = waiting.answer()
    assert answer.status == 404
    assert answer.code() == "not_found"
    assert streaming.event() is None
    assert api.metric("headrace_watchers") == 0
    assert api.put(path, [2]).status_code == 201
    fresh = poll(connect(server), path)
    eventually(lambda: api.metric("headrace_watchers") == 1)
    api.post(path, [3])
    assert fresh.answer().body == b"[3]"


def test_a_wait_for_a_key_outlasts_the_others(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path = api.stream()
    waiting = poll(connect(server), path, "offset=-1&key=mine&timeout=8s")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    for number in range(3):
        api.post(path, [number], {"stream-key": "other"})
    api.post(path, ["found"], {"stream-key": "mine"})
    assert waiting.answer().body == b'["found"]'


def test_a_wait_that_finds_no_key_moves_past_the_others(api: Api) -> None:
    path = api.stream(1, 2)
    waited = api.get(path, live="long-poll", offset="-1", key="nobody", timeout="1ms")
    assert waited.status_code == 204
    assert waited.headers["stream-next-offset"] == api.offset(path)


def test_followers_with_short_waits_miss_nothing(server: ServerProcess, api: Api, connect: Connect) -> None:
    """A wait may run out in the very moment of a commit."""
    path, last, tail = api.stream(), 1000, []
    writer = connect(server)

    def write() -> None:
        for number in range(last):
            answer = writer.append(path, b"%d" % number).answer()
        tail.append(answer.headers["stream-next-offset"])

    def follow(wire: Wire, wait_ms: int, seen: list[int]) -> None:
        offset = "-1"
        while not tail or offset < tail[0]:
            answer = poll(wire, path, f"offset={offset}&timeout={wait_ms}").answer()
            offset = answer.headers["stream-next-offset"]
            seen += json.loads(answer.body or b"[]")

    found: list[list[int]] = [[] for _ in range(6)]
    jobs = [(connect(server), index % 3, seen) for index, seen in enumerate(found)]
    threads = [threading.Thread(target=follow, args=job) for job in jobs]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert [len(seen) for seen in found] == [last] * 6
    assert all(seen == list(range(last)) for seen in found)


def test_a_thousand_idle_waits_cost_little_and_all_wake(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually, rss: Callable[[Any], int]
) -> None:
    path, idle = api.stream(), 1000
    before = rss(server)
    waiting = [poll(connect(server), path, "offset=now&timeout=30s") for _ in range(idle)]
    eventually(lambda: api.metric("headrace_watchers") == idle)
    assert rss(server) - before < idle * 40_000
    started = time.monotonic()
    api.post(path, ["news"])
    assert all(wire.answer().body == b'["news"]' for wire in waiting)
    assert time.monotonic() - started < 5
    assert api.metric("headrace_watchers") == 0
    for wire in waiting:
        poll(wire, path, "offset=now&timeout=30s")
    eventually(lambda: api.metric("headrace_watchers") == idle)
    for wire in waiting:
        wire.close()
    eventually(lambda: api.metric("headrace_watchers") == 0)


def test_the_cursor_grows_with_time_and_always_past_the_callers() -> None:
    origin = 1_728_432_000
    assert cursor(None, origin) == "0"
    assert cursor("", origin + 59) == cursor("x", origin + 59) == cursor("1", origin + 59) == "2"
    for given in (2, 3, 10**18):
        assert given < int(cursor(str(given), origin + 59)) <= given + 180
    assert cursor("9" * 5000, origin + 59) == "2"
    assert cursor("٣", origin + 20) == "1"


def test_the_cursor_of_the_request_is_passed(api: Api) -> None:
    path = api.stream(1)
    ahead = str(10**12)
    assert int(api.get(path, live="true", offset="-1", cursor=ahead).headers["stream-cursor"]) > 10**12


# -- server-sent events


def test_a_control_event_follows_every_data_event(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(1, {"a": 2}), connect(server)
    subscribe(wire, path)
    assert expect(wire, "data").json == [1, {"a": 2}]
    control = expect(wire, "control").json
    assert control["streamNextOffset"] == api.offset(path)
    assert control["upToDate"] is True
    assert control["streamCursor"].isdigit() is True
    for number in range(3):
        api.post(path, [number])
        assert expect(wire, "data").json == [number]
        assert expect(wire, "control").json["streamNextOffset"] == api.offset(path)


def test_a_subscription_from_now_begins_with_where_now_is(server: ServerProcess, api: Api, connect: Connect) -> None:
    for path in (api.stream(1), api.stream()):
        wire = connect(server)
        subscribe(wire, path, "offset=now")
        control = expect(wire, "control").json
        assert control["streamNextOffset"] == api.offset(path)
        assert control["upToDate"] is True


@pytest.mark.parametrize(
    "text",
    ["plain", " leading", "  two", "a\nb", "a\r\nb", "a\rb", "\n", "a\n\nb", " a\n b", "event: control\ndata:{}\n\n",
     "data: x", ":comment", "\ufeffbom", "tail\n", "é\u2028x", "id: 1\nretry: 5"],
)  # fmt: skip
def test_text_survives_the_framing(server: ServerProcess, api: Api, connect: Connect, text: str) -> None:
    path, wire = api.octets(text.encode(), kind="text/plain"), connect(server)
    subscribe(wire, path)
    assert expect(wire, "data").data == text.replace("\r\n", "\n").replace("\r", "\n")
    assert expect(wire, "control").json["upToDate"] is True
    api.post(path, b"next", {"content-type": "text/plain"})
    assert expect(wire, "data").data == "next"


def test_bytes_travel_as_base64(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.octets(bytes(range(256)), b"\r\n\r\n"), connect(server)
    assert subscribe(wire, path)["stream-sse-data-encoding"] == "base64"
    assert base64.b64decode(expect(wire, "data").data, validate=True) == bytes(range(256)) + b"\r\n\r\n"
    assert expect(wire, "control").json["upToDate"] is True


@pytest.mark.parametrize("kind", ["text/plain", "TEXT/csv; charset=utf-8", "application/json"])
def test_text_and_json_travel_as_they_are(server: ServerProcess, api: Api, connect: Connect, kind: str) -> None:
    path, wire = api.octets(b'"x"', kind=kind), connect(server)
    assert "stream-sse-data-encoding" not in subscribe(wire, path)
    assert expect(wire, "data").data == ('["x"]' if "json" in kind else '"x"')


def test_text_that_is_not_utf_8_travels_as_base64(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.octets(b"caf\xe9", kind="text/plain"), connect(server)
    assert subscribe(wire, path)["stream-sse-data-encoding"] == "base64"
    assert base64.b64decode(expect(wire, "data").data, validate=True) == b"caf\xe9"
    assert expect(wire, "control").json["upToDate"] is True
    api.post(path, b"next", {"content-type": "text/plain"})
    assert base64.b64decode(expect(wire, "data").data, validate=True) == b"next"


def test_a_response_in_text_ends_before_bytes_that_are_none(server: ServerProcess, api: Api, connect: Connect) -> None:
    """It said that it is text; the next response, from the same place, says that it is base64."""
    path, wire = api.octets(b"caf", kind="text/plain"), connect(server)
    assert "stream-sse-data-encoding" not in subscribe(wire, path)
    assert expect(wire, "data").data == "caf"
    offset = expect(wire, "control").json["streamNextOffset"]
    api.post(path, b"\xc3", {"content-type": "text/plain"})
    assert wire.event() is None
    assert subscribe(wire, path, f"offset={offset}")["stream-sse-data-encoding"] == "base64"
    assert base64.b64decode(expect(wire, "data").data, validate=True) == b"\xc3"
    assert "stream-sse-data-encoding" not in subscribe(connect(server), path, f"offset={api.offset(path)}")


def test_the_end_of_a_closed_stream_ends_the_response(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(1), connect(server)
    subscribe(wire, path)
    expect(wire, "data")
    expect(wire, "control")
    api.post(path, [2], {"stream-closed": "true"})
    assert expect(wire, "data").json == [2]
    control = expect(wire, "control").json
    assert control == {"streamNextOffset": api.offset(path), "streamClosed": True, "upToDate": True}
    assert wire.event() is None
    assert wire.request("HEAD", path).answer("HEAD").status == 200  # the connection lives on


def test_one_key_may_be_followed(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(), connect(server)
    subscribe(wire, path, "offset=-1&key=mine")
    expect(wire, "control")
    api.post(path, [1], {"stream-key": "other"})
    api.post(path, [2], {"stream-key": "mine"})
    while (event := wire.event()) is not None and event.kind == "control":
        pass
    assert event is not None and event.json == [2]


def test_a_subscriber_of_http_1_0_is_served_without_chunks(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.stream(1), connect(server)
    api.post(path, headers={"stream-closed": "true"})
    answer = wire.request("GET", f"{path}?live=sse&offset=-1", version="1.0").answer()
    assert "transfer-encoding" not in answer.headers
    assert b"data:[1]\n" in answer.body and answer.body.endswith(b"\n\n")


def test_a_response_ends_after_its_lifetime_and_can_be_resumed(
    start_server: StartServer, api_of: Any, connect: Connect
) -> None:
    server = start_server(server__sse_lifetime_s="0.4")
    api, wire = api_of(server), connect(server)
    path = api.stream(1)
    started = time.monotonic()
    subscribe(wire, path)
    expect(wire, "data")
    resume = expect(wire, "control").json["streamNextOffset"]
    while (event := wire.event()) is not None:
        assert event.kind == "control"
    assert 0.3 < time.monotonic() - started < 3
    api.post(path, [2])
    subscribe(wire, path, f"offset={resume}")
    assert expect(wire, "data").json == [2]


def test_an_idle_subscriber_hears_a_control_event_now_and_then(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 5 < live_reads._KEEP_ALIVE_S < 20, "what proxies and clients wait for"
    monkeypatch.setattr(live_reads, "_KEEP_ALIVE_S", 0.3)
    with testing.app() as app:
        app.client.stream("s").create(body=[1])
        wire = connect(app.client.settings)
        subscribe(wire, "/v1/stream/s", "offset=now")
        first = expect(wire, "control").json
        started = time.monotonic()
        second = expect(wire, "control").json
        assert time.monotonic() - started > 0.2
        assert second["streamNextOffset"] == first["streamNextOffset"]
        assert second["upToDate"] is True


def test_a_subscriber_behind_another_request_is_served_too(server: ServerProcess, api: Api, connect: Connect) -> None:
    """A request that arrives while another is answered takes the longer way in."""
    path, wire = api.stream(1), connect(server)
    wire.append(path, b"2").request("GET", f"{path}?live=sse&offset=-1")
    assert wire.answer().status == 204
    assert wire.head()[0] == 200
    assert expect(wire, "data").json == [1, 2]
    expect(wire, "control")
    api.post(path, [3], {"stream-closed": "true"})
    assert expect(wire, "data").json == [3]
    assert expect(wire, "control").json["streamClosed"] is True
    assert wire.event() is None


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_subscriber_that_does_not_read_costs_no_memory_and_loses_nothing(
    start_server: StartServer, api_of: Any, connect: Connect, rss: Callable[[Any], int], pipelined: bool
) -> None:
    # Sealing would load what reads and writes segments, which is another matter.
    server = start_server(storage__cache_bytes="1000000", storage__seal_bytes="1000000000")
    api = api_of(server)
    path = api.octets(kind="text/plain")
    wire = connect(server, receive_buffer=64 * 1024)
    if pipelined:
        wire.request("POST", path, b"first", "Content-Type: text/plain")
    wire.request("GET", f"{path}?live=sse&offset=now")
    if pipelined:
        assert wire.answer().status == 204
    assert wire.head()[0] == 200
    expect(wire, "control")
    entries = [bytes([97 + number]) * (4 * MiB) for number in range(20)]
    for entry in entries[:2]:
        api.post(path, entry, {"content-type": "text/plain"})
    before = rss(server)
    for entry in entries[2:]:
        api.post(path, entry, {"content-type": "text/plain"})
    assert rss(server) - before < 40 * MiB
    for entry in entries:
        data = b""
        while len(data) < len(entry):
            data += expect(wire, "data").data.encode()
            expect(wire, "control")
        assert data == entry


def test_what_was_sent_to_subscribers_is_not_kept(
    start_server: StartServer, api_of: Any, connect: Connect, rss: Callable[[Any], int]
) -> None:
    server = start_server(storage__cache_bytes="1000000", storage__seal_bytes="1000000000")
    api, wire = api_of(server), connect(server)
    path = api.octets(kind="text/plain")
    subscribe(wire, path)
    expect(wire, "control")
    grown = []
    for number in range(24):
        api.post(path, b"x" * (6 * MiB), {"content-type": "text/plain"})
        assert len(expect(wire, "data").data) == 6 * MiB
        expect(wire, "control")
        grown.append(rss(server))
        if number == 3:
            settled = grown[-1]
    assert grown[-1] - settled < 48 * MiB
