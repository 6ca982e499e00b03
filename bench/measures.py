"""What is measured, one function per measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import (
    answers,
    evlog,
    extract,
    file_import,
    keyed,
    newest,
    observations,
    published,
    schemas,
    sealed,
    sealing,
    search,
    touch,
)
from bench.driver import Sample, Times, append, difference, drive, job
from bench.features import backfilling, costs, entities
from bench.scale import Scale
from bench.serving import Running, running
from bench.targets import Target

Measure = Callable[[Target, Path, Scale], list[Sample]]

CONNECTIONS = (16, 64, 256)
ARRAY = 100
READ_EVENTS = 100_000
SUBSCRIBERS = {1: 150, 1000: 30}
LONGEST_LIVE_S = 2.5


def single_appends(server: Running, times: Times) -> list[Sample]:
    """One event per request, at rising numbers of connections."""
    return [
        _append(server, f"single appends, {connections} connections", connections, 1, times)
        for connections in CONNECTIONS
    ]


def array_appends(server: Running, times: Times) -> list[Sample]:
    """A hundred events per request."""
    return [_append(server, "events in arrays of 100, 64 connections", 64, ARRAY, times)]


def catch_up_reads(server: Running, times: Times) -> list[Sample]:
    """Reading a stream that was appended in arrays of 100, from start to end, over and over."""
    server.create("read")
    filled = drive(job(server, "append", "read", connections=16, batch=ARRAY, count=READ_EVENTS // ARRAY))
    counted = drive(job(server, "count", "read"))
    note = difference(filled["acknowledged"], counted["events"])
    samples = []
    for connections in (1, 4):
        result = drive(job(server, "read", "read", connections=connections, seconds=times.seconds))
        megabytes = result["per_second"] / 1e6
        row = f"catch-up read, {connections} connection{'s' if connections > 1 else ''}"
        samples.append(Sample(row, megabytes, "MB/s", result["errors"], note or result["first_error"]))
    return samples


def live_latency(server: Running, _times: Times) -> list[Sample]:
    """From sending an append to its receipt by every subscriber."""
    samples = []
    for subscribers, events in SUBSCRIBERS.items():
        stream = f"live-{subscribers}"
        server.create(stream)
        result = drive(job(server, "live", stream, connections=subscribers, count=events, seconds=LONGEST_LIVE_S))
        for quantile in ("p50", "p99"):
            row = f"append to {subscribers:,} subscriber{'s' if subscribers > 1 else ''}, {quantile}"
            samples.append(Sample(row, result[quantile] * 1e3, "ms", result["errors"], result["first_error"]))
    return samples


def _on_fresh_server(measure: Callable[[Running, Times], list[Sample]]) -> Measure:
    """A measure for which a server is started on an empty directory, and that is all."""

    def measured(target: Target, space: Path, scale: Scale) -> list[Sample]:
        with running(target, space) as server:
            return measure(server, scale.times)

    return measured


MEASURES: dict[str, Measure] = {
    "single": _on_fresh_server(single_appends),
    "arrays": _on_fresh_server(array_appends),
    "reads": _on_fresh_server(catch_up_reads),
    "live": _on_fresh_server(live_latency),
    "touch": touch.touches,
    "evlog": _on_fresh_server(evlog.evlog_appends),
    "schemas": _on_fresh_server(schemas.schema_costs),
    "sealed": sealed.sealed_reads,
    "newest": newest.newest_events,
    "sealing": sealing.sealing_costs,
    "keyed": keyed.keyed_reads,
    "search": search.searches,
    "answers": answers.answers,
    "extract": extract.extraction,
    "features": costs.feature_costs,
    "entities": entities.entity_costs,
    "backfill": backfilling.backfills,
    "observations": observations.imports,
    "import": file_import.file_imports,
}

#: Measures that take so long that one round has to do.
ONCE = ("keyed", "search", "answers", "extract", "entities", "backfill", "observations", "import")

#: Measures that each round repeats so many times: they are short, and one of them says little on a machine with others.
REPEATED = {"single": 3}

#: Measures that do less where they have to be quick or the disk is small, which is said then.
SIZED = ("keyed", "search", "entities", "backfill", "observations", "import")

#: Servers that a measure leaves out, and why.
LEFT_OUT: dict[str, dict[str, str]] = {
    "touch": touch.LEFT_OUT,
    "evlog": evlog.LEFT_OUT,
    "schemas": schemas.LEFT_OUT,
    "sealed": published.LEFT_OUT,
    "newest": newest.LEFT_OUT,
    "sealing": sealing.LEFT_OUT,
    "keyed": published.LEFT_OUT,
    "search": search.LEFT_OUT,
    "answers": answers.LEFT_OUT,
    "extract": extract.LEFT_OUT,
    "features": costs.LEFT_OUT,
    "entities": costs.LEFT_OUT,
    "backfill": costs.LEFT_OUT,
    "observations": observations.LEFT_OUT,
    "import": file_import.LEFT_OUT,
}


def _append(server: Running, row: str, connections: int, batch: int, times: Times) -> Sample:
    stream = f"append-{connections}-{batch}"
    server.create(stream)
    return append(server, stream, row, times, connections=connections, batch=batch)
