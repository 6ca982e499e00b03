"""A runner says that its pipeline is there for as long as it looks for work. No Spark runs here: nothing is due."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.config import PipelineConfig
from headrace.pipeline.runner import Runner
from headrace.pipeline.work import Work
from support.polling import wait_until

if TYPE_CHECKING:
    from tests.conftest import ServerProcess


def test_a_pipeline_is_attached_while_its_runner_runs(server: ServerProcess) -> None:
    runner = Runner(server.url, PipelineConfig(poll_s=0.05))
    running = threading.Thread(target=runner.run)
    with Work(server.url) as work:
        assert work.status()["counts"]["pipelines"] == 0
        running.start()
        try:
            wait_until(lambda: work.status()["counts"]["pipelines"] == 1)
        finally:
            runner.stop()
            running.join()
        assert work.status()["counts"]["pipelines"] == 0
