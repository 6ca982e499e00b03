"""Subscriptions over a real log, real commits and a clock that only the test moves."""

from __future__ import annotations

import asyncio
import json
from random import Random

import msgspec
import pytest

from engine.subscriptions.subscribing import BASE, PULL, Opened, proof_of
from headrace.engine.subscriptions.subscription import (
    Ack,
    Definition,
    InvalidOffset,
    InvalidRequest,
    NoPendingWork,
    SubscriptionExists,
    TokenInvalid,
    TooManyStreams,
    TooManySubscriptions,
)
from headrace.engine.subscriptions.subscription_index import SubscriptionLimits
from headrace.engine.subscriptions.subscriptions import Proof, Subscriptions
from headrace.engine.subscriptions.wakes import AlreadyClaimed, Fenced
from headrace.engine.system_streams import System
from headrace.errors import Unavailable
from headrace.format import offset as offsets

HOOK = Definition(type="webhook", pattern="events/*", webhook_url="http://127.0.0.1:1/")


async def test_streams_that_exist_are_linked_at_their_tail_and_later_ones_before_their_first_append(
    world: Opened,
) -> None:
    async with world() as w:
        await w.create("events/old", b"1")
        await w.create("events/empty")
        await w.create("other/a", b"1")
        await w.subscriptions.put("s", PULL, BASE)
        old = w.engine.log.find("events/old").tail_offset()
        assert w.acked("s") == {"events/old": old, "events/empty": offsets.START}
        await w.create("events/new", b"1")
        await w.append("events/new")
        assert w.acked("s")["events/new"] == offsets.START
        assert {link.path for link in w.subscriptions.get("s").pending.values()} == {"events/new"}


async def test_a_second_put_confirms_the_same_definition_and_refuses_another(world: Opened) -> None:
    async with world() as w:
        assert (await w.subscriptions.put("s", PULL, BASE))[1] is True
        assert (await w.subscriptions.put("s", PULL, "https://moved.example/v1/stream/__ds"))[1] is False
        with pytest.raises(SubscriptionExists):
            await w.subscriptions.put("s", msgspec.structs.replace(PULL, description="other"), BASE)
        await w.restart()
        assert w.subscriptions.get("s").callback_url == (
            "https://moved.example/v1/stream/__ds/subscriptions/s/callback"
        )


