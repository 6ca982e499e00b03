"""One Spark session on this machine for all tests of the tier; another Spark is another process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.config import PipelineConfig
from headrace.pipeline import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    started = session.start(PipelineConfig(master="local[2]"), tmp_path_factory.mktemp("spark"))
    yield started
    started.stop()
