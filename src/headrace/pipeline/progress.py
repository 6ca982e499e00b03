"""How far the units of a lease are, by the tasks that Spark has finished; for people, and so no more than a guess."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
