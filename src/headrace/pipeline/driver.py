"""The process that holds a Spark session: leases units, runs them as one job, commits, until nothing more is due.

Its parent starts it when work is due. So an idle machine runs no Java, and where Spark fails the driver gives back its
units, says why in its report, and ends; its parent starts another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from headrace import decoding
from headrace.config import PipelineConfig
from headrace.errors import HeadraceError, Unavailable
from headrace.pipeline import jobs, session
from headrace.pipeline.jobs import Progress, Tasks, stages
from headrace.pipeline.reports import ReportFile, UnitDocument, groups, key_of
from headrace.pipeline.session import SparkFailed, spark_failed, summarize
from headrace.pipeline.work import Lease, Refused, Work
from headrace.reduce.work_units import JobName
from headrace.storage.files import restrict_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.pipeline")

_NICENESS = 10
#: The time between heartbeats, which carry the progress.
_HEARTBEAT_S = 2.0
_SOON_S = 0.1
#: The longest time between two lines about the progress.
_LONGEST_SILENCE_S = 60.0
#: How long Spark may take to start and to perform its first task; clusters may have to find executors first.
_START_S = 600.0
#: How long a session that is in doubt may take to perform a task, or to cancel a job.
_CHECK_S = 60.0
#: Set-ups that do not get better by themselves.
_PERMANENT = ("hidden_store", "no_spark", "no_java")
#: Statuses of results that the server does not take as they are.
_REFUSED_RESULTS = (400, 413, 422)


class DriverConfig(msgspec.Struct, frozen=True):
    """The configuration that a driver reads from its standard input."""

    url: str
    key: str | None
    ca_file: str | None
    config: PipelineConfig
    once: bool
    #: Where it leaves its report.
    report: str = ""
    #: How many failures of Spark in a row units have seen, and the units that are blamed for one.
    failures: dict[str, int] = {}
    blamed: dict[str, str] = {}
    #: Whether the server must show the first certificate of that file, whatever that names.
    is_pinned: bool = False


class Driver:
    """Works for one server until it is idle for long enough, or stopped."""

    def __init__(self, orders: DriverConfig, scratch: Path) -> None:
        self._config = orders.config
        self._once = orders.once
        self._failures, self._blamed = orders.failures, dict(orders.blamed)
        self._file = ReportFile(orders.report)
        self._report = self._file.report
        self._work = Work(orders.url, orders.key, orders.ca_file, is_pinned=orders.is_pinned)
        self._scratch = scratch
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._stopping = threading.Event()
        self._spark: SparkSession | None = None
        self._stages: Callable[[], Iterable[Tasks]] = tuple
        self._addresses = session.Addresses(None, None)
        self._lines = ProgressLines()

    def run(self) -> None:
        """Lease, compute and commit, again and again; raises where Spark fails, and has given back its units then."""
        try:
            with contextlib.closing(self._work):
                self._run()
        except HeadraceError as failure:
            self._report.reason = failure.message
            self._report.permanent = failure.facts.get("reason") in _PERMANENT
            raise
        except Exception as failure:
            self._report.reason = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            self._file.save()

    def _run(self) -> None:
        idle_since = monotonic()
        while not self._stopping.is_set():
            lease = self._lease()
            if lease is not None:
                if self._spark is None:
                    self._spark = self._start(lease)
                else:
                    self._serve(self._spark, lease)
                idle_since = monotonic()
                continue
            self._lines.end()
            if self._once or monotonic() - idle_since > self._config.idle_s:
                return
            self._stopping.wait(pause(monotonic() - idle_since, self._config.poll_s))

    def _lease(self) -> Lease | None:
        # Without a session one unit is enough: the lease lasts while Spark starts.
        max_units = 1 if self._spark is None else self._config.lease_units
        return self._work.lease(
            self._worker, max_units, host=socket.gethostname(), master=self._master, **self._addresses._asdict()
        )

    @property
    def _master(self) -> str:
        # What follows a semicolon in the address of a Spark Connect server may be a secret.
        return (self._config.remote or self._config.master).partition(";")[0]

    def stop(self) -> None:
        """Cancel the running job and return its leases."""
        self._stopping.set()
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs each connection that ends
        self._interrupt()

    @property
    def is_stopping(self) -> bool:
        """Whether it ends as soon as it can."""
        return self._stopping.is_set()

    def _start(self, lease: Lease) -> SparkSession:
        """Start a session; the first lease only shows that there is work, and is returned at once."""
        self._work.release(lease)
        self._refuse_hidden(lease.store)
        log.info("pipeline: starting Spark on %s", self._master)
        try:
            with self._time_limit(_START_S, f"Spark performed no task within {_START_S:.0f} s; are there executors?"):
                spark = session.start(self._config, self._scratch)
                session.check_store(spark, lease.store)
                self._stages = stages(spark, remote=bool(self._config.remote))
        except HeadraceError:
            raise
        except Exception as reason:
            raise SparkFailed(f"Spark did not start: {summarize(reason)}") from reason
        self._addresses = session.addresses(spark, self._config)
        for name, address in zip(("Spark UI", "event log"), self._addresses, strict=True):
            if address is not None:
                log.info("pipeline: the %s is at %s", name, address)
        if ignored := session.ignored_settings(spark, self._config):
            log.warning("pipeline: Spark runs already and has not taken %s", ", ".join(ignored))
        return spark

    def _serve(self, spark: SparkSession, lease: Lease) -> None:
        """Perform the units of a lease, and give back what has no result in the end."""
        self._hold(msgspec.structs.replace(lease, units=()))
        job = _Job(lease, Progress(self._stages, len(lease.units)))
        try:
            self._lines.report(lease.units, 0)
            self._report_blamed(job)
            for group in groups(job.open, self._failures, self._config.lease_units):
                if not self._stopping.is_set():
                    self._perform(spark, job, group)
        except Refused as refused:
            if refused.code != "lease_lost":
                raise
            log.warning("a lease was lost, its work is done again by someone else: %s", refused.message)
            self._report.performing = []
            self._check(spark)
        finally:
            self._end(job)

    def _end(self, job: _Job) -> None:
        """Give back the units of a lease that have no result."""
        try:
            if job.open:
                self._work.release(job.lease)
        except Refused:
            pass  # it has ended already
        except HeadraceError as reason:
            log.warning("a lease could not be given back: %s", reason.message)
            return
        self._hold(None)

    def _hold(self, lease: Lease | None) -> None:
        self._report.lease = lease
        self._file.save()

    def _report_blamed(self, job: _Job) -> None:
        """Report failures of units over which Spark has failed, now that it works again."""
        chosen = [unit for unit in job.open if key_of(unit) in self._blamed]
        if chosen:
            results = [{"unit": unit["unit"], "error": self._blamed.pop(key_of(unit))} for unit in chosen]
            log.warning("%d units are to blame for failures of Spark: %s", len(chosen), results[0]["error"])
            self._commit(job, results)

    def _perform(self, spark: SparkSession, job: _Job, units: list[UnitDocument]) -> None:
        """Perform some units of a lease and commit their results; raises SparkFailed where there are none."""
        self._report.performing = [key_of(unit) for unit in units]
        self._file.save()
        lost = threading.Event()
        try:
            with self._alive(job, lost):
                part = msgspec.structs.replace(job.lease, units=tuple(units))
                results = jobs.run(spark, part, self._config, job.progress)
        except Exception as reason:
            if self._stopping.is_set():
                self._report.performing = []
                return
            if lost.is_set():
                raise Refused(409, "lease_lost", "its job was cancelled", {}) from reason
            raise spark_failed(reason) from reason
        faults = missing_results(units, results)
        self._commit(job, [unit_result for unit_result in results if "fault" not in unit_result])
        if faults:
            self._report.performing = [key_of(unit) for unit in units if unit["unit"] in faults]
            raise SparkFailed(f"executors cannot work: {next(iter(faults.values()))}")
        self._report.performing = []

    def _commit(self, job: _Job, results: list[jobs.ResultDocument]) -> None:
        """Commit results of some units of a lease."""
        if not results:
            return
        try:
            self._work.commit(job.lease, results)
        except HeadraceError as failure:
            if failure.status not in _REFUSED_RESULTS:
                self._report.performing = []  # the server cannot take any results now
            raise
        named = {unit_result["unit"] for unit_result in results}
        suspects = (key for unit in job.open if unit["unit"] in named and (key := key_of(unit)) in self._failures)
        self._report.settled.extend(suspects)
        self._report.commits += 1
        job.open = [unit for unit in job.open if unit["unit"] not in named]
        job.progress.start, job.progress.finished = len(job.lease.units) - len(job.open), 0

    def _check(self, spark: SparkSession) -> None:
        """Check that a session still performs a task; raises SparkFailed otherwise."""
        if self._stopping.is_set():
            return
        try:
            with self._time_limit(_CHECK_S, f"Spark performed no task within {_CHECK_S:.0f} s after a lease was lost"):
                session.check_executors(spark)
        except HeadraceError:
            raise
        except Exception as reason:
            raise spark_failed(reason) from reason

    def _refuse_hidden(self, store: str) -> None:
        if store.startswith("file:") and not session.is_local(self._config):
            raise Unavailable(
                "executors elsewhere cannot see a store in a directory of the server; give it an object store by URL",
                reason="hidden_store",
            )

    @contextlib.contextmanager
    def _time_limit(self, seconds: float, reason: str) -> Iterator[None]:
        """End this process where something takes longer: calls into Spark cannot be interrupted."""
        timer = threading.Timer(seconds, self._abort, (reason,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _abort(self, reason: str) -> None:
        log.error("%s", reason)
        self._report.reason = reason
        self._file.save()
        os._exit(1)

    @contextlib.contextmanager
    def _alive(self, job: _Job, lost: threading.Event) -> Iterator[None]:
        """Send heartbeats for a lease during the block, and set ``lost`` if the lease is lost."""
        done = threading.Event()
        beating = threading.Thread(target=self._beat, args=(job, done, lost), daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def _beat(self, job: _Job, done: threading.Event, lost: threading.Event) -> None:
        while not done.wait(min(job.lease.ttl_ms / 3000, _HEARTBEAT_S)):
            try:
                finished = job.progress.done()
                self._lines.report(job.lease.units, finished)
                self._work.heartbeat(job.lease, finished)
            except Refused as refused:
                if refused.code == "lease_lost":
                    log.warning("giving up a job: %s", refused.message)
                    lost.set()
                    self._cancel(done)
                    return
                log.warning("a heartbeat was refused: %s", refused.message)
            except HeadraceError as reason:
                log.warning("a heartbeat failed: %s", reason.message)

    def _cancel(self, done: threading.Event) -> None:
        """Cancel the running job; where Spark does not, this process ends."""
        self._interrupt()
        if not done.wait(_CHECK_S):
            self._report.performing = []
            self._abort(f"Spark did not cancel a job within {_CHECK_S:.0f} s")

    def _interrupt(self) -> None:
        if self._spark is not None:
            try:
                self._spark.interruptAll()
            except Exception as reason:  # a Spark that is gone runs nothing
                log.info("Spark was not interrupted: %s", summarize(reason))


_DOING: dict[JobName, str] = {
    "index": "indexing",
    "compact": "merging companions of",
    "features": "folding features of",
    "snapshots": "folding entities of",
    "enhance": "folding fragments of",
    "history": "computing rows of the past of",
    "verify": "trying a change of schema on",
    "erase": "erasing from",
}
_NAMED = 3


class ProgressLines:
    """Logs what a driver works on: at once, then after pauses that grow up to a minute, and when it is done."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._last_line = ""
        self._next_s, self._pause_s = 0.0, _HEARTBEAT_S

    def report(self, units: Sequence[UnitDocument], done: int) -> None:
        """Log how many units of a lease are done, unless it is too soon."""
        line = f"{_sentence(units)}, {done} of {len(units)} units"
        if line != self._last_line and self._clock() >= self._next_s:
            log.info("pipeline: %s", line)
            self._last_line = line
            self._next_s = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_SILENCE_S)

    def end(self) -> None:
        """Log that all is done, unless nothing was begun since the last time."""
        if self._last_line:
            log.info("pipeline: done")
            self._last_line, self._next_s, self._pause_s = "", 0.0, _HEARTBEAT_S


