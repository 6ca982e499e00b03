"""How long single answers take: one request in flight per connection, each timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from bench.job import Job
from bench.wire import HttpConnection, Tally, connect

LONGEST = 300.0


class TimedConnection(HttpConnection):
    """A connection that notes how long each answer took."""

    def __init__(self, tally: Tally, requests: Iterator[bytes], taken: list[float]) -> None:
        super().__init__(tally, requests)
        self._taken = taken
        self._sent = 0.0

    def send(self) -> None:
        self._sent = time.perf_counter()
        super().send()

    def succeed(self) -> None:
        self._taken.append(time.perf_counter() - self._sent)
        super().succeed()


async def measure_times(job: Job, requests: Iterator[bytes]) -> dict[str, Any]:
    """The median and the 99th percentile of `count` answers; the first tenth of them is not counted."""
    tally, taken = Tally(job.connections), list[float]()
    connections = [TimedConnection(tally, requests, taken) for _ in range(job.connections)]
    await connect(connections, job.port)
    for connection in connections:
        connection.send()
    await asyncio.wait_for(tally.at_rest.wait(), LONGEST)
    tally.stopping = True
    counted = sorted(taken[job.count // 10 :]) or [0.0]
    return {
        "p50": counted[len(counted) // 2],
        "p99": counted[len(counted) * 99 // 100],
        "errors": tally.errors,
        "first_error": tally.first_error,
    }
