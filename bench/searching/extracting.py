"""Events to columns on Spark, in a process of its own: by our kernel, by Spark's from_json, and the whole index.

All three read the same segments and write Parquet with the same compression. Runs take turns; the first of each is not
counted.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from bench.driver import DriverFailed
from bench.searching import data
from bench.searching.shape import STREAM, UPDATE
from headrace.config import PipelineConfig
from headrace.format.segment.row_group import AppendRun
from headrace.format.segment.writer import SegmentWriter
from headrace.pipeline import jobs, session
from headrace.pipeline.kernels import index
from headrace.pipeline.kernels.units import Workspace, over
from headrace.pipeline.work import Lease
from headrace.reduce.work_units import Source, Unit
from headrace.schema.registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
#: Two for each core; Spark makes as few of the files that it reads itself.
_TASKS = 4
ROUNDS = 3
LONGEST = 1200.0
#: As many as a segment has by default: 16 MiB.
_SEGMENT_EVENTS = 50_000
_ZSTD_LEVEL = 1
#: Written as companions write them.
_ASCENDING = ("seq", "f.at")
_INCARNATION = "0"
_FIELDS = (
    "at timestamp, service string, level string, request string, status bigint, ms double, title string, message string"
)


def rates(events: int, space: Path) -> dict[str, float]:
    """Events per second of each way."""
    command, told = [sys.executable, "-m", __name__], json.dumps([events, str(space)])
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=LONGEST, check=False)
    if done.returncode:
        raise DriverFailed(f"extracting failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


class Extraction:
    """Segments in a store, and a session that works on them."""

    def __init__(self, spark: SparkSession, store: Path, events: int) -> None:
        self._spark, self._store, self._events = spark, store, events
        self._config = PipelineConfig(master=MASTER)
        self._units = [_unit(store, first, min(_SEGMENT_EVENTS, events - first)) for first in _starts(events)]

    def by_kernel(self) -> None:
        """Columns by our extractor, each unit into a file."""
        packs = jobs.pack_units([msgspec.to_builtins(unit) for unit in self._units], _TASKS)
        kernel = over(_columns, packs, self._store.as_uri())
        frame = self._spark.range(0, len(packs), 1, len(packs)).mapInArrow(kernel, "result string")
        self._check(json.loads(row["result"]).get("rows", 0) for row in frame.collect())

    def by_from_json(self) -> None:
        """The same columns by Spark alone."""
        from pyspark.sql import functions as F

        out = str(self._store / "from_json")
        segments = self._spark.read.parquet(*(str(self._store / unit.segments[0].key) for unit in self._units))
        opened = segments.select("seq", "key", F.from_json("payload", _FIELDS).alias("event"))
        writer = opened.select("seq", "key", "event.*").write.mode("overwrite")
        writer.option("parquet.compression.codec.zstd.level", _ZSTD_LEVEL).parquet(out, compression="zstd")
        self._check(pq.read_metadata(path).num_rows for path in Path(out).glob("*.parquet"))

    def by_index(self) -> None:
        """Everything that the index job makes: columns, postings, panes."""
        units = tuple(msgspec.to_builtins(unit) for unit in self._units)
        found = jobs.run(self._spark, Lease("", 0, 0, self._store.as_uri(), units), self._config)
        self._check(result["companion"]["count"] if "companion" in result else 0 for result in found)

    def _check(self, rows: Any) -> None:
        if (made := sum(rows)) != self._events:
            raise DriverFailed(f"{made:,} events came out, and {self._events:,} went in")


def main() -> None:
    """Read how many events and where, run all three in turns, print the median rates."""
    events, space = json.load(sys.stdin)
    scratch = Path(tempfile.mkdtemp(prefix="extract-", dir=space))
    try:
        spark = session.start(PipelineConfig(master=MASTER), scratch)
        extraction = Extraction(spark, scratch, events)
        ways: dict[str, Callable[[], None]] = {
            "kernel": extraction.by_kernel,
            "from_json": extraction.by_from_json,
            "index": extraction.by_index,
        }
        taken = [{name: _seconds(way) for name, way in ways.items()} for _ in range(1 + ROUNDS)][1:]
        medians = {name: statistics.median(run[name] for run in taken) for name in ways}
        print(json.dumps({name: events / seconds for name, seconds in medians.items()}), flush=True)
        spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _seconds(way: Callable[[], None]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def _starts(events: int) -> range:
    return range(0, events, _SEGMENT_EVENTS)


def _unit(store: Path, first: int, count: int) -> Unit:
    """A segment with so many events, and the unit that makes a companion of it."""
    key = f"{first:016}.parquet"
    with (store / key).open("wb") as sink:
        writer = SegmentWriter(
            sink, stream=STREAM, incarnation=_INCARNATION, is_json=True, first_seq=first, split=_never_asked
        )
        for at, block in zip(range(first, first + count, data.BLOCK), data.blocks(first, count), strict=True):
            writer.add(AppendRun(at, 1 + at, 1, None, data.encoded(block)))
        sealed = writer.finish()
    registry = Registry(schema=STREAM, search=UPDATE["search"]).advanced(UPDATE["schema"], None, 0)
    return Unit(
        unit=str(first),
        job="index",
        stream=STREAM,
        incarnation=_INCARNATION,
        first_seq=first,
        count=count,
        level=0,
        out=f"{first:016}-{count}-{first}",
        segments=(Source(key, first, count, sealed.bytes, sealed.sha256),),
        registry=registry.dump(),
    )


def _never_asked(_body: bytes) -> list[bytes]:
    raise NotImplementedError("entries come one by one")


def _columns(unit: Unit, here: Workspace) -> dict[str, Any]:
    """The columns of a unit as the index job extracts them, in a Parquet file, and nothing else."""
    columns, _ = index.extract_columns(unit, here)
    path = here.directory / "columns.parquet"
    pq.write_table(
        columns,
        path,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        use_dictionary=[name for name in columns.column_names if name not in _ASCENDING and not name.startswith("w.")],
        column_encoding=dict.fromkeys(_ASCENDING, "DELTA_BINARY_PACKED"),
    )
    here.objects.upload(f"columns/{unit.unit}.parquet", path)
    return {"rows": columns.num_rows}


if __name__ == "__main__":
    main()
