"""Streams that are deleted while somebody follows them, and what comes in their place."""

from __future__ import annotations

import msgspec
import pytest

from engine.subscriptions.subscribing import BASE, PULL, Opened, proof_of
from headrace.engine.subscriptions.subscription import Ack, NoPendingWork
from headrace.engine.subscriptions.subscriptions import Subscriptions
from headrace.format import offset as offsets

NAMED = msgspec.structs.replace(PULL, pattern=None, streams=("job",))


async def test_a_deleted_stream_is_unlinked_and_its_successor_starts_anew(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.create("events/b")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a", count=7)
        await w.delete("events/a")
        await w.idle()
        with pytest.raises(NoPendingWork):
            await w.subscriptions.claim("s", "w1")
        await w.create("events/a", b"1")
        await w.restart()
        assert w.acked("s") == {"events/a": offsets.START, "events/b": offsets.START}
        (view,) = [view for view in (await w.subscriptions.claim("s", "w1")).streams if view.has_pending]
        assert offsets.decode(view.tail_offset).position == 1


async def test_a_named_stream_that_is_deleted_is_waited_for_again(world: Opened) -> None:
    async with world() as w:
        await w.subscriptions.put("s", NAMED, BASE)
        await w.create("job")
        await w.append("job", count=7)
        await w.delete("job")
        await w.idle()
        with pytest.raises(NoPendingWork):
            await w.subscriptions.claim("s", "w1")
        tail = (await w.create("job", b"1")).tail_offset()
        claim = await w.subscriptions.claim("s", "w1")
        assert [(view.acked_offset, view.tail_offset) for view in claim.streams] == [(offsets.START, tail)]
        await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [Ack("job", tail)], done=True)
        await w.delete("job")
        await w.restart()
        assert w.acked("s") == {"job": offsets.START}
        await w.subscriptions.remove_stream("s", "job")
        await w.restart()
        assert w.acked("s") == {}


async def test_what_replaced_a_named_stream_before_a_crash_is_followed_from_its_first_entry(world: Opened) -> None:
    async with world() as w:
        await w.create("job")
        await w.subscriptions.put("s", NAMED, BASE)
        tail = await w.append("job", count=2)
        claim = await w.subscriptions.claim("s", "w1")
        await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [Ack("job", tail)], done=True)
        await w.subscriptions.close()
        await w.delete("job")
        tail = (await w.create("job", b"1")).tail_offset()
        w.subscriptions = await Subscriptions.open(
            log=w.engine.log,
            clock=w.engine.clock,
            apply=w.engine.apply,
            webhook_timeout_s=w.engine.config.subscriptions.webhook_timeout_s,
        )
        (view,) = (await w.subscriptions.claim("s", "w1")).streams
        assert view.acked_offset == offsets.START
        assert view.tail_offset == tail


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_named_stream_that_begins_as_a_fork_is_followed_from_there(world: Opened, restarts: bool) -> None:
    async with world() as w:
        source = await w.create("source")
        await w.append("source", count=3)
        await w.subscriptions.put("s", msgspec.structs.replace(PULL, pattern=None, streams=("fork",)), BASE)
        fork = await w.create("fork", fork=w.engine.log.fork(source, 3, 0))
        start = fork.tail_offset()
        if restarts:
            await w.restart()
        with pytest.raises(NoPendingWork):
            await w.subscriptions.claim("s", "w1")
        tail = await w.append("fork")
        (view,) = (await w.subscriptions.claim("s", "w1")).streams
        assert view.acked_offset == start
        assert view.tail_offset == tail


@pytest.mark.parametrize("made_before_the_restart", [False, True])
async def test_a_wake_event_that_was_deleted_before_a_crash_is_written_again(
    world: Opened, made_before_the_restart: bool
) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        (event,) = w.events()
        await w.subscriptions.close()
        # This commit is on disk; that the event is to be written again is not.
        await w.delete("wake/pool")
        if made_before_the_restart:
            await w.create("wake/pool")
        w.subscriptions = await Subscriptions.open(
            log=w.engine.log,
            clock=w.engine.clock,
            apply=w.engine.apply,
            webhook_timeout_s=w.engine.config.subscriptions.webhook_timeout_s,
        )
        await w.idle()
        if not made_before_the_restart:
            await w.create("wake/pool")
            await w.pass_time(5)
        assert [{**again, "ts": 0} for again in w.events()] == [{**event, "ts": 0}]


async def test_a_wake_event_that_is_there_is_not_written_again_after_a_restart(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        await w.restart()
        assert len(w.events()) == 1


async def test_a_wake_that_lost_its_streams_does_not_keep_the_next_one_away(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.create("events/b")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        await w.delete("events/a")
        await w.idle()
        await w.append("events/b")
        await w.idle()
        assert [(event["generation"], event["stream"]) for event in w.events()] == [(1, "events/a"), (2, "events/b")]


async def test_a_stream_that_took_the_place_of_an_expired_one_is_linked_anew(world: Opened) -> None:
    async with world() as w:
        old = await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a", count=5)
        await w.create("events/a", replaces=old)
        tail = await w.append("events/a")
        (view,) = (await w.subscriptions.claim("s", "w1")).streams
        assert view.acked_offset == offsets.START
        assert view.tail_offset == tail
