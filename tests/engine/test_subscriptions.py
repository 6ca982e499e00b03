"""Subscriptions over a real log, real commits and a clock that only the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config import Config, StorageConfig
from headrace.engine.append import Append
from headrace.engine.engine import Engine
from headrace.engine.lifecycle import Create, Delete
from headrace.engine.roster import Bounds
from headrace.engine.stream import Stream
from headrace.engine.subscription import (
    Ack,
    Definition,
    InvalidOffset,
    InvalidRequest,
    NoPendingWork,
    SubscriptionExists,
    SubscriptionNotFound,
    TokenInvalid,
    TooManyStreams,
    TooManySubscriptions,
)
from headrace.engine.subscriptions import Claim, Proof, Subscriptions
from headrace.engine.wakes import AlreadyClaimed, Fenced
from headrace.engine.webhook import Webhooks, WebhookUrlRejected
from headrace.format import offset as offsets
from headrace.storage.streams import StreamRow

BASE = "http://here.example/v1/stream/__ds"
SECOND = 1_000_000
PULL = Definition(type="pull-wake", pattern="events/*", wake_stream="wake/pool", lease_ttl_ms=5_000)


class FakeClock:
    """Time that stands still until it is told to move."""

    def __init__(self) -> None:
        self.us = 1_700_000_000 * SECOND

    def now_us(self) -> int:
        return self.us


class Receiver:
    """A webhook receiver: a real HTTP server whose answers are scripted; the last one is repeated."""

    def __init__(self, *answers: tuple[int, dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.before_answer: Callable[[dict[str, Any]], Awaitable[None]] | None = None

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.received]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:-2])
        signature = next(line.split(": ", 1)[1] for line in lines if line.lower().startswith("webhook-signature"))
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append(({**headers, "webhook-signature": signature}, body))
        if self.before_answer is not None:
            await self.before_answer(json.loads(body))
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(content)) + content)
        await writer.drain()
        writer.close()


class World:
    """An engine and its subscriptions on one directory, which can be closed and opened again."""

    def __init__(self, directory: Path, bounds: Bounds) -> None:
        self.config = Config(storage=StorageConfig(data_dir=str(directory)))
        self.bounds = bounds
        self.clock = FakeClock()
        self.engine: Engine
        self.subscriptions: Subscriptions

    async def open(self) -> None:
        self.engine = await Engine.open(self.config, self.clock)
        self.subscriptions = await Subscriptions.open(self.engine, bounds=self.bounds, webhooks=Webhooks())
        await self.idle()

    async def close(self) -> None:
        await self.subscriptions.close()
        await self.engine.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def idle(self) -> None:
        await self.subscriptions.delivery.idle()

    async def pass_time(self, seconds: float) -> None:
        self.clock.us += round(seconds * SECOND)
        await self.idle()

    async def create(self, name: str, body: bytes = b"", content_type: str = "application/json") -> Stream:
        row = StreamRow(name=name, content_type=content_type, created_us=self.clock.us, epochs="[]")
        settled: asyncio.Future[Create] = asyncio.get_running_loop().create_future()
        self.engine.log.create(row, settled.set_result, body=body, count=1 if body else 0)
        await settled
        return self.engine.log.find(name)

    async def append(self, name: str, *, count: int = 1) -> str:
        """Append entries without waiting for what they set off; answers the new tail."""
        stream = self.engine.log.find(name)
        settled: asyncio.Future[Append] = asyncio.get_running_loop().create_future()

        def done(append: Append) -> None:
            self.engine.log.settled(append)
            settled.set_result(append)

        self.engine.log.append(Append(stream, b",".join([b"{}"] * count), count, done))
        await settled
        return stream.tail_offset()

    async def delete(self, name: str) -> None:
        settled: asyncio.Future[Delete] = asyncio.get_running_loop().create_future()
        self.engine.log.delete(self.engine.log.find(name), settled.set_result)
        await settled

    def events(self, name: str = "wake/pool") -> list[dict[str, Any]]:
        stream = self.engine.log.find(name)
        parts = self.engine.log.read(stream, stream.head, 0, budget=1 << 20).parts
        found: list[dict[str, Any]] = msgspec.json.decode(b"[" + b",".join(parts) + b"]")
        return found

    def acked(self, id: str) -> dict[str, str]:
        return {link.path: link.acked for link in self.subscriptions.get(id).links.values()}


@asynccontextmanager
async def world(directory: Path, bounds: Bounds | None = None) -> AsyncIterator[World]:
    made = World(directory, bounds or Bounds())
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def receiver(*answers: tuple[int, dict[str, Any]]) -> AsyncIterator[tuple[Receiver, str]]:
    made = Receiver(*(answers or ((200, {}),)))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    try:
        yield made, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    finally:
        server.close()


def hook(url: str, lease_ms: int = 5_000) -> Definition:
    return Definition(type="webhook", pattern="events/*", webhook_url=url, lease_ttl_ms=lease_ms)


def proof_of(claim: Claim) -> Proof:
    return Proof(claim.token, claim.wake_id, claim.generation)


def proof_in(body: dict[str, Any]) -> Proof:
    return Proof(body["callback_token"], body["wake_id"], body["generation"])


def run(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Make a test of a coroutine function that wants a directory."""

    def wrapped(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path), 30))  # type: ignore[arg-type]

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@run
async def test_streams_that_exist_are_linked_at_their_tail_and_later_ones_before_their_first_append(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_a_second_put_confirms_the_same_definition_and_refuses_another(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        assert (await w.subscriptions.put("s", PULL, BASE))[1] is True
        assert (await w.subscriptions.put("s", PULL, "https://moved.example/v1/stream/__ds"))[1] is False
        with pytest.raises(SubscriptionExists):
            await w.subscriptions.put("s", msgspec.structs.replace(PULL, description="other"), BASE)
        await w.restart()
        assert w.subscriptions.get("s").callback_url == (
            "https://moved.example/v1/stream/__ds/subscriptions/s/callback"
        )


@run
async def test_a_wake_event_names_the_subscription_and_is_written_once_until_the_wake_is_over(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_wake_events_come_late_when_the_wake_stream_is_made_late(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_a_wake_event_is_written_again_when_its_stream_is_deleted_unclaimed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_wake_events_are_lines_in_a_stream_that_is_not_json(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        stream = await w.create("wake/pool", content_type="text/plain")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        await w.idle()
        (line,) = w.engine.log.read(stream, stream.head, 0, budget=1000).parts
        assert line.endswith(b"\n") and json.loads(line)["subscription_id"] == "s"


@run
async def test_a_pattern_never_takes_the_stream_its_own_wakes_go_to(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", msgspec.structs.replace(PULL, pattern="**"), BASE)
        await w.append("events/a")
        await w.idle()
        assert set(w.acked("s")) == {"events/a"}


@run
async def test_a_claim_works_right_after_an_append_and_excludes_others(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        with pytest.raises(NoPendingWork):
            await w.subscriptions.claim("s", "w1")
        tail = await w.append("events/a")
        claim = await w.subscriptions.claim("s", "w1")
        (view,) = claim.streams
        assert (view.path, view.link_type, view.tail_offset, view.has_pending) == ("events/a", "glob", tail, True)
        assert view.acked_offset == offsets.START
        with pytest.raises(AlreadyClaimed) as refusal:
            await w.subscriptions.claim("s", "w2")
        assert refusal.value.facts == {"current_holder": "w1", "generation": 1}


@run
async def test_an_expired_lease_frees_the_subscription_and_fences_the_old_worker(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_an_ack_without_done_is_a_heartbeat(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_a_released_wake_is_followed_by_another(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create("wake/pool")
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        claim = await w.subscriptions.claim("s", "w1")
        await w.subscriptions.release("s", proof_of(claim))
        await w.idle()
        assert w.events()[-1]["generation"] == 2
        assert (await w.subscriptions.claim("s", "w2")).generation == 2


@run
async def test_acks_that_no_cursor_can_follow_move_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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
            with pytest.raises(InvalidOffset):
                await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [good, bad], done=True)
            assert w.acked("s") == before
        with pytest.raises(InvalidOffset):
            await w.subscriptions.ack("s", "pull-wake", proof_of(claim), [good, Ack("events/a", first)], done=True)


@run
async def test_token_generation_and_wake_id_must_all_match(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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
        await w.subscriptions.ack("s", "pull-wake", proof_of(mine), [], done=True)


@run
async def test_tokens_of_a_deleted_subscription_do_not_open_its_successor(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create("events/a")
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        old = await w.subscriptions.claim("s", "w1")
        await w.subscriptions.delete("s")
        with pytest.raises(SubscriptionNotFound):
            await w.subscriptions.ack("s", "pull-wake", proof_of(old), [], done=True)
        w.clock.us += 1
        await w.subscriptions.put("s", PULL, BASE)
        await w.append("events/a")
        new = await w.subscriptions.claim("s", "w1")
        assert new.generation == old.generation
        with pytest.raises(TokenInvalid):
            await w.subscriptions.ack("s", "pull-wake", Proof(old.token, new.wake_id, 1), [], done=True)


@run
async def test_verbs_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.subscriptions.put("pull", PULL, BASE)
        await w.subscriptions.put("hook", hook("http://127.0.0.1:1/"), BASE)
        with pytest.raises(InvalidRequest):
            await w.subscriptions.claim("hook", "w1")
        with pytest.raises(InvalidRequest):
            await w.subscriptions.ack("pull", "webhook", Proof("1.x", "w", 1), [], done=True)


@run
async def test_named_streams_come_and_go_and_a_pattern_keeps_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_a_deleted_stream_is_unlinked_and_its_successor_starts_anew(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_a_wake_that_lost_its_streams_does_not_keep_the_next_one_away(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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


@run
async def test_streams_that_a_crash_kept_from_being_noted_are_found_at_the_next_start(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.create("wake/pool")
        await w.subscriptions.put("s", PULL, BASE)
        await w.subscriptions.close()
        # The commit of these appends is on disk; that of the links is not.
        await w.create("events/a", b"1")
        await w.create("events/empty")
        w.subscriptions = await Subscriptions.open(w.engine)
        await w.idle()
        assert w.acked("s") == {"events/a": offsets.START}
        assert [event["stream"] for event in w.events()] == ["events/a"]


@run
async def test_numbers_are_bounded(tmp_path: Path) -> None:
    async with world(tmp_path, Bounds(subscriptions=2, streams=2)) as w:
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


@run
async def test_a_webhook_is_signed_and_done_acks_what_it_was_told(tmp_path: Path) -> None:
    async with world(tmp_path) as w, receiver((200, {"done": True})) as (hooks, url):
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


@run
async def test_entries_that_come_during_a_delivery_bring_another_wake(tmp_path: Path) -> None:
    async with world(tmp_path) as w, receiver((200, {"done": True})) as (hooks, url):
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


@run
async def test_a_receiver_may_call_back_before_it_answers(tmp_path: Path) -> None:
    async with world(tmp_path) as w, receiver((500, {})) as (hooks, url):
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


@run
async def test_a_receiver_that_never_calls_back_is_woken_when_its_lease_is_over(tmp_path: Path) -> None:
    async with world(tmp_path) as w, receiver((200, {})) as (hooks, url):
        await w.create("events/a")
        await w.subscriptions.put("s", hook(url, lease_ms=5_000), BASE)
        await w.append("events/a")
        await w.idle()
        await w.pass_time(4.9)
        assert len(hooks.received) == 1
        await w.pass_time(0.1)
        first, second = hooks.bodies
        assert (first["generation"], second["generation"]) == (1, 2)
        with pytest.raises(Fenced):
            await w.subscriptions.ack("s", "webhook", proof_in(first), [], done=True)
        assert await w.subscriptions.ack("s", "webhook", proof_in(second), [], done=False) is False


@run
async def test_failed_deliveries_are_tried_again_after_pauses_that_double_up_to_a_minute(tmp_path: Path) -> None:
    async with world(tmp_path) as w, receiver((500, {})) as (hooks, url):
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


@run
async def test_a_pause_holds_though_the_lease_ends_in_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, receiver((500, {}), (500, {}), (500, {}), (200, {"done": True})) as (hooks, url):
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


@run
async def test_a_delivery_cut_off_by_a_stop_is_made_again_at_the_next_start(tmp_path: Path) -> None:
    async with world(tmp_path) as w, receiver((200, {"done": True})) as (hooks, url):
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


@run
async def test_unsafe_addresses_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        with pytest.raises(WebhookUrlRejected):
            await w.subscriptions.put("s", hook("http://10.0.0.1/hook"), BASE)
        assert len(w.subscriptions) == 0
