"""Tables that come later than their events: how many events a second Spark folds, on two cores."""

from __future__ import annotations

import time
from pathlib import Path

from bench.driver import Sample, difference
from bench.features.asked import Asked
from bench.features.entities import working
from bench.features.pipelines import FIRST, FRAUD, MEASURED, Pipeline
from bench.features.rows import BACKFILL, row_of
from bench.published import await_published, sealing
from bench.scale import Scale
from bench.serving import running
from bench.targets import Target

_USERS = 10_000
_FIRST_EVENTS = 1_000
_SEGMENT_ROWS = 50_000
#: The pipeline that does most with each event is given fewer.
_TIMES_FEWER = 5


def backfills(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """From the registration of the tables to rows that have counted every event, for each pipeline."""
    events = {FRAUD.name: scale.backfilled_events // _TIMES_FEWER}
    return [_backfill(target, space, each, events.get(each.name, scale.backfilled_events)) for each in MEASURED]


def _backfill(target: Target, space: Path, pipeline: Pipeline, events: int) -> Sample:
    with running(working(sealing(target, _SEGMENT_ROWS)), space) as server:
        _start(Asked(server, FIRST, _FIRST_EVENTS))
        asked = Asked(server, pipeline, _USERS)
        asked.register(pipeline.source_nodes())
        asked.fill(events)
        await_published(server, f"events/{pipeline.event}", events)
        began = time.perf_counter()
        asked.register(pipeline.nodes())
        asked.await_states()
        taken = time.perf_counter() - began
        return Sample(row_of(BACKFILL, pipeline), events / taken, "/s", note=difference(events, asked.counted()))


def _start(first: Asked) -> None:
    """Let Spark fold a little for another app, so that it has started."""
    first.register(first.pipeline.nodes(), app="first")
    first.fill(_FIRST_EVENTS)
    first.await_states()
