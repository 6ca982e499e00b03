"""Many entities: how much memory each takes, and how long a get takes among them, with a tail of events on top."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.driver import Sample, difference
from bench.features.asked import Asked, asked
from bench.features.pipelines import TWO
from bench.features.rows import MEMORY, TAIL_TIME, row_of
from bench.scale import Scale
from bench.targets import Target

EVENTS_EACH = 2
TAIL_EVENTS = 10_000
_FEW = 1_000
_TIMED_GETS = 5_000


def entity_costs(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Resident memory per entity, then the times of gets of random entities; two features."""
    entities = scale.entities
    samples = [_memory(target, space, entities)]
    with asked(_keeping(target, entities), space, TWO, entities) as server:
        return samples + _times(server, entities)


def _memory(target: Target, space: Path, entities: int) -> Sample:
    """What a server with many entities takes above one with few, after as many events, and every row read once."""
    events, resident, notes = EVENTS_EACH * entities, [], []
    for users in (_FEW, entities):
        with asked(target, space, TWO, users) as server:
            server.fill(events)
            notes.append(difference(events, server.counted()))
            resident.append(server.server.resident_bytes())
    grown = (resident[1] - resident[0]) / (entities - _FEW)
    return Sample(row_of(MEMORY, TWO), grown / 1e3, "KB", note=" ".join(filter(None, notes)))


def _times(server: Asked, entities: int) -> list[Sample]:
    server.fill(EVENTS_EACH * entities)
    if server.server.target.name == "headrace":
        server.await_states()
    server.fill(TAIL_EVENTS)
    server.get(0)
    result = server.load("timed-get", count=_TIMED_GETS)
    rows = {quantile: row_of(TAIL_TIME, TWO, quantile) for quantile in ("p50", "p99")}
    return [Sample(row, result[quantile] * 1e3, "ms") for quantile, row in rows.items()]


def _keeping(target: Target, entities: int) -> Target:
    """Headrace made to seal in four segments all that comes first, and nothing of the tail."""
    if target.name != "headrace":
        return target
    settings = {"SEAL_ROWS": str(EVENTS_EACH * entities // 4), "SEAL_AGE_S": "1e9", "SEAL_BYTES": str(10**12)}
    return working(target).with_settings(**{f"HEADRACE_STORAGE__{name}": value for name, value in settings.items()})


def working(target: Target) -> Target:
    """The same server with its pipeline beside it, which folds whatever is sealed, on two cores."""
    serve = target.command
    up = replace(target, command=lambda port, home: ["up" if word == "serve" else word for word in serve(port, home)])
    return up.with_settings(
        HEADRACE_FEATURES__FOLD_ROWS="0", HEADRACE_PIPELINE__MIN_ROWS="0", HEADRACE_PIPELINE__MASTER="local[2]"
    )
