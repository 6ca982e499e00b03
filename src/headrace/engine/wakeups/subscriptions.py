"""Subscriptions: durable cursors over many streams that wake workers when there is something to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from headrace.engine.engine import Engine
from headrace.engine.lifecycle import SERVER
from headrace.engine.wakeups.announcing import Announcer
from headrace.engine.wakeups.delivery import Delivery, new_wake_id
from headrace.engine.wakeups.ledger import Ledger, Note
from headrace.engine.wakeups.roster import Bounds, Roster
from headrace.engine.wakeups.signing import Keyring
from headrace.engine.wakeups.snapshot import StreamView, first_pending, snapshot, stream_of
from headrace.engine.wakeups.subscription import (
    Ack,
    Definition,
    InvalidRequest,
    NoPendingWork,
    Subscription,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
)
from headrace.engine.wakeups.wakes import Fenced, Wakes
from headrace.engine.wakeups.webhook import Webhooks, check_url

T = TypeVar("T")
_CHANGED = "subscription_changed"


class Claim(msgspec.Struct, frozen=True):
    """What a worker holds: the wake, the proof of holding it, and where there is work."""

    wake_id: str
    generation: int
    token: str
    streams: list[StreamView]
    lease_ttl_ms: int


class Proof(msgspec.Struct, frozen=True):
    """How a worker shows that it speaks of the wake it was given."""

    token: str
    wake_id: str
    generation: int


class Subscriptions:
    """Every subscription of this node.

    Promises: every entry appended to a linked stream is covered by a wake, again and again until it is acked, across
    restarts; at most one worker holds a subscription at a time; whoever lost the lease can change nothing; a cursor
    never moves back. What an answer says is on disk.
    """

    def __init__(self, engine: Engine, keyring: Keyring, bounds: Bounds, webhooks: Webhooks) -> None:
        self._engine = engine
        self._bounds = bounds
        self._webhooks = webhooks
        self._ledger = Ledger(engine)
        self.keyring = keyring
        announcer = Announcer(engine, keyring, webhooks)
        self.delivery = Delivery(self._ledger, announcer, engine.clock, concurrent=bounds.deliveries)
        self._catalog = engine.log.catalog
        self._roster = Roster(self._catalog, self._ledger, bounds, self.delivery.changed)
        self._lock = asyncio.Lock()
        self._verbs: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls, engine: Engine, *, bounds: Bounds | None = None, webhooks: Webhooks | None = None
    ) -> Subscriptions:
        """Load every subscription, and go on with its leases, wakes and retries."""
        keyring = await Ledger(engine).keyring()
        found = cls(engine, keyring, bounds or Bounds(), webhooks or Webhooks())
        engine.log.on_append.append(found._roster.appended)
        engine.log.on_delete.append(found._roster.deleted)
        for stored in await found._ledger.load():
            await found._roster.restore(stored)
            stored.subscription.ready = True
            found.delivery.changed(stored.subscription)
        found.delivery.start()
        return found

    async def close(self) -> None:
        """Finish what was asked for, and leave the rest to the next start."""
        self._engine.log.on_append.remove(self._roster.appended)
        self._engine.log.on_delete.remove(self._roster.deleted)
        if self._verbs:
            await asyncio.wait(self._verbs)
        await self.delivery.stop()
        await self._webhooks.close()

    def __len__(self) -> int:
        return len(self._roster.by_id)

    def find(self, id: str) -> Subscription | None:
        """The subscription of this name, if there is one."""
        found = self._roster.by_id.get(id)
        return found if found is not None and found.ready else None

    def get(self, id: str) -> Subscription:
        """The subscription of this name."""
        found = self.find(id)
        if found is None:
            raise SubscriptionNotFound("there is no such subscription", subscription=id)
        return found

    async def put(self, id: str, definition: Definition, base_url: str, who: str = SERVER) -> tuple[Subscription, bool]:
        """Create a subscription, or confirm one that asks for the same; answers whether it is new."""
        return await self._whole(self._put(id, definition, base_url, who))

    async def delete(self, id: str, who: str = SERVER) -> None:
        """Forget a subscription; workers that hold it are refused from now on."""
        await self._whole(self._delete(id, who))

    async def add_streams(self, id: str, paths: Iterable[str], who: str = SERVER) -> None:
        """Link streams by name."""
        await self._whole(self._add_streams(id, tuple(paths), who))

    async def remove_stream(self, id: str, path: str, who: str = SERVER) -> None:
        """Undo the naming of a stream."""
        await self._whole(self._remove_stream(id, path, who))

    async def claim(self, id: str, worker: str) -> Claim:
        """Give the wake to a worker, if there is work and nobody else has it."""
        return await self._whole(self._claim(id, worker))

    async def ack(self, id: str, kind: str, proof: Proof, acks: Iterable[Ack], *, done: bool) -> bool:
        """Move cursors and extend the lease, or end it if ``done``; answers whether another wake follows."""
        return await self._whole(self._ack(id, kind, proof, tuple(acks), done))

    async def release(self, id: str, proof: Proof) -> None:
        """Give a wake back unfinished."""
        await self._whole(self._release(id, proof))

    async def _put(self, id: str, definition: Definition, base_url: str, who: str) -> tuple[Subscription, bool]:
        async with self._lock:
            found = self._roster.by_id.get(id)
            if found is not None:
                await self._confirm(found, definition, base_url)
                return found, False
            if definition.webhook_url is not None:
                check_url(definition.webhook_url)
            if len(self._roster.by_id) >= self._bounds.subscriptions:
                limit = self._bounds.subscriptions
                raise TooManySubscriptions(f"this server keeps at most {limit} subscriptions", limit=limit)
            return await self._create(id, definition, base_url, who), True

    async def _confirm(self, found: Subscription, definition: Definition, base_url: str) -> None:
        if found.definition != definition:
            raise SubscriptionExists("the subscription exists and asks for something else", subscription=found.id)
        if found.base_url != base_url:
            async with self._turn(found):
                await self._ledger.save(found, found.wakes, base_url=base_url)

    async def _create(self, id: str, definition: Definition, base_url: str, who: str) -> Subscription:
        subscription = Subscription(id, definition, base_url, self._engine.clock.now_us(), Wakes())
        # Appends are noted from here on, so that none falls between the look at what exists and the commit.
        self._roster.add(subscription)
        try:
            self._roster.name(subscription, definition.streams)
            await self._roster.link_matches(subscription)
            note = Note("subscription_created", who, id, {"type": definition.type})
            await self._ledger.save(subscription, subscription.wakes, note=note)
        except BaseException:
            self._roster.drop(subscription)
            raise
        subscription.ready = True
        self.delivery.changed(subscription)
        return subscription

    async def _delete(self, id: str, who: str) -> None:
        async with self._lock:
            found = self._roster.by_id.get(id)
            if found is None:
                return
            async with self._turn(found):
                await self._ledger.remove(found, Note("subscription_deleted", who, id))
                found.ready = False
                self._roster.drop(found)

    async def _add_streams(self, id: str, paths: tuple[str, ...], who: str) -> None:
        found = self.get(id)
        async with self._turn(found):
            self._roster.name(found, paths)
            await self._ledger.save(found, found.wakes, note=Note(_CHANGED, who, id, {"linked": paths}))

    async def _remove_stream(self, id: str, path: str, who: str) -> None:
        found = self.get(id)
        async with self._turn(found):
            self._roster.unname(found, path)
            await self._ledger.save(found, found.wakes, note=Note(_CHANGED, who, id, {"unlinked": [path]}))

    async def _claim(self, id: str, worker: str) -> Claim:
        found = self._of_kind(id, "pull-wake")
        async with self._turn(found):
            now_us = self._engine.clock.now_us()
            wakes = found.wakes.expire(now_us)
            if wakes.holder is None and first_pending(found, self._catalog) is None:
                await self._nothing_to_claim(found, wakes)
            if wakes.wake_id is None:
                wakes = wakes.begin(new_wake_id(), now_us)
            wakes = wakes.claim(worker, now_us + found.lease_us)
            await self._ledger.save(found, wakes)
            return self._claimed(found)

    async def _nothing_to_claim(self, found: Subscription, wakes: Wakes) -> None:
        """Refuse a claim, and end a wake that nobody needs: the next entry must begin a new one."""
        if found.wakes.wake_id is not None:
            await self._ledger.save(found, wakes.finish())
        raise NoPendingWork("nothing waits in the streams of this subscription", generation=wakes.generation)

    def _claimed(self, found: Subscription) -> Claim:
        wakes = found.wakes
        assert wakes.wake_id is not None
        return Claim(
            wake_id=wakes.wake_id,
            generation=wakes.generation,
            token=self.keyring.token(found, wakes.generation),
            streams=snapshot(found, self._catalog),
            lease_ttl_ms=found.definition.lease_ttl_ms,
        )

    async def _ack(self, id: str, kind: str, proof: Proof, acks: tuple[Ack, ...], done: bool) -> bool:
        found = self._of_kind(id, kind)
        async with self._turn(found):
            self._prove(found, proof)
            moves = found.moves(acks, partial(stream_of, self._catalog))
            wakes = found.wakes.finish() if done else found.wakes.delivered().lease(self._lease_end(found))
            await self._ledger.save(found, wakes, moves)
            return done and bool(found.pending)

    async def _release(self, id: str, proof: Proof) -> None:
        found = self._of_kind(id, "pull-wake")
        async with self._turn(found):
            self._prove(found, proof)
            await self._ledger.save(found, found.wakes.finish())

    def _prove(self, found: Subscription, proof: Proof) -> None:
        """Refuse whoever does not hold the wake in flight: token, generation and wake id must all be its own."""
        generation = self.keyring.generation(found, proof.token)
        found.wakes.check(proof.wake_id, proof.generation, self._engine.clock.now_us())
        if generation != proof.generation:
            raise Fenced("the token is of another wake", generation=found.wakes.generation)

    def _of_kind(self, id: str, kind: str) -> Subscription:
        found = self.get(id)
        if found.definition.type != kind:
            raise InvalidRequest(f"this is not a {kind} subscription", subscription=id)
        return found

    @asynccontextmanager
    async def _turn(self, found: Subscription) -> AsyncIterator[None]:
        """Be the only one to change a subscription, if it is still there when the turn comes."""
        async with found.lock:
            if not found.ready:
                raise SubscriptionNotFound("there is no such subscription", subscription=found.id)
            try:
                yield
            finally:
                self.delivery.changed(found)

    def _lease_end(self, found: Subscription) -> int:
        return self._engine.clock.now_us() + found.lease_us

    async def _whole(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run a verb to its end even if its caller goes away: memory must follow what was written."""
        task = asyncio.create_task(verb)
        self._verbs.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._verbs.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has been told; whoever went away need not be
