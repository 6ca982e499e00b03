"""What sealing costs appends: the same load while segments are made and uploaded all the time, and while none is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.driver import Sample, append
from bench.published import details
from bench.scale import Scale
from bench.serving import running
from bench.targets import Target

LEFT_OUT = dict.fromkeys(("prisma", "prisma-tuned", "reference", "redis"), "Headrace is compared with itself")

OFF, ON = "single appends, nothing sealed", "single appends, sealing all the time"

CONNECTIONS = 64
STREAM = "busy"
#: Seals come a second apart at best, so that a short window would miss them.
WINDOWS = 4

_NEVER = {"SEAL_AGE_S": "1e9", "SEAL_ROWS": str(10**12), "SEAL_BYTES": str(10**15)}
#: Segments of the default sizes, and what has come since the last seal is always old enough for the next.
_ALWAYS = {"SEAL_AGE_S": "0.01"}


def sealing_costs(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Appends at 64 connections, without sealing and with."""
    return [_appends(target, space, scale, row, settings) for row, settings in ((OFF, _NEVER), (ON, _ALWAYS))]


def _appends(target: Target, space: Path, scale: Scale, row: str, settings: dict[str, str]) -> Sample:
    target = target.with_settings(**{f"HEADRACE_STORAGE__{name}": value for name, value in settings.items()})
    times = replace(scale.times, seconds=WINDOWS * scale.times.seconds)
    with running(target, space) as server:
        server.create(STREAM)
        sample = append(server, STREAM, row, times, connections=CONNECTIONS)
        segments = int(details(server, STREAM)["stream"]["segment_count"])
    if bool(segments) != (row == ON):
        return replace(sample, note=sample.note or f"there are {segments} segments")
    return sample
