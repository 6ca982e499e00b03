"""Many streams: what a page and an append cost beside a million streams, against beside a thousand."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from bench.driver import Times, drive
from bench.load import Job
from bench.targets import TARGETS, Running, running

FEW = 1000
CREATORS = 256
LISTERS = 4
APPENDERS = 64
ROUNDS = 3


@dataclass(frozen=True)
class Pair:
    """The same work per second beside few streams and beside many."""

    beside_few: float
    beside_many: float
    errors: int

    @property
    def slowdown(self) -> float:
        """How many times more it costs beside many."""
        return self.beside_few / self.beside_many


@dataclass(frozen=True)
class ManyStreams:
    """What a server with many streams could do."""

    count: int
    created_per_second: float
    pages: Pair
    appends: Pair
    memory_mb: float
    errors: int


def many_streams(count: int, times: Times, space: Path) -> ManyStreams:
    """Create `count` streams on one server and a thousand on another, then compare the two in turn."""
    headrace = TARGETS[0]
    with running(headrace, space) as small, running(headrace, space) as large:
        created = [_create(small, FEW), _create(large, count)]
        held = {FEW: small, count: large}
        pages = _compare(held, "list", LISTERS, times)
        appends = _compare(held, "random-append", APPENDERS, times)
        return ManyStreams(
            count=count,
            created_per_second=created[1]["per_second"],
            pages=pages,
            appends=appends,
            memory_mb=large.resident_bytes() / 1e6,
            errors=int(sum(made["errors"] for made in created)) + pages.errors + appends.errors,
        )


def _create(server: Running, count: int) -> dict[str, float]:
    return drive(Job(kind="create", port=server.port, stream="s", connections=CREATORS, count=count))


def _compare(held: dict[int, Running], kind: str, connections: int, times: Times) -> Pair:
    rates: dict[int, list[float]] = {count: [] for count in held}
    errors = 0
    for _ in range(ROUNDS):
        for count, server in held.items():
            job = Job(
                kind=kind,
                port=server.port,
                stream="s",
                connections=connections,
                warm=times.warm,
                seconds=times.seconds,
                count=count,
            )
            result = drive(job)
            rates[count].append(result["per_second"])
            errors += result["errors"]
    few, many = (statistics.median(measured) for measured in rates.values())
    return Pair(few, many, errors)
