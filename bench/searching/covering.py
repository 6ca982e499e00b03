"""Knowing when a server has indexed everything, by what it says of itself."""

from __future__ import annotations

import time
from typing import NamedTuple

from bench.searching.asking import Caller

LONGEST_WAIT = 1500.0
_EVERY = 0.25


class Covered(NamedTuple):
    """How far a server has come: when that was seen, and what is missing."""

    at: float
    missing: str


def await_covered(caller: Caller, stream: str, events: int) -> Covered:
    """Wait until all events are in segments and every family of indexes has all of these, or the time is over."""
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        missing = _missing(caller, stream, events)
        if not missing or time.monotonic() > deadline:
            return Covered(time.monotonic(), missing)
        time.sleep(_EVERY)


def await_rest(caller: Caller) -> Covered:
    """Wait until Headrace has no work left, such as merging what it has indexed, or the time is over."""
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        told = caller.ask("GET", "/v1/work").json()
        left = ", ".join(f"{name} {told[name]}" for name in ("due", "leases", "parked") if told[name])
        if not left or time.monotonic() > deadline:
            return Covered(time.monotonic(), left)
        time.sleep(_EVERY)


def _missing(caller: Caller, stream: str, events: int) -> str:
    found = caller.on_stream("_details", stream=stream).json()
    published = int(found["stream"]["uploaded_through"]) + 1
    if published < events:
        return f"{events - published:,} events are in no segment"
    behind = {family["family"]: family["lag_segments"] for family in found["index_status"]["search_families"]}
    lag = max(behind.values())
    return f"{lag} of {found['stream']['segment_count']} segments are not indexed" if lag else ""
