"""Delivers the wakes of subscriptions: begins and announces them, retries, and ends leases.

A wake is announced by a signed POST to a receiver, or by an event in the wake stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import random
import secrets
from collections.abc import Hashable, Mapping
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

import msgspec

from headrace.engine.log.append import Append
from headrace.engine.log.log import Log
from headrace.engine.runtime.background import BackgroundLoop
from headrace.engine.subscriptions.keyring import Keyring
from headrace.engine.subscriptions.store import SubscriptionStore
from headrace.engine.subscriptions.subscription import Subscription, first_pending, stream_of, stream_views
from headrace.engine.subscriptions.wakes import Wakes
from headrace.engine.subscriptions.webhook import DeliveryFailed, Webhooks
from headrace.errors import HeadraceError
from headrace.types import Clock


class Announcer:
    """Announces the wake in flight of a subscription."""

    def __init__(self, *, log: Log, clock: Clock, keyring: Keyring, webhooks: Webhooks, timeout_s: float) -> None:
        """``timeout_s`` is how long a receiver may take to answer."""
        self._log, self._clock, self._timeout_s = log, clock, timeout_s
        self._keyring = keyring
        self._webhooks = webhooks
        self.catalog = log.catalog

    async def announce(self, subscription: Subscription) -> Mapping[str, str] | None:
        """Announce the wake; returns the new cursors if the receiver is done, else None. May raise DeliveryFailed."""
        try:
            if subscription.is_webhook:
                return await self._post(subscription)
            await self._append_event(subscription)
        except HeadraceError as reason:
            raise DeliveryFailed(reason.message) from reason
        return None

    async def _post(self, subscription: Subscription) -> Mapping[str, str] | None:
        definition, wakes = subscription.definition, subscription.wakes
        assert definition.webhook_url is not None
        streams = stream_views(subscription, self.catalog)
        body = msgspec.json.encode(
            {
                "subscription_id": subscription.id,
                "wake_id": wakes.wake_id,
                "generation": wakes.generation,
                "streams": streams,
                "callback_url": subscription.callback_url,
                "callback_token": self._keyring.token(subscription, wakes.generation),
            }
        )
        signature = self._keyring.sign(body, self._clock.now_us())
        headers = {"content-type": "application/json", "webhook-signature": signature}
        # A receiver that answers after its lease is over has answered too late.
        timeout_s = min(self._timeout_s, definition.lease_ttl_ms / 1000)
        done = await self._webhooks.post(definition.webhook_url, body, headers, timeout_s=timeout_s)
        return {view.path: view.tail_offset for view in streams if view.has_pending} if done else None

    async def _append_event(self, subscription: Subscription) -> None:
        """Append a wake event; fails until the application has created the wake stream."""
        assert subscription.definition.wake_stream is not None
        stream = self._log.find(subscription.definition.wake_stream)
        trigger = first_pending(subscription, self.catalog)
        event = msgspec.json.encode(
            {
                "type": "wake",
                "subscription_id": subscription.id,
                "stream": "" if trigger is None else trigger.path,
                "generation": subscription.wakes.generation,
                "ts": self._clock.now_us() // 1000,
            }
        )
        settled: asyncio.Future[Append] = asyncio.get_running_loop().create_future()

        def done(append: Append) -> None:
            if append.settled:
                self._log.settled(append)
                if not settled.done():
                    settled.set_result(append)

        # A stream that is not JSON gets one event per line.
        body = event if stream.is_json else event + b"\n"
        self._log.append(Append(stream, body, 1, done))
        self.catalog.note_access(stream)
        append: Any = await settled
        if append.error is not None:
            raise append.error


Key = TypeVar("Key", bound=Hashable)


class Schedule(Generic[Key]):
    """A queue of keys by due time. Postponing a key costs nothing until the earlier time is reached."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._order = count()
        self._due: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}

    def set(self, key: Key, due_us: int | None) -> None:
        """Set when a key is due; None for never."""
        if due_us is None:
            self._due.pop(key, None)
            return
        self._due[key] = due_us
        if key not in self._queued or due_us < self._queued[key]:
            self._push(key, due_us)

    def pop(self, now_us: int) -> list[Key]:
        """Remove and return the keys that are due."""
        due: list[Key] = []
        while self._heap and self._heap[0][0] <= now_us:
            moment, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != moment:
                continue
            del self._queued[key]
            due_us = self._due.get(key)
            if due_us is not None and due_us > now_us:
                self._push(key, due_us)
            elif due_us is not None:
                del self._due[key]
                due.append(key)
        return due

    def next_us(self) -> int | None:
        """A moment before which no key is due; None where none is scheduled."""
        return self._heap[0][0] if self._heap else None

    def _push(self, key: Key, due_us: int) -> None:
        self._queued[key] = due_us
        heapq.heappush(self._heap, (due_us, next(self._order), key))


log = logging.getLogger("headrace.subscriptions")

_LONGEST_SLEEP_S = 60.0
_PAUSE_US = 1_000_000


def new_wake_id() -> str:
    """A unique id of a wake."""
    return "w_" + secrets.token_hex(12)


