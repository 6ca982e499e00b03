"""The load driver: its own process, one event loop, one closed loop per connection.

It reads a job as JSON from standard input and writes the result as JSON to standard output.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import uvloop

from bench.features.timing import measure_times
from bench.job import Job
from bench.live import measure_live
from bench.observing import read_entities
from bench.reading import read_keys, read_whole_streams
from bench.requests import COUNTED, SOURCES
from bench.waiting import measure_touch
from bench.whole import read_back, write_streams
from bench.wire import Connection, HttpConnection, RedisConnection, Tally, connect

DRAIN_SECONDS = 60.0
LONGEST_JOB = 1200.0
#: Jobs of these names are asked one by one, and each answer is timed.
TIMED = "timed-"


async def closed_loop(job: Job) -> dict[str, Any]:
    """Run the job's requests: warm up, count for a while, then wait for every answer in flight."""
    tally, requests = Tally(job.connections), SOURCES[job.kind](job)
    connections = [_connection(job, tally, requests) for _ in range(job.connections)]
    await connect(connections, job.port)
    started = time.perf_counter()
    for connection in connections:
        connection.send()
    if job.count and job.kind in COUNTED:
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


def _connection(job: Job, tally: Tally, requests: Iterator[bytes]) -> Connection:
    return RedisConnection(tally, requests, job.batch) if job.redis else HttpConnection(tally, requests)


async def run_job(job: Job) -> dict[str, Any]:
    """Carry out one job of any kind."""
    if job.kind == "live":
        return await measure_live(
            port=job.port,
            redis=job.redis,
            stream=job.stream,
            subscribers=job.connections,
            events=job.count,
            seconds=job.seconds,
        )
    if job.kind in ("read", "pass", "count"):
        return await read_whole_streams(
            port=job.port,
            redis=job.redis,
            stream=job.stream,
            connections=job.connections,
            seconds=job.seconds if job.kind == "read" else None,
            counting=job.kind == "count",
        )
    if job.kind == "touch":
        return await measure_touch(job)
    if job.kind == "read-keys":
        return await read_keys(port=job.port, stream=job.stream, keys=job.keys, probes=job.count)
    if job.kind == "read-entities":
        return await read_entities(job)
    if job.kind == "write-streams":
        return await write_streams(job.port, job.stream, job.connections, job.count)
    if job.kind.startswith(TIMED):
        return await measure_times(job, SOURCES[job.kind.removeprefix(TIMED)](job))
    if job.kind == "read-back":
        return await read_back(job.port, job.stream, job.connections)
    return await closed_loop(job)


def main() -> None:
    """Read a job, run it without garbage-collection pauses, print its result."""
    job = Job(**json.load(sys.stdin))
    gc.disable()
    result = uvloop.run(run_job(job))
    json.dump({**asdict(job), **result}, sys.stdout)


if __name__ == "__main__":
    main()
