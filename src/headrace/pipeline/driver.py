"""The process that holds a Spark session: leases units, runs them as one job, commits, until nothing more is due.

Its parent starts it when work is due. So an idle machine runs no Java, and a driver that dies is simply started again;
what it had leased is due again when the lease ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from headrace.config import PipelineConfig
from headrace.errors import HeadraceError, Unavailable
from headrace.pipeline import jobs, session
from headrace.pipeline.progress import Progress, Tasks, stages
from headrace.pipeline.work import Lease, Refused, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.pipeline")

_YIELDING = 10
#: How often the server hears how far a job is.
_BEAT_S = 2.0
_REASON_LENGTH = 2_000
_SOON_S = 0.1


class Orders(msgspec.Struct, frozen=True):
    """What a driver is told on its standard input: whom to work for, and how."""

    url: str
    key: str | None
    ca_file: str | None
    config: PipelineConfig
    once: bool


class Driver:
    """Works for one server until it is idle for long enough, or told to stop."""

    def __init__(self, orders: Orders, scratch: Path) -> None:
        self._config = orders.config
        self._once = orders.once
        self._work = Work(orders.url, orders.key, orders.ca_file)
        self._scratch = scratch
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._stopping = threading.Event()
        self._spark: SparkSession | None = None
        self._stages: Callable[[], Iterable[Tasks]] = tuple

    def run(self) -> None:
        """Lease, compute and commit, again and again."""
        idle_since = monotonic()
        with contextlib.closing(self._work):
            while not self._stopping.is_set():
                lease = self._lease()
                if lease is not None:
                    self._serve(lease)
                    idle_since = monotonic()
                elif self._once or monotonic() - idle_since > self._config.idle_s:
                    return
                else:
                    self._stopping.wait(pause(monotonic() - idle_since, self._config.poll_s))

    def _lease(self) -> Lease | None:
        # What follows a semicolon in the address of a Spark Connect server may be a secret.
        master = (self._config.remote or self._config.master).partition(";")[0]
        return self._work.lease(self._worker, self._config.lease_units, host=socket.gethostname(), master=master)

    def stop(self) -> None:
        """Give up the running job; what it leased goes back."""
        self._stopping.set()
        self._interrupt()

    def _serve(self, lease: Lease) -> None:
        try:
            self._refuse_hidden(lease.store)
            if self._spark is None:
                with self._alive(lease):
                    self._spark = session.start(self._config, self._scratch)
                    self._stages = stages(self._spark, remote=bool(self._config.remote))
            spark, progress = self._spark, Progress(self._stages, len(lease.units))
            with self._alive(lease, progress):
                results = self._results(spark, lease, progress)
            if not self._stopping.is_set():
                self._work.commit(lease, results)
            else:
                self._work.release(lease)
        except Refused as refused:
            if refused.code != "lease_lost":
                raise
            log.warning("a lease was lost, its work is done again by someone else: %s", refused.message)
        except BaseException:
            with contextlib.suppress(HeadraceError):
                self._work.release(lease)
            raise

    def _results(self, spark: SparkSession, lease: Lease, progress: Progress) -> list[jobs.Result]:
        """What came of a lease; where Spark gives up the whole job, that is the result of every unit."""
        from pyspark.errors import PySparkException

        try:
            return jobs.run(spark, lease, self._config, progress)
        except PySparkException as failure:
            reason = str(failure).strip()[-_REASON_LENGTH:]
            log.warning("a Spark job failed: %s", reason.rpartition("\n")[2])
            return [{"unit": unit["unit"], "error": reason} for unit in lease.units]

    def _refuse_hidden(self, store: str) -> None:
        if store.startswith("file:") and not session.is_local(self._config):
            raise Unavailable(
                "executors elsewhere cannot see a store in a directory of the server; give it an object store by URL",
                reason="hidden_store",
            )

    @contextlib.contextmanager
    def _alive(self, lease: Lease, progress: Progress | None = None) -> Iterator[None]:
        """Keep a lease alive while something takes its time."""
        done = threading.Event()
        beating = threading.Thread(target=self._beat, args=(lease, done, progress), daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def _beat(self, lease: Lease, done: threading.Event, progress: Progress | None) -> None:
        while not done.wait(min(lease.ttl_ms / 3000, _BEAT_S)):
            try:
                self._work.heartbeat(lease, 0 if progress is None else progress.done())
            except Refused as refused:
                log.warning("giving up a job: %s", refused.message)
                self._interrupt()
                return
            except HeadraceError as reason:
                log.warning("a heartbeat failed: %s", reason.message)

    def _interrupt(self) -> None:
        if self._spark is not None:
            self._spark.interruptAll()


def pause(idle_s: float, poll_s: float) -> float:
    """How long to wait before looking for work: who has just had some looks again soon, since changes come in rows."""
    return min(poll_s, max(_SOON_S, idle_s / 20))


def main() -> None:
    """Take the orders from standard input, and stop when that ends: the parent is gone, or wants us to."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for chatty in ("httpx2", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    os.nice(_YIELDING)  # on one machine the server comes first
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    with tempfile.TemporaryDirectory(prefix="headrace-spark-", ignore_cleanup_errors=True) as scratch:
        driver = Driver(orders, Path(scratch))
        threading.Thread(target=_until_left, args=(driver,), daemon=True).start()
        try:
            driver.run()
        except HeadraceError as failure:
            log.error("%s", failure.message)
            sys.exit(1)


def _until_left(driver: Driver) -> None:
    # Not through sys.stdin, whose lock would be held when the interpreter ends.
    while os.read(0, 1):
        pass
    driver.stop()


def orders_line(orders: Orders) -> bytes:
    """Orders as a driver reads them."""
    return msgspec.json.encode(orders) + b"\n"


if __name__ == "__main__":
    main()
