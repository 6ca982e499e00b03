"""Appending the events that are searched, in a process of its own: encoded before the clock starts, where so told."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import uvloop

from bench.driver import DriverFailed
from bench.requests import stream_path
from bench.searching import data
from bench.wire import HttpConnection, Tally, connect, http_request

CONNECTIONS = 16
LONGEST_FILL = 1800.0


@dataclass(frozen=True)
class Load:
    """Events numbered from `first` for a stream; ready ones wait in memory for their turn."""

    port: int
    stream: str
    first: int
    count: int
    ready: bool = True


class Filled(NamedTuple):
    """When the first event was sent and the last acknowledged, by the clock of this machine."""

    began: float
    ended: float


def fill(load: Load) -> Filled:
    """Append all events of a load, or say what went wrong."""
    command, told = [sys.executable, "-m", __name__], json.dumps(asdict(load))
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=2 * LONGEST_FILL, check=False)
    if done.returncode:
        raise DriverFailed(f"filling failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    if result["acknowledged"] != load.count:
        raise DriverFailed(f"{load.stream} took {result['acknowledged']:,} events: {result['first_error']}")
    return Filled(result["began"], result["ended"])


async def send(load: Load) -> dict[str, Any]:
    """Append over several connections until every request is answered."""
    path, tally = stream_path(load.stream), Tally(CONNECTIONS)
    requests: Iterator[bytes] = (http_request("POST", path, body) for body in data.arrays(load.first, load.count))
    if load.ready:
        requests = iter(list(requests))
    connections = [HttpConnection(tally, requests) for _ in range(CONNECTIONS)]
    await connect(connections, load.port)
    began = time.monotonic()
    for connection in connections:
        connection.send()
    await asyncio.wait_for(tally.at_rest.wait(), LONGEST_FILL)
    tally.stopping = True
    return {
        "began": began,
        "ended": time.monotonic(),
        "acknowledged": tally.acked * data.ARRAY,
        "first_error": tally.first_error,
    }


def main() -> None:
    """Read a load, send it without garbage-collection pauses, print when."""
    load = Load(**json.load(sys.stdin))
    gc.disable()
    json.dump(uvloop.run(send(load)), sys.stdout)


if __name__ == "__main__":
    main()
