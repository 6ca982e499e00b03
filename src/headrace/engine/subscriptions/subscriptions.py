"""Subscriptions: durable cursors over many streams that wake workers when there is something to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from headrace.engine.log.lifecycle import SERVER
from headrace.engine.log.log import Log
from headrace.engine.subscriptions.delivery import Announcer, Delivery, new_wake_id
from headrace.engine.subscriptions.keyring import Keyring, token_invalid
from headrace.engine.subscriptions.store import Apply, AuditEntry, SubscriptionStore
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
    stream_of,
    stream_views,
)
from headrace.engine.subscriptions.subscription_index import SubscriptionIndex, SubscriptionLimits
from headrace.engine.subscriptions.wakes import Fenced, Wakes
from headrace.engine.subscriptions.webhook import Webhooks
from headrace.types import Clock

log = logging.getLogger("headrace.subscriptions")

Params = ParamSpec("Params")
Returned = TypeVar("Returned")
_CHANGED = "subscription_changed"


class Claim(msgspec.Struct, frozen=True):
    """A claimed wake: the proof of holding it, and the streams with work."""

    wake_id: str
    generation: int
    token: str
    streams: list[StreamView]
    lease_ttl_ms: int


class Proof(msgspec.Struct, frozen=True):
    """The token with which a worker proves that it holds a wake."""

    token: str
    wake_id: str
    generation: int


Method = Callable[Concatenate["Subscriptions", Params], Coroutine[Any, Any, Returned]]


def run_to_end(method: Method[Params, Returned]) -> Method[Params, Returned]:
    """Run a method to its end even if its caller is cancelled: memory must follow what was written."""

    @wraps(method)
    async def run(self: Subscriptions, /, *args: Params.args, **kwargs: Params.kwargs) -> Returned:
        task = asyncio.create_task(method(self, *args, **kwargs))
        self.keep_task(task)
        return await asyncio.shield(task)

    return run


class Subscriptions:
    """Every subscription of this node.

    Promises: every entry appended to a linked stream is covered by a wake, repeated until it is acked, across restarts;
    at most one worker holds a subscription at a time; a worker that lost the lease can change nothing; a cursor never
    moves back. What an answer says is on disk.
    """

    def __init__(
        self,
        *,
        log: Log,
        clock: Clock,
        store: SubscriptionStore,
        keyring: Keyring,
        limits: SubscriptionLimits,
        webhooks: Webhooks,
        webhook_timeout_s: float,
        keys: Collection[str] | None,
    ) -> None:
        self._keys = keys
        self._log, self._clock = log, clock
        self._webhooks = webhooks
        self._store = store
        self.keyring = keyring
        announcer = Announcer(log=log, clock=clock, keyring=keyring, webhooks=webhooks, timeout_s=webhook_timeout_s)
        self.delivery = Delivery(store, announcer, clock, max_concurrent=limits.deliveries)
        self._catalog = log.catalog
        self._index = SubscriptionIndex(self._catalog, store, limits, self.delivery.changed)
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls,
        *,
        log: Log,
        clock: Clock,
        apply: Apply,
        webhook_timeout_s: float,
        limits: SubscriptionLimits | None = None,
        webhooks: Webhooks | None = None,
        keys: Collection[str] | None = None,
    ) -> Subscriptions:
        """Load every subscription, and continue its leases, wakes and retries.

        ``keys`` are the ids of the valid keys; without them every key is valid.
        """
        store = SubscriptionStore(apply)
        subscriptions = cls(
            log=log,
            clock=clock,
            store=store,
            keyring=await store.keyring(),
            limits=limits or SubscriptionLimits(),
            webhooks=webhooks or Webhooks(),
            webhook_timeout_s=webhook_timeout_s,
            keys=keys,
        )
        log.on_append.append(subscriptions._index.appended)
        log.on_delete.append(subscriptions._index.deleted)
        for stored in await store.load():
            await subscriptions._index.restore(stored)
            stored.subscription.ready = True
            subscriptions._suspend_without_key(stored.subscription)
            subscriptions.delivery.changed(stored.subscription)
        subscriptions.delivery.start()
        return subscriptions

    async def close(self) -> None:
        """Finish the requests in progress, and leave the rest to the next start."""
        self._log.on_append.remove(self._index.appended)
        self._log.on_delete.remove(self._index.deleted)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.delivery.stop()
        await self._webhooks.close()

    def __len__(self) -> int:
        return len(self._index.by_id)

    def find(self, id: str) -> Subscription | None:
        """The subscription of this name, if there is one."""
        subscription = self._index.by_id.get(id)
        return subscription if subscription is not None and subscription.ready else None

    def get(self, id: str) -> Subscription:
        """The subscription of this name."""
        subscription = self.find(id)
        if subscription is None:
            raise SubscriptionNotFound("there is no such subscription", subscription=id)
        return subscription

    def set_valid_keys(self, keys: Collection[str]) -> None:
        """Suspend the webhooks whose keys are not among these valid ones, and resume the others."""
        self._keys = keys
        for subscription in self._index.by_id.values():
            self._suspend_without_key(subscription)
            self.delivery.changed(subscription)

    def revoke_key(self, key_id: str) -> None:
        """Suspend the webhooks of a key that was revoked."""
        if self._keys is not None:
            self.set_valid_keys(frozenset(self._keys) - {key_id})

    def _suspend_without_key(self, subscription: Subscription) -> None:
        key_id, before = subscription.owner.key_id, subscription.suspended
        ended = self._keys is not None and bool(key_id) and key_id not in self._keys
        subscription.suspended = ended and subscription.is_webhook
        if subscription.suspended and not before:
            log.warning("the webhook %s is suspended: the key %s does not hold any more", subscription.id, key_id)

    @run_to_end
    async def put(
        self,
        id: str,
        definition: Definition,
        base_url: str,
        who: str = SERVER,
        owner: Owner = NO_KEY,
        may_see: Callable[[Subscription], bool] = lambda _: True,
    ) -> tuple[Subscription, bool]:
        """Create a subscription, or confirm one that asks for the same; returns whether it is new.

        A confirmed one belongs to this key from now on, if the key opens the same streams or the other is revoked.
        """
        async with self._lock:
            existing = self._index.by_id.get(id)
            if existing is not None:
                if existing.definition != definition or not may_see(existing):
                    message = "the name is taken by a subscription that asks for something else: choose another"
                    raise SubscriptionExists(message, subscription=id)
                await self._confirm(existing, base_url, owner)
                return existing, False
            if definition.webhook_url is not None:
                self._webhooks.check(definition.webhook_url)
            self._index.check_limits(owner)
            return await self._create(id, definition, base_url, who, owner), True

    @run_to_end
    async def delete(self, id: str, who: str = SERVER) -> None:
        """Delete a subscription; workers that hold it are refused from now on."""
        async with self._lock:
            subscription = self._index.by_id.get(id)
            if subscription is None:
                return
            async with self._locked(subscription):
                await self._store.remove(subscription, AuditEntry("subscription_deleted", who, id))
                subscription.ready = False
                self._index.drop(subscription)

    @run_to_end
    async def add_streams(self, id: str, paths: Iterable[str], who: str = SERVER) -> None:
        """Link streams by name."""
        subscription, paths = self.get(id), tuple(paths)
        async with self._locked(subscription):
            self._index.link_named(subscription, paths)
            entry = AuditEntry(_CHANGED, who, id, {"linked": paths})
            await self._store.save(subscription, subscription.wakes, entry=entry)

    @run_to_end
    async def remove_stream(self, id: str, path: str, who: str = SERVER) -> None:
        """Unlink a stream that was linked by name."""
        subscription = self.get(id)
        async with self._locked(subscription):
            self._index.unlink_named(subscription, path)
            entry = AuditEntry(_CHANGED, who, id, {"unlinked": [path]})
            await self._store.save(subscription, subscription.wakes, entry=entry)

    @run_to_end
    async def claim(self, id: str, worker: str) -> Claim:
        """Give the wake to a worker, if there is work and no other worker holds it."""
        subscription = self.get(id)
        self._check_type(subscription, "pull-wake")
        async with self._locked(subscription):
            now_us = self._clock.now_us()
            wakes = subscription.wakes.expire(now_us)
            if wakes.holder is None and first_pending(subscription, self._catalog) is None:
                await self._refuse_claim(subscription, wakes)
            if wakes.wake_id is None:
                wakes = wakes.begin(new_wake_id(), now_us)
            wakes = wakes.claim(worker, now_us + subscription.lease_us)
            await self._store.save(subscription, wakes)
            return self._claimed(subscription)

    @run_to_end
    async def ack(self, id: str, kind: str, proof: Proof, acks: Iterable[Ack], *, done: bool) -> bool:
        """Move cursors and extend the lease, or end it if ``done``; returns whether another wake follows."""
        async with self._proven(id, proof) as subscription:
            self._check_type(subscription, kind)
            moves = subscription.moves(acks, partial(stream_of, self._catalog))
            wakes = subscription.wakes
            wakes = wakes.finish() if done else wakes.delivered().lease(self._clock.now_us() + subscription.lease_us)
            await self._store.save(subscription, wakes, moves)
            return done and bool(subscription.pending)

    @run_to_end
    async def release(self, id: str, proof: Proof) -> None:
        """Give a wake back unfinished."""
        async with self._proven(id, proof) as subscription:
            self._check_type(subscription, "pull-wake")
            await self._store.save(subscription, subscription.wakes.finish())

    async def _confirm(self, subscription: Subscription, base_url: str, owner: Owner) -> None:
        takes_over = owner.key_id != subscription.owner.key_id and (
            owner.prefix == subscription.owner.prefix or subscription.suspended
        )
        if takes_over:
            self._index.check_key_limit(owner.key_id)
        else:
            owner = subscription.owner
        if subscription.base_url != base_url or takes_over:
            async with self._locked(subscription):
                await self._store.save(subscription, subscription.wakes, base_url=base_url, owner=owner)
                if takes_over:
                    subscription.suspended = False
                    self._index.add(subscription)

    async def _create(self, id: str, definition: Definition, base_url: str, who: str, owner: Owner) -> Subscription:
        subscription = Subscription(id, definition, base_url, self._clock.now_us(), Wakes(), owner)
        # Appends are noted from here on, so that none is missed between the search for streams and the commit.
        self._index.add(subscription)
        try:
            self._index.link_named(subscription, definition.streams)
            await self._index.link_matches(subscription)
            entry = AuditEntry("subscription_created", who, id, {"type": definition.type})
            await self._store.save(subscription, subscription.wakes, entry=entry)
        except BaseException:
            self._index.drop(subscription)
            raise
        subscription.ready = True
        self.delivery.changed(subscription)
        return subscription

    async def _refuse_claim(self, subscription: Subscription, wakes: Wakes) -> None:
        """Refuse a claim without work, and end the wake in flight: the next entry must begin a new one."""
        if subscription.wakes.wake_id is not None:
            await self._store.save(subscription, wakes.finish())
        raise NoPendingWork("nothing waits in the streams of this subscription", generation=wakes.generation)

    def _claimed(self, subscription: Subscription) -> Claim:
        wakes = subscription.wakes
        assert wakes.wake_id is not None
        return Claim(
            wake_id=wakes.wake_id,
            generation=wakes.generation,
            token=self.keyring.token(subscription, wakes.generation),
            streams=stream_views(subscription, self._catalog),
            lease_ttl_ms=subscription.definition.lease_ttl_ms,
        )

    @asynccontextmanager
    async def _proven(self, id: str, proof: Proof) -> AsyncIterator[Subscription]:
        """The subscription of a wake, for the holder of its token; to others it is as if there were none."""
        subscription = self.find(id)
        if subscription is None or subscription.suspended:
            raise token_invalid()
        # Before the lock: without a token, nothing is learned from the wait.
        self.keyring.generation(subscription, proof.token)
        try:
            async with self._locked(subscription):
                self._prove(subscription, proof)
                yield subscription
        except SubscriptionNotFound as reason:
            raise token_invalid() from reason

    def _prove(self, subscription: Subscription, proof: Proof) -> None:
        """Refuse a proof that is not of the wake in flight: token, generation and wake id must all match."""
        generation = self.keyring.generation(subscription, proof.token)
        subscription.wakes.check(proof.wake_id, proof.generation, self._clock.now_us())
        if generation != proof.generation:
            raise Fenced("the token is of another wake", generation=subscription.wakes.generation)

    def _check_type(self, subscription: Subscription, kind: str) -> None:
        if subscription.definition.type != kind:
            raise InvalidRequest(f"this is not a {kind} subscription", subscription=subscription.id)

    @asynccontextmanager
    async def _locked(self, subscription: Subscription) -> AsyncIterator[None]:
        """Hold the lock of a subscription; raises SubscriptionNotFound where it was deleted meanwhile."""
        async with subscription.lock:
            if not subscription.ready:
                raise SubscriptionNotFound("there is no such subscription", subscription=subscription.id)
            try:
                yield
            finally:
                self.delivery.changed(subscription)

    def keep_task(self, task: asyncio.Task[Any]) -> None:
        """Wait for a task when subscriptions are closed."""
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has got it, unless it was cancelled
