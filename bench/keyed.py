"""Reading all events of one key, where there are a great many of both."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from bench.driver import DriverFailed, Sample, drive, job
from bench.keys import held, probed
from bench.published import await_indexed, await_published, sealing
from bench.requests import stream_path
from bench.scale import Scale
from bench.serving import Running, running
from bench.targets import Target

ROW = "all events of one key"

ARRAY = 100
FILLERS = 16
PROBES = 20
STREAM = "keyed"
#: There are so many segments whatever the scale.
SEGMENTS = 50


def keyed_reads(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """The time that one of the keys takes, from its first event to its last; the median over some."""
    with running(sealing(target, scale.keyed_events // SEGMENTS), space) as server:
        _fill(server, scale)
        result = drive(job(server, "read-keys", STREAM, keys=scale.keys, count=PROBES))
    expected = held(scale.keys, ARRAY, scale.keyed_events // ARRAY, probed(scale.keys, PROBES))
    wrong = sum(found != wanted for found, wanted in zip(result["events"], expected, strict=True))
    note = f"{wrong} of {PROBES} keys have other events than were appended. " if wrong else ""
    note += result["first_error"]
    return [Sample(ROW, statistics.median(result["taken"]) * 1e3, "ms", wrong, note)]


def _fill(server: Running, scale: Scale) -> None:
    """Append events whose key is taken from them, and wait until they are published and their keys indexed."""
    server.create(STREAM)
    routing = {"routingKey": {"jsonPointer": "/user", "required": True}}
    server.ask("POST", f"{stream_path(STREAM)}/_schema", json.dumps(routing).encode())
    settings = {"connections": FILLERS, "batch": ARRAY, "count": scale.keyed_events // ARRAY, "keys": scale.keys}
    filled = drive(job(server, "keyed-fill", STREAM, **settings))
    if filled["acknowledged"] != scale.keyed_events:
        raise DriverFailed(f"{STREAM} took {filled['acknowledged']:,} events: {filled['first_error']}")
    await_published(server, STREAM, scale.keyed_events)
    await_indexed(server, STREAM)
