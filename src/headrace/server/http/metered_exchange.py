"""Answers that count towards the quota of a key.

What is over in an answer that has begun is owed: further requests are refused until it is paid off. Server-sent events
wait instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.engine.log.tiers import NeedsFetch
from headrace.server.http.exchange import Exchange, Headers, Reply
from headrace.server.http.quota import Quota
from headrace.server.http.request import Request


def _forwarded(name: str) -> Any:
    """An attribute of the exchange behind this one."""
    return property(
        lambda self: getattr(self._exchange, name), lambda self, value: setattr(self._exchange, name, value)
    )


class MeteredExchange:
    """An exchange whose answers count towards a quota."""

    parked: bool = _forwarded("parked")
    gone_at_eof: bool = _forwarded("gone_at_eof")
    on_gone: Callable[[], None] | None = _forwarded("on_gone")
    on_drained: Callable[[], None] | None = _forwarded("on_drained")
    scheme: str | None = _forwarded("scheme")

    def __init__(self, exchange: Exchange, quota: Quota) -> None:
        self._exchange = exchange
        self._quota = quota
        self._timer: asyncio.TimerHandle | None = None

    def __hash__(self) -> int:
        return hash(self._exchange)

    def __eq__(self, other: object) -> bool:
        """A request that is handled again is still the same one."""
        return isinstance(other, MeteredExchange) and other._exchange is self._exchange

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or a new one."""
        return self._exchange.request_id

    @property
    def writable(self) -> bool:
        """Whether the caller takes what is written, and may have more; ``on_drained`` is called when that changes."""
        wait_s = self._quota.wait_s()
        if wait_s and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._go_on)
        return not wait_s and self._exchange.writable

    def reply(self, reply: Reply) -> None:
        """Answer, whole."""
        self._quota.spend(len(reply.body))
        self._exchange.reply(reply)

    def reply_appended(self, offset: str) -> None:
        """Answer a plain append."""
        self._exchange.reply_appended(offset)

    def reply_json(self, body: bytes, headers: Headers | None = None) -> None:
        """Answer 200 with a short JSON document."""
        self._quota.spend(len(body))
        self._exchange.reply_json(body, headers)

    def open(self, headers: Headers) -> None:
        """Begin a 200 in chunks."""
        self._exchange.open(headers)

    def write(self, chunk: bytes) -> None:
        """Send a chunk."""
        self._quota.spend(len(chunk))
        self._exchange.write(chunk)

    def finish(self) -> None:
        """End the chunks."""
        self._exchange.finish()

    def _go_on(self) -> None:
        self._timer = None
        if self._exchange.on_drained is not None:
            self._exchange.on_drained()


def with_quota(verb: Callable[[Request], None], quota: Quota) -> Callable[[Request], None]:
    """A verb that counts towards a quota, and is refused where that is used up."""

    def run(request: Request) -> None:
        quota.take(len(request.body))
        request.exchange = MeteredExchange(request.exchange, quota)
        try:
            verb(request)
        except NeedsFetch:
            quota.give_back(len(request.body))  # it is handled again once its entries are at hand
            raise

    return run
