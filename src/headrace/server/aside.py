"""Requests that take a while: answered from a task of their own, so that the others need not wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.errors import HeadraceError, TimedOut
from headrace.server.exchange import Exchange, Headers, Reply, Request
from headrace.storage.damage import Damage

log = logging.getLogger("headrace.server")

#: Of the working time of a request, what an answer that may be partial is looked for in; the rest is for writing it.
SHARE = 0.9
#: Such an answer is not cut off before this: the first one loads what computes it.
_LEAST_S = 5.0


class Aside:
    """Holds the tasks of one resource."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._working: set[asyncio.Task[None]] = set()

    def begin(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Go on with a request; what the work raises is the answer."""
        return self.keep(_answered(exchange, work, self._damage))

    def ask(self, request: Request, work: Coroutine[Any, Any, None], within_s: float) -> None:
        """Go on with a question whose work answers ``request.exchange``; when its time is over, that is the answer."""
        awaited = request.exchange = Awaited(request.exchange)
        timer = asyncio.get_running_loop().call_later(within_s, awaited.give_up)
        self.begin(awaited, work).add_done_callback(lambda _: timer.cancel())

    def ask_partial(self, request: Request, work: Coroutine[Any, Any, None], within_s: float) -> None:
        """The same for work that ends by itself in ``SHARE`` of this time, with what it has found by then."""
        self.ask(request, work, max(within_s, _LEAST_S))

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let work go on, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task


class Awaited:
    """An Exchange for a question that is answered once, whole: with what is found, or that the time is over."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange | None = exchange
        self.scheme = exchange.scheme
        self.parked = False
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None

    @property
    def writable(self) -> bool:
        """Whether anyone still waits."""
        return self._exchange is not None and self._exchange.writable

    def give_up(self) -> None:
        """Tell the caller that the time is over; the work ends when it can, and what it finds is for nobody."""
        self.reply(Reply.failure(TimedOut("request timed out")))

    def reply(self, reply: Reply) -> None:
        """Answer, whole."""
        if (exchange := self._taken()) is not None:
            exchange.reply(reply)

    def told(self, body: bytes, lines: str = "") -> None:
        """Answer with a short JSON document."""
        if (exchange := self._taken()) is not None:
            exchange.told(body, lines)

    def _taken(self) -> Exchange | None:
        exchange, self._exchange = self._exchange, None
        return exchange

    def appended(self, offset: str) -> None:
        """No question appends."""
        raise NotImplementedError

    def open(self, headers: Headers) -> None:
        """No question is answered in chunks."""
        raise NotImplementedError

    def write(self, chunk: bytes) -> None:
        """No question is answered in chunks."""
        raise NotImplementedError

    def finish(self) -> None:
        """No question is answered in chunks."""
        raise NotImplementedError


async def _answered(exchange: Exchange, work: Coroutine[Any, Any, None], damage: Damage) -> None:
    try:
        await work
    except HeadraceError as refusal:
        exchange.reply(Reply.failure(refusal))
    except Exception as reason:
        log.exception("a request failed")
        exchange.reply(Reply.failure(damage.answer(reason)))
