"""What is measured on every server, one function per measure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench.load import Job
from bench.targets import Running

CONNECTIONS = (16, 64, 256)
ARRAY = 100
READ_EVENTS = 100_000
SUBSCRIBERS = {1: 150, 1000: 30}
DRIVER_SECONDS = 1500


@dataclass(frozen=True)
class Times:
    """How long each closed loop warms up and is counted."""

    warm: float
    seconds: float


@dataclass(frozen=True)
class Sample:
    """One number of one server in one round."""

    row: str
    value: float
    unit: str
    errors: int = 0
    note: str = ""


class DriverFailed(Exception):
    """The load driver gave up; the text says on what."""


def drive(job: Job) -> dict[str, Any]:
    """Run one job in a driver process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        timeout=DRIVER_SECONDS,
        check=False,
    )
    if done.returncode:
        raise DriverFailed(f"the load driver failed on {job}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def single_appends(server: Running, times: Times) -> list[Sample]:
    """One event per request, at rising numbers of connections."""
    return [
        _append(server, f"single appends, {connections} connections", connections, 1, times)
        for connections in CONNECTIONS
    ]


def array_appends(server: Running, times: Times) -> list[Sample]:
    """A hundred events per request."""
    return [_append(server, "events in arrays of 100, 64 connections", 64, ARRAY, times)]


def catch_up_reads(server: Running, times: Times) -> list[Sample]:
    """Reading a stream that was appended in arrays of 100, from start to end, over and over."""
    server.create("read")
    filled = drive(_job(server, "append", "read", connections=16, batch=ARRAY, count=READ_EVENTS // ARRAY))
    counted = drive(_job(server, "count", "read"))
    note = _difference(filled["acknowledged"], counted["events"])
    samples = []
    for connections in (1, 4):
        result = drive(_job(server, "read", "read", connections=connections, seconds=times.seconds))
        megabytes = result["per_second"] / 1e6
        row = f"catch-up read, {connections} connection{'s' if connections > 1 else ''}"
        samples.append(Sample(row, megabytes, "MB/s", result["errors"], note or result["first_error"]))
    return samples


def live_latency(server: Running, _times: Times) -> list[Sample]:
    """From sending an append to its receipt by every subscriber."""
    samples = []
    for subscribers, events in SUBSCRIBERS.items():
        stream = f"live-{subscribers}"
        server.create(stream)
        result = drive(_job(server, "live", stream, connections=subscribers, count=events))
        for quantile in ("p50", "p99"):
            row = f"append to {subscribers:,} subscriber{'s' if subscribers > 1 else ''}, {quantile}"
            samples.append(Sample(row, result[quantile] * 1e3, "ms", result["errors"], result["first_error"]))
    return samples


MEASURES: dict[str, Callable[[Running, Times], list[Sample]]] = {
    "single": single_appends,
    "arrays": array_appends,
    "reads": catch_up_reads,
    "live": live_latency,
}


def _append(server: Running, row: str, connections: int, batch: int, times: Times) -> Sample:
    stream = f"append-{connections}-{batch}"
    server.create(stream)
    result = drive(
        _job(
            server,
            "append",
            stream,
            connections=connections,
            batch=batch,
            warm=times.warm,
            seconds=times.seconds,
        )
    )
    counted = drive(_job(server, "count", stream))
    note = _difference(result["acknowledged"], counted["events"])
    return Sample(row, result["per_second"], "/s", result["errors"], note or result["first_error"])


def _job(server: Running, kind: str, stream: str, **settings: Any) -> Job:
    return Job(kind=kind, port=server.port, redis=server.target.redis, stream=stream, **settings)


def _difference(acknowledged: int, stored: int) -> str:
    return "" if acknowledged == stored else f"acknowledged {acknowledged:,} events, stored {stored:,}"
