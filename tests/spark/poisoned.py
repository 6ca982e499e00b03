"""Drivers one after another on one Spark, each with what is known from the ones before."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from headrace.config import PipelineConfig
from headrace.pipeline.driver import Driver, DriverConfig
from headrace.pipeline.reports import Suspects, take
from headrace.pipeline.session import SparkFailed

_MOST_FAILURES = 4


def main(url: str) -> None:
    """Work until nothing is due, or Spark has failed too often; print every failure."""
    config, suspects = PipelineConfig(master="local[2]"), Suspects()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "report.json"
        for _ in range(_MOST_FAILURES):
            told = str(path), suspects.failures, suspects.blamed
            try:
                Driver(DriverConfig(url, None, None, config, True, *told), Path(directory)).run()
                return
            except SparkFailed as failure:
                print(failure.message, flush=True)
            report = take(path)
            suspects.settled(report.settled)
            suspects.saw_failure(report.performing, report.reason)


if __name__ == "__main__":
    main(sys.argv[1])
