"""Telling workers of a wake: a signed POST to a receiver, or an event in the wake stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.engine.log.append import Append
from headrace.engine.log.log import Log
from headrace.engine.subscriptions.keyring import Keyring
from headrace.engine.subscriptions.snapshot import first_pending, snapshot
from headrace.engine.subscriptions.subscription import Subscription
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
        """Tell whoever must hear; answers the cursors to set if the receiver is done, else None.

        Raises DeliveryFailed where nobody has heard.
        """
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
        streams = snapshot(subscription, self.catalog)
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
        """Append a wake event; the application makes the wake stream, and until it does this fails."""
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
