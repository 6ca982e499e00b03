"""A load beside plain appends: how long they waited, what the load was answered, and how the event loop stalled."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.stalls.load import Load

_LOAD_SECONDS = 240.0
#: Appends before a load, and how long its consequences are watched after it.
_BEFORE, _AFTER = 0.3, 0.3


@dataclass(frozen=True)
class Stalls:
    """Stalls of the event loop by their length: how many were longer than each bound, in seconds."""

    longer: dict[float, int]

    def since(self, before: Stalls) -> Stalls:
        """What came since then."""
        return Stalls({bound: count - before.longer.get(bound, 0) for bound, count in self.longer.items()})

    @property
    def bound(self) -> float:
        """The least bound that no stall was longer than; infinite where there is none."""
        return min((bound for bound, count in self.longer.items() if not count), default=float("inf"))


@dataclass(frozen=True)
class Beside:
    """What came of one load."""

    #: Seconds of the appends that overlapped with the load.
    appends: list[float]
    refused: int
    statuses: dict[str, int]
    #: How long the loop did not turn, and for how long its thread computed meanwhile; None where nobody measures.
    stalls: Stalls | None
    busy: Stalls | None

    @property
    def longest(self) -> float:
        """The seconds of the longest append."""
        return max(self.appends, default=0.0)

    @property
    def p99(self) -> float:
        """The seconds that one append in a hundred exceeded."""
        ordered = sorted(self.appends)
        return ordered[len(ordered) * 99 // 100] if ordered else 0.0


def beside(port: int, load: Load, stream: str) -> Beside:
    """Carry out a load while another process appends to a stream."""
    stalls, busy = stalls_of(port)
    appends = subprocess.Popen(
        [sys.executable, "-m", "bench.stalls.appends", str(port), stream],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with _ended(appends):
        time.sleep(_BEFORE)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bench.stalls.load"],
            input=pickle.dumps((load, port)),
            stdout=subprocess.PIPE,
            timeout=_LOAD_SECONDS,
            check=True,
        )
        time.sleep(_AFTER)
        told = json.loads(appends.communicate(timeout=_LOAD_SECONDS)[0])
    waited = [seconds for at, seconds in told["timed"] if at + seconds >= began]
    later_stalls, later_busy = stalls_of(port)
    if stalls is None or busy is None or later_stalls is None or later_busy is None:
        return Beside(waited, told["refused"], json.loads(done.stdout), None, None)
    statuses = json.loads(done.stdout)
    return Beside(waited, told["refused"], statuses, later_stalls.since(stalls), later_busy.since(busy))


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def stalls_of(port: int) -> tuple[Stalls | None, Stalls | None]:
    """What the watchdog of a server has measured: stalls, and how long its loop computed; earlier ones have none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return _histogram(text, "headrace_loop_stall_seconds"), _histogram(text, "headrace_loop_stall_busy_seconds")


def _histogram(text: str, name: str) -> Stalls | None:
    found = re.findall(rf'^{name}_bucket{{le="(\S+)"}} (\S+)$', text, re.MULTILINE)
    if not found:
        return None
    whole = float(found[-1][1])
    return Stalls({float(bound): int(whole - float(count)) for bound, count in found[:-1]})
