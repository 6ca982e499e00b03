"""Subscriptions: durable cursors over many streams that wake workers when there is something to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from headrace.engine.log.lifecycle import SERVER
from headrace.engine.log.log import Log
from headrace.engine.subscriptions.delivery import Announcer, Delivery, new_wake_id
from headrace.engine.subscriptions.keyring import Keyring, token_invalid
from headrace.engine.subscriptions.ledger import Apply, Ledger, Note
from headrace.engine.subscriptions.subscription import (
    NO_KEY,
    Ack,
    Definition,
    InvalidRequest,
    NoPendingWork,
    Owner,
    StreamView,
    Subscription,
    SubscriptionExists,
    SubscriptionNotFound,
    first_pending,
    snapshot,
    stream_of,
)
from headrace.engine.subscriptions.subscription_index import Bounds, SubscriptionIndex
from headrace.engine.subscriptions.wakes import Fenced, Wakes
from headrace.engine.subscriptions.webhook import Webhooks
from headrace.types import Clock

log = logging.getLogger("headrace.subscriptions")

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

    def __init__(
        self,
        *,
        log: Log,
        clock: Clock,
        ledger: Ledger,
        keyring: Keyring,
        bounds: Bounds,
        webhooks: Webhooks,
        webhook_timeout_s: float,
        keys: Collection[str] | None,
    ) -> None:
        self._keys = keys
        self._log, self._clock = log, clock
        self._bounds = bounds
        self._webhooks = webhooks
        self._ledger = ledger
        self.keyring = keyring
        announcer = Announcer(log=log, clock=clock, keyring=keyring, webhooks=webhooks, timeout_s=webhook_timeout_s)
        self.delivery = Delivery(self._ledger, announcer, clock, concurrent=bounds.deliveries)
        self._catalog = log.catalog
        self._roster = SubscriptionIndex(self._catalog, self._ledger, bounds, self.delivery.changed)
        self._lock = asyncio.Lock()
        self._verbs: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls,
        *,
        log: Log,
        clock: Clock,
        apply: Apply,
        webhook_timeout_s: float,
        bounds: Bounds | None = None,
        webhooks: Webhooks | None = None,
        keys: Collection[str] | None = None,
    ) -> Subscriptions:
        """Load every subscription, and go on with its leases, wakes and retries.

        ``keys`` are the ids of those that hold; without them every key does.
        """
        ledger = Ledger(apply)
        subscriptions = cls(
            log=log,
            clock=clock,
            ledger=ledger,
            keyring=await ledger.keyring(),
            bounds=bounds or Bounds(),
            webhooks=webhooks or Webhooks(),
            webhook_timeout_s=webhook_timeout_s,
            keys=keys,
        )
        log.on_append.append(subscriptions._roster.appended)
        log.on_delete.append(subscriptions._roster.deleted)
        for stored in await ledger.load():
            await subscriptions._roster.restore(stored)
            stored.subscription.ready = True
            subscriptions._suspend_without_key(stored.subscription)
            subscriptions.delivery.changed(stored.subscription)
        subscriptions.delivery.start()
        return subscriptions

    async def close(self) -> None:
        """Finish what was asked for, and leave the rest to the next start."""
        self._log.on_append.remove(self._roster.appended)
        self._log.on_delete.remove(self._roster.deleted)
        if self._verbs:
            await asyncio.wait(self._verbs)
        await self.delivery.stop()
        await self._webhooks.close()

    def __len__(self) -> int:
        return len(self._roster.by_id)

    def find(self, id: str) -> Subscription | None:
        """The subscription of this name, if there is one."""
        subscription = self._roster.by_id.get(id)
        return subscription if subscription is not None and subscription.ready else None

    def get(self, id: str) -> Subscription:
        """The subscription of this name."""
        subscription = self.find(id)
        if subscription is None:
            raise SubscriptionNotFound("there is no such subscription", subscription=id)
        return subscription

    def keep_keys(self, keys: Collection[str]) -> None:
        """Suspend the webhooks whose keys are not among these, which hold; those of the others go on."""
        self._keys = keys
        for subscription in self._roster.by_id.values():
            self._suspend_without_key(subscription)
            self.delivery.changed(subscription)

    def end_key(self, key_id: str) -> None:
        """A key does not hold any more."""
        if self._keys is not None:
            self.keep_keys(frozenset(self._keys) - {key_id})

    def _suspend_without_key(self, subscription: Subscription) -> None:
        key_id, before = subscription.owner.key_id, subscription.suspended
        ended = self._keys is not None and bool(key_id) and key_id not in self._keys
        subscription.suspended = ended and subscription.is_webhook
        if subscription.suspended and not before:
            log.warning("the webhook %s is suspended: the key %s does not hold any more", subscription.id, key_id)

    async def put(
        self,
        id: str,
        definition: Definition,
        base_url: str,
        who: str = SERVER,
        owner: Owner = NO_KEY,
        may_see: Callable[[Subscription], bool] = lambda _: True,
    ) -> tuple[Subscription, bool]:
        """Create a subscription, or confirm one that asks for the same; answers whether it is new.

        A confirmed one belongs to this key from now on, if it opens the same streams or the other holds no more.
        """
        return await self._whole(self._put(id, definition, base_url, who, owner, may_see))

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

    async def _put(
        self,
        id: str,
        definition: Definition,
        base_url: str,
        who: str,
        owner: Owner,
        may_see: Callable[[Subscription], bool],
    ) -> tuple[Subscription, bool]:
        async with self._lock:
            existing = self._roster.by_id.get(id)
            if existing is not None:
                if existing.definition != definition or not may_see(existing):
                    message = "the name is taken by a subscription that asks for something else: choose another"
                    raise SubscriptionExists(message, subscription=id)
                await self._confirm(existing, base_url, owner)
                return existing, False
            if definition.webhook_url is not None:
                self._webhooks.check(definition.webhook_url)
            self._roster.refuse_one_more(owner)
            return await self._create(id, definition, base_url, who, owner), True

    async def _confirm(self, subscription: Subscription, base_url: str, owner: Owner) -> None:
        takes_over = owner.key_id != subscription.owner.key_id and (
            owner.prefix == subscription.owner.prefix or subscription.suspended
        )
        if takes_over:
            self._roster.refuse_one_more_of(owner.key_id)
        else:
            owner = subscription.owner
        if subscription.base_url != base_url or takes_over:
            async with self._turn(subscription):
                await self._ledger.save(subscription, subscription.wakes, base_url=base_url, owner=owner)
                if takes_over:
                    subscription.suspended = False
                    self._roster.add(subscription)

    async def _create(self, id: str, definition: Definition, base_url: str, who: str, owner: Owner) -> Subscription:
        subscription = Subscription(id, definition, base_url, self._clock.now_us(), Wakes(), owner)
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
            subscription = self._roster.by_id.get(id)
            if subscription is None:
                return
            async with self._turn(subscription):
                await self._ledger.remove(subscription, Note("subscription_deleted", who, id))
                subscription.ready = False
                self._roster.drop(subscription)

    async def _add_streams(self, id: str, paths: tuple[str, ...], who: str) -> None:
        subscription = self.get(id)
        async with self._turn(subscription):
            self._roster.name(subscription, paths)
            await self._ledger.save(subscription, subscription.wakes, note=Note(_CHANGED, who, id, {"linked": paths}))

    async def _remove_stream(self, id: str, path: str, who: str) -> None:
        subscription = self.get(id)
        async with self._turn(subscription):
            self._roster.unname(subscription, path)
            await self._ledger.save(
                subscription, subscription.wakes, note=Note(_CHANGED, who, id, {"unlinked": [path]})
            )

    async def _claim(self, id: str, worker: str) -> Claim:
        subscription = self._with_hook(id, "pull-wake")
        async with self._turn(subscription):
            now_us = self._clock.now_us()
            wakes = subscription.wakes.expire(now_us)
            if wakes.holder is None and first_pending(subscription, self._catalog) is None:
                await self._nothing_to_claim(subscription, wakes)
            if wakes.wake_id is None:
                wakes = wakes.begin(new_wake_id(), now_us)
            wakes = wakes.claim(worker, now_us + subscription.lease_us)
            await self._ledger.save(subscription, wakes)
            return self._claimed(subscription)

    async def _nothing_to_claim(self, subscription: Subscription, wakes: Wakes) -> None:
        """Refuse a claim, and end a wake that nobody needs: the next entry must begin a new one."""
        if subscription.wakes.wake_id is not None:
            await self._ledger.save(subscription, wakes.finish())
        raise NoPendingWork("nothing waits in the streams of this subscription", generation=wakes.generation)

    def _claimed(self, subscription: Subscription) -> Claim:
        wakes = subscription.wakes
        assert wakes.wake_id is not None
        return Claim(
            wake_id=wakes.wake_id,
            generation=wakes.generation,
            token=self.keyring.token(subscription, wakes.generation),
            streams=snapshot(subscription, self._catalog),
            lease_ttl_ms=subscription.definition.lease_ttl_ms,
        )

    async def _ack(self, id: str, kind: str, proof: Proof, acks: tuple[Ack, ...], done: bool) -> bool:
        async with self._proven(id, proof) as subscription:
            self._refuse_other_kind(subscription, kind)
            moves = subscription.moves(acks, partial(stream_of, self._catalog))
            wakes = (
                subscription.wakes.finish()
                if done
                else subscription.wakes.delivered().lease(self._lease_end(subscription))
            )
            await self._ledger.save(subscription, wakes, moves)
            return done and bool(subscription.pending)

    async def _release(self, id: str, proof: Proof) -> None:
        async with self._proven(id, proof) as subscription:
            self._refuse_other_kind(subscription, "pull-wake")
            await self._ledger.save(subscription, subscription.wakes.finish())

    @asynccontextmanager
    async def _proven(self, id: str, proof: Proof) -> AsyncIterator[Subscription]:
        """The subscription of a wake, for whoever holds its token; to others it is as if there were none."""
        subscription = self.find(id)
        if subscription is None or subscription.suspended:
            raise token_invalid()
        # Before its turn: who has no token learns nothing from the wait.
        self.keyring.generation(subscription, proof.token)
        try:
            async with self._turn(subscription):
                self._prove(subscription, proof)
                yield subscription
        except SubscriptionNotFound as reason:
            raise token_invalid() from reason

    def _prove(self, subscription: Subscription, proof: Proof) -> None:
        """Refuse whoever does not hold the wake in flight: token, generation and wake id must all be its own."""
        generation = self.keyring.generation(subscription, proof.token)
        subscription.wakes.check(proof.wake_id, proof.generation, self._clock.now_us())
        if generation != proof.generation:
            raise Fenced("the token is of another wake", generation=subscription.wakes.generation)

    def _with_hook(self, id: str, kind: str) -> Subscription:
        subscription = self.get(id)
        self._refuse_other_kind(subscription, kind)
        return subscription

    def _refuse_other_kind(self, subscription: Subscription, kind: str) -> None:
        if subscription.definition.type != kind:
            raise InvalidRequest(f"this is not a {kind} subscription", subscription=subscription.id)

    @asynccontextmanager
    async def _turn(self, subscription: Subscription) -> AsyncIterator[None]:
        """Be the only one to change a subscription, if it is still there when the turn comes."""
        async with subscription.lock:
            if not subscription.ready:
                raise SubscriptionNotFound("there is no such subscription", subscription=subscription.id)
            try:
                yield
            finally:
                self.delivery.changed(subscription)

    def _lease_end(self, subscription: Subscription) -> int:
        return self._clock.now_us() + subscription.lease_us

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
