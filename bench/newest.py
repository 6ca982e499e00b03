"""The newest events of a long sealed history, beside as many from its start: cold after a restart, then warm."""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench.driver import DriverFailed, Sample, drive, job
from bench.published import make_cold, sealing
from bench.requests import stream_path
from bench.scale import Scale
from bench.sealed import ARRAY, CACHES, FILLERS
from bench.serving import Running, fresh_directory, serving
from bench.targets import Target

LEFT_OUT = dict.fromkeys(("prisma", "prisma-tuned", "reference", "redis"), "it is not asked for its newest events")

EVENTS = 50
WARM = 400
STREAM = "newest"
FIRST, NEWEST = f"the first {EVENTS}", f"the newest {EVENTS}"


def newest_events(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """One request for each page right after a restart on a cold disk, then many in turn."""
    target = sealing(target)
    with fresh_directory(target, space) as directory:
        with serving(target, directory) as server:
            pages = _filled(server, scale.sealed_events)
        samples = []
        for page, query in pages.items():
            shutil.rmtree(directory / CACHES[target.name], ignore_errors=True)
            make_cold(directory)
            with serving(target, directory) as server, closing(_connect(server)) as connection:
                samples.append(Sample(f"{page} of sealed events, cold", _timed(connection, query), "ms"))
        with serving(target, directory) as server:
            return samples + list(_warm(server, pages))


def _filled(server: Running, events: int) -> dict[str, str]:
    """Fill a stream, publish it whole, and return the query of each page."""
    server.create(STREAM)
    first = json.dumps([{"n": number} for number in range(EVENTS)]).encode()
    with closing(_connect(server)) as connection:
        connection.request("POST", stream_path(STREAM), first, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        end = answer.headers["Stream-Next-Offset"]
        drive(job(server, "fill", STREAM, connections=FILLERS, batch=ARRAY, count=events // ARRAY, event="traced"))
        state = "sealing"
        while state == "sealing":
            connection.request("POST", f"{stream_path(STREAM)}/_seal?timeout=60s")
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status >= 300:
                raise DriverFailed(f"sealing failed: {body}")
            state = body["state"]
    return {FIRST: f"offset=-1&before={end}", NEWEST: f"last={EVENTS}"}


def _connect(server: Running) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)


def _timed(connection: http.client.HTTPConnection, query: str) -> float:
    """How many milliseconds a page takes, which must be whole."""
    began_s = time.perf_counter()
    connection.request("GET", f"{stream_path(STREAM)}?{query}")
    body = connection.getresponse().read()
    taken_s = time.perf_counter() - began_s
    if len(json.loads(body)) != EVENTS:
        raise DriverFailed(f"a page of {EVENTS} events was expected: {body[:200]!r}")
    return taken_s * 1e3


def _warm(server: Running, pages: dict[str, str]) -> Iterator[Sample]:
    with closing(_connect(server)) as connection:
        for query in pages.values():
            _timed(connection, query)
        taken: dict[str, list[float]] = {page: [] for page in pages}
        for _ in range(WARM):
            for page, query in pages.items():
                taken[page].append(_timed(connection, query))
    for page, times in taken.items():
        yield Sample(f"{page} of sealed events, warm, p50", statistics.median(times), "ms")
        yield Sample(f"{page} of sealed events, warm, p99", statistics.quantiles(times, n=100)[98], "ms")
