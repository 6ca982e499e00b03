"""What pushes and gets cost, pipeline by pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.driver import Sample, Times, difference
from bench.features.asked import Asked, asked
from bench.features.pipelines import MEASURED
from bench.features.rows import (
    ARRAY,
    ARRAYS,
    BATCH,
    BATCH_TIME,
    CONNECTIONS,
    FRESH,
    GET,
    GET_TIME,
    PUSH,
    TURNS,
    row_of,
)
from bench.scale import Scale
from bench.targets import Target

LEFT_OUT = dict.fromkeys(("prisma", "prisma-tuned", "reference", "redis"), "they have no features")

USERS = 10_000
_TIMED_GETS, _TIMED_BATCHES = 2_000, 300


def feature_costs(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Pushes and gets per second, and how long an answer takes, for each pipeline on a fresh server."""
    samples: list[Sample] = []
    for pipeline in MEASURED:
        with asked(target, space, pipeline, USERS) as server:
            server.look()
            samples += _costs(server, scale.times)
    return samples


def _costs(server: Asked, times: Times) -> list[Sample]:
    samples, pushed = [], 1
    for row, kind in ((PUSH, "push"), (GET, "get"), (TURNS, "turns")):
        result = server.load(kind, connections=CONNECTIONS, warm=times.warm, seconds=times.seconds)
        pushed += {"push": result["acknowledged"], "get": 0, "turns": -(-result["acknowledged"] // 2)}[kind]
        samples.append(Sample(row_of(row, server.pipeline), result["per_second"], "/s"))
        server.get(0)
    samples += _timed(server, GET_TIME, "timed-get", count=_TIMED_GETS)
    samples += _timed(server, BATCH_TIME, "timed-batch-get", count=_TIMED_BATCHES, batch=BATCH)
    if server.takes_arrays:
        result = server.load("push", connections=CONNECTIONS, batch=ARRAY, warm=times.warm, seconds=times.seconds)
        pushed += result["acknowledged"]
        samples.append(Sample(row_of(ARRAYS, server.pipeline), result["per_second"], "/s"))
        samples.append(Sample(row_of(FRESH, server.pipeline), server.get(0).seconds, "s"))
    return [*samples[:-1], replace(samples[-1], note=difference(pushed, server.counted()))]


def _timed(server: Asked, row: str, kind: str, **settings: int) -> Iterator[Sample]:
    result = server.load(kind, **settings)
    for quantile in ("p50", "p99"):
        yield Sample(row_of(row, server.pipeline, quantile), result[quantile] * 1e3, "ms")
