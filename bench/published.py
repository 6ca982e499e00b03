"""Servers that seal and upload what they are given, and how one knows that they have; and what cold means."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.driver import DriverFailed
from bench.requests import stream_path
from bench.serving import Running
from bench.targets import Target

#: Servers that take no part where segments are compared, and why.
LEFT_OUT = {
    "prisma": "it is measured tuned",
    "reference": "it has no segments",
    "redis": "it has no segments",
}

#: A segment has so many rows on both servers, unless told otherwise: the default of each.
SEGMENT_ROWS = 100_000
#: Prisma indexes keys by so many segments at a time, and leaves the rest alone.
INDEXED_AT_ONCE = 16
LONGEST_WAIT = 900.0
QUIET_SECONDS = 60.0


def sealing(target: Target, rows: int = SEGMENT_ROWS) -> Target:
    """The same server, made to seal full segments at once, and the rest within seconds."""
    return target.with_settings(
        HEADRACE_STORAGE__SEAL_AGE_S="1",
        HEADRACE_STORAGE__SEAL_ROWS=str(rows),
        DS_SEGMENT_MAX_INTERVAL_MS="3000",
        DS_SEGMENT_TARGET_ROWS=str(rows),
    )


def details(server: Running, stream: str) -> dict[str, Any]:
    """What a server says about a stream."""
    found: dict[str, Any] = json.loads(server.ask("GET", f"{stream_path(stream)}/_details"))
    return found


def await_published(server: Running, stream: str, events: int) -> None:
    """Wait until all events of a stream are in the object store."""
    for found in _looks(server, stream):
        if int(found["stream"]["uploaded_through"]) == events - 1:
            return


def await_indexed(server: Running, stream: str) -> None:
    """Wait until the index of keys has come as far as it goes; a server that shows none needs none."""
    before, since = -1, time.monotonic()
    for found in _looks(server, stream):
        index = found.get("index_status", {}).get("routing_key_index")
        if index is None or index["lag_segments"] < INDEXED_AT_ONCE:
            return
        if index["indexed_segment_count"] != before:
            before, since = index["indexed_segment_count"], time.monotonic()
        elif time.monotonic() - since > QUIET_SECONDS:
            return


def _looks(server: Running, stream: str) -> Iterator[dict[str, Any]]:
    deadline = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < deadline:
        yield details(server, stream)
        time.sleep(0.25)
    raise DriverFailed(f"{server.target.title} did not publish {stream} within {LONGEST_WAIT:g} seconds")


def make_cold(directory: Path) -> None:
    """Put every file below a directory out of the memory of the machine."""
    for path in directory.rglob("*"):
        if path.is_file():
            with _opened(path) as file:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)
