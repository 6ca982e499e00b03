"""Options that nobody knows, and numbers that make no sense, are refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda s: s.append(1, ifmatch="7"), "'ifmatch'; did you mean 'if_match'"),
        (lambda s: s.append(1, routing_key="k"), "'routing_key'; there are key, timestamp, seq, if_match, close"),
        (lambda s: s.create(retention="3d"), "'retention'; did you mean 'retention_age'"),
        (lambda s: s.fork("y", offset="7"), "'offset'"),
        (lambda s: s.producer(linger=5), "'linger'; did you mean 'linger_ms'"),
        (lambda s: s.search("a:1", limit=5), "'limit'"),
        (lambda s: next(s.search_pages("a:1", limit=5)), "'limit'"),
        (lambda s: s.aggregate("r", 0, 1, "1h", groupby=["a"]), "'groupby'; did you mean 'group_by'"),
        (lambda s: hr.LogSender(s, services="shop"), "'services'; did you mean 'service'"),
    ],
)
def test_unknown_option_of_a_stream_is_named(use: Callable[[Any], Any], told: str) -> None:
    with hr.Client(NOWHERE, retry_for=0) as client, pytest.raises(TypeError) as caught:
        use(client.stream("x"))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.register(odd=True),
        lambda app: app.rollback(1, odd=True),
        lambda app: app.get("Clicks", "ada", odd=True),
        lambda app: app.entities.store({}, odd=True),
        lambda app: app.entities.get("ent_1", odd=True),
        lambda app: app.entities.provenance("ent_1", "name", odd=True),
        lambda app: app.entities.correct("ent_1", {}, odd=True),
        lambda app: app.entities.delete("ent_1", odd=True),
        lambda app: app.entities.restore("ent_1", odd=True),
        lambda app: app.entities.types.register("t", "1", {}, odd=True),
        lambda app: app.entities.types.activate("t", "1", odd=True),
    ],
)
def test_unknown_option_of_an_app_is_named(use: Callable[[Any], Any]) -> None:
    with hr.App(NOWHERE, retry_for=0) as app, pytest.raises(TypeError, match="no option 'odd'"):
        use(app)


def test_awaiting_client_refuses_the_same() -> None:
    async def scene() -> None:
        async with hr.AsyncClient(NOWHERE, retry_for=0) as client:
            stream: Any = client.stream("x")
            with pytest.raises(TypeError, match="if_match"):
                await stream.append(1, ifmatch="7")
            with pytest.raises(TypeError, match="linger_ms"):
                stream.producer(linger=5)
            with pytest.raises(ValueError, match="max_in_flight"):
                stream.producer(max_in_flight=0)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"max_batch_events": 0},
        {"max_batch_bytes": -1},
        {"max_pending_bytes": 0},
        {"linger_ms": -1},
        {"delivery_timeout": -0.5},
        {"delivery_timeout": float("nan")},
        {"epoch": -1},
    ],
)
def test_number_with_which_nothing_would_be_sent_is_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with hr.Client(NOWHERE) as client, pytest.raises(ValueError, match=f"{name} is at least"):
        client.stream("x").producer(**options)


def test_sender_of_logs_refuses_what_its_producer_would() -> None:
    with hr.Client(NOWHERE) as client, pytest.raises(ValueError, match="max_pending_bytes"):
        hr.LogSender(client.stream("x"), max_pending_bytes=0)


@pytest.mark.parametrize("name", ["timeout", "retry_for"])
def test_client_refuses_a_time_below_zero(name: str) -> None:
    options: dict[str, Any] = {name: -1.0}
    with pytest.raises(ValueError, match=name):
        hr.Client(NOWHERE, **options)
