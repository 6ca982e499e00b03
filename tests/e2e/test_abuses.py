"""Loads at the limits, each on a server of its own: how long appends wait beside them, and what the server holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.memory import MemoryWatch
from bench.serving import Running, running
from bench.stalls.abuses import ABUSES
from bench.stalls.beside import Beside, beside
from bench.stalls.run import MOST_SECONDS
from bench.targets import TARGETS

from support.polling import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

#: Processor time that the event loop may spend between two of its ticks.
MOST_BUSY_S = 0.25
#: Memory that a server may take beyond what it had before the load; ten thousand waiting readers take about 95 MB.
MOST_GROWTH_MB = {"long-poll": 200, "sse": 200, "touch": 200, "slow-readers": 400}
#: Other processes of this machine may keep an append waiting, so a load that takes too long is tried again.
TRIES = 3
LONGEST_S = 30.0
REFUSED = {"408", "429"}
#: The clients of these loads stop listening before everyone is answered.
UNANSWERED = {"BlockingIOError", "closed", "more"}
STREAM = "/v1/stream/plain"


def descriptors(server: Running) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def carry_out(name: str, space: Path) -> Beside:
    """A load on a fresh server beside appends, after which the server has let go of its connections."""
    with running(TARGETS[0], space) as server:
        load = ABUSES[name].prepare(server)
        server.create("plain")
        before_mb, open_before = server.resident_bytes() / 1e6, descriptors(server)
        with MemoryWatch(server) as memory:
            came = beside(server.port, load, STREAM)
        if name in MOST_GROWTH_MB:
            assert memory.most_mb - before_mb < MOST_GROWTH_MB[name]
        wait_until(
            lambda: descriptors(server) <= open_before + 100,
            LONGEST_S,
            lambda: f"{descriptors(server)} descriptors, {open_before} before the load",
        )
    return came


@pytest.mark.parametrize("name", ABUSES)
def test_no_append_waits_for_more_than_a_second_beside_a_load_at_its_limit(tmp_path: Path, name: str) -> None:
    for _ in range(TRIES):
        came = carry_out(name, tmp_path)
        assert came.refused == 0
        assert came.busy is not None and came.busy.bound <= MOST_BUSY_S, came.busy
        statuses = came.statuses.keys() - REFUSED - UNANSWERED
        assert statuses and all(status.removeprefix("wake ").startswith("2") for status in statuses), came.statuses
        if came.longest <= MOST_SECONDS:
            return
    pytest.fail(f"an append took {came.longest:.2f} s beside {ABUSES[name].title}")
