"""The job ``features``: kernels fold events; states of all tables are merged in one shuffle that sorts them by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.pipeline.kernels import features

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[str, Any]


def merged(
    spark: SparkSession, units: Mapping[str, bytes], packs: Sequence[Sequence[bytes]], store: str, partitions: int
) -> list[Result]:
    """The results of units that merge states."""
    if not packs:
        return []
    read = spark.range(0, len(packs), 1, len(packs)).mapInArrow(features.rows(packs, store), features.SCHEMA)
    # Where a unit failed to be read, the row that says so is the first of it.
    sorted_rows = read.repartition(partitions, "unit").sortWithinPartitions(*features.SORTED)
    rows = sorted_rows.mapInArrow(features.combined(units, store), "result string").collect()
    return [msgspec.json.decode(row["result"]) for row in rows]
