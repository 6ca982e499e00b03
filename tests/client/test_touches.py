"""Touches through the client: keys that it computes itself, and waits that end."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

import headrace as hr
from headrace.client.requests import Request
from headrace.client.touches import Template, table_key
from headrace.errors import NotFound

GOLDEN = Template("public.todos", userId="string", status="string", tenantId="string")
VALUES = {"status": "open", "tenantId": "t1", "userId": "u1"}
BY_USER = Template("todos", user="int64")
LONG_S = 20.0


def insert(user: int) -> dict[str, Any]:
    return {"type": "todos", "key": "1", "value": {"user": user}, "headers": {"operation": "insert"}}


@pytest.fixture
def stream(client: hr.Client, name: str) -> hr.Stream:
    """A stream whose touches are told."""
    made = client.stream(name)
    made.create()
    body = json.dumps({"profile": {"kind": "state-protocol", "touch": {"enabled": True}}}).encode()
    client.send(Request("POST", f"/v1/stream/{name}/_profile", {"content-type": "application/json"}, body)).checked()
    return made


def test_the_client_computes_the_golden_keys() -> None:
    assert GOLDEN.id == "ddd2330fdab379da"
    assert GOLDEN.table_key == table_key("public.todos") == "feadeb84d447fd63"
    assert GOLDEN.key(**VALUES) == "39accd125778dc36"
    assert GOLDEN.membership_key(**VALUES) == "eae633979a7ee466"
    assert GOLDEN.field_key("title", **VALUES) == "1ecc53e76a89f0d5"


def test_values_that_have_no_form_are_refused() -> None:
    with pytest.raises(ValueError, match="uuid"):
        Template("todos", id="uuid")
    with pytest.raises(ValueError, match="takes user"):
        BY_USER.key()
    with pytest.raises(ValueError, match="takes user"):
        BY_USER.key(user=1, status="open")
    with pytest.raises(ValueError, match="no form as int64"):
        BY_USER.key(user="me")


def test_a_wait_ends_when_a_row_is_touched(stream: hr.Stream) -> None:
    touches = stream.touch
    activated = touches.activate(BY_USER, inactivity=60)
    assert [one["templateId"] for one in activated.activated] == [BY_USER.id]
    cursor = touches.meta()["cursor"]
    later = threading.Timer(0.1, stream.append, [[insert(2), insert(1)]])
    later.start()
    touch = touches.wait(BY_USER.key(user=1), cursor=cursor, timeout=LONG_S, templates=[BY_USER], exact=True)
    later.join()
    assert touch.touched is True
    assert touch.stale is False
    assert touch.effective_wait_kind == "fineKey"
    assert touches.wait(BY_USER.key(user=1), cursor=touch.cursor, timeout=0).touched is False
    assert touches.wait(BY_USER.table_key, cursor=cursor, coarse=True, timeout=LONG_S).touched is True


def test_a_wait_that_cannot_be_answered_says_why(stream: hr.Stream) -> None:
    touch = stream.touch.wait("a", cursor=f"{'0' * 16}:0", timeout=LONG_S)
    assert touch.touched is False
    assert touch.stale is True
    assert touch.error is not None and touch.error.code == "stale"
    assert touch.cursor == stream.touch.meta(settle=True)["cursor"]


def test_the_same_can_be_awaited(stream: hr.Stream, server: Any) -> None:
    async def story() -> None:
        async with hr.AsyncClient(server.url) as client:
            same = client.stream(stream.name)
            await same.touch.activate(BY_USER)
            waiting = asyncio.create_task(same.touch.wait(BY_USER.key(user=1), timeout=LONG_S))
            while not (await same.touch.meta())["activeWaiters"]:
                await asyncio.sleep(0.01)
            await same.append(insert(1))
            assert (await waiting).touched is True

    asyncio.run(story())


def test_a_stream_without_touches_has_none(client: hr.Client, name: str) -> None:
    client.stream(name).create()
    with pytest.raises(NotFound, match="touch not enabled"):
        client.stream(name).touch.wait("a")
