"""The load driver: its own process, one event loop, one closed loop per connection.

It reads a job as JSON from standard input and writes the result as JSON to standard output.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from bench.events import EVENTS, array, event
from bench.live import measure_live
from bench.reading import read_whole_streams
from bench.wire import Connection, HttpConnection, RedisConnection, http_request, redis_command

DISTINCT_REQUESTS = 64
DRAIN_SECONDS = 60.0
LONGEST_JOB = 1200.0


@dataclass(frozen=True)
class Job:
    """One measurement: what to send, over how many connections, for how long."""

    kind: str
    port: int
    redis: bool = False
    stream: str = "bench"
    connections: int = 1
    batch: int = 1
    warm: float = 0.5
    seconds: float = 2.0
    count: int = 0
    event: str = "small"


class Tally:
    """Counts what was acknowledged and knows when every connection has come to rest."""

    def __init__(self, connections: int) -> None:
        self.acked = 0
        self.errors = 0
        self.first_error = ""
        self.stopping = False
        self.moving = connections
        self.at_rest = asyncio.Event()

    def acknowledged(self) -> None:
        """One request was answered with success."""
        self.acked += 1

    def failed(self, reason: str) -> None:
        """One request was answered with an error, or its connection broke."""
        self.errors += 1
        self.first_error = self.first_error or reason

    def parked(self) -> None:
        """A connection has nothing in flight and sends no more."""
        self.moving -= 1
        if self.moving <= 0:
            self.at_rest.set()


def append_requests(job: Job) -> Iterator[bytes]:
    """Appends of `batch` events to one stream, without end, or `count` of them."""
    made = [_append(job, job.stream, n * job.batch) for n in range(DISTINCT_REQUESTS)]
    return itertools.islice(itertools.cycle(made), job.count) if job.count else itertools.cycle(made)


def create_requests(job: Job) -> Iterator[bytes]:
    """Creations of `count` streams named by number, in a scattered order."""
    numbers = list(range(job.count))
    random.Random(1).shuffle(numbers)
    return (http_request("PUT", stream_path(numbered(job.stream, n))) for n in numbers)


def random_append_requests(job: Job) -> Iterator[bytes]:
    """Single appends to random streams among `count` numbered ones."""
    choose = random.Random(job.count)
    while True:
        yield http_request("POST", stream_path(numbered(job.stream, choose.randrange(job.count))), event(1))


def list_requests(job: Job) -> Iterator[bytes]:
    """Listings of one page after a random name among `count` numbered streams."""
    choose = random.Random(job.count)
    while True:
        after = numbered(job.stream, choose.randrange(job.count))
        yield http_request("GET", f"/v1/streams?after={after}&limit=100")


SOURCES: dict[str, Callable[[Job], Iterator[bytes]]] = {
    "append": append_requests,
    "create": create_requests,
    "random-append": random_append_requests,
    "list": list_requests,
}


def stream_path(name: str) -> str:
    """The URL path of a stream."""
    return f"/v1/stream/{name}"


def numbered(prefix: str, number: int) -> str:
    """The name of one of many streams; names sort by number."""
    return f"{prefix}-{number:07d}"


async def closed_loop(job: Job) -> dict[str, Any]:
    """Run the job's requests: warm up, count for a while, then wait for every answer in flight."""
    tally = Tally(job.connections)
    connections = await _connect(job, tally, SOURCES[job.kind](job))
    started = time.perf_counter()
    for connection in connections:
        connection.send()
    if job.count and job.kind in ("append", "create"):
        await asyncio.wait_for(tally.at_rest.wait(), LONGEST_JOB)
        rate = tally.acked / (time.perf_counter() - started)
    else:
        rate = await _rate_in_window(job, tally)
        tally.stopping = True
        await asyncio.wait_for(tally.at_rest.wait(), DRAIN_SECONDS)
    tally.stopping = True
    return {
        "per_second": rate * job.batch,
        "acknowledged": tally.acked * job.batch,
        "errors": tally.errors,
        "first_error": tally.first_error,
    }


async def _rate_in_window(job: Job, tally: Tally) -> float:
    await asyncio.sleep(job.warm)
    began, before = time.perf_counter(), tally.acked
    await asyncio.sleep(job.seconds)
    return (tally.acked - before) / (time.perf_counter() - began)


async def _connect(job: Job, tally: Tally, requests: Iterator[bytes]) -> list[Connection]:
    loop = asyncio.get_running_loop()
    made: list[Connection] = []
    for _ in range(job.connections):
        connection = RedisConnection(tally, requests, job.batch) if job.redis else HttpConnection(tally, requests)
        await loop.create_connection(lambda made=connection: made, "127.0.0.1", job.port)  # type: ignore[misc]
        made.append(connection)
    return made


def _append(job: Job, stream: str, first: int) -> bytes:
    make = EVENTS[job.event]
    if job.redis:
        adds = (redis_command(b"XADD", stream.encode(), b"*", b"d", make(first + n)) for n in range(job.batch))
        return b"".join(adds)
    body = make(first) if job.batch == 1 else array(first, job.batch, make)
    return http_request("POST", stream_path(stream), body)


async def run_job(job: Job) -> dict[str, Any]:
    """Carry out one job of any kind."""
    if job.kind == "live":
        return await measure_live(
            port=job.port, redis=job.redis, stream=job.stream, subscribers=job.connections, events=job.count
        )
    if job.kind in ("read", "count"):
        return await read_whole_streams(
            port=job.port,
            redis=job.redis,
            stream=job.stream,
            connections=job.connections,
            seconds=job.seconds if job.kind == "read" else None,
        )
    return await closed_loop(job)


def main() -> None:
    """Read a job, run it without garbage-collection pauses, print its result."""
    job = Job(**json.load(sys.stdin))
    gc.disable()
    result = uvloop.run(run_job(job))
    json.dump({**asdict(job), **result}, sys.stdout)


if __name__ == "__main__":
    main()
