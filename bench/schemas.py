"""What a schema costs: appends that are checked, reads through three lenses, reads that should cost nothing extra."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from bench import shapes
from bench.driver import DriverFailed, Sample, Times, append, difference, drive, job
from bench.events import array, large_event
from bench.requests import stream_path
from bench.serving import Refused, Running
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.chain import LensChain
from headrace.schema.lens.ops import Lens

#: Servers that are not asked, and why.
LEFT_OUT = {
    "prisma": "it is measured tuned",
    "reference": "it has no schemas",
    "redis": "it has no schemas",
}

#: Rows in pairs: without a schema, and with one.
SINGLE = ("large event, single, no schema", "large event, single, schema")
ARRAYS = ("large event, arrays of 100, no schema", "large event, arrays of 100, schema")
READS = ("events read, no schema", "events read, schema, none old")
PROMOTED = "events read through three lenses"
IN_PROCESS = "events through three lenses, in process"

CONNECTIONS = 64
FILLERS = 16
ARRAY = 100
READ_EVENTS = 50_000
#: The streams are read in turn, so often: what else the machine does then meets all of them alike.
TURNS = 5


def schema_costs(server: Running, times: Times) -> list[Sample]:
    """Reads first, while there is little on the disk; then appends, each beside the same without a schema."""
    samples = _reads(server, times)
    for rows, batch in ((SINGLE, 1), (ARRAYS, ARRAY)):
        for row, checked in zip(rows, (False, True), strict=True):
            stream = _created(server, f"{'checked' if checked else 'free'}-{batch}", checked)
            samples.append(append(server, stream, row, times, connections=CONNECTIONS, batch=batch, event="large"))
    return samples


def promoted_per_second(seconds: float) -> float:
    """Events that one thread carries through the three lenses, per second of its processor time; nothing else."""
    lenses = {number: lens_document.parse(document) for number, document in enumerate(shapes.lenses("s"), start=1)}
    chain = LensChain(
        {number: lens for number, lens in lenses.items() if isinstance(lens, Lens)},
        dict(enumerate(shapes.SCHEMAS, start=1)),
    )
    joined, events = array(0, ARRAY, large_event)[1:-1], 0
    chain.promote(joined, 1, len(shapes.SCHEMAS))
    until, began = time.perf_counter() + seconds, time.thread_time()
    while time.perf_counter() < until:
        chain.promote(joined, 1, len(shapes.SCHEMAS))
        events += ARRAY
    return events / (time.thread_time() - began)


def _reads(server: Running, times: Times) -> list[Sample]:
    plain, checked, old = (_filled(server, name, name != "plain") for name in ("plain", "checked", "old"))
    for schema, lens in zip(shapes.SCHEMAS[1:], shapes.lenses(old), strict=True):
        _register(server, old, {"schema": schema, "lens": lens})
    _check_promoted(server, old)
    rows = {READS[0]: plain, READS[1]: checked, PROMOTED: old}
    turns = [[_read(server, row, stream, times.seconds / 2) for row, stream in rows.items()] for _ in range(TURNS)]
    samples = [_middle(found) for found in zip(*turns, strict=True)]
    if server.target.name == "headrace":
        samples.append(Sample(IN_PROCESS, promoted_per_second(times.seconds), "/s"))
    return samples


def _middle(samples: Sequence[Sample]) -> Sample:
    """The one that is neither best nor worst; one that went wrong comes first."""
    wrong = [sample for sample in samples if sample.errors or sample.note]
    return wrong[0] if wrong else sorted(samples, key=lambda sample: sample.value)[len(samples) // 2]


def _read(server: Running, row: str, stream: str, seconds: float) -> Sample:
    """Events per second on one connection: bytes per second, by the bytes per event that counting found."""
    counted = drive(job(server, "count", stream))
    result = drive(job(server, "read", stream, seconds=seconds))
    rate = result["per_second"] * counted["events"] / counted["bytes"]
    note = difference(READ_EVENTS, counted["events"])
    return Sample(row, rate, "/s", result["errors"], note or result["first_error"])


def _created(server: Running, stream: str, checked: bool) -> str:
    server.create(stream)
    if checked:
        _register(server, stream, {"schema": shapes.SCHEMAS[0]})
        _check_refused(server, stream)
    return stream


def _filled(server: Running, stream: str, checked: bool) -> str:
    _created(server, stream, checked)
    settings = {"connections": FILLERS, "batch": ARRAY, "count": READ_EVENTS // ARRAY, "event": "large"}
    filled = drive(job(server, "append", stream, **settings))
    if filled["acknowledged"] != READ_EVENTS:
        raise DriverFailed(f"{stream} took {filled['acknowledged']:,} events: {filled['first_error']}")
    return stream


def _register(server: Running, stream: str, update: dict[str, Any]) -> None:
    """The next version of a stream's schema."""
    server.ask("POST", f"{stream_path(stream)}/_schema", json.dumps(update).encode())


def _check_refused(server: Running, stream: str) -> None:
    """What does not fit the schema must not be taken."""
    try:
        server.ask("POST", stream_path(stream), large_event(0).replace(b'"ok":true', b'"ok":1'))
    except Refused as refusal:
        if refusal.status != 400:
            raise
        return
    raise DriverFailed(f"{stream} took an event that does not fit its schema")


def _check_promoted(server: Running, stream: str) -> None:
    """The first page must hold what the lenses make of the events that were appended."""
    for event in json.loads(server.ask("GET", f"{stream_path(stream)}?offset=-1")):
        if event != shapes.newest(json.loads(large_event(int(event["id"])))):
            raise DriverFailed(f"{stream} was read in another shape than the newest: {event}")
