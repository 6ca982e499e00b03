"""The jobs of a lease: many units of many streams in one Spark job, and nothing but names and counts back.

Units are packed into tasks by bytes. A task runs a kernel for each of its units; what goes wrong with one unit is its
result and no failure of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import decoding
from headrace.config import PipelineConfig
from headrace.operators.parts import COLUMNS
from headrace.pipeline.kernels import compact, erase, features, history, index, merge, verify
from headrace.pipeline.kernels.units import Kernel, Perform, failure, over
from headrace.pipeline.work import Lease
from headrace.reduce import spark as reducing
from headrace.reduce.features import lanes
from headrace.reduce.work_units import JOBS, STATE_JOBS, Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UnitDocument = dict[str, Any]
ResultDocument = dict[str, Any]


def with_panes(
    spark: SparkSession,
    results: Sequence[ResultDocument],
    units: Mapping[str, bytes],
    packs: Sequence[Sequence[bytes]],
    store: str,
    partitions: int,
) -> list[ResultDocument]:
    """The results of merged companions, each with the panes of its rollups."""
    names = {
        unit_result["unit"]: unit_result["companion"]["name"] for unit_result in results if "companion" in unit_result
    }
    units_with_rollups = {name for name in names if msgspec.json.decode(units[name]).get("rollups")}
    chosen = [[unit for unit in pack if msgspec.json.decode(unit)["unit"] in units_with_rollups] for pack in packs]
    chosen = [pack for pack in chosen if pack]
    if not chosen:
        return list(results)
    frame = spark.range(0, len(chosen), 1, len(chosen))
    read = frame.mapInArrow(compact.panes(chosen, store), f"unit string, {reducing.SCHEMA}")
    merged = reducing.merge(read, by=["unit"]).repartition(partitions, "unit").sortWithinPartitions(*compact.SORTED)
    rows = merged.mapInArrow(compact.panes_written(units, names, store), "unit string, part string, failure string")
    parts = {row["unit"]: (row["part"], row["failure"]) for row in rows.collect()}
    return [
        _with_part(unit_result, *parts.get(unit_result["unit"], (None, None)))
        if unit_result["unit"] in units_with_rollups
        else unit_result
        for unit_result in results
    ]


def _with_part(result: ResultDocument, part: str | None, failed: str | None) -> ResultDocument:
    if failed is not None:
        return {"unit": result["unit"], **msgspec.json.decode(failed)}
    if part is None:
        return {"unit": result["unit"], "fault": "Spark returned nothing about its panes"}
    return {**result, "companion": {**result["companion"], "panes": msgspec.json.decode(part)}}


def answer_history(
    spark: SparkSession, units: Sequence[dict[str, Any]], store: str, tasks: int, partitions: int
) -> list[ResultDocument]:
    """The results of units that answer history queries."""
    if not units:
        return []
    encoded_units = {unit["unit"]: msgspec.json.encode(unit) for unit in units}
    slices = [piece for unit in units for piece in history.slices(decoding.convert(unit, Unit))]
    packs = [slices[start::tasks] for start in range(min(tasks, len(slices)))]
    rows: list[Any] = []
    if packs:
        read = spark.range(0, len(packs), 1, len(packs)).mapInArrow(
            history.pieces(packs, encoded_units, store), history.PIECES
        )
        together = read.repartition(partitions, "unit", "key").sortWithinPartitions(*history.SORTED)
        rows = together.mapInArrow(history.rows(encoded_units), history.ROWS).collect()
    return [_result(unit, [row for row in rows if row["unit"] == unit["unit"]]) for unit in units]


def _result(unit: dict[str, Any], rows: list[Any]) -> ResultDocument:
    failed = next((row["failure"] for row in rows if row["failure"] is not None), None)
    if failed is not None:
        return {"unit": unit["unit"], **msgspec.json.decode(failed)}
    rows_in_order: list[dict[str, Any]] = [{} for _ in unit["question"]["asked"]]
    for row in rows:
        rows_in_order[row["place"]] = msgspec.json.decode(row["row"])
    return {"unit": unit["unit"], "rows": rows_in_order}


def merge_states(
    spark: SparkSession, units: Mapping[str, bytes], packs: Sequence[Sequence[bytes]], store: str, partitions: int
) -> list[ResultDocument]:
    """The results of units that merge states."""
    splits, failed = _split_units(units)
    packs = [kept for pack in packs if (kept := [unit for unit in pack if unit in splits])]
    if not packs:
        return failed
    lease = _MergeLease(spark, splits, packs, store)
    frames = [frame for frame in (lease.in_lanes(False), lease.in_lanes(True), lease.in_order()) if frame is not None]
    together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    # Where a unit failed to be read, the row that says so is the first of it.
    rows = together.repartition(partitions, "unit").sortWithinPartitions(*merge.SORTED)
    results = rows.mapInArrow(merge.combined(lease.units, store), "result string").collect()
    return [*failed, *(msgspec.json.decode(row["result"]) for row in results)]


def _split_units(units: Mapping[str, bytes]) -> tuple[dict[bytes, merge.Split], list[ResultDocument]]:
    """What Catalyst reduces of each unit, and the results of units whose definitions cannot be read."""
    splits: dict[bytes, merge.Split] = {}
    failed: list[ResultDocument] = []
    for name, encoded in units.items():
        try:
            splits[encoded] = merge.split_unit(decoding.decode(encoded, Unit))
        except Exception as reason:  # that of one unit must not be that of the others
            failed.append({"unit": name, **failure(reason)})
    return splits, failed


class _MergeLease:
    """Units that are merged together, in packs that are read together."""

    def __init__(
        self,
        spark: SparkSession,
        splits: Mapping[bytes, merge.Split],
        packs: Sequence[Sequence[bytes]],
        store: str,
    ) -> None:
        self._spark, self._store, self.units = spark, store, list(splits)
        numbers = {unit: number for number, unit in enumerate(self.units)}
        self._packs = [[numbers[unit] for unit in pack] for pack in packs]
        self._splits = list(splits.values())

    def in_lanes(self, gathers: bool) -> DataFrame | None:
        """The reduced rows of feature versions that Catalyst can reduce."""
        from pyspark.sql import functions

        lanes_by_unit = [split.alike(gathers) for split in self._splits]
        names = lanes.columns(lane for unit_lanes in lanes_by_unit for lane in unit_lanes)
        frame = self._read(merge.in_lanes(gathers), [bool(unit_lanes) for unit_lanes in lanes_by_unit], names)
        if frame is None:
            return None
        reduced = [functions.expr(COLUMNS[name].aggregate).alias(name) for name in names]
        return frame.groupBy(*merge.SORTED).agg(*reduced)

    def in_order(self) -> DataFrame | None:
        """The rows of feature versions that are merged in order, which Catalyst cannot reduce."""
        return self._read(merge.in_order, [not split.lanes or bool(split.in_order) for split in self._splits], [])

    def _read(self, read: merge.Read, wanted: Sequence[bool], names: Sequence[str]) -> DataFrame | None:
        packs = [[number for number in pack if wanted[number]] for pack in self._packs]
        packs = [pack for pack in packs if pack]
        if not packs:
            return None
        kernel = merge.rows(read, packs, self.units, merge.shape(names), self._store)
        columns = [f"{name} {COLUMNS[name].type}" for name in names]
        return self._spark.range(0, len(packs), 1, len(packs)).mapInArrow(kernel, ", ".join([merge.KEYS, *columns]))


Packs = list[list[bytes]]


def run(
    spark: SparkSession, lease: Lease, config: PipelineConfig, progress: Progress | None = None
) -> list[ResultDocument]:
    """One result for every unit of a lease."""
    units = {job: [unit for unit in lease.units if unit["job"] == job] for job in JOBS}
    steps: tuple[Callable[[], list[ResultDocument]], ...] = (
        lambda: _map_units(spark, verify.perform, pack_units(units["verify"], config.tasks), lease.store),
        lambda: _map_units(spark, erase.perform, pack_units(units["erase"], config.tasks), lease.store),
        lambda: answer_history(spark, units["history"], lease.store, config.tasks, config.shuffle_partitions),
        lambda: _fold_units(spark, [unit for job in STATE_JOBS for unit in units[job]], lease.store, config),
        lambda: _map_units(spark, index.perform, pack_units(units["index"], config.tasks), lease.store),
        lambda: _merge_companions(spark, units["compact"], lease.store, config),
    )
    results: list[ResultDocument] = []
    for step in steps:
        results += step()
        if progress is not None:
            progress.finished = len(results)
    return results


def _merge_companions(
    spark: SparkSession, units: Sequence[UnitDocument], store: str, config: PipelineConfig
) -> list[ResultDocument]:
    """Units that merge companions."""
    packs = pack_units(units, config.tasks)
    encoded_units = {unit["unit"]: msgspec.json.encode(unit) for unit in units}
    return with_panes(
        spark, _map_units(spark, compact.perform, packs, store), encoded_units, packs, store, config.shuffle_partitions
    )


def _fold_units(
    spark: SparkSession, units: Sequence[UnitDocument], store: str, config: PipelineConfig
) -> list[ResultDocument]:
    """Units that fold events, and units that merge states."""
    merging = [unit for unit in units if unit.get("states")]
    folding = pack_folds([unit for unit in units if not unit.get("states")], config.tasks)
    encoded_units = {unit["unit"]: msgspec.json.encode(unit) for unit in merging}
    packs = pack_units(merging, config.tasks)
    return _run_kernel(spark, features.kernel(folding, store), folding) + merge_states(
        spark, encoded_units, packs, store, config.shuffle_partitions
    )


def _map_units(spark: SparkSession, perform: Perform, packs: Packs, store: str) -> list[ResultDocument]:
    """The results of a kernel, unit by unit."""
    return _run_kernel(spark, over(perform, packs, store), packs)


def _run_kernel(spark: SparkSession, kernel: Kernel, packs: Packs) -> list[ResultDocument]:
    """The results of a kernel that is given numbers of packs."""
    if not packs:
        return []
    frame = spark.range(0, len(packs), 1, len(packs)).mapInArrow(kernel, "result string")
    return [msgspec.json.decode(row["result"]) for row in frame.collect()]


def pack_units(units: Sequence[UnitDocument], tasks: int) -> Packs:
    """Units in so many tasks at most, the largest first into the task that has least."""
    return _pack_groups([[unit] for unit in units], tasks)


def pack_folds(units: Sequence[UnitDocument], tasks: int) -> Packs:
    """The same of units that fold events; those of one source and range, which are decoded once, stay together."""
    documents = {unit["unit"]: unit for unit in units}
    groups = features.group_units([decoding.convert(unit, Unit) for unit in units])
    return _pack_groups([[documents[unit.unit] for unit in group] for group in groups], tasks)


def _pack_groups(groups: Sequence[Sequence[UnitDocument]], tasks: int) -> Packs:
    packs: Packs = [[] for _ in range(min(tasks, len(groups)))]
    sizes = [0] * len(packs)
    weights = [sum(map(weight, group)) for group in groups]
    for at in sorted(range(len(groups)), key=weights.__getitem__, reverse=True):
        least = sizes.index(min(sizes))
        packs[least] += map(msgspec.json.encode, groups[at])
        sizes[least] += weights[at] + len(groups[at])
    return packs


def weight(unit: UnitDocument) -> int:
    """The bytes that a unit reads."""
    read: list[UnitDocument] = [*unit.get("segments", ()), *unit.get("states", ())]
    read += [part for companion in unit.get("inputs", ()) for part in _parts(companion)]
    return sum(int(source["bytes"]) for source in read)


def _parts(companion: UnitDocument) -> list[UnitDocument]:
    return [part for name in ("columns", "postings", "panes") if (part := companion[name]) is not None]


#: Tasks of a stage that are done, and how many it has.
Tasks = tuple[int, int]


class Progress:
    """Counts units; one whose job runs counts as far as the tasks of that job are done."""

    def __init__(self, running: Callable[[], Iterable[Tasks]], total: int) -> None:
        self._running = running
        self._total = total
        self._reported = 0
        #: Units whose results are committed, and units of the running group that have a result.
        self.start = 0
        self.finished = 0

    def done(self) -> int:
        """About how many units are done: never fewer than it returned before, and never all."""
        stages = list(self._running())
        tasks = sum(total for _, total in stages)
        fraction = sum(done for done, _ in stages) / tasks if tasks else 0.0
        finished = self.start + self.finished
        guess = finished + int(fraction * (self._total - finished))
        self._reported = max(self._reported, min(guess, self._total - 1))
        return self._reported


def stages(spark: SparkSession, *, remote: bool) -> Callable[[], Iterable[Tasks]]:
    """A function that lists the running stages of a session."""
    return _stages_of_connect(spark) if remote else _stages_of_tracker(spark)


def _stages_of_tracker(spark: SparkSession) -> Callable[[], Iterable[Tasks]]:
    from py4j.protocol import Py4JError

    tracker = spark.sparkContext.statusTracker()

    def running() -> list[Tasks]:
        try:
            stage_infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (Py4JError, OSError):
            return []  # a session that ends must not take along who asks
        return [(info.numCompletedTasks, info.numTasks) for info in stage_infos if info is not None]

    return running


def _stages_of_connect(spark: SparkSession) -> Callable[[], Iterable[Tasks]]:
    """Stages as Spark Connect reports them to a progress handler."""
    newest: list[Tasks] = []

    def report(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        open_stages = [] if done or stages is None else list(stages)
        newest[:] = [(stage.num_completed_tasks, stage.num_tasks) for stage in open_stages if not stage.done]

    spark.registerProgressHandler(report)  # type: ignore[arg-type]
    return lambda: list(newest)
