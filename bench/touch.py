"""Touches under load: ten thousand waiters are parked on a thousand keys while rows change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.driver import Sample, drive, job
from bench.memory import MemoryWatch
from bench.requests import stream_path
from bench.scale import Scale
from bench.search import Marked
from bench.searching.rows import Promise
from bench.serving import running
from bench.targets import Target
from bench.waiting import ENTITY, FIELD

WAITERS, KEYS, CHANGES_PER_SECOND, SECONDS = 10_000, 1_000, 100, 15.0
BUCKET_MS = 100
#: Prisma ends every request after five seconds, waits too.
WAIT_MS = {"prisma": 4_000, "prisma-tuned": 4_000}
LONG_MS = 60_000
MOST_P95_MS = BUCKET_MS + 100.0

LEFT_OUT = {
    "prisma": "it is measured tuned",
    "reference": "it has no touches",
    "redis": "it has no touches",
    "beava": "it has no touches",
}
ROW = "change to wake-up, 10,000 waiters on 1,000 keys, {}"
CHANGES = "changes a second meanwhile"
MEMORY = "memory with 10,000 parked waiters"
PER_WAITER = "memory per parked waiter"

Value = Callable[[str, str], float | None]


def touches(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Park waiters, change rows, and hold what each was told against a model of what it should have been."""
    seconds = min(SECONDS, max(3.0, scale.times.seconds * 10))
    with running(target, space) as server:
        stream = stream_path("touch")
        server.create("touch")
        profile = {"kind": "state-protocol", "touch": {"enabled": True}}
        server.ask("POST", f"{stream}/_profile", json.dumps({"profile": profile}).encode())
        template = {"entity": ENTITY, "fields": [{"name": FIELD, "encoding": "string"}]}
        activation = json.dumps({"templates": [template]}).encode()
        server.ask("POST", f"{stream}/touch/templates/activate", activation)
        idle_mb = server.resident_bytes() / 1e6
        with MemoryWatch(server) as memory:
            wait_ms = WAIT_MS.get(target.name, LONG_MS)
            settings = {"connections": WAITERS, "keys": KEYS, "batch": CHANGES_PER_SECOND, "count": wait_ms}
            found = drive(job(server, "touch", "touch", seconds=seconds, **settings))
    wakes = [
        Sample(ROW.format(quantile), found[quantile] * 1e3, "ms", found["errors"], found["first_error"])
        for quantile in ("p50", "p95", "p99")
    ]
    told = "{wakes:,} wake-ups, {missed:,} missed, {for_nothing:,} for nothing, {timeouts:,} timeouts".format(**found)
    per_waiter_kb = (memory.most_mb - idle_mb) * 1e3 / WAITERS
    return [
        *wakes,
        Marked(CHANGES, found["per_second"], "/s", mark=told),
        Sample(MEMORY, memory.most_mb, "MB"),
        Sample(PER_WAITER, per_waiter_kb, "KB"),
    ]


def promises(value: Value) -> Iterator[Promise]:
    """What a run can judge: nobody waits for much longer than a bucket."""
    p95 = value(ROW.format("p95"), "headrace")
    if p95:
        yield Promise(f"p95 from change to wake-up in ms (at most {MOST_P95_MS:g})", p95, p95 <= MOST_P95_MS)
