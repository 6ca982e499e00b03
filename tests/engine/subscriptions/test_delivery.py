"""Webhooks: real posts to a real receiver, retried and leased by a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.subscriptions.subscribing import BASE, Opened
from headrace.engine.subscriptions.subscription import Ack, Definition
from headrace.engine.subscriptions.subscription_index import SubscriptionLimits
from headrace.engine.subscriptions.subscriptions import Proof
from headrace.engine.subscriptions.wakes import Fenced
from headrace.engine.subscriptions.webhook import WebhookUrlRejected
from headrace.format import offset as offsets

SECOND = 1_000_000

Started = Callable[..., Any]


def hook(url: str, lease_ms: int = 5_000) -> Definition:
    return Definition(type="webhook", pattern="events/*", webhook_url=url, lease_ttl_ms=lease_ms)


def proof_in(body: dict[str, Any]) -> Proof:
    return Proof(body["callback_token"], body["wake_id"], body["generation"])


async def test_a_webhook_is_signed_and_done_acks_what_it_was_told(world: Opened, receiver: Started) -> None:
    async with world() as w, receiver((200, {"done": True})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url), BASE)
        tail = await w.append("events/a")
        await w.idle()
        (body,) = hooks.bodies
        assert body["subscription_id"] == "s" and body["generation"] == 1
        assert body["callback_url"] == f"{BASE}/subscriptions/s/callback"
        assert body["streams"] == [
            {
                "path": "events/a",
                "link_type": "glob",
                "acked_offset": offsets.START,
                "tail_offset": tail,
                "has_pending": True,
            }
        ]
        headers, raw = hooks.received[0]
        assert headers["webhook-signature"] == w.subscriptions.keyring.sign(raw, w.clock.us)
        assert w.acked("s") == {"events/a": tail}
        assert w.subscriptions.get("s").wakes.wake_id is None


async def test_entries_that_come_during_a_delivery_bring_another_wake(world: Opened, receiver: Started) -> None:
    async with world() as w, receiver((200, {"done": True})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url), BASE)

        async def append_once(_: dict[str, Any]) -> None:
            hooks.before_answer = None
            await w.append("events/a")

        hooks.before_answer = append_once
        await w.append("events/a")
        await w.idle()
        assert [body["generation"] for body in hooks.bodies] == [1, 2]
        assert w.acked("s")["events/a"] == hooks.bodies[1]["streams"][0]["tail_offset"]


async def test_a_receiver_may_call_back_before_it_answers(world: Opened, receiver: Started) -> None:
    async with world() as w, receiver((500, {})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url), BASE)

        async def call_back(body: dict[str, Any]) -> None:
            acks = [Ack("events/a", body["streams"][0]["tail_offset"])]
            assert await w.subscriptions.ack("s", "webhook", proof_in(body), acks, done=True) is False
            with pytest.raises(Fenced):
                await w.subscriptions.ack("s", "webhook", proof_in(body), acks, done=True)

        hooks.before_answer = call_back
        await w.append("events/a")
        await w.idle()
        await w.pass_time(600)
        assert len(hooks.received) == 1 and not w.subscriptions.get("s").pending


async def test_an_answer_that_comes_after_the_callback_acks_nothing(world: Opened, receiver: Started) -> None:
    async with world() as w, receiver((200, {"done": True})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url), BASE)

        async def give_up(body: dict[str, Any]) -> None:
            hooks.before_answer = None
            assert await w.subscriptions.ack("s", "webhook", proof_in(body), [], done=True) is True

        hooks.before_answer = give_up
        await w.append("events/a")
        await w.idle()
        first, second = hooks.bodies
        assert second["generation"] == 2 and second["streams"] == first["streams"]


async def test_a_receiver_that_never_calls_back_is_woken_when_its_lease_is_over(
    world: Opened, receiver: Started
) -> None:
    async with world() as w, receiver((200, {})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url, lease_ms=5_000), BASE)
        await w.append("events/a")
        await w.idle()
        await w.pass_time(4.9)
        assert len(hooks.received) == 1
        await w.pass_time(0.1)
        first, second = hooks.bodies
        assert first["generation"] == 1
        assert second["generation"] == 2
        with pytest.raises(Fenced):
            await w.subscriptions.ack("s", "webhook", proof_in(first), [], done=True)
        assert await w.subscriptions.ack("s", "webhook", proof_in(second), [], done=False) is False


async def test_failed_deliveries_are_tried_again_after_pauses_that_double_up_to_a_minute(
    world: Opened, receiver: Started
) -> None:
    async with world() as w, receiver((500, {})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url, lease_ms=600_000), BASE)
        await w.append("events/a")
        await w.idle()
        for base in (1, 2, 4, 8, 16, 32, 60, 60):
            wakes, sent = w.subscriptions.get("s").wakes, len(hooks.received)
            assert wakes.last_error == "the receiver answered 500"
            assert wakes.deliver_at_us is not None
            pause_us = wakes.deliver_at_us - w.clock.us
            assert base * 0.8 * SECOND <= pause_us <= base * 1.2 * SECOND
            await w.restart()  # the schedule is kept
            assert w.subscriptions.get("s").wakes == wakes
            await w.pass_time((pause_us - 1) / SECOND)
            assert len(hooks.received) == sent
            await w.pass_time(1 / SECOND)
            assert len(hooks.received) == sent + 1
        assert len({body["wake_id"] for body in hooks.bodies}) == 1
        hooks.answers = [(200, {"done": True})]
        await w.pass_time(72)
        assert w.subscriptions.get("s").wakes.attempts == 0 and not w.subscriptions.get("s").pending


async def test_a_pause_holds_though_the_lease_ends_in_it(world: Opened, receiver: Started) -> None:
    async with world() as w, receiver((500, {}), (500, {}), (500, {}), (200, {"done": True})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url, lease_ms=1_000), BASE)
        await w.append("events/a")
        await w.idle()
        await w.pass_time(1.2)
        await w.pass_time(2.4)
        assert len(hooks.received) == 3
        await w.pass_time(1)
        assert w.subscriptions.get("s").wakes.wake_id is None
        assert len(hooks.received) == 3
        await w.pass_time(3.8)
        assert len(hooks.received) == 4
        assert hooks.bodies[3]["generation"] > hooks.bodies[2]["generation"]
        assert not w.subscriptions.get("s").pending


async def test_a_delivery_cut_off_by_a_stop_is_made_again_at_the_next_start(world: Opened, receiver: Started) -> None:
    async with world() as w, receiver((200, {"done": True})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url), BASE)
        arrived, forever = asyncio.Event(), asyncio.Event()

        async def hang(_: dict[str, Any]) -> None:
            hooks.before_answer = None
            arrived.set()
            await forever.wait()

        hooks.before_answer = hang
        await w.append("events/a")
        await arrived.wait()
        await w.restart()
        forever.set()
        assert [body["wake_id"] for body in hooks.bodies] == [hooks.bodies[0]["wake_id"]] * 2
        assert not w.subscriptions.get("s").pending


async def test_only_so_many_deliveries_are_under_way_at_once(world: Opened, receiver: Started) -> None:
    async with world(SubscriptionLimits(deliveries=1)) as w, receiver((200, {"done": True})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url), BASE)
        await w.subscriptions.put("t", hook(url), BASE)
        under_way, most = 0, 0

        async def count(_: dict[str, Any]) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.05)  # time for another one to come in, if it could
            under_way -= 1

        hooks.before_answer = count
        await w.append("events/a")
        await w.idle()
        assert sorted(body["subscription_id"] for body in hooks.bodies) == ["s", "t"] and most == 1


async def test_unsafe_addresses_are_refused_before_anything_is_made(world: Opened) -> None:
    async with world() as w:
        with pytest.raises(WebhookUrlRejected):
            await w.subscriptions.put("s", hook("http://10.0.0.1/hook"), BASE)
        assert len(w.subscriptions) == 0
