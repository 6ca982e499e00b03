"""Thinking that has to come to an end: pure work in a thread of its own, stopped when its time is up."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.errors import TimedOut

Found = TypeVar("Found")


class _OutOfTime(BaseException):
    """Raised inside a thread whose time is up; no handler of ordinary errors takes it for one."""


async def within(seconds: float, work: Callable[[], Found]) -> Found:
    """What the work finds, or TimedOut; the work must hold nothing that has to be let go of."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Found] = loop.create_future()

    def settle(say: Callable[[Any], None], what: Any) -> None:
        if not outcome.done():
            say(what)

    def think() -> None:
        try:
            try:
                loop.call_soon_threadsafe(settle, outcome.set_result, work())
            except Exception as reason:
                loop.call_soon_threadsafe(settle, outcome.set_exception, reason)
        except _OutOfTime:
            loop.call_soon_threadsafe(settle, outcome.set_exception, TimedOut("request timed out"))

    thread = threading.Thread(target=think, name="headrace-thinking", daemon=True)
    thread.start()
    timer = loop.call_later(seconds, _stop, thread)
    try:
        return await outcome
    finally:
        timer.cancel()


def _stop(thread: threading.Thread) -> None:
    """Interrupt a thread between two of its steps."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_OutOfTime))
