"""Thinking that has to come to an end: pure work in a thread of its own, stopped when its time is up."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.errors import TimedOut

Found = TypeVar("Found")


class OutOfTime(BaseException):
    """Raised inside a thread whose time is up; no handler of ordinary errors takes it for one."""


class Turn:
    """One piece of work in a thread: it can be stopped until it ends, and nobody else is stopped in its place."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._over = False
        self._lock = threading.Lock()

    def end(self) -> None:
        """Called in the thread: what was not raised in it by now never is."""
        with self._lock:
            self._over = True
            self._interrupt(None)

    def stop(self) -> None:
        """Raise OutOfTime between two steps of the work, once, unless it has ended."""
        with self._lock:
            if not self._over:
                self._over = True
                self._interrupt(OutOfTime)

    def _interrupt(self, error: type[OutOfTime] | None) -> None:
        """Have this raised in the thread next, or nothing; the number of a thread that is gone is given to others."""
        reason = None if error is None else ctypes.py_object(error)
        assert self._thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), reason)


async def within(seconds: float, work: Callable[[], Found]) -> Found:
    """What the work finds, or TimedOut; the work must hold nothing that has to be let go of."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Found] = loop.create_future()

    def settle(say: Callable[[Any], None], what: Any) -> None:
        if not outcome.done():
            say(what)

    def think() -> None:
        say: Callable[[Any], None] = outcome.set_exception
        what: Any
        try:
            try:
                say, what = outcome.set_result, work()
            except Exception as reason:
                what = reason
            turn.end()
        except OutOfTime:
            say, what = outcome.set_exception, TimedOut("request timed out")
        loop.call_soon_threadsafe(settle, say, what)

    thread = threading.Thread(target=think, name="headrace-thinking", daemon=True)
    turn = Turn(thread)
    thread.start()
    timer = loop.call_later(seconds, turn.stop)
    try:
        return await outcome
    finally:
        timer.cancel()
        turn.stop()  # for who stopped waiting
