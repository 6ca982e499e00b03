"""The job ``compact``: kernels merge columns and postings, Catalyst merges the panes of all streams at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.pipeline.kernels import compact
from headrace.reduce import spark as reducing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Unit = dict[str, Any]
Result = dict[str, Any]


def with_panes(
    spark: SparkSession,
    results: Sequence[Result],
    units: Mapping[str, bytes],
    packs: Sequence[Sequence[bytes]],
    store: str,
    partitions: int,
) -> list[Result]:
    """The results of merged companions, each with the panes that its rollups want."""
    names = {one["unit"]: one["companion"]["name"] for one in results if "companion" in one}
    wanted = {name for name in names if msgspec.json.decode(units[name]).get("rollups")}
    chosen = [[unit for unit in pack if msgspec.json.decode(unit)["unit"] in wanted] for pack in packs]
    chosen = [pack for pack in chosen if pack]
    if not chosen:
        return list(results)
    frame = spark.range(0, len(chosen), 1, len(chosen))
    read = frame.mapInArrow(compact.panes(chosen, store), f"unit string, {reducing.SCHEMA}")
    merged = reducing.merge(read, by=["unit"]).repartition(partitions, "unit").sortWithinPartitions(*compact.SORTED)
    rows = merged.mapInArrow(compact.panes_written(units, names, store), "unit string, part string, failure string")
    parts = {row["unit"]: (row["part"], row["failure"]) for row in rows.collect()}
    return [_with_part(one, *parts.get(one["unit"], (None, None))) if one["unit"] in wanted else one for one in results]


def _with_part(result: Result, part: str | None, failed: str | None) -> Result:
    if failed is not None:
        return {"unit": result["unit"], **msgspec.json.decode(failed)}
    if part is None:
        return {"unit": result["unit"], "fault": "Spark returned nothing about its panes"}
    return {**result, "companion": {**result["companion"], "panes": msgspec.json.decode(part)}}
