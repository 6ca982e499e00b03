"""Pushes whose event source changes between the check of the events and the moment they are queued."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.features.pipelines import event, registered
from headrace.engine.log.append import Append
from headrace.errors import UnknownField
from headrace.server.http.auth import LOCAL
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request, RequestHead, ResolvedRoute
from headrace.server.http.target import Target
from headrace.server.routes.push import PushRoute
from support.engine_rig import Rig

FEW: dict[str, Any] = {"user": "str"}
MORE = {**FEW, "city": {"type": "str", "required": False}}
FILLED = {**FEW, "place": {"type": "str", "default": "eu"}}
PLAIN, WITH_CITY = {"user": "u"}, {"user": "u", "city": "x"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as opened:
        yield opened


class Caller:
    """Waits for one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply) -> None:
        self.answer.set_result((reply.status, json.loads(reply.body)))

    def reply_json(self, body: bytes) -> None:
        self.answer.set_result((200, json.loads(body)))


def pushed(rig: Rig, monkeypatch: pytest.MonkeyPatch, before: Any, after: Any, given: Any) -> tuple[int, Any]:
    """The answer to a push that is checked by one schema, and queued when the other already holds."""
    registered(rig, event(schema=before))
    stream = rig.find("events/Txn")
    old = stream.head
    registered(rig, event(schema=after), force=True)
    new, stream.head = stream.head, old
    log, append = rig.engine.log, rig.engine.log.append

    def later(asked: Append) -> None:
        stream.head = new if stream.head is old else stream.head
        append(asked)

    monkeypatch.setattr(log, "append", later)
    body = json.dumps(given).encode()
    head = RequestHead("POST", b"/v1/push/Txn", [], {b"content-type": b"application/json"}, body_bytes=len(body))

    async def push() -> tuple[int, Any]:
        caller: Any = Caller()
        pushes = PushRoute(rig.engine)
        pushes.post(Request(head, ResolvedRoute(pushes.post, Target("Txn", "", None), {}, LOCAL, 0), body, caller))
        return await caller.answer

    return rig.run(push())


def test_events_that_no_longer_fit_are_told_and_the_others_are_taken(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    status, told = pushed(rig, monkeypatch, MORE, FEW, [PLAIN, WITH_CITY])
    assert status == 200
    assert len(told["results"]) == 2
    assert told["results"][0]["ack"] and told["results"][1]["error"]["code"] == "unknown_field"
    assert [json.loads(one) for one in rig.read("events/Txn")] == [PLAIN]


@pytest.mark.parametrize("given", [PLAIN, [PLAIN]], ids=["one", "array"])
def test_nobody_is_refused_for_a_default_that_is_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    status, told = pushed(rig, monkeypatch, FILLED, FEW, given)
    assert status == 200, told
    assert [json.loads(one) for one in rig.read("events/Txn")] == [PLAIN]


def test_one_event_that_no_longer_fits_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownField, match="no field 'city'"):
        pushed(rig, monkeypatch, MORE, FEW, WITH_CITY)
    assert rig.read("events/Txn") == []