def _sentence(units: Sequence[UnitDocument]) -> str:
    """What is done to which streams, tables and entity types, in the order of the units."""
    subjects: dict[str, dict[str, None]] = {}
    for unit in units:
        subjects.setdefault(_DOING[unit["job"]], {})[unit.get("table") or unit["stream"]] = None
    return ", ".join(
        f"{doing} {' and '.join(names) if len(names) <= _NAMED else f'{len(names)} streams'}"
        for doing, names in subjects.items()
    )


class _Job:
    """A lease, its units without a result, and its progress."""

    def __init__(self, lease: Lease, progress: Progress) -> None:
        self.lease = lease
        self.progress = progress
        self.open: list[UnitDocument] = list(lease.units)


def missing_results(units: Sequence[UnitDocument], results: Sequence[jobs.ResultDocument]) -> dict[str, str]:
    """The units without a result of their own, and why."""
    faults = {unit["unit"]: "Spark returned no result" for unit in units}
    for unit_result in results:
        if "fault" in unit_result:
            faults[unit_result["unit"]] = unit_result["fault"]
        else:
            del faults[unit_result["unit"]]
    return faults


def pause(idle_s: float, poll_s: float) -> float:
    """The pause before the next poll: short after recent work, since changes come in groups."""
    return min(poll_s, max(_SOON_S, idle_s / 20))


