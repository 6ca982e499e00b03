"""Many streams: what a page and an append cost beside a million streams, against beside a thousand."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from bench.driver import Times, drive
from bench.job import Job
from bench.serving import Running, running
from bench.targets import TARGETS

FEW = 1000
CREATORS = 256
LISTERS = 4
APPENDERS = 64
#: Many short rounds in turn: others use the machine too, and what they do to both falls out of the ratio of a round.
ROUNDS = 25
_SHORTER = 4
#: Otherwise one of the two would publish its streams in the other's turn, and within its own when it is late.
_SEALED_LATER = {"HEADRACE_STORAGE__SEAL_AGE_S": "86400"}


@dataclass(frozen=True)
class Pair:
    """The same work per second beside few streams and beside many, and how many times more it costs there."""

    beside_few: float
    beside_many: float
    slowdown: float
    errors: int


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
    headrace = TARGETS[0].with_settings(**_SEALED_LATER)
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
                seconds=times.seconds / _SHORTER,
                count=count,
            )
            result = drive(job)
            rates[count].append(result["per_second"])
            errors += result["errors"]
    few, many = (statistics.median(measured) for measured in rates.values())
    slowdown = statistics.median(one / other for one, other in zip(*rates.values(), strict=True))
    return Pair(few, many, slowdown, errors)
