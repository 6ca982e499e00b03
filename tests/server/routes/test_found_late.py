"""Entries that a thread has to find first: whoever asked for them may be answered, or gone, by then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config import ServerConfig
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate
from headrace.errors import CorruptData, ObjectMissing, Overloaded
from headrace.server.http.auth import Authenticator
from headrace.server.http.compression import ReplyCompressor
from headrace.server.http.dispatch import Dispatcher
from headrace.server.http.exchange import Headers, Reply
from headrace.server.http.request import RequestHead
from headrace.server.routes.reads import ReadRoute
from headrace.server.routes.stream_reader import StreamReader
from headrace.storage.keys import KeyStore
from headrace.types import JSON
from server.callers import Caller
from support.engine_rig import Rig, array


class Line(Caller):
    """A connection whose requests come one after the other: what is written goes into the response of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[object] = []

    def reply(self, reply: Reply) -> None:
        self.sent.append(reply.status)
        super().reply(reply)

    def open(self, headers: Headers) -> None:
        self.sent.append("open")

    def write(self, chunk: bytes) -> None:
        self.sent.append(chunk)

    def finish(self) -> None:
        self.sent.append("end")


class Slow:
    """Reads for which a thread has to look, as often as asked for, until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks, self.go_on, self.looked = 0, threading.Event(), asyncio.Event()
        self.failure: Exception | None = None
        find = StreamReader.find

        def found(*asked: Any) -> Any:
            if not self.looks:
                return find(*asked)
            self.looks -= 1
            raise NeedsFetch(self._work)

        monkeypatch.setattr(StreamReader, "find", found)

    def _work(self) -> None:
        assert self.go_on.wait(30)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        rig.create("a", JSON, array("one"))
        rig.create("b", JSON)
        yield rig


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


Scenario = Callable[[ReadRoute], Awaitable[None]]


def run(rig: Rig, scenario: Scenario) -> None:
    async def running() -> None:
        gate = Gate(2)
        reads = ReadRoute(rig.engine, ReplyCompressor(gate), gate)
        await scenario(reads)
        await asyncio.gather(*reads.reader._background._working)

    rig.run(running())


@pytest.mark.parametrize("failure", [None, CorruptData("it is damaged"), ValueError("it is odd")])
def test_a_response_that_has_ended_leaves_the_next_one_of_its_connection_alone(
    rig: Rig, slow: Slow, failure: Exception | None
) -> None:
    async def scenario(reads: ReadRoute) -> None:
        line, slow.failure = Line(), failure
        line.ask(reads, rig.find("a"), live="sse", offset="now")
        slow.looks = 1
        rig.engine.tail.wake(rig.find("a"))
        await _appended(rig, "a")
        rig.engine.tail.end()
        assert line.sent[-1] == "end"
        line.ask(reads, rig.find("b"), live="sse", offset="now")
        sent = list(line.sent)
        slow.go_on.set()
        await asyncio.gather(*reads.reader._background._working)
        assert line.sent == sent
        rig.engine.tail.end()

    run(rig, scenario)


@pytest.mark.parametrize("failure", [CorruptData("it is damaged"), ValueError("it is odd")])
def test_a_response_whose_entries_cannot_be_found_ends(rig: Rig, slow: Slow, failure: Exception) -> None:
    async def scenario(reads: ReadRoute) -> None:
        line, slow.failure = Line(), failure
        line.ask(reads, rig.find("a"), live="sse", offset="now")
        slow.looks = 1
        await _appended(rig, "a")
        slow.go_on.set()
        await asyncio.gather(*reads.reader._background._working)
        assert line.sent[-1] == "end" and line.sent.count("end") == 1
        assert rig.engine.tail.watchers == 0

    run(rig, scenario)


def test_a_response_goes_on_once_its_entries_are_found_by_one_thread(rig: Rig, slow: Slow) -> None:
    async def scenario(reads: ReadRoute) -> None:
        line = Line()
        line.ask(reads, rig.find("a"), live="sse", offset="now")
        slow.looks = 2
        for _ in range(2):
            await _appended(rig, "a")
        assert slow.looks == 1 and len(reads.reader._background._working) == 1
        slow.looks = 0
        slow.go_on.set()
        await asyncio.gather(*reads.reader._background._working)
        assert b'data:["more","more"]' in line.sent[-1]
        rig.engine.tail.end()

    run(rig, scenario)


@pytest.mark.parametrize("failure", [CorruptData("it is damaged"), ValueError("it is odd")])
def test_a_poll_whose_entries_cannot_be_found_is_answered_once(rig: Rig, slow: Slow, failure: Exception) -> None:
    async def scenario(reads: ReadRoute) -> None:
        line, slow.looks, slow.failure = Line(), 1, failure
        line.ask(reads, rig.find("a"), live="long-poll", offset="-1")
        slow.go_on.set()
        assert (await asyncio.wait_for(line.answered, 10)).status == 500
        assert rig.engine.tail.watchers == 0
        assert line.on_gone is None
        rig.engine.tail.end()
        assert line.sent == [500]

    run(rig, scenario)


def test_a_response_that_ended_as_it_began_waits_for_nothing(
    rig: Rig, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(reads: ReadRoute) -> None:
        await _appended(rig, "a", close=True)
        line, waits = Line(), list[object]()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *wait: waits.append(wait))
        line.ask(reads, rig.find("a"), live="sse", offset="now")
        assert line.sent[-1] == "end" and line.sent.count("end") == 1
        assert waits == []
        assert rig.engine.tail.watchers == 0

    run(rig, scenario)


@pytest.mark.parametrize("close", [False, True])
def test_a_poll_whose_time_runs_out_when_it_has_to_look_once_more_is_answered(
    rig: Rig, slow: Slow, close: bool
) -> None:
    async def scenario(reads: ReadRoute) -> None:
        stream = rig.find("a")
        poll = Line().ask(reads, stream, live="long-poll", offset="now", key="nobody", timeout="60s")
        woken = stream.watchers
        stream.watchers = None  # the wake-up is still on its way
        await _appended(rig, "a")
        stream.watchers = woken
        slow.looks = 1
        rig.engine.tail.end()
        assert not poll.answered.done()
        await _appended(rig, "a", key="nobody", close=close)
        slow.go_on.set()
        reply = await asyncio.wait_for(poll.answered, 10)
        assert reply.status == 204
        assert reply.headers["stream-next-offset"] == stream.offset_at(2)
        assert not {"stream-closed", "stream-up-to-date"} & reply.headers.keys()

    run(rig, scenario)


def test_a_poll_that_looks_once_more_finds_what_was_published_and_closed_meanwhile(rig: Rig, slow: Slow) -> None:
    async def scenario(reads: ReadRoute) -> None:
        stream = rig.find("a")
        slow.looks = 1
        poll = Line().ask(reads, stream, live="long-poll", offset="-1", timeout="60s")
        await _appended(rig, "a")
        rig.engine.tail.end()
        await _appended(rig, "a", close=True)
        await rig.engine.sealer.publish(stream.id)
        slow.go_on.set()
        reply = await asyncio.wait_for(poll.answered, 10)
        assert reply.body == b'["one","more"]'
        assert reply.headers["stream-next-offset"] == stream.offset_at(2)
        assert not {"stream-closed", "stream-up-to-date"} & reply.headers.keys()

    run(rig, scenario)


@pytest.mark.parametrize("live", ["", "long-poll"])
def test_objects_of_a_stream_that_is_deleted_meanwhile_are_not_missed(rig: Rig, slow: Slow, live: str) -> None:
    async def scenario(reads: ReadRoute) -> None:
        stream, slow.looks, slow.failure = rig.find("a"), 1, ObjectMissing("it is gone")
        line, path = Line(), f"/v1/stream/a?offset=-1&live={live}".encode()
        authenticator = Authenticator(ServerConfig(), KeyStore(Path(rig.config.storage.data_dir) / "keys.db"))
        dispatcher = Dispatcher(authenticator, rig.engine, {("GET", ""): reads.get}, Gate(1))
        dispatcher.handle(RequestHead("GET", path, [], {b"host": b"localhost"}), b"", line)
        deleting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        rig.engine.log.delete(stream, deleting.set_result)
        await deleting
        slow.go_on.set()
        assert (await asyncio.wait_for(line.answered, 10)).status == 404

    run(rig, scenario)


@pytest.mark.parametrize("failure", [None, CorruptData("it is damaged"), ValueError("it is odd")])
def test_a_poll_that_was_refused_is_not_answered_again(
    rig: Rig, slow: Slow, monkeypatch: pytest.MonkeyPatch, failure: Exception | None
) -> None:
    async def scenario(reads: ReadRoute) -> None:
        line, slow.looks, slow.failure = Line(), 1, failure
        monkeypatch.setattr(rig.engine.tail, "_limit", 0)
        with pytest.raises(Overloaded):
            line.ask(reads, rig.find("a"), live="long-poll", offset="-1")
        slow.go_on.set()
        await asyncio.gather(*reads.reader._background._working)
        assert line.sent == []

    run(rig, scenario)


async def _appended(rig: Rig, name: str, **facts: Any) -> None:
    settled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    rig.submit(name, array("more"), settled.set_result, **facts)
    assert (await settled).error is None
