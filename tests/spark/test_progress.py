"""Spark tells how many tasks of a running job are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.jobs import stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE_S = 60.0


def _await(path: str) -> None:
    deadline = monotonic() + PATIENCE_S
    while not Path(path).exists() and monotonic() < deadline:
        sleep(0.01)


def test_a_task_that_is_done_is_counted_while_another_waits(spark: SparkSession, tmp_path: Path) -> None:
    gate, await_gate = str(tmp_path / "gate"), _await

    def kernel(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if 1 in batch.column(0).to_pylist():
                await_gate(gate)
            yield batch

    running = stages(spark, remote=False)
    assert list(running()) == []
    job = threading.Thread(target=spark.range(0, 2, 1, 2).mapInArrow(kernel, "id long").collect)
    job.start()
    try:
        deadline = monotonic() + PATIENCE_S
        while (1, 2) not in running() and monotonic() < deadline:
            sleep(0.01)
        assert (1, 2) in running()
    finally:
        (tmp_path / "gate").touch()
        job.join()
