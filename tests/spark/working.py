"""A worker on Spark for an engine of tests."""

from __future__ import annotations

import msgspec
from pyspark.sql import SparkSession

from headrace.config import PipelineConfig
from headrace.pipeline import jobs
from headrace.pipeline.work import Lease
from headrace.reduce.work_units import JobName, Result
from headrace.server.routes.work import store_url
from support.feature_rig import Pipelines

CONFIG = PipelineConfig(shuffle_partitions=2, tasks=2)


def work(pipelines: Pipelines, spark: SparkSession, *wanted: JobName) -> int:
    """Perform everything that is due of some jobs; answers how many units that were."""
    units, engine = 0, pipelines.engine
    while granted := pipelines.run(engine.work.lease("spark", 256, wanted)):
        plain = tuple(msgspec.to_builtins(unit) for unit in granted.units)
        assert {unit["job"] for unit in plain} <= set(wanted)
        lease = Lease(granted.lease.id, granted.lease.token, 60_000, store_url(engine.objects, ""), plain)
        results = msgspec.convert(jobs.run(spark, lease, CONFIG), list[Result])
        settled = pipelines.run(pipelines._commit(lease.id, lease.token, results))
        assert [one.outcome for one in settled] == ["committed"] * len(plain), settled
        units += len(plain)
    return units
