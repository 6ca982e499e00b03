"""Folding events into states: CPU time of one process on one core, for every pipeline, from segments to state files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.driver import DriverFailed
from bench.features.pipelines import FIFTEEN, FRAUD, Pipeline, Table, user_of
from headrace.format.segment.row_group import AppendRun
from headrace.format.segment.writer import SegmentWriter

#: Events of a pipeline; they come in arrays of a hundred, 10,000 in a second, of so many users.
EVENTS = {"two": 600_000, "fifteen": 600_000, "fraud": 100_000}
#: Events of a unit, whose payload is about that of units by default.
_UNIT_EVENTS = {"two": 200_000, "fifteen": 200_000, "fraud": 50_000}
_USERS, _ARRAY, _ARRAY_US = 10_000, 100, 10_000
_SEGMENT_EVENTS = 50_000
_FIRST_EVENTS = 1_000
_BEGIN_US = 1_790_000_000_000_000
_DURATIONS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "s": 1_000}
_TIMES = ("window", "half_life", "baseline_window", "sub_window")
#: What is filled in where a parameter is left out.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "bloom_member": {"expected_n": 1024, "fpr": 0.01},
    "entropy": {"max_categories": 256},
    "event_type_mix": {"max_categories": 256},
    "outlier_count": {"sigma": 3.0},
    "distance_from_home": {"samples": 100},
}
_REQUIRED_WHERE = {"streak": "(declined == 1)", "max_streak": "(declined == 1)"}


def fold_seconds(source: Path, pipeline: Pipeline, space: Path) -> float:
    """CPU seconds of a process with Headrace from a source tree that folds the events of a pipeline."""
    with tempfile.TemporaryDirectory(dir=space) as directory:
        store = Path(directory)
        documents = store / "units.json"
        counts = {"first": _FIRST_EVENTS, "all": EVENTS[pipeline.name]}
        documents.write_text(json.dumps({name: _units(store, pipeline, count) for name, count in counts.items()}))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(Path.cwd())])}
        done = subprocess.run(
            [sys.executable, "-m", "bench.features.fold_process", str(store), str(documents)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    if done.returncode:
        raise DriverFailed(f"folding {pipeline.title}: {done.stderr.strip()[-2000:]}")
    return float(done.stdout)


def title(pipeline: Pipeline) -> str:
    """How a comparison names the folding of a pipeline."""
    return f"event folded by one core, {pipeline.title}"


#: What before/after must reach at least.
LEAST_RATIOS = {title(FIFTEEN): 1.5, title(FRAUD): 6.0}


def _units(store: Path, pipeline: Pipeline, events: int) -> list[dict[str, Any]]:
    """The units of every table over the events of the pipeline's source, in the order in which they are planned."""
    tables = [table for table in pipeline.tables if table.event == pipeline.event]
    parts: list[list[dict[str, Any]]] = []
    for begin in range(0, events, _UNIT_EVENTS[pipeline.name]):
        end = min(events, begin + _UNIT_EVENTS[pipeline.name])
        firsts = range(begin, end, _SEGMENT_EVENTS)
        parts.append([_segment(store, pipeline, first, min(_SEGMENT_EVENTS, end - first)) for first in firsts])
    return [_unit(pipeline, table, segments) for table in tables for segments in parts]


def _segment(store: Path, pipeline: Pipeline, first: int, count: int) -> dict[str, Any]:
    name = f"{first}-{count}.parquet"
    with (store / name).open("wb") as sink:
        writer = SegmentWriter(sink, stream="s", incarnation="0", is_json=True, first_seq=first, split=json.loads)
        for seq in range(first, first + count, _ARRAY):
            payloads = [pipeline.make(number, user_of(number, _USERS)) for number in range(seq, seq + _ARRAY)]
            writer.add(AppendRun(seq, _BEGIN_US + seq // _ARRAY * _ARRAY_US, 1, None, payloads))
        sealed = writer.finish()
    return {"key": name, "first_seq": first, "count": count, "bytes": sealed.bytes, "sha256": sealed.sha256}


def _unit(pipeline: Pipeline, table: Table, segments: list[dict[str, Any]]) -> dict[str, Any]:
    versions = {name: f"{number:012x}" for number, name in enumerate(table.features)}
    features = {name: {"op": op, "params": _params(op, params)} for name, (op, params) in table.features.items()}
    fields = {name: {"type": kind} for name, kind in pipeline.sources[table.event].items()}
    nodes = {
        table.event: {"kind": "event", "name": table.event, "schema": fields},
        table.name: {
            "kind": "table",
            "name": table.name,
            "upstream": table.event,
            "key": [table.key],
            "features": features,
        },
    }
    first, count = segments[0]["first_seq"], sum(segment["count"] for segment in segments)
    return {
        "unit": f"features-{table.name}-{first}",
        "job": "features",
        "stream": "s",
        "incarnation": "0",
        "first_seq": first,
        "count": count,
        "level": 0,
        "out": f"states/s/0/{first:016}-{count}-{table.name.replace('_', '')}",
        "segments": segments,
        "table": table.name,
        "lives": versions,
        "registry": {
            "apiVersion": "durable.streams/schema-registry/v1",
            "schema": "s",
            "currentVersion": 1,
            "boundaries": [{"offset": 0, "version": 1}],
            "schemas": {"1": {}},
            "lenses": {},
        },
        "defined": {
            "table": table.name,
            "root": table.event,
            "stream": "s",
            "nodes": nodes,
            "lives": {name: {"id": version, "birth": 0} for name, version in versions.items()},
            "cold": [[0, None]],
        },
    }


def _params(op: str, params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as a registration leaves them: durations in ms, defaults filled in."""
    filled = {**_DEFAULTS.get(op, {}), **params}
    if op in _REQUIRED_WHERE:
        filled.setdefault("where", _REQUIRED_WHERE[op])
    return {name: _duration(value) if name in _TIMES else value for name, value in filled.items()}


def _duration(text: str) -> int:
    return int(text[:-1]) * _DURATIONS[text[-1]]
