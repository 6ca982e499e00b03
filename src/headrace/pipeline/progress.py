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
        self._told = 0
        #: Units whose results are committed, and units of the running group that have a result.
        self.start = 0
        self.finished = 0

    def done(self) -> int:
        """How many units are done, or nearly: never fewer than were told before, and never all."""
        stages = list(self._running())
        tasks = sum(total for _, total in stages)
        share = sum(done for done, _ in stages) / tasks if tasks else 0.0
        finished = self.start + self.finished
        guess = finished + int(share * (self._total - finished))
        self._told = max(self._told, min(guess, self._total - 1))
        return self._told


def stages(spark: SparkSession, *, remote: bool) -> Callable[[], Iterable[Tasks]]:
    """What answers which stages of a session run now."""
    return _told(spark) if remote else _asked(spark)


def _asked(spark: SparkSession) -> Callable[[], Iterable[Tasks]]:
    from py4j.protocol import Py4JError

    tracker = spark.sparkContext.statusTracker()

    def running() -> list[Tasks]:
        try:
            found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (Py4JError, OSError):
            return []  # a session that ends must not take along who asks
        return [(info.numCompletedTasks, info.numTasks) for info in found if info is not None]

    return running


def _told(spark: SparkSession) -> Callable[[], Iterable[Tasks]]:
    """Spark Connect tells by itself how far the running operation is."""
    newest: list[Tasks] = []

    def hear(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        found = [] if done or stages is None else list(stages)
        newest[:] = [(stage.num_completed_tasks, stage.num_tasks) for stage in found if not stage.done]

    spark.registerProgressHandler(hear)  # type: ignore[arg-type]
    return lambda: list(newest)
