"""Background work: threads with a database connection, pools of connections, repeated rounds, and their warnings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Generic, ParamSpec, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.storage.database import Connection

#: An equal warning is logged again after this long.
QUIET_S = 600.0

Params = ParamSpec("Params")
Returned = TypeVar("Returned")


class BackgroundThread:
    """One thread for work beside the event loop, with a connection that is opened when the work first needs it.

    Calls run one after the other in the order they came. Work that may take long looks at ``stopping`` between its
    steps, since ``stop`` waits for it.
    """

    def __init__(self, name: str, connect: Callable[[], Connection] | None = None, *, threads: int = 1) -> None:
        """With more ``threads`` only one call at a time may use the connection."""
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"headrace-{name}")
        self._connect = connect
        self._connection: Connection | None = None
        #: Set once the thread is to end.
        self.stopping = threading.Event()

    @property
    def connection(self) -> Connection:
        """The thread's own connection; for calls in the thread."""
        if self._connection is None:
            assert self._connect is not None, "the thread was given no way to connect"
            self._connection = self._connect()
        return self._connection

    async def run(self, work: Callable[Params, Returned], *args: Params.args, **kwargs: Params.kwargs) -> Returned:
        """What the work returns or raises; cancelling the wait does not end work that has begun."""
        call = asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))
        return await call

    def submit(self, work: Callable[[], None]) -> None:
        """Submit work without waiting for it, from any thread; ignored once the thread or the process ends.

        The work handles its own errors.
        """
        with contextlib.suppress(RuntimeError):
            self._executor.submit(work)

    async def stop(self) -> None:
        """Wait until submitted work has ended, then close the connection and end the thread."""
        self.stopping.set()
        await asyncio.to_thread(self._executor.shutdown)
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class BackgroundLoop:
    """A task on the event loop that carries out one round after the other until it is stopped.

    A round returns after how many seconds the next one begins, None where only ``wake`` begins it. One that fails is
    logged and tried again.
    """

    def __init__(
        self,
        name: str,
        round: Callable[[], Awaitable[float | None]],
        *,
        failed: str,
        retry_s: float,
        warning: RepeatedWarning | None = None,
        least_pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``failed`` is logged with errors that are not expected; ``warning`` takes those of the store or the disk.

        ``least_pause_s`` is how long the loop rests between two rounds whatever wakes it.
        """
        self._round = round
        self._log = logging.getLogger(name)
        self._failed, self._retry_s, self._warning = failed, retry_s, warning
        self._least_pause_s = least_pause_s
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Set once the loop is to end; a round looks at it between its steps.
        self.stopping = asyncio.Event()

    def start(self, *, after_s: float = 0.0) -> None:
        """Begin the first round after so long; a loop that was stopped begins again."""
        self.stopping.clear()
        self._awake.clear()
        self._task = asyncio.create_task(self._run(after_s))

    def wake(self) -> None:
        """Begin the next round at once, or once the present one has ended."""
        self._awake.set()

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Wait until the present round has ended, or cancel it after a timeout."""
        self.stopping.set()
        self._awake.set()
        if self._task is None:
            return
        finished, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not finished:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def rest(self, seconds: float) -> bool:
        """Sleep, or until the loop is stopped; returns whether the loop continues."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.stopping.wait()
        return not self.stopping.is_set()

    async def _run(self, after_s: float) -> None:
        if after_s > 0:
            await self._pause(after_s)
        while not self.stopping.is_set():
            self._awake.clear()
            pause_s = await self._try_round()
            if not await self.rest(self._least_pause_s()):
                return
            await self._pause(pause_s)

    async def _pause(self, seconds: float | None) -> None:
        """Wait until the next round begins."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._awake.wait()

    async def _try_round(self) -> float | None:
        try:
            return await self._round()
        except HeadraceError as reason:
            if self._warning is None:
                self._log.warning("%s: %s", self._failed, reason.message)
            else:
                self._warning.warn(reason)
        except Exception:
            self._log.exception("%s; the next round tries again", self._failed)
        return self._retry_s


class RepeatedWarning:
    """One warning of a loop; objects of a store have other names each time, so the cause decides what is equal."""

    def __init__(self, logger: str, text: str) -> None:
        self._log, self._text = logging.getLogger(logger), text
        self._last: object = None
        self._logged_s = 0.0
        self._left_out = 0

    def warn(self, reason: HeadraceError) -> None:
        """Log why, unless the same was logged not long ago; then it is counted."""
        same = type(reason), reason.facts.get("cause", reason.message)
        now_s = monotonic()
        if same == self._last and now_s < self._logged_s + QUIET_S:
            self._left_out += 1
            return
        before = f" (and {self._left_out} times before)" if self._left_out and same == self._last else ""
        self._log.warning("%s: %s%s", self._text, reason.message, before)
        self._last, self._logged_s, self._left_out = same, now_s, 0


class Closable(Protocol):
    """A connection, or an object with a connection of its own."""

    def close(self) -> None:
        """Close the connection."""


Pooled = TypeVar("Pooled", bound=Closable)


class ConnectionPool(Generic[Pooled]):
    """A pool that opens connections on demand, and keeps at most ``max_idle`` idle ones; for any thread."""

    def __init__(self, connect: Callable[[], Pooled], *, max_idle: int) -> None:
        self._connect, self._max_idle = connect, max_idle
        self._lock = threading.Lock()
        self._idle: list[Pooled] = []

    @contextmanager
    def borrow(self) -> Iterator[Pooled]:
        """Borrow a connection exclusively."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect()
        try:
            yield connection
        finally:
            with self._lock:
                is_kept = len(self._idle) < self._max_idle
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()

    def close_idle(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close idle connections, and the others once they are returned."""
        self._max_idle = 0
        self.close_idle()
