"""Many streams: what a page and an append cost beside a million streams, against beside a thousand."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.load import Job
from bench.measures import Sample, Times, drive
from bench.targets import TARGETS, Running, running

FEW = 1000
CREATORS = 64
LISTERS = 4
APPENDERS = 64
ROUNDS = 3


def many_streams(count: int, times: Times, space: Path) -> list[Sample]:
    """Create `count` streams on one server and a thousand on another, then compare the two in turn."""
    headrace = TARGETS[0]
    with running(headrace, space) as small, running(headrace, space) as large:
        _create(small, FEW)
        created = _create(large, count)
        samples = [Sample(f"creating {count:,} streams", created["per_second"], created["errors"])]
        for kind, connections, row in (
            ("list", LISTERS, "listing a page"),
            ("random-append", APPENDERS, "append to a random stream"),
        ):
            samples += _compare(small, large, kind, connections, row, count, times)
        samples.append(Sample(f"memory with {count:,} streams", large.resident_bytes() / 1e6))
    return samples


def _create(server: Running, count: int) -> dict[str, Any]:
    return drive(Job(kind="create", port=server.port, stream="s", connections=CREATORS, count=count))


def _compare(
    small: Running, large: Running, kind: str, connections: int, row: str, count: int, times: Times
) -> list[Sample]:
    held = {FEW: small, count: large}
    rates: dict[int, list[float]] = {number: [] for number in held}
    errors = 0
    for _ in range(ROUNDS):
        for number, server in held.items():
            result = drive(
                Job(
                    kind=kind,
                    port=server.port,
                    stream="s",
                    connections=connections,
                    warm=times.warm,
                    seconds=times.seconds,
                    count=number,
                )
            )
            rates[number].append(result["per_second"])
            errors += result["errors"]
    return [
        Sample(f"{row}, {number:,} streams", statistics.median(measured), errors) for number, measured in rates.items()
    ]
