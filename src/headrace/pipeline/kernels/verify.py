"""Verify: entries of segments are held against a proposed version; nothing is written."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from headrace.errors import CorruptData
from headrace.format.segment.columns import body_runs
from headrace.pipeline.kernels.units import Workspace, batches
from headrace.reduce.work_units import Unit
from headrace.schema.registry import Registry
from headrace.schema.trial import Findings, Trial

#: Payload that is decoded together.
SLICE_BYTES = 1024 * 1024
_KEPT = 16


def perform(unit: Unit, here: Workspace) -> dict[str, Any]:
    """Validate the entries of a unit against its proposed registry."""
    trial, findings = _trial(msgspec.json.encode(unit.registry, order="sorted")), Findings()
    for batch in batches(unit, here):
        for run in body_runs(batch, SLICE_BYTES):
            findings += trial.check(run.first_seq, run.version, run.body, run.entries)
    if findings.events != unit.count:
        raise CorruptData(f"the segments of {unit.unit} hold {findings.events} entries, not {unit.count}")
    return {"findings": findings}


@lru_cache(maxsize=_KEPT)
def _trial(registry: bytes) -> Trial:
    return Trial(Registry.load(msgspec.json.decode(registry)))
