"""Making columns of JSON on Spark: our kernel beside Spark's own from_json."""

from __future__ import annotations

from pathlib import Path

from bench.driver import Sample
from bench.scale import Scale
from bench.searching import extracting
from bench.searching.rows import OURS, SPARKS, WHOLE
from bench.targets import Target

LEFT_OUT = dict.fromkeys(("prisma", "prisma-tuned", "reference", "redis"), "Headrace is compared with Spark alone")


def extraction(_target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Events per second on two cores: columns by our kernel and by Spark, and all that the index job makes."""
    found = extracting.rates(scale.extracted_events, space)
    rows = {OURS: "kernel", SPARKS: "from_json", WHOLE: "index"}
    return [Sample(row, found[way], "/s") for row, way in rows.items()]
