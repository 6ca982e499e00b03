"""Spark in processes of its own, to be killed and started again: a Connect server, and a standalone cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headrace.pipeline import java

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def environ(directory: Path, more: Mapping[str, str]) -> dict[str, str]:
    """An environment for Spark, with small memories, and addresses of this machine alone."""
    directory.mkdir(exist_ok=True)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.executor.memory": "768m",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory),
    }
    (directory / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return {
        **os.environ,
        "JAVA_HOME": str(java.find(directory).home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(directory),
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


class Process:
    """A command that listens on a port; it can be killed with everything that it has started, and started again."""

    def __init__(self, command: list[str], port: int, environ: Mapping[str, str], log: Path) -> None:
        self._command, self._port, self._environ, self._log = command, port, dict(environ), log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environ, stdout=log, stderr=log, cwd=self._log.parent, start_new_session=True
            )
        until = time.monotonic() + PATIENCE_S
        while not self._listens():
            assert self._process.poll() is None and time.monotonic() < until, self._log.read_text()[-2000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL for its whole session."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


@contextmanager
def connect_server(directory: Path, more: Mapping[str, str]) -> Iterator[tuple[str, Process]]:
    """A Spark Connect server, and its address."""
    port = free_port()
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--conf", "spark.connect.grpc.binding.address=127.0.0.1"]
    command += ["--conf", f"spark.connect.grpc.binding.port={port}", "spark-internal"]
    given = environ(directory, {**more, "SPARK_DAEMON_MEMORY": "768m"})
    server = Process(command, port, given, directory / "connect.log")
    server.start()
    try:
        yield f"sc://127.0.0.1:{port}", server
    finally:
        server.kill()


@contextmanager
def standalone_cluster(directory: Path, more: Mapping[str, str]) -> Iterator[tuple[str, Process]]:
    """The address of a standalone cluster, and its only worker."""
    ports = free_port(), free_port()
    started = str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy."
    shared, url = environ(directory, more), f"spark://127.0.0.1:{ports[0]}"
    flags = ["--host", "127.0.0.1", "--webui-port", "0", "--port"]
    master = Process(
        [started[0], f"{started[1]}master.Master", *flags, str(ports[0])], ports[0], shared, directory / "master.log"
    )
    worker = Process(
        [started[0], f"{started[1]}worker.Worker", *flags, str(ports[1]), "--cores", "2", "--memory", "1g", url],
        ports[1],
        shared,
        directory / "worker.log",
    )
    try:
        master.start()
        worker.start()
        yield url, worker
    finally:
        worker.kill()
        master.kill()
