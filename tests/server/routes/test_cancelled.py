"""Questions that nobody waits for any more: their work ends at its next step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request as AsgiRequest
from starlette.types import Message

from engine.registries import change
from engine.registry.test_profiles import install
from headrace.config import ServerConfig
from headrace.engine.history import stored_events
from headrace.engine.history.stored_events import Events
from headrace.engine.runtime.gates import Gate
from headrace.server.http.auth import LOCAL, Authenticator
from headrace.server.http.compression import ReplyCompressor
from headrace.server.http.dispatch import Dispatcher
from headrace.server.http.request import Request, RequestHead
from headrace.server.http.route import routes_of
from headrace.server.routes.observe import Observer
from headrace.server.routes.reads import ReadRoute
from headrace.server.routes.routing_keys import RoutingKeysRoute
from headrace.server.routes.search import AggregateRoute, SearchRoutes
from headrace.storage.keys import KeyStore
from headrace.storage.wal import WalKeys
from headrace.types import JSON
from server.callers import Caller
from server.routes.test_aggregate import SEARCH
from support.engine_rig import Rig, array

if TYPE_CHECKING:
    from tests.conftest import StartServer

AGGREGATE = b'{"rollup": "requests", "from": 0, "to": 10000, "interval": "1m"}'


class Held:
    """Extraction that waits before its first chunk until it may go on, and counts what it extracts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.chunks = threading.Event(), threading.Event(), 0
        monkeypatch.setattr(stored_events, "CHUNK_ROWS", 5)
        batches = Events.batches

        def held(*asked: Any) -> Any:
            self.chunks += 1
            self.begun.set()
            assert self.go_on.wait(30)
            return batches(*asked)

        monkeypatch.setattr(Events, "batches", held)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, server={"resolver_timeout_s": 60}) as rig:
        rig.create("s", JSON)
        change(rig, "s", schema={"type": "object"}, search=SEARCH)
        rig.append("s", array(*({"time": at, "status": at, "service": "a"} for at in range(100))))
        yield rig


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def aggregate(rig: Rig, gate: Gate, caller: Caller) -> None:
    caller.send(AggregateRoute(rig.engine, gate).post, rig.find("s"), RequestHead("POST", b"", [], {}), AGGREGATE)


def search(rig: Rig, gate: Gate, caller: Caller) -> None:
    caller.send(SearchRoutes(rig.engine, gate).get, rig.find("s"), RequestHead("GET", b"", [], {}), b"", q="status:7")


def keys(rig: Rig, gate: Gate, caller: Caller) -> None:
    caller.send(RoutingKeysRoute(rig.engine, gate).get, rig.find("keyed"), RequestHead("GET", b"", [], {}), b"")


def read(rig: Rig, gate: Gate, caller: Caller) -> None:
    reads = ReadRoute(rig.engine, ReplyCompressor(gate), gate)
    authenticator = Authenticator(ServerConfig(), KeyStore(Path(rig.config.storage.data_dir) / "keys.db"))
    verbs: dict[tuple[str, str], Callable[[Request], None]] = {("GET", ""): reads.get}
    target = b"/v1/stream/s"
    head = RequestHead("GET", target + b"?filter=status:7&offset=-1", [], {b"host": b"127.0.0.1:1"})
    Dispatcher(authenticator, rig.engine, verbs, gate).handle(head, b"", caller)


Ask = Callable[[Rig, Gate, Caller], None]


@pytest.mark.parametrize("ask", [aggregate, search, read])
def test_work_ends_when_the_client_hangs_up(rig: Rig, held: Held, ask: Ask) -> None:
    async def scenario() -> None:
        gate, caller = Gate(1), Caller(LOCAL)
        ask(rig, gate, caller)
        await asyncio.to_thread(held.begun.wait, 30)
        assert caller.on_gone is not None and caller.gone_at_eof
        caller.on_gone()
        await asyncio.sleep(0)
        assert gate.active == 1, "the gate counts work that still goes on"
        held.go_on.set()
        async with asyncio.timeout(30), gate:  # whoever comes next is let in once it has ended
            assert held.chunks == 1
        assert not caller.answered.done()

    rig.run(scenario())


