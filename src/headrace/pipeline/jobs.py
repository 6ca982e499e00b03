"""The jobs of a lease: many units of many streams in one Spark job, and nothing but names and counts back.

Units are packed into tasks by bytes. A task runs a kernel for each of its units; what goes wrong with one unit is its
result and no failure of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.config import PipelineConfig
from headrace.pipeline.compaction import with_panes
from headrace.pipeline.features import merged
from headrace.pipeline.histories import answered
from headrace.pipeline.kernels import compact, erase, features, index, verify
from headrace.pipeline.kernels.units import Perform, over
from headrace.pipeline.progress import Progress
from headrace.pipeline.work import Lease
from headrace.reduce.work_units import FOLDED, JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Unit = dict[str, Any]
Result = dict[str, Any]
Packs = list[list[bytes]]


def run(spark: SparkSession, lease: Lease, config: PipelineConfig, progress: Progress | None = None) -> list[Result]:
    """One result for every unit of a lease."""
    units = {job: [unit for unit in lease.units if unit["job"] == job] for job in JOBS}
    steps: tuple[Callable[[], list[Result]], ...] = (
        lambda: _mapped(spark, verify.perform, packed(units["verify"], config.tasks), lease.store),
        lambda: _mapped(spark, erase.perform, packed(units["erase"], config.tasks), lease.store),
        lambda: answered(spark, units["history"], lease.store, config.tasks, config.shuffle_partitions),
        lambda: _folded(spark, [unit for job in FOLDED for unit in units[job]], lease.store, config),
        lambda: _mapped(spark, index.perform, packed(units["index"], config.tasks), lease.store),
        lambda: _compacted(spark, units["compact"], lease.store, config),
    )
    results: list[Result] = []
    for step in steps:
        results += step()
        if progress is not None:
            progress.finished = len(results)
    return results


def _compacted(spark: SparkSession, units: Sequence[Unit], store: str, config: PipelineConfig) -> list[Result]:
    """Units that merge companions."""
    packs = packed(units, config.tasks)
    known = {unit["unit"]: msgspec.json.encode(unit) for unit in units}
    return with_panes(
        spark, _mapped(spark, compact.perform, packs, store), known, packs, store, config.shuffle_partitions
    )


def _folded(spark: SparkSession, units: Sequence[Unit], store: str, config: PipelineConfig) -> list[Result]:
    """Units that fold events, and units that merge states."""
    merging = [unit for unit in units if unit.get("states")]
    folding = packed([unit for unit in units if not unit.get("states")], config.tasks)
    known = {unit["unit"]: msgspec.json.encode(unit) for unit in merging}
    packs = packed(merging, config.tasks)
    return _mapped(spark, features.perform, folding, store) + merged(
        spark, known, packs, store, config.shuffle_partitions
    )


def _mapped(spark: SparkSession, perform: Perform, packs: Packs, store: str) -> list[Result]:
    """The results of a kernel, unit by unit."""
    if not packs:
        return []
    frame = spark.range(0, len(packs), 1, len(packs)).mapInArrow(over(perform, packs, store), "result string")
    return [msgspec.json.decode(row["result"]) for row in frame.collect()]


def packed(units: Sequence[Unit], tasks: int) -> Packs:
    """Units in so many tasks at most, the largest first into the task that has least."""
    packs: Packs = [[] for _ in range(min(tasks, len(units)))]
    sizes = [0] * len(packs)
    for unit in sorted(units, key=weight, reverse=True):
        least = sizes.index(min(sizes))
        packs[least].append(msgspec.json.encode(unit))
        sizes[least] += weight(unit) + 1
    return packs


def weight(unit: Unit) -> int:
    """The bytes that a unit reads."""
    read: list[Unit] = [*unit.get("segments", ()), *unit.get("states", ())]
    read += [part for one in unit.get("inputs", ()) for part in _parts(one)]
    return sum(int(one["bytes"]) for one in read)


def _parts(companion: Unit) -> list[Unit]:
    return [part for name in ("columns", "postings", "panes") if (part := companion[name]) is not None]
