"""A large load from end to end: taken in, kept over a restart, recovered from the object store alone, read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.driver import DriverFailed, drive, job
from bench.memory import MemoryWatch
from bench.published import await_published
from bench.requests import numbered
from bench.serving import Running, fresh_directory, serving
from bench.targets import TARGETS, Target

STREAMS = 8
PREFIX = "whole"


@dataclass(frozen=True)
class Phase:
    """One part of the way: how long it took, and the most memory that the server held then."""

    name: str
    seconds: float
    memory_mb: float


@dataclass
class Ingest:
    """What became of the load."""

    bytes: int
    phases: list[Phase] = field(default_factory=list)
    memory_mb: float = 0.0
    troubles: list[str] = field(default_factory=list)


def ingest(size: int, space: Path) -> Ingest:
    """Send so many bytes to Headrace, and read them back after a restart and after a recovery."""
    found, headrace = Ingest(size), TARGETS[0]
    with fresh_directory(headrace, space) as home, fresh_directory(headrace, space) as empty:
        target = headrace.with_settings(HEADRACE_STORAGE__OBJECT_STORE=(home / "objects").as_uri())
        with _started(found, "start", target, home) as server:
            written = _timed(found, "take in", server, lambda: _write(server, size))
        # What the first server has left in its log is due at once for the second.
        with _started(found, "restart", target.with_settings(HEADRACE_STORAGE__SEAL_AGE_S="1"), home) as server:
            read = _timed(found, "read after the restart", server, lambda: _read(server))
            _compare(found, written, read, "the restart")
            _timed(found, "publish the rest", server, lambda: _await_published(server, written["events"]))
        with _started(found, "recover into an empty directory", target, empty) as server:
            read = _timed(found, "read after the recovery", server, lambda: _read(server))
            _compare(found, written, read, "the recovery")
    return found


@contextmanager
def _started(found: Ingest, name: str, target: Target, directory: Path) -> Iterator[Running]:
    began = time.perf_counter()
    with serving(target, directory) as server:
        found.phases.append(Phase(name, time.perf_counter() - began, server.most_resident_bytes() / 1e6))
        yield server
        found.memory_mb = max(found.memory_mb, server.most_resident_bytes() / 1e6)


def _timed(found: Ingest, name: str, server: Running, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    began = time.perf_counter()
    with MemoryWatch(server) as memory:
        result = work()
    found.phases.append(Phase(name, result.get("taken", time.perf_counter() - began), memory.most_mb))
    return result


def _write(server: Running, size: int) -> dict[str, Any]:
    for number in range(STREAMS):
        server.create(numbered(PREFIX, number))
    written = drive(job(server, "write-streams", PREFIX, connections=STREAMS, count=size))
    if written["first_error"]:
        raise DriverFailed(f"an append was refused: {written['first_error']}")
    return written


def _read(server: Running) -> dict[str, Any]:
    return drive(job(server, "read-back", PREFIX, connections=STREAMS))


def _await_published(server: Running, events: list[int]) -> dict[str, Any]:
    for number, count in enumerate(events):
        await_published(server, numbered(PREFIX, number), count)
    return {}


def _compare(found: Ingest, written: dict[str, Any], read: dict[str, Any], moment: str) -> None:
    if read["first_error"]:
        found.troubles.append(f"reading after {moment}: {read['first_error']}")
    for number, (wrote, got) in enumerate(zip(written["digests"], read["digests"], strict=True)):
        if wrote != got:
            found.troubles.append(f"after {moment} {numbered(PREFIX, number)} is not what was written")
