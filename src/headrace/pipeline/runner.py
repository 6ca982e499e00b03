"""``headrace pipeline``: watches whether work is due, and keeps a driver running while it is.

This process is small. The driver, with Java and all, is a child of it that comes and goes. Where one fails, its units
are given back without counting as failures, and another one is started after a pause that grows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import msgspec

from headrace.config import PipelineConfig
from headrace.errors import HeadraceError
from headrace.pipeline.driver import DriverConfig, orders_line
from headrace.pipeline.reports import Report, Suspects, take
from headrace.pipeline.work import Unreachable, Work, is_open

log = logging.getLogger("headrace.pipeline")

_BACKOFF_S = (1.0, 60.0)
_STOP_S = 20.0
#: The time between two messages that this pipeline is there.
_ATTACH_S = 5.0
#: Drivers in a row that may fail without any result before ``--once`` gives up.
ATTEMPTS = 5


class Runner:
    """Polls for work and starts drivers until it is stopped."""

    def __init__(
        self,
        url: str,
        config: PipelineConfig,
        *,
        key: str | None = None,
        ca_file: str | None = None,
        is_pinned: bool = False,
        once: bool = False,
    ) -> None:
        self._orders = DriverConfig(url, key, ca_file, config, once, is_pinned=is_pinned)
        self._config = config
        self._work = Work(url, key, ca_file, is_pinned=is_pinned)
        self._stopping = threading.Event()
        self._driver: subprocess.Popen[bytes] | None = None
        self._suspects = Suspects()
        self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._attached_s: float | None = None
        #: Drivers in a row that have failed without any result.
        self._failures = 0

    def run(self) -> int:
        """Run until stopped, or with ``once`` until nothing is due; returns the exit code."""
        with self._work, tempfile.TemporaryDirectory(prefix="headrace-pipeline-") as directory:
            report = Path(directory) / "report.json"
            try:
                while not self._stopping.is_set():
                    code = self._step(report)
                    if code is not None:
                        return code
                    self._stopping.wait(self._pause_s())
            finally:
                self._detach()
        return 0

    def _attach(self) -> None:
        """Say at times that this pipeline is there, so that the server leaves it what is due."""
        if self._attached_s is None or monotonic() - self._attached_s > _ATTACH_S:
            self._attached_s = monotonic()
            with contextlib.suppress(HeadraceError):  # an older server knows no such thing
                self._work.attach(self._name, attached=True)

    def _detach(self) -> None:
        """Say that the server is not to wait for this pipeline."""
        if self._attached_s is not None:
            self._attached_s = None
            with contextlib.suppress(HeadraceError):
                self._work.attach(self._name, attached=False)

    def _step(self, report: Path) -> int | None:
        """Lease work and perform it; returns an exit code when the process should end."""
        try:
            if not self._failures:
                self._attach()
            status = self._status()
            if status is not None and status["due"] and not status["paused"]:
                return self._drive(report)
            self._failures = 0
            return self._end_of_once(status) if self._orders.once and status is not None else None
        except Exception as reason:  # this loop ends only when it is stopped
            if self._orders.once:
                raise
            self._failures += 1
            log.exception("the pipeline failed, and goes on: %s", reason)
            return None

    def _end_of_once(self, status: dict[str, Any]) -> int | None:
        """The exit code where nothing is due; None while others work, or work is tried again after a pause."""
        if not is_open(status):
            return 0
        if status["paused"]:
            log.error("work is left and none is given out: `headrace pipeline resume` lets it go on")
            return 1
        log.info("waits for work that others do, or that is tried again after a pause")
        return None

    def stop(self) -> None:
        """Stop the driver, then ourselves."""
        self._stopping.set()
        driver = self._driver
        if driver is not None and driver.stdin is not None:
            driver.stdin.close()

    def _status(self) -> dict[str, Any] | None:
        """The status of work; None if the server does not answer, and may be polled again."""
        try:
            return self._work.status()
        except Unreachable as reason:
            if self._orders.once:
                raise
            log.info("%s", reason.message)
        except HeadraceError as reason:
            log.warning("the server does not say what is due: %s", reason.message)
            if self._orders.once:
                raise
        return None

    def _pause_s(self) -> float:
        shortest, longest = _BACKOFF_S
        return min(longest, shortest * 2 ** (self._failures - 1)) if self._failures else self._config.poll_s

    def _drive(self, path: Path) -> int | None:
        """Run a driver to its end, and take note of how it ended; the exit code where that is the end."""
        code = self._run_driver(path)
        report = take(path)
        self._suspects.settled(report.settled)
        self._give_back(report)
        if not code or self._stopping.is_set():
            self._failures = 0
            return None
        reason = report.reason or _ending(code)
        self._suspects.saw_failure(report.performing, reason)
        self._failures = 1 if report.commits else self._failures + 1
        self._detach()
        if self._orders.once and (report.permanent or self._failures >= ATTEMPTS):
            log.error("the Spark driver failed %d times in a row: %s", self._failures, reason)
            return 1
        log.warning(
            "the Spark driver failed, and starts again in %.0f s; its units are given back and count no failure: %s",
            self._pause_s(),
            reason,
        )
        return None

    def _give_back(self, report: Report) -> None:
        """Release the lease of a driver that could not do so itself."""
        if report.lease is not None:
            with contextlib.suppress(HeadraceError):  # it expires then
                self._work.release(report.lease)

    def _run_driver(self, report: Path) -> int:
        command = [sys.executable, "-m", "headrace.pipeline.driver"]
        # In a session of its own: an interrupt at the terminal reaches us alone, and we end it in order.
        self._driver = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        stdin = self._driver.stdin
        assert stdin is not None
        orders = msgspec.structs.replace(
            self._orders, report=str(report), failures=self._suspects.failures, blamed=self._suspects.blamed
        )
        with contextlib.suppress(BrokenPipeError):
            stdin.write(orders_line(orders))
            stdin.flush()
        try:
            return self._wait()
        finally:
            self._driver = None
            with contextlib.suppress(BrokenPipeError):
                stdin.close()

    def _wait(self) -> int:
        driver = self._driver
        assert driver is not None
        while not self._stopping.is_set():
            try:
                return driver.wait(1.0)
            except subprocess.TimeoutExpired:
                if not self._failures:
                    self._attach()
        try:
            return driver.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            driver.kill()
            return driver.wait()


def _ending(code: int) -> str:
    """How a process ended that left no reason."""
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it ended with {code}"
