"""Merging states: those of all units of a lease in one job, reduced by Catalyst wherever order does not matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import decoding
from headrace.pipeline.kernels import merging
from headrace.pipeline.kernels.units import failure
from headrace.reduce.features import lanes
from headrace.reduce.features.parts import COLUMNS
from headrace.reduce.work_units import Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = dict[str, Any]


def merged(
    spark: SparkSession, units: Mapping[str, bytes], packs: Sequence[Sequence[bytes]], store: str, partitions: int
) -> list[Result]:
    """The results of units that merge states."""
    splits, failed = _split(units)
    packs = [kept for pack in packs if (kept := [unit for unit in pack if unit in splits])]
    if not packs:
        return failed
    lease = _Lease(spark, splits, packs, store)
    frames = [frame for frame in (lease.in_lanes(False), lease.in_lanes(True), lease.in_order()) if frame is not None]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    # Where a unit failed to be read, the row that says so is the first of it.
    rows = together.repartition(partitions, "unit").sortWithinPartitions(*merging.SORTED)
    results = rows.mapInArrow(merging.combined(lease.units, store), "result string").collect()
    return [*failed, *(msgspec.json.decode(row["result"]) for row in results)]


def _split(units: Mapping[str, bytes]) -> tuple[dict[bytes, merging.Split], list[Result]]:
    """What Catalyst reduces of each unit, and the results of units whose definitions cannot be read."""
    splits: dict[bytes, merging.Split] = {}
    failed: list[Result] = []
    for name, encoded in units.items():
        try:
            splits[encoded] = merging.split(decoding.decode(encoded, Unit))
        except Exception as reason:  # that of one unit must not be that of the others
            failed.append({"unit": name, **failure(reason)})
    return splits, failed


class _Lease:
    """Units that are merged together, in packs that are read together."""

    def __init__(
        self, spark: SparkSession, splits: Mapping[bytes, merging.Split], packs: Sequence[Sequence[bytes]], store: str
    ) -> None:
        self._spark, self._store, self.units = spark, store, list(splits)
        numbers = {unit: number for number, unit in enumerate(self.units)}
        self._packs = [[numbers[unit] for unit in pack] for pack in packs]
        self._splits = list(splits.values())

    def in_lanes(self, gathers: bool) -> DataFrame | None:
        """The lives that Catalyst reduces, reduced."""
        from pyspark.sql import functions

        found = [split.alike(gathers) for split in self._splits]
        names = lanes.columns(lane for one in found for lane in one)
        frame = self._read(merging.in_lanes(gathers), [bool(one) for one in found], names)
        if frame is None:
            return None
        reduced = [functions.expr(COLUMNS[name].aggregate).alias(name) for name in names]
        return frame.groupBy(*merging.SORTED).agg(*reduced)

    def in_order(self) -> DataFrame | None:
        """The others."""
        return self._read(merging.in_order, [not split.lanes or bool(split.in_order) for split in self._splits], [])

    def _read(self, read: merging.Read, wanted: Sequence[bool], names: Sequence[str]) -> DataFrame | None:
        packs = [[number for number in pack if wanted[number]] for pack in self._packs]
        packs = [pack for pack in packs if pack]
        if not packs:
            return None
        kernel = merging.rows(read, packs, self.units, merging.shape(names), self._store)
        columns = [f"{name} {COLUMNS[name].type}" for name in names]
        return self._spark.range(0, len(packs), 1, len(packs)).mapInArrow(kernel, ", ".join([merging.KEYS, *columns]))