def main() -> None:
    """Read the configuration from standard input, and stop when that ends: the parent has exited, or wants it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for chatty in ("httpx2", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    restrict_process()
    os.nice(_NICENESS)  # on one machine the server comes first
    orders = decoding.decode(sys.stdin.buffer.readline(), DriverConfig)
    code: int | None = None
    with tempfile.TemporaryDirectory(prefix="headrace-spark-", ignore_cleanup_errors=True) as scratch:
        driver = Driver(orders, Path(scratch))
        threading.Thread(target=_until_left, args=(driver,), daemon=True).start()
        # In a thread: the handler may have interrupted a call into Spark.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=driver.stop).start())
        try:
            driver.run()
        except Exception as failure:
            code = 0 if driver.is_stopping else 1
            if isinstance(failure, HeadraceError) and code:
                log.error("%s", failure.message)
            elif code:
                log.exception("the driver failed")
    if code is not None:
        logging.shutdown()
        os._exit(code)  # exit hooks of Spark would wait for what is gone


def _until_left(driver: Driver) -> None:
    # Not through sys.stdin, whose lock would be held when the interpreter ends.
    while os.read(0, 1):
        pass
    driver.stop()


def orders_line(orders: DriverConfig) -> bytes:
    """The configuration in the form that a driver reads."""
    return msgspec.json.encode(orders) + b"\n"


if __name__ == "__main__":
    main()