class Delivery:
    """Performs the due work of each subscription, one step at a time.

    A subscription is due when entries wait and no wake is in flight, when a wake is to be announced, when a lease has
    ended, and when links wait to be written.
    """

    def __init__(self, store: SubscriptionStore, announcer: Announcer, clock: Clock, *, max_concurrent: int) -> None:
        self._store = store
        self._announcer = announcer
        self._clock = clock
        self._gate = asyncio.Semaphore(max_concurrent)
        self._schedule: Schedule[Subscription] = Schedule()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = BackgroundLoop(
            "headrace.subscriptions", self._deliver_due, failed="nothing was delivered", retry_s=_LONGEST_SLEEP_S
        )

    def start(self) -> None:
        """Start to perform due work."""
        self._loop.start()

    async def stop(self) -> None:
        """Stop, and leave the rest to the next start."""
        await self._loop.stop(timeout_s=0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def changed(self, subscription: Subscription) -> None:
        """Schedule a subscription that has changed."""
        if not subscription.working:
            self._schedule.set(subscription, self._due_us(subscription))
            self._loop.wake()

    def tick(self) -> None:
        """Start everything that is due."""
        for subscription in self._schedule.pop(self._clock.now_us()):
            if not subscription.working:
                subscription.working = True
                work = asyncio.create_task(self._work(subscription))
                self._tasks.add(work)
                work.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        """Wait until nothing is under way or due."""
        self.tick()
        while self._tasks:
            await asyncio.wait(self._tasks)
            self.tick()

    async def _deliver_due(self) -> float:
        """Start everything that is due; returns how long to sleep until more is."""
        self.tick()
        next_us = self._schedule.next_us()
        sleep_s = _LONGEST_SLEEP_S if next_us is None else (next_us - self._clock.now_us()) / 1_000_000
        return min(max(sleep_s, 0.001), _LONGEST_SLEEP_S)

    def _due_us(self, subscription: Subscription) -> int | None:
        wakes = subscription.wakes
        if not subscription.ready or subscription.suspended:
            return None
        moments: list[int] = []
        if subscription.unsaved or subscription.unlinked or subscription.event_lost:
            moments.append(0)
        if wakes.wake_id is None:
            moments += [wakes.deliver_at_us or 0] if subscription.pending else []
        else:
            moments += [moment for moment in (wakes.deliver_at_us, wakes.lease_until_us) if moment is not None]
        return max(min(moments), subscription.paused_until_us) if moments else None

    async def _work(self, subscription: Subscription) -> None:
        try:
            if subscription.is_webhook:
                async with self._gate:
                    await self._step(subscription)
            else:
                await self._step(subscription)
        except HeadraceError as reason:
            # The log takes no writes at the moment; nothing was announced that is not on disk.
            log.warning("subscription %s waits: %s", subscription.id, reason)
            subscription.paused_until_us = self._clock.now_us() + _PAUSE_US
        except Exception:
            log.exception("subscription %s could not be served", subscription.id)
            subscription.paused_until_us = self._clock.now_us() + _PAUSE_US
        finally:
            subscription.working = False
            self.changed(subscription)

    async def _step(self, subscription: Subscription) -> None:
        if not await self._prepare(subscription):
            return
        wake_id, moves, failure = subscription.wakes.wake_id, None, None
        try:
            moves = await self._announcer.announce(subscription)
        except DeliveryFailed as reason:
            failure = str(reason)
        await self._conclude(subscription, wake_id, moves, failure)

    async def _prepare(self, subscription: Subscription) -> bool:
        """Write the state as of now; returns whether a wake is to be announced."""
        async with subscription.lock:
            if not subscription.ready or subscription.suspended:
                return False
            lost = subscription.event_lost
            wakes, due = self._next(subscription, lost)
            if wakes != subscription.wakes or subscription.unsaved or subscription.unlinked:
                await self._store.save(subscription, wakes)
            if lost:
                subscription.event_lost = False
            return due and not subscription.suspended

    def _next(self, subscription: Subscription, lost: bool) -> tuple[Wakes, bool]:
        now_us = self._clock.now_us()
        wakes = subscription.wakes.expire(now_us)
        pending = first_pending(subscription, self._announcer.catalog) is not None
        unclaimed = wakes.wake_id is not None and wakes.lease_until_us is None
        if wakes.wake_id is None and pending and (wakes.deliver_at_us or 0) <= now_us:
            wakes = wakes.begin(new_wake_id(), now_us)
        elif unclaimed and not pending:
            wakes = wakes.finish()
        elif unclaimed and lost and wakes.deliver_at_us is None:
            wakes = wakes.announce_again(now_us)
        due = wakes.wake_id is not None and wakes.deliver_at_us is not None and wakes.deliver_at_us <= now_us
        if due and subscription.is_webhook:
            wakes = wakes.lease(now_us + subscription.lease_us)
        return wakes, due

    async def _conclude(
        self, subscription: Subscription, wake_id: str | None, moves: Mapping[str, str] | None, failure: str | None
    ) -> None:
        """Write how an announcement went, unless the wake is over or was acked meanwhile."""
        async with subscription.lock:
            wakes = subscription.wakes
            if not subscription.ready or wakes.wake_id != wake_id:
                return
            if moves is not None:
                forward = subscription.forward(moves, partial(stream_of, self._announcer.catalog))
                await self._store.save(subscription, wakes.finish(), forward)
            elif wakes.deliver_at_us is not None and failure is not None:
                if not wakes.attempts:
                    log.warning("a wake of subscription %s was not delivered: %s", subscription.id, failure)
                wakes = wakes.failed(self._clock.now_us(), random.uniform(-1, 1), failure)
                await self._store.save(subscription, wakes)
            elif wakes.deliver_at_us is not None:
                await self._store.save(subscription, wakes.delivered())
