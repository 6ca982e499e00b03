"""Catch-up reads of history that lies in segments: cold after a restart, then warm."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.driver import Sample, difference, drive, job
from bench.published import await_published, make_cold, sealing
from bench.scale import Scale
from bench.serving import Running, fresh_directory, serving
from bench.targets import Target

COLD, WARM = "sealed history, cold", "sealed history, warm"

ARRAY = 100
FILLERS = 16
STREAM = "sealed"
#: Where Headrace keeps what it fetches. Prisma's local store lives in the memory of its process, so that after a
#: restart its cache on disk is all that is left, and has to stay.
CACHES = {"headrace": "cache"}


def sealed_reads(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """One pass from start to end right after a restart on a cold disk, then another."""
    target = sealing(target)
    with fresh_directory(target, space) as directory:
        with serving(target, directory) as server:
            note = _filled(server, scale.sealed_events)
        if target.name in CACHES:
            shutil.rmtree(directory / CACHES[target.name], ignore_errors=True)
        make_cold(directory)
        with serving(target, directory) as server:
            return [_pass(server, row, note) for row in (COLD, WARM)]


def _filled(server: Running, events: int) -> str:
    """Fill a stream, wait until it is published, and count; says what is wrong."""
    server.create(STREAM)
    settings = {"connections": FILLERS, "batch": ARRAY, "count": events // ARRAY, "event": "traced"}
    filled = drive(job(server, "fill", STREAM, **settings))
    await_published(server, STREAM, events)
    counted = drive(job(server, "count", STREAM))
    return difference(filled["acknowledged"], counted["events"]) or str(filled["first_error"])


def _pass(server: Running, row: str, note: str) -> Sample:
    result = drive(job(server, "pass", STREAM))
    return Sample(row, result["per_second"] / 1e6, "MB/s", result["errors"], note or result["first_error"])
