"""Segments in which something is erased, rewritten on Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.config import PipelineConfig
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.entities.erasure import erasures
from headrace.pipeline import jobs
from headrace.pipeline.work import Lease
from headrace.reduce.work_units import Result
from headrace.server.routes.work import store_url
from support.entity_rig import USER, Entities, contact

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MARKER, PARTS = "xyzzy-canary", 4


async def offered(rig: Entities, entity_id: str) -> tuple[str, Grant]:
    """An erasure that waits for workers, and the lease of one."""
    id = (await rig.engine.erasure.begin(entity_id, USER)).id
    async with asyncio.timeout(10):
        while rig.engine.erasure.find(id, USER).step != "offered":
            await asyncio.sleep(0.01)
    granted = await rig.engine.work.lease("spark", 10)
    assert granted is not None
    return id, granted


def test_spark_rewrites_segments_without_what_is_erased(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "OFFER_BYTES", 0)
    with Entities(tmp_path / "data", storage={"seal_rows": 4}) as rig:
        rig.register_type(contact())
        for part in range(PARTS):
            gone = rig.said("gone@x.io", name=f"{MARKER} {part}")
            others = [rig.said(f"{number}@x.io", name=f"n{part}") for number in range(5)]
            rig.seal_type()
        before = [rig.snapshot(one) for one in others]
        id, granted = rig.run(offered(rig, gone))
        units = tuple(msgspec.to_builtins(unit) for unit in granted.units)
        lease = Lease(granted.lease.id, granted.lease.token, 60_000, store_url(rig.engine.objects, ""), units)
        config = PipelineConfig(shuffle_partitions=2, tasks=2)
        results = msgspec.convert(jobs.run(spark, lease, config), list[Result])

        async def committed() -> None:
            settled = (await rig.engine.work.commit(lease.id, lease.token, results)).settled
            assert [one.outcome for one in settled] == ["committed"] * len(units)
            async with asyncio.timeout(20):
                while not erasures.is_over(rig.engine.erasure.find(id, USER)):
                    await asyncio.sleep(0.01)

        rig.run(committed())
        report = msgspec.json.decode(rig.engine.erasure.find(id, USER).report, type=erasures.ErasureReport)
        made = {one.segment.name for one in results if one.segment is not None}
        assert len(made) == PARTS and set(report.rewritten.values()) == made
        segments = list((tmp_path / "data" / "objects" / "segments").rglob("*.parquet"))
        assert segments and not any(MARKER in repr(pq.read_table(path).to_pylist()) for path in segments)
        assert [rig.snapshot(one) for one in others] == before
