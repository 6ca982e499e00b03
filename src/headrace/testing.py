"""For tests of one's own features: a server in this process with a virtual clock.

::

    with testing.app() as app:
        app.register(Txn, Spending)
        app.push(Txn, {"user": "u1", "amount": 3.0})
        app.clock.advance("1h")
        testing.assert_row(app.get(Spending, "u1"), {"n": 1, "spent_5m": None})
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headrace.client.app import App, Fields
from headrace.client.declared import EventSource
from headrace.client.features import Pushed
from headrace.client.json_values import moment
from headrace.client.requests import Moment, Span, duration
from headrace.config import Config, load
from headrace.engine.assembly import Engine
from headrace.engine.system_streams import System
from headrace.server.main import Server
from headrace.types import parse_duration_us, parse_timestamp_us, rfc3339

START = "2026-01-01T00:00:00Z"


class VirtualClock:
    """Time that stands still until it is moved, and never goes back."""

    def __init__(self, at: Moment = START) -> None:
        self._lock = threading.Lock()
        self._now_us = _micros(at)

    def __repr__(self) -> str:
        return f"VirtualClock({rfc3339(self._now_us)!r})"

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return self._now_us

    def advance(self, by: Span) -> None:
        """So much later; a number counts seconds."""
        with self._lock:
            self._now_us += parse_duration_us(duration(by), "by")

    def set(self, to: Moment) -> None:
        """Go on to a moment."""
        with self._lock:
            micros = _micros(to)
            if micros < self._now_us:
                raise ValueError(f"{rfc3339(micros)} is before {rfc3339(self._now_us)}, and time does not go back")
            self._now_us = micros


class VirtualApp(App):
    """The features of a server with a virtual ``clock``."""

    def __init__(self, url: str, clock: VirtualClock) -> None:
        super().__init__(url)
        self.clock = clock


@contextlib.contextmanager
def app(path: str | Path | None = None, *, at: Moment = START, **settings: str) -> Iterator[VirtualApp]:
    """A server in this process, on a free port, with its data below ``path`` or nowhere for long.

    Settings are by the names of the environment: ``storage__seal_rows="1000"``.
    """
    with contextlib.ExitStack() as stack:
        data_dir = str(path or stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-")))
        flags = {name.replace("__", ".", 1): value for name, value in settings.items()}
        config = load(environ={}, flags={"server.port": 0, "storage.data_dir": data_dir, **flags})
        clock = VirtualClock(at)
        running = stack.enter_context(_Running(config, clock))
        yield stack.enter_context(VirtualApp(running.url, clock))


def replay(app: VirtualApp, events: Iterable[tuple[Moment, str | EventSource | type, Fields]]) -> list[Pushed]:
    """Push each event at its moment; the clock stays at the last."""
    pushed = []
    for at, event, fields in events:
        app.clock.set(at)
        pushed.append(app.push(event, fields))
    return pushed


def assert_row(got: Mapping[str, Any], wanted: Mapping[str, Any], *, rel: float = 1e-9, abs: float = 1e-12) -> None:
    """Fail where a row has other features than wanted, or other values; numbers may differ by so much."""
    missing = [f"{name}: is missing, wanted {wanted[name]!r}" for name in wanted.keys() - got.keys()]
    surplus = [f"{name}: {got[name]!r} was not wanted" for name in got.keys() - wanted.keys()]
    other = [
        f"{name}: {got[name]!r}, wanted {wanted[name]!r}"
        for name in wanted.keys() & got.keys()
        if not _close(got[name], wanted[name], rel, abs)
    ]
    if differing := sorted(missing + surplus + other):
        raise AssertionError("the row differs:\n  " + "\n  ".join(differing))


def _close(got: Any, wanted: Any, rel: float, abs: float) -> bool:
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        return wanted.keys() == got.keys() and all(_close(got[name], wanted[name], rel, abs) for name in wanted)
    if isinstance(wanted, list | tuple) and isinstance(got, list | tuple):
        pairs = zip(got, wanted, strict=False)
        return len(wanted) == len(got) and all(_close(*pair, rel, abs) for pair in pairs)
    if _is_number(wanted) and _is_number(got):
        return math.isclose(got, wanted, rel_tol=rel, abs_tol=abs)
    return bool(type(got) is type(wanted) and got == wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _micros(at: Moment) -> int:
    return parse_timestamp_us(moment(at), "moment")


class _ClockedServer(Server):
    """A server with a virtual clock, which another thread can stop."""

    def __init__(self, config: Config, clock: VirtualClock) -> None:
        super().__init__(config)
        self._clock = clock

    async def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until it is stopped; ``ready`` is called with the address."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._keys.close)
            engine = await Engine.open(self._config, self._clock)
            stack.push_async_callback(engine.close)
            system = System.open(
                writer=engine.writer, log=engine.log, connect=engine.connect, notes=self._config.system.registry_log
            )
            stack.push_async_callback(system.close)
            await self._serve(engine, system, None, ready)

    def end(self) -> None:
        """Stop the server after open requests."""
        if self._server is not None:
            self._server.should_exit = True


class _Running:
    """A server on a thread of its own, for as long as a ``with`` block."""

    def __init__(self, config: Config, clock: VirtualClock) -> None:
        self._server = _ClockedServer(config, clock)
        self._address: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="headrace-testing", daemon=True)
        self.url = ""

    def __enter__(self) -> _Running:
        self._thread.start()
        self.url = self._address.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end()
        self._thread.join()
        # The server took everything there was out of the collector's sight.
        gc.unfreeze()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.run(self._address.set_result))
        except BaseException as reason:
            if self._address.done():
                raise
            self._address.set_exception(reason)
