"""The job ``history``: events are folded where they lie, up to each moment asked for; a shuffle joins keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import decoding
from headrace.pipeline.kernels import history
from headrace.reduce.work_units import Unit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[str, Any]


def answered(
    spark: SparkSession, units: Sequence[dict[str, Any]], store: str, tasks: int, partitions: int
) -> list[Result]:
    """The rows that each unit asks for."""
    if not units:
        return []
    known = {unit["unit"]: msgspec.json.encode(unit) for unit in units}
    found = [one for unit in units for one in history.slices(decoding.convert(unit, Unit))]
    packs = [found[start::tasks] for start in range(min(tasks, len(found)))]
    rows: list[Any] = []
    if packs:
        read = spark.range(0, len(packs), 1, len(packs)).mapInArrow(history.pieces(packs, known, store), history.PIECES)
        together = read.repartition(partitions, "unit", "key").sortWithinPartitions(*history.SORTED)
        rows = together.mapInArrow(history.rows(known), history.ROWS).collect()
    return [_result(unit, [row for row in rows if row["unit"] == unit["unit"]]) for unit in units]


def _result(unit: dict[str, Any], rows: list[Any]) -> Result:
    failed = next((row["failure"] for row in rows if row["failure"] is not None), None)
    if failed is not None:
        return {"unit": unit["unit"], **msgspec.json.decode(failed)}
    told: list[dict[str, Any]] = [{} for _ in unit["question"]["asked"]]
    for row in rows:
        told[row["place"]] = msgspec.json.decode(row["row"])
    return {"unit": unit["unit"], "rows": told}