async def test_a_wake_event_names_the_subscription_and_is_written_once_until_the_wake_is_over(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        for _ in range(3):
            await w.append("events/a")
            await w.idle()
        expected = {"type": "wake", "subscription_id": "s", "stream": "events/a", "generation": 1}
        assert w.events() == [{**expected, "ts": w.clock.us // 1000}]
        claim = await w.subscriptions.claim("s", "w1")
        acks = [Ack("events/a", claim.streams[0].tail_offset)]
        assert await w.subscriptions.ack("s", "pull-wake", proof_of(claim), acks, done=True) is False
        await w.append("events/a")
        await w.idle()
        assert [event["generation"] for event in w.events()] == [1, 2]


async def test_wake_events_come_late_when_the_wake_stream_is_made_late(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        wakes = w.subscriptions.get("s").wakes
        assert wakes.attempts == 1 and wakes.last_error == "there is no such stream"
        await w.create("wake/pool")
        await w.pass_time(1.3)
        assert [event["generation"] for event in w.events()] == [1]
        assert w.subscriptions.get("s").wakes.attempts == 0


async def test_a_wake_event_is_written_again_when_its_stream_is_deleted_unclaimed(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        await w.delete("wake/pool")
        await w.idle()
        await w.create("wake/pool")
        await w.pass_time(2)
        assert [event["generation"] for event in w.events()] == [1]


async def test_wake_events_are_lines_in_a_stream_that_is_not_json(world: Opened) -> None:
    async with world() as w:
        stream = await w.create("wake/pool", content_type="text/plain")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        (line,) = w.engine.log.read(stream, stream.head, 0, budget=1000).parts
        assert line.endswith(b"\n") and json.loads(line)["subscription_id"] == "s"


async def test_a_pattern_never_takes_the_stream_its_own_wakes_go_to(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", msgspec.structs.replace(PULL, pattern="**"), BASE)
        await w.append("events/a")
        await w.idle()
        assert set(w.acked("s")) == {"events/a"}


async def test_a_claim_works_right_after_an_append_and_excludes_others(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        with pytest.raises(NoPendingWork):
            await w.subscriptions.claim("s", "w1")
        tail = await w.append("events/a")
        claim = await w.subscriptions.claim("s", "w1")
        (view,) = claim.streams
        assert view.path == "events/a"
        assert view.link_type == "glob"
        assert view.tail_offset == tail
        assert view.has_pending is True
        assert view.acked_offset == offsets.START
        with pytest.raises(AlreadyClaimed) as refusal:
            await w.subscriptions.claim("s", "w2")
        assert refusal.value.facts == {"current_holder": "w1", "generation": 1}


async def test_a_claim_does_not_wait_for_the_clockwork(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.subscriptions.delivery.stop()
        await w.append("events/a")
        assert (await w.subscriptions.claim("s", "w1")).generation == 1


async def test_an_expired_lease_frees_the_subscription_and_fences_the_old_worker(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        claim = await w.subscriptions.claim("s", "w1")
        await w.pass_time(5)
        assert w.subscriptions.get("s").wakes.holder is None
        assert [event["generation"] for event in w.events()] == [1, 2]
        acks = [Ack("events/a", claim.streams[0].tail_offset)]
        for stale in (
            w.subscriptions.ack("s", "pull-wake", proof_of(claim), acks, done=True),
            w.subscriptions.release("s", proof_of(claim)),
        ):
            with pytest.raises(Fenced):
                await stale
        assert w.acked("s") == {"events/a": offsets.START}
        assert (await w.subscriptions.claim("s", "w2")).generation == 2


async def test_an_ack_without_done_is_a_heartbeat(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        first = await w.append("events/a")
        await w.append("events/a")
        claim = await w.subscriptions.claim("s", "w1")
        for _ in range(3):
            await w.pass_time(4)
            acks = [Ack("events/a", first)]
            assert await w.subscriptions.ack("s", "pull-wake", proof_of(claim), acks, done=False) is False
        assert w.acked("s") == {"events/a": first}
        assert await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [], done=True) is True


async def test_a_released_wake_is_followed_by_another(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        claim = await w.subscriptions.claim("s", "w1")
        await w.subscriptions.release("s", proof_of(claim))
        await w.idle()
        assert w.events()[-1]["generation"] == 2
        assert (await w.subscriptions.claim("s", "w2")).generation == 2


async def test_acks_that_no_cursor_can_follow_move_nothing(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.create("events/b")
        await w.subscriptions.put("s", PULL, BASE)
        first, tail = await w.append("events/a"), await w.append("events/a")
        foreign = await w.append("events/b")
        claim = await w.subscriptions.claim("s", "w1")
        good = Ack("events/a", tail)
        await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [Ack("events/b", foreign)], done=False)
        before = w.acked("s")
        epoch = offsets.decode(tail).epoch
        for bad in (
            Ack("events/zzz", tail),
            Ack("events/a", "-1"),
            Ack("events/a", "nonsense"),
            Ack("events/a", foreign),
            Ack("events/a", offsets.encode(epoch, 3)),
            Ack("events/b", offsets.START),
        ):
            for acks in ([good, bad], [bad, good]):
                with pytest.raises(InvalidOffset):
                    await w.subscriptions.ack("s", "pull-wake", proof_of(claim), acks, done=True)
                assert w.acked("s") == before
        with pytest.raises(InvalidOffset):
            await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [good, Ack("events/a", first)], done=True)


async def test_token_generation_and_wake_id_must_all_match(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.subscriptions.put("t", PULL, BASE)
        await w.append("events/a")
        mine, other = await w.subscriptions.claim("s", "w1"), await w.subscriptions.claim("t", "w1")
        for proof, refusal in (
            (Proof(other.token, mine.wake_id, mine.generation), TokenInvalid),
            (Proof("1.x", mine.wake_id, mine.generation), TokenInvalid),
            (Proof("é", mine.wake_id, mine.generation), TokenInvalid),
            (Proof(mine.token, other.wake_id, mine.generation), Fenced),
            (Proof(mine.token, mine.wake_id, mine.generation + 1), Fenced),
        ):
            with pytest.raises(refusal):
                await w.subscriptions.ack("s", "pull-wake", proof, [], done=True)
        await w.subscriptions.release("s", proof_of(mine))
        later = await w.subscriptions.claim("s", "w2")
        with pytest.raises(Fenced):
            await w.subscriptions.release("s", Proof(mine.token, later.wake_id, later.generation))
        await w.subscriptions.ack("s", "pull-wake", proof_of(later), [], done=True)


async def test_tokens_of_a_deleted_subscription_do_not_open_its_successor(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        old = await w.subscriptions.claim("s", "w1")
        await w.subscriptions.delete("s")
        with pytest.raises(TokenInvalid):
            await w.subscriptions.ack("s", "pull-wake", proof_of(old), [], done=True)
        w.clock.us += 1
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        new = await w.subscriptions.claim("s", "w1")
        assert new.generation == old.generation
        with pytest.raises(TokenInvalid):
            await w.subscriptions.ack("s", "pull-wake", Proof(old.token, new.wake_id, 1), [], done=True)


async def test_verbs_of_the_other_kind_are_refused(world: Opened) -> None:
    async with world() as w:
        await w.subscriptions.put("pull", PULL, BASE)
        await w.subscriptions.put("hook", HOOK, BASE)
        with pytest.raises(InvalidRequest):
            await w.subscriptions.claim("hook", "w1")
        await w.create("events/a")
        await w.append("events/a")
        proof = proof_of(await w.subscriptions.claim("pull", "w1"))
        with pytest.raises(InvalidRequest):
            await w.subscriptions.ack("pull", "webhook", proof, [], done=True)
        with pytest.raises(TokenInvalid):
            await w.subscriptions.ack("pull", "webhook", Proof("1.x", "w", 1), [], done=True)


async def test_named_streams_come_and_go_and_a_pattern_keeps_its_own(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.subscriptions.add_streams("s", ["events/a", "manual/later"])
        kinds = {link.path: link.kind for link in w.subscriptions.get("s").links.values()}
        assert kinds == {"events/a": "explicit", "manual/later": "explicit"}
        await w.create("manual/later")
        await w.append("manual/later")
        assert set(w.subscriptions.get("s").pending) == {"manual/later"}
        await w.subscriptions.remove_stream("s", "manual/later")
        await w.subscriptions.remove_stream("s", "events/a")
        await w.subscriptions.remove_stream("s", "never/there")
        await w.append("manual/later")
        await w.restart()
        kinds = {link.path: link.kind for link in w.subscriptions.get("s").links.values()}
        assert kinds == {"events/a": "glob"} and not w.subscriptions.get("s").pending


async def test_streams_of_the_server_wake_who_follows_them(world: Opened) -> None:
    async with world() as w:
        system = System.open(writer=w.engine.writer, log=w.engine.log, connect=w.engine.connect)
        await w.create("noted")
        await system.record()
        await w.create("wake/pool")
        await w.subscriptions.put("s", msgspec.structs.replace(PULL, pattern="__registry__"), BASE)
        await w.create("noted too")
        await system.record()
        await w.idle()
        assert [event["stream"] for event in w.events()] == ["__registry__"]
        await system.close()


async def test_everything_survives_a_restart(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        first, tail = await w.append("events/a"), await w.append("events/a")
        claim = await w.subscriptions.claim("s", "w1")
        await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [Ack("events/a", first)], done=False)
        jwks = w.subscriptions.keyring.jwks()
        await w.restart()
        assert w.subscriptions.keyring.jwks() == jwks
        assert w.acked("s") == {"events/a": first}
        with pytest.raises(AlreadyClaimed):
            await w.subscriptions.claim("s", "w2")
        assert await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [Ack("events/a", tail)], done=True) is False
        await w.restart()
        await w.append("events/a")
        assert (await w.subscriptions.claim("s", "w2")).generation == 2


async def test_streams_that_a_crash_kept_from_being_noted_are_found_at_the_next_start(world: Opened) -> None:
    async with world() as w:
        await w.create("wake/pool")
        await w.create("events/gone")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/gone")
        await w.subscriptions.close()
        # These commits are on disk; those of the links are not.
        await w.create("events/a", b"1")
        await w.create("events/empty")
        await w.delete("events/gone")
        w.subscriptions = await Subscriptions.open(
            log=w.engine.log,
            clock=w.engine.clock,
            apply=w.engine.apply,
            webhook_timeout_s=w.engine.config.subscriptions.webhook_timeout_s,
        )
        await w.idle()
        assert w.acked("s") == {"events/a": offsets.START}
        assert (await w.subscriptions.claim("s", "w1")).streams[0].path == "events/a"


async def test_numbers_are_bounded(world: Opened) -> None:
    async with world(SubscriptionLimits(subscriptions=2, streams=2)) as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.create("events/b", b"1")
        await w.create("events/c", b"1")
        found = w.subscriptions.get("s")
        assert set(found.links) == {"events/a", "events/b"} and found.full
        with pytest.raises(TooManyStreams):
            await w.subscriptions.add_streams("s", ["x"])
        with pytest.raises(TooManyStreams):
            await w.subscriptions.put("t", PULL, BASE)
        await w.subscriptions.put("t", msgspec.structs.replace(PULL, pattern="none/*"), BASE)
        with pytest.raises(TooManySubscriptions):
            await w.subscriptions.put("u", msgspec.structs.replace(PULL, pattern="none/*"), BASE)
        await w.delete("events/a")
        await w.append("events/c")
        assert set(found.links) == {"events/b", "events/c"} and not found.full


async def test_a_full_disk_refuses_a_claim_and_changes_nothing(world: Opened) -> None:
    async with world(max_bytes=1_000_000) as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.create("filler")
        await w.subscriptions.put("s", PULL, BASE)
        tail = await w.append("events/a")
        await w.idle()
        before, random = w.subscriptions.get("s").wakes, Random(1)
        for size in (30_000, 3_000, 300, 3):
            with pytest.raises(Unavailable):
                while True:  # with what cannot be packed: much that can would be published, and make room again
                    await w.append("filler", entry=b'"' + random.randbytes(size // 2).hex().encode() + b'"')
        with pytest.raises(Unavailable):
            for number in range(1_000):
                await w.subscriptions.put(f"t{number}", PULL, BASE)
        with pytest.raises(Unavailable):
            await w.subscriptions.claim("s", "w1" * 10_000)
        assert w.subscriptions.get("s").wakes == before
        await w.delete("filler")
        await w.engine.sweep()
        claim = await w.subscriptions.claim("s", "w1")
        assert not await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [Ack("events/a", tail)], done=True)


async def test_a_verb_is_finished_though_its_caller_goes_away(world: Opened) -> None:
    async with world() as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        caller = asyncio.create_task(w.subscriptions.claim("s", "w1"))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(AlreadyClaimed):
            await w.subscriptions.claim("s", "w2")
