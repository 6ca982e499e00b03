"""Sending the load driver off with a job, and the samples that come of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from bench.load import Job
from bench.targets import Running

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


def job(server: Running, kind: str, stream: str, **settings: Any) -> Job:
    """A job for this server."""
    return Job(kind=kind, port=server.port, redis=server.target.redis, stream=stream, **settings)


def append(server: Running, stream: str, row: str, times: Times, **settings: Any) -> Sample:
    """Appends to one stream for a while; what was acknowledged is counted in the stream."""
    result = drive(job(server, "append", stream, warm=times.warm, seconds=times.seconds, **settings))
    counted = drive(job(server, "count", stream))
    note = difference(result["acknowledged"], counted["events"])
    return Sample(row, result["per_second"], "/s", result["errors"], note or result["first_error"])


def difference(acknowledged: int, stored: int) -> str:
    """What to say where what is stored is not what was acknowledged."""
    return "" if acknowledged == stored else f"acknowledged {acknowledged:,} events, stored {stored:,}"
