"""Answers over history and tail are those of a brute force, however far the pipeline has come with a stream.

The streams are generated first, and all of them share a few Spark jobs. Between the jobs and after them every stream is
asked: some have no companions then, some for half of what they have, some are compacted, some are defined anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conftest import ServerProcess
from headrace.config import PipelineConfig
from headrace.pipeline import jobs
from headrace.pipeline.work import Work
from spark.comparing import Comparison
from spark.lives import Life
from support.http_caller import Caller

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

STREAMS, FORKS, PHASES = 36, 8, 4
SOME, MANY = 4, 24
SEAL_ROWS = 20
#: How much of what is due is done in a phase, and whether it is also compacted.
PROGRESS = [(0.0, False), (0.5, False), (0.5, True), (1.0, False), (1.0, True), (1.0, True)]
CONFIG = PipelineConfig(tasks=4, shuffle_partitions=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {
        "storage__seal_rows": str(SEAL_ROWS),
        "limits__read_bytes": "20000",
        "limits__filter_scan_bytes": "30000",
        "pipeline__min_rows": "0",
        "pipeline__unit_bytes": "12000",
        "pipeline__fan_out": "2",
        "server__resolver_timeout_s": "60",
        "server__idle_timeout_s": "600",
    }
    running = ServerProcess(tmp_path_factory.mktemp("equality") / "data", settings).start()
    yield running
    running.kill()


class Progress:
    """Does what is due, but for some streams only a part of it."""

    def __init__(self, spark: SparkSession, work: Work) -> None:
        self._spark = spark
        self._work = work

    def run(self, phase: int, meanwhile: Callable[[], None]) -> dict[str, int]:
        """Lease until nothing is left that is wanted in this phase; answers how many units of each job were done.

        ``meanwhile`` happens once, after some units were computed and before they are committed.
        """
        held, done, outcomes = [], {"index": 0, "compact": 0}, {"committed", "dropped"}
        while (lease := self._work.lease("test", 256)) is not None:
            held.append(lease)
            units = tuple(unit for unit in lease.units if self._is_wanted(unit, phase))
            if not units:
                continue
            results = jobs.run(
                self._spark, type(lease)(lease.id, lease.token, lease.ttl_ms, lease.store, units), CONFIG
            )
            meanwhile()
            settled = self._work.commit(lease, results)["results"]
            assert {one["outcome"] for one in settled} <= outcomes, settled
            meanwhile, outcomes = _nothing, {"committed"}
            for unit in units:
                done[unit["job"]] += 1
        for lease in held:
            self._work.release(lease)
        return done

    @staticmethod
    def _is_wanted(unit: dict[str, Any], phase: int) -> bool:
        share, compacts = Random(f"{unit['stream']} {phase}").choice(PROGRESS)
        if unit["job"] == "compact":
            return compacts
        return Random(f"{unit['stream']} {phase} {unit['first_seq']}").random() < share


def _nothing() -> None:
    pass


def compared(lives: list[Life], mark: str, count: int) -> tuple[int, list[str]]:
    """How many answers were compared, and which were wrong."""

    def one(life: Life) -> tuple[int, str | None]:
        try:
            return Comparison(life, mark).run(count), None
        except AssertionError as wrong:
            return 0, f"{life.name} {mark}: {str(wrong)[:2000]}"

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(one, lives))
    return sum(number for number, _ in found), [wrong for _, wrong in found if wrong]


def settle(is_settled: Callable[[], bool]) -> None:
    """Wait until it is so."""
    until = time.monotonic() + 60
    while not is_settled():
        assert time.monotonic() < until
        time.sleep(0.05)


def forget(lives: list[Life]) -> None:
    """Let a sweep take the older segments of streams that have several, and keep the rest."""
    sizes = {life: life.bytes() for life in lives}
    for life, size in sizes.items():
        life.forget(size // 2)
    settle(lambda: all(life.bytes() < size for life, size in sizes.items() if life.segments() > 4))
    for life in lives:
        life.forget(None)


def meddle(lives: list[Life]) -> None:
    """While their events are being indexed, streams go on, change, and are deleted and created anew."""
    for life in lives[2::5]:
        life.go_on(1)
    for life in lives[5::9]:
        life.begin_again()
        life.go_on(0)


@pytest.fixture
def caller(server: ServerProcess) -> Iterator[Caller]:
    with closing(Caller(server.url)) as opened:
        yield opened


def test_every_answer_is_what_the_oracle_says_at_any_progress(
    spark: SparkSession, server: ServerProcess, caller: Caller
) -> None:
    lives = [Life(caller, seed) for seed in range(STREAMS)]
    for life in lives:
        life.begin()
    cases, wrong, done = 0, list[str](), {"index": 0, "compact": 0}
    for phase in range(PHASES):
        if phase == 2:
            for number in range(FORKS):
                fork = Life(caller, STREAMS + number)
                fork.fork(lives[number * 4])
                lives.append(fork)
        for life in lives:
            life.go_on(phase)
        settle(lambda: all(life.pending() < SEAL_ROWS for life in lives))
        with closing(Work(server.url)) as work:
            found = Progress(spark, work).run(phase, partial(meddle, lives) if phase == 1 else _nothing)
        done = {job: done[job] + number for job, number in found.items()}
        if phase == PHASES - 1:
            forget(lives[::6])
            for life in lives[::3]:
                life.append(5)
        number, faults = compared(lives, f"phase {phase}", MANY if phase == PHASES - 1 else SOME)
        cases, wrong = cases + number, wrong + faults
    assert not wrong, "\n".join([f"{len(wrong)} streams answered wrong", *wrong[:8]])
    print(f"{cases} answers compared; units done: {done}")
    assert cases >= 1_000
    assert done["index"] > 100 and done["compact"] > 20, done
