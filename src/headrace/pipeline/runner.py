"""``headrace pipeline``: watches whether work is due, and keeps a driver running while it is.

This process is small. The driver, with Java and all, is a child of it that comes and goes.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Any

from headrace.config import PipelineConfig
from headrace.errors import HeadraceError
from headrace.pipeline.driver import Orders, orders_line
from headrace.pipeline.work import Unreachable, Work, is_open

log = logging.getLogger("headrace.pipeline")

_BACKOFF_S = (1.0, 60.0)
_STOP_S = 20.0


class Runner:
    """Looks for work and starts drivers until it is told to stop."""

    def __init__(
        self,
        url: str,
        config: PipelineConfig,
        *,
        key: str | None = None,
        ca_file: str | None = None,
        once: bool = False,
    ) -> None:
        self._orders = Orders(url, key, ca_file, config, once)
        self._config = config
        self._work = Work(url, key, ca_file)
        self._stopping = threading.Event()
        self._driver: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until stopped, or until nothing is due where that was asked for; the exit code."""
        with self._work:
            return self._run()

    def _run(self) -> int:
        failures = 0
        while not self._stopping.is_set():
            status = self._status()
            if status is not None and status["due"] and not status["paused"]:
                failures = failures + 1 if self._drive() else 0
                if failures and self._orders.once:
                    return 1
            elif self._orders.once and status is not None:
                if not is_open(status):
                    return 0
                if status["paused"]:
                    log.error("work is left and none is given out: `headrace pipeline resume` lets it go on")
                    return 1
                log.info("waits for work that others do, or that is tried again after a pause")
            least, most = _BACKOFF_S
            self._stopping.wait(min(most, least * 2 ** (failures - 1)) if failures else self._config.poll_s)
        return 0

    def stop(self) -> None:
        """Stop the driver, then ourselves."""
        self._stopping.set()
        driver = self._driver
        if driver is not None and driver.stdin is not None:
            driver.stdin.close()

    def _status(self) -> dict[str, Any] | None:
        """What the server says about work; None where it says nothing and we may ask again."""
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

    def _drive(self) -> int:
        """Run a driver to its end; its exit code."""
        command = [sys.executable, "-m", "headrace.pipeline.driver"]
        # In a session of its own: an interrupt at the terminal reaches us alone, and we end it in order.
        self._driver = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        stdin = self._driver.stdin
        assert stdin is not None
        try:
            stdin.write(orders_line(self._orders))
            stdin.flush()
        except BrokenPipeError:
            pass
        code = self._wait()
        self._driver = None
        if code and not self._stopping.is_set():
            log.warning("the Spark driver ended with %s; it is started again when its leases have ended", code)
        return code

    def _wait(self) -> int:
        driver = self._driver
        assert driver is not None
        while not self._stopping.is_set():
            try:
                return driver.wait(1.0)
            except subprocess.TimeoutExpired:
                continue
        try:
            return driver.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            driver.kill()
            return driver.wait()