class Observing:
    """Someone who asks what happened in a request by ASGI, and hangs up when told to."""

    def __init__(self, rig: Rig, gate: Gate) -> None:
        self.gone = asyncio.Event()
        self._body: bytes | None = (
            b'{"streams": {"events": "logs"}, "lookup": {"requestId": "r"}, "include": {"trace": false}}'
        )
        scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
        request = AsgiRequest(scope, self._receive)
        request.state.principal = LOCAL
        (request.state.route,) = routes_of(Observer)
        self.answer = asyncio.create_task(Observer(rig.engine, gate).request(request))

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.fixture
def logs(rig: Rig) -> None:
    rig.create("logs", JSON)
    install(rig, "logs", kind="evlog")
    rig.append("logs", array(*({"requestId": "r", "message": f"{at}"} for at in range(100))))


def test_the_lookup_of_a_request_ends_when_the_client_hangs_up(rig: Rig, logs: None, held: Held) -> None:
    async def scenario() -> None:
        gate = Gate(1)
        observing = Observing(rig, gate)
        await asyncio.to_thread(held.begun.wait, 30)
        observing.gone.set()
        await asyncio.sleep(0)
        assert gate.active == 1, "the gate counts work that still goes on"
        held.go_on.set()
        async with asyncio.timeout(30):
            assert (await observing.answer).status_code == 499
        assert held.chunks == 1
        assert gate.active == 0

    rig.run(scenario())


def test_the_lookup_of_a_request_leaves_the_queue_when_the_client_hangs_up(rig: Rig, logs: None, held: Held) -> None:
    async def scenario() -> None:
        gate = Gate(1)
        async with gate:
            observing = Observing(rig, gate)
            while not gate.queued:
                await asyncio.sleep(0)
            observing.gone.set()
            async with asyncio.timeout(30):
                assert (await observing.answer).status_code == 499
            assert not gate.queued
        assert held.chunks == 0
        assert gate.active == 0

    rig.run(scenario())


class HeldRows:
    """Rows of the log whose keys are read only when they may be, and counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.chunks = threading.Event(), threading.Event(), 0
        mixed = WalKeys.mixed

        def held(*asked: Any) -> Any:
            for row in mixed(*asked):
                self.chunks += 1
                self.begun.set()
                assert self.go_on.wait(30)
                yield row

        monkeypatch.setattr(WalKeys, "mixed", held)


def test_a_listing_of_routing_keys_ends_when_the_client_hangs_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldRows(monkeypatch)
    rig.create("keyed", JSON)
    change(rig, "keyed", routingKey={"jsonPointer": "/user", "required": False})
    for first in range(5):
        rig.append("keyed", array(*({"user": f"{first + at}"} for at in range(2))))

    async def scenario() -> None:
        gate, caller = Gate(1), Caller(LOCAL)
        keys(rig, gate, caller)
        await asyncio.to_thread(held.begun.wait, 30)
        assert caller.on_gone is not None and caller.gone_at_eof
        caller.on_gone()
        await asyncio.sleep(0)
        assert gate.active == 1, "the gate counts work that still goes on"
        held.go_on.set()
        async with asyncio.timeout(30), gate:
            assert held.chunks <= 2
        assert not caller.answered.done()

    rig.run(scenario())


@pytest.mark.parametrize("ask", [aggregate, search, read])
def test_who_hangs_up_before_their_turn_leaves_the_queue(rig: Rig, held: Held, ask: Ask) -> None:
    async def scenario() -> None:
        gate, caller = Gate(1), Caller(LOCAL)
        async with gate:
            ask(rig, gate, caller)
            while not gate.queued:
                await asyncio.sleep(0)
            assert caller.on_gone is not None
            caller.on_gone()
            while gate.queued:
                await asyncio.sleep(0)
        assert held.chunks == 0
        assert gate.active == 0

    rig.run(scenario())


def test_a_client_that_says_goodbye_gets_no_answer_and_holds_no_slot(
    start_server: StartServer, api_of: Any, connect: Any, eventually: Any
) -> None:
    from server.registries import append, installed

    server = start_server(limits__concurrent_searches="1")
    api = api_of(server)
    path = installed(api, {"type": "object"}, search=SEARCH)
    append(api, path, *({"time": at, "service": f"s{at % 50}"} for at in range(20_000)))
    wire = connect(server)
    wire.request("POST", f"{path}/_aggregate", AGGREGATE, "Content-Type: application/json").half_close()
    assert wire.ended()
    eventually(lambda: 'headrace_gate_active{gate="search"} 0.0' in api.get("/metrics").text)
    assert api.get(f"{path}/_search", q="service:s1", size=1).status_code == 200
