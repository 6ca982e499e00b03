"""Searches and aggregates over a stream that is indexed as a whole, and how soon it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.driver import DriverFailed, Sample
from bench.published import sealing
from bench.requests import stream_path
from bench.scale import Scale
from bench.searching import data, ducking, truth
from bench.searching.asking import Caller, Series, series
from bench.searching.covering import LONGEST_WAIT, Covered, await_covered, await_rest
from bench.searching.filling import Load, fill
from bench.searching.questions import AGGREGATES, SEARCHES, some
from bench.searching.rows import (
    APPENDED,
    COVERED,
    DUCKDB,
    GROWING,
    GROWN,
    INGEST,
    MERGED,
    SELECTIVE,
    STARTED,
    row_of,
)
from bench.searching.shape import STREAM, UPDATE
from bench.serving import Running, running
from bench.targets import Target

#: Servers that are not asked, and why.
LEFT_OUT = {
    "prisma": "it is measured tuned",
    "reference": "it has no search",
    "redis": "it has no search",
}

#: A small stream is indexed first, so that what starts with the first work has started.
_FIRST, _FIRST_EVENTS = "first", 2_000
#: Between the last of indexing and the first question.
_REST = 3.0


@dataclass(frozen=True)
class Marked(Sample):
    """A number that must not stand without a word beside it."""

    mark: str = ""


def searches(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Fill a stream, wait until all of it is indexed, and ask."""
    with running(_indexing(target), space) as server:
        caller, is_headrace = Caller(server.port), target.name == "headrace"
        samples = [_started(server, caller)]
        _create(server, STREAM)
        caller.hang_up()
        filled = fill(Load(server.port, STREAM, 0, scale.searched_events))
        covered = await_covered(caller, STREAM, scale.searched_events)
        samples += _pace(scale.searched_events, filled.began, filled.ended, covered)
        if is_headrace:
            samples.append(_rest(caller, filled.ended))
        samples += _answers(caller, scale.searched_events, covered)
        if is_headrace:
            samples += _duckdb(scale.searched_events, space)
            samples += _growth(server, caller, scale)
    return samples


def _indexing(target: Target) -> Target:
    """The same server, made to seal soon and to index whatever is sealed; Headrace with its pipeline beside it."""
    target = sealing(target).with_settings(HEADRACE_PIPELINE__MIN_ROWS="0", HEADRACE_PIPELINE__MASTER="local[2]")
    return with_pipeline(target) if target.name == "headrace" else target


def with_pipeline(target: Target) -> Target:
    """Headrace as `headrace up`: the server, and the pipeline beside it."""
    serve = target.command
    return replace(target, command=lambda port, home: ["up" if word == "serve" else word for word in serve(port, home)])


def _started(server: Running, caller: Caller) -> Sample:
    _create(server, _FIRST)
    filled = fill(Load(server.port, _FIRST, 0, _FIRST_EVENTS))
    covered = await_covered(caller, _FIRST, _FIRST_EVENTS)
    if covered.missing:
        raise DriverFailed(f"nothing is indexed: {covered.missing}")
    return Sample(STARTED, covered.at - filled.ended, "s")


def _create(server: Running, stream: str) -> None:
    server.create(stream)
    answer = Caller(server.port).ask("POST", f"{stream_path(stream)}/_schema", UPDATE)
    if answer.status != 200:
        raise DriverFailed(f"the search configuration is refused: {answer.status} {answer.body[:1000]!r}")


def _pace(events: int, began: float, ended: float, covered: Covered) -> Iterator[Sample]:
    late = f"after {LONGEST_WAIT:g} s {covered.missing}" if covered.missing else ""
    yield Sample(APPENDED, events / (ended - began), "/s")
    yield Marked(COVERED, covered.at - ended, "s", mark=late)
    yield Marked(INGEST, events / (covered.at - began), "/s", mark=late)


def _rest(caller: Caller, ended: float) -> Sample:
    rested = await_rest(caller)
    return Sample(MERGED, rested.at - ended, "s", note=rested.missing and f"after {LONGEST_WAIT:g} s: {rested.missing}")


def _answers(caller: Caller, events: int, covered: Covered) -> Iterator[Sample]:
    """Every kind of question, timed; then the answers are checked, where a server has seen everything."""
    time.sleep(_REST)
    found: dict[str, Series] = {}
    for verb, kinds in (("_search", SEARCHES), ("_aggregate", AGGREGATES)):
        found |= {name: series(caller, verb, some(ask, events)) for name, ask in kinds.items()}
    wrong = {} if covered.missing else truth.troubles(caller, data.whole(events))
    for name, times in found.items():
        note = f"{times.error} {wrong.get(name, '')}".strip()
        yield Marked(row_of(name), times.milliseconds, "ms", note=note, mark=times.mark)


def _duckdb(events: int, space: Path) -> Iterator[Sample]:
    for name, milliseconds in ducking.aggregates(data.whole(events), space).items():
        yield Sample(DUCKDB.format(name), milliseconds, "ms")


def _growth(server: Running, caller: Caller, scale: Scale) -> Iterator[Sample]:
    """The same stream grows, and selective searches are asked again."""
    before, after = scale.searched_events, scale.grown_events
    if after <= before:
        return
    caller.hang_up()
    filled = fill(Load(server.port, STREAM, before, after - before, ready=False))
    covered, rested = await_covered(caller, STREAM, after), await_rest(caller)
    missing = covered.missing or rested.missing
    yield Sample(GROWING, (after - before) / (rested.at - filled.began), "/s", note=missing)
    for name in SELECTIVE:
        times = series(caller, "_search", some(SEARCHES[name], after))
        yield Marked(GROWN.format(name), times.milliseconds, "ms", note=times.error, mark=times.mark)
