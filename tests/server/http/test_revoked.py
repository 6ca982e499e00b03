"""Keys that are revoked while their callers wait: these are given nothing more, and all others are."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate
from headrace.server.http.auth import Principal
from headrace.server.http.compression import ReplyCompressor
from headrace.server.http.request import RequestHead
from headrace.server.routes.details import DetailsRoute
from headrace.server.routes.index_status import IndexStatusRoute
from headrace.server.routes.reads import ReadRoute
from headrace.server.routes.stream_reader import StreamReader
from headrace.server.routes.touch import TouchRoutes
from headrace.storage.keys import KeyStore
from headrace.types import JSON
from server.callers import Caller
from support.engine_rig import Rig

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

TOUCHED = json.dumps({"kind": "state-protocol", "touch": {"enabled": True}})
WAIT = json.dumps({"cursor": "now", "keys": ["a"], "timeoutMs": 60_000}).encode()


def reader() -> Principal:
    return Principal("ann", frozenset({"read"}))


def subscribed(wire: Wire, path: str, *lines: str) -> Wire:
    """A follower by server-sent events that has come to the tail."""
    assert wire.request("GET", f"{path}?live=sse&offset=now", b"", *lines).head()[0] == 200
    event = wire.event()
    assert event is not None and event.kind == "control"
    return wire


def test_who_follows_with_a_revoked_key_is_given_nothing_more(
    server: ServerProcess, api: Api, connect: Callable[..., Wire], eventually: Callable[..., None]
) -> None:
    path, store = api.stream(1), KeyStore(server.data_dir / "keys.db")
    gone, kept = (store.create(user_id="ann", scopes=["read"]) for _ in range(2))
    callers = [[f"Authorization: Bearer {gone[1]}"], [f"Authorization: Bearer {kept[1]}"], []]
    target = f"{path}?live=long-poll&offset=now&timeout=40s"
    polls = [connect(server).request("GET", target, b"", *lines) for lines in callers]
    streams = [subscribed(connect(server), path, *lines) for lines in callers]
    eventually(lambda: api.metric("headrace_watchers") == 6)
    store.revoke(gone[0].id)
    store.close()
    refused = polls[0].answer()
    assert refused.status == 401
    assert refused.code() == "unauthorized"
    assert streams[0].event() is None
    assert api.metric("headrace_watchers") == 4
    api.post(path, [2])
    assert [wire.answer().body for wire in polls[1:]] == [b"[2]", b"[2]"]
    told = [wire.event() for wire in streams[1:]]
    assert [event and event.data for event in told] == ["[2]", "[2]"]


def test_entries_that_are_found_too_late_are_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, looks, find = threading.Event(), itertools.count(), StreamReader.find

    def work() -> None:
        assert found.wait(30)

    def cold_at_first(*asked: Any) -> Any:
        if next(looks) == 0:
            raise NeedsFetch(work)
        return find(*asked)

    async def scenario() -> None:
        principal, gate = reader(), Gate(1)
        reads = ReadRoute(rig.engine, ReplyCompressor(gate), gate)
        caller = Caller(principal).ask(reads, rig.find("a"), live="long-poll", offset="-1")
        principal.key_status.end()
        assert not caller.answered.done()
        found.set()
        assert (await asyncio.wait_for(caller.answered, 10)).status == 401
        assert rig.engine.tail.watchers == 0 and not principal.key_status._watchers

    monkeypatch.setattr(StreamReader, "find", cold_at_first)
    with Rig(tmp_path) as rig:
        rig.create("a", body=b"one")
        rig.run(scenario())


@pytest.mark.parametrize("resource", [DetailsRoute, IndexStatusRoute])
def test_who_waits_for_another_document_is_refused(
    tmp_path: Path, resource: type[DetailsRoute] | type[IndexStatusRoute]
) -> None:
    async def scenario() -> None:
        watched, stream, gone, kept = resource(rig.engine), rig.find("a"), reader(), reader()
        tag = (await Caller().ask(watched, stream).answered).headers["etag"]
        waiting = [Caller(one).ask(watched, stream, tag, live="true", timeout="60s") for one in (gone, kept)]
        gone.key_status.end()
        assert waiting[0].answered.result().status == 401
        assert rig.engine.tail.watchers == 1 and not waiting[1].answered.done()
        rig.engine.tail.end()
        assert waiting[1].answered.result().status == 304
        assert not gone.key_status._watchers and not kept.key_status._watchers

    with Rig(tmp_path) as rig:
        rig.create("a")
        rig.run(scenario())


@pytest.mark.parametrize("when", ["waiting", "opening", "settling"])
def test_who_waits_for_touches_is_refused(tmp_path: Path, when: str) -> None:
    async def scenario() -> None:
        touches, stream, principal = TouchRoutes(rig.engine), rig.find("db"), reader()
        if when == "waiting":
            await rig.engine.touches.open(stream)
        caller = Caller(principal)
        if when == "settling":
            caller.send(touches.meta, stream, RequestHead("GET", b"", [], {}), b"", settle="flush")
        else:
            caller.send(touches.wait, stream, RequestHead("POST", b"", [], {}), WAIT)
        assert caller.parked == (when == "waiting")
        principal.key_status.end()
        assert (await asyncio.wait_for(caller.answered, 10)).status == 401
        assert rig.engine.tail.watchers == 0 and not principal.key_status._watchers

    with Rig(tmp_path) as rig:
        rig.create("db", JSON, profile=TOUCHED)
        rig.run(scenario())
