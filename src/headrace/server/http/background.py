"""Requests that take a while: answered from a task of their own, so that the others need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import uuid4

from headrace.deadline import Deadline
from headrace.errors import HeadraceError, TimedOut
from headrace.server.http.exchange import Exchange, Headers, Reply, unexpected_failure
from headrace.server.http.request import Request
from headrace.storage.page_checksums import Damage

Outcome = TypeVar("Outcome")

#: Of the working time of a request, what an answer that may be partial is looked for in; the rest is for writing it.
PARTIAL_ANSWER_SHARE = 0.9
#: Such an answer is cut off only after this multiple of the working time, and not before this: a step of its work may
#: take long on a busy machine, and the first one loads what computes it.
_GRACE, _LEAST_S = 2.0, 5.0


class BackgroundRequests:
    """Holds the tasks of one resource."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._working: set[asyncio.Task[None]] = set()

    def begin(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Go on with a request; what the work raises is the answer."""
        return self.spawn(_run_and_answer(exchange, work, self._damage))

    def answer_with_timeout(
        self,
        request: Request,
        work: Coroutine[Any, Any, None],
        timeout_s: float,
        late: Callable[[], HeadraceError] = lambda: TimedOut("request timed out"),
        deadline: Deadline | None = None,
    ) -> None:
        """Go on with a question whose work answers ``request.exchange``; when its time is over, ``late`` does.

        With a deadline the work is cancelled when it has not answered by then, or when the client hangs up.
        """
        exchange, awaited = request.exchange, OneShotExchange(request.exchange)
        request.exchange = awaited
        timer = asyncio.get_running_loop().call_later(timeout_s, lambda: awaited.give_up(late()))
        task = self.begin(awaited, work)
        task.add_done_callback(lambda _: timer.cancel())
        if deadline is not None:
            awaited.cancel = cancel_when_gone(exchange, deadline, task)

    def answer_partially(
        self, request: Request, work: Coroutine[Any, Any, None], timeout_s: float, deadline: Deadline | None = None
    ) -> None:
        """Like ``answer_with_timeout``, for work that stops by itself before the timeout with partial results."""
        self.answer_with_timeout(request, work, partial_answer_s(timeout_s), deadline=deadline)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that continues when the client disconnects."""
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task


class OneShotExchange:
    """An Exchange for a question that is answered once, whole: with what is found, or that the time is over."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange | None = exchange
        self.scheme = exchange.scheme
        self.parked = self.gone_at_eof = False
        #: Ends the work when its answer is for nobody any more.
        self.cancel: Callable[[], None] = lambda: None
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or a new one."""
        return uuid4().hex if self._exchange is None else self._exchange.request_id

    @property
    def writable(self) -> bool:
        """Whether anyone still waits."""
        return self._exchange is not None and self._exchange.writable

    def give_up(self, reason: HeadraceError) -> None:
        """Tell the caller that the time is over; what the work finds is for nobody."""
        self.reply(Reply.failure(reason))
        self.cancel()

    def reply(self, reply: Reply) -> None:
        """Answer, whole."""
        if (exchange := self._take_exchange()) is not None:
            exchange.reply(reply)

    def reply_json(self, body: bytes, headers: Headers | None = None) -> None:
        """Answer with a short JSON document."""
        if (exchange := self._take_exchange()) is not None:
            exchange.reply_json(body, headers)

    def _take_exchange(self) -> Exchange | None:
        exchange, self._exchange = self._exchange, None
        return exchange

    def reply_appended(self, offset: str) -> None:
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


async def in_thread(work: Callable[[], Outcome]) -> Outcome:
    """Run work in a thread and return its outcome; a cancelled caller still waits for its end, holding its gate."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.gather(thread, return_exceptions=True)
        raise


def partial_answer_s(timeout_s: float) -> float:
    """The timeout of work that may answer partially; it leaves time for the work to stop by itself."""
    return max(timeout_s * _GRACE, _LEAST_S)


def cancel_when_gone(exchange: Exchange, deadline: Deadline, task: asyncio.Task[None]) -> Callable[[], None]:
    """Cancel the work of a task when the client hangs up; answers what cancels it."""

    def cancel() -> None:
        deadline.cancel()
        task.cancel()

    exchange.on_gone, exchange.gone_at_eof = cancel, True
    return cancel


async def _run_and_answer(exchange: Exchange, work: Coroutine[Any, Any, None], damage: Damage) -> None:
    try:
        await work
    except HeadraceError as refusal:
        exchange.reply(Reply.failure(refusal))
    except Exception as reason:
        exchange.reply(Reply.failure(unexpected_failure(damage, reason, exchange.request_id)))
