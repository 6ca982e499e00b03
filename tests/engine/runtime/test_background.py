"""Background threads and loops: order, errors, and how they stop."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.engine.runtime.background import BackgroundLoop, BackgroundThread, RepeatedWarning
from headrace.errors import StoreUnavailable
from headrace.storage import database

LOGGER = "headrace.test"


async def test_a_thread_works_in_order_and_closes_its_connection_when_it_stops(tmp_path: Path) -> None:
    connections: list[database.Connection] = []

    def connect() -> database.Connection:
        connections.append(database.connect(tmp_path / "x.db", cache_bytes=2**20))
        return connections[-1]

    thread = BackgroundThread("test", connect)
    assert await thread.run(int, "17") == 17
    assert not connections, "work without a query opens nothing"
    numbers: list[int] = []
    await asyncio.gather(*(thread.run(numbers.append, number) for number in range(50)))
    assert numbers == list(range(50))
    assert await thread.run(lambda: thread.connection is thread.connection)
    names = {await thread.run(lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {"headrace-test_0"}
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    await thread.stop()
    assert len(connections) == 1
    with pytest.raises(Exception, match="closed"):
        connections[0].execute("SELECT 1")


async def test_stopping_a_thread_waits_for_work_that_looks_at_it() -> None:
    thread, began = BackgroundThread("test"), threading.Event()

    def work() -> bool:
        began.set()
        return thread.stopping.wait(30)

    waiting = asyncio.create_task(thread.run(work))
    await asyncio.to_thread(began.wait, 30)
    await thread.stop()
    assert await waiting


async def test_a_loop_begins_again_when_it_is_woken_or_its_pause_is_over() -> None:
    rounds, pauses = asyncio.Semaphore(0), [0.0, None, None]

    async def go_round() -> float | None:
        rounds.release()
        return pauses.pop(0)

    loop = BackgroundLoop(LOGGER, go_round, failed="nothing was done", retry_s=600)
    loop.start()
    for _ in range(2):
        await rounds.acquire()
    assert len(pauses) == 1, "without a pause only a call wakes it"
    loop.wake()
    await rounds.acquire()
    await loop.stop()
    assert not pauses


async def test_the_first_round_can_wait_and_a_loop_that_was_stopped_begins_again() -> None:
    rounds = asyncio.Semaphore(0)

    async def go_round() -> float | None:
        rounds.release()
        return None

    loop = BackgroundLoop(LOGGER, go_round, failed="nothing was done", retry_s=600)
    loop.start(after_s=600)
    await loop.stop()
    assert rounds.locked()
    for _ in range(2):
        loop.start(after_s=0.001)
        await rounds.acquire()
        await loop.stop()


async def test_a_round_that_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    errors, done = [StoreUnavailable("no store"), ValueError("odd")], asyncio.Event()

    async def go_round() -> float | None:
        if errors:
            raise errors.pop(0)
        done.set()
        return None

    warning = RepeatedWarning(LOGGER, "nothing was done")
    loop = BackgroundLoop(LOGGER, go_round, failed="nothing was done", retry_s=0, warning=warning)
    with caplog.at_level(logging.WARNING, LOGGER):
        loop.start()
        await done.wait()
    await loop.stop()
    messages = [(record.levelname, record.message) for record in caplog.records]
    assert messages == [
        ("WARNING", "nothing was done: no store"),
        ("ERROR", "nothing was done; the next round tries again"),
    ]


async def test_stopping_a_loop_lets_the_round_end_or_cancels_it_after_a_time() -> None:
    for timeout_s, ends in ((None, ["rested", "ended"]), (0.0, ["cancelled"])):
        steps: list[str] = []
        began = asyncio.Event()

        async def go_round(steps: list[str] = steps, began: asyncio.Event = began) -> float | None:
            began.set()
            try:
                assert not await loop.rest(600) if timeout_s is None else await asyncio.sleep(600)  # noqa: B023
                steps.append("rested")
            except asyncio.CancelledError:
                steps.append("cancelled")
                raise
            steps.append("ended")
            return None

        loop = BackgroundLoop(LOGGER, go_round, failed="nothing was done", retry_s=600)
        loop.start()
        await began.wait()
        await loop.stop(timeout_s=timeout_s)
        assert steps == ends


async def test_a_loop_that_never_began_can_be_stopped() -> None:
    async def go_round() -> float | None:
        raise AssertionError

    await BackgroundLoop(LOGGER, go_round, failed="", retry_s=1).stop()


def test_a_thread_that_is_never_stopped_does_not_keep_the_process_from_ending() -> None:
    program = (
        "from headrace.engine.runtime.background import BackgroundThread\n"
        "thread = BackgroundThread('test')\n"
        "def turn(): thread.stopping.wait(0.01); thread.submit(turn)\n"
        "thread.submit(turn)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
