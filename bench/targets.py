"""The servers under test: how each is started, and what makes its appends durable."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import peers
from bench.load import stream_path

START_SECONDS = 20.0
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Target:
    """One server: its command line for a port and a directory, and its words in the report."""

    name: str
    title: str
    durability: str
    command: Callable[[int, Path], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"
    redis: bool = False


class Refused(OSError):
    """A server answered with an error: its status, and what was asked and answered."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Running:
    """A started server."""

    target: Target
    port: int
    process: subprocess.Popen[bytes]

    def create(self, stream: str) -> None:
        """Make an empty JSON stream (Redis makes its own at the first append)."""
        if self.target.redis:
            return
        self.ask("PUT", stream_path(stream))

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of the answer to one request, or Refused."""
        url, headers = f"http://127.0.0.1:{self.port}{path}", {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise Refused(error.code, f"{method} {path}: {error.code} {error.read()[:1000]!r}") from error

    def resident_bytes(self) -> int:
        """The memory that the server's process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _headrace(port: int, directory: Path) -> list[str]:
    command = str(Path(sys.executable).with_name("headrace"))
    return [command, "serve", "--port", str(port), "--data-dir", str(directory)]


def _prisma(_port: int, _directory: Path) -> list[str]:
    script = peers.MODULES / "@prisma" / "streams-server" / "bin" / "prisma-streams-server"
    return [peers.bun(), str(script), "--object-store", "local", "--no-auth"]


def _reference(port: int, directory: Path) -> list[str]:
    module = peers.MODULES / "@durable-streams" / "server" / "dist" / "index.js"
    return [peers.node(), str(Path(__file__).with_name("reference.mjs")), str(module), str(port), str(directory)]


def _redis(port: int, directory: Path) -> list[str]:
    settings = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "auto-aof-rewrite-percentage": "0",
    }
    return [peers.redis_server(), *(part for name, value in settings.items() for part in (f"--{name}", value))]


_PRISMA_DURABILITY = "SQLite WAL, synchronous=FULL: fsync before the answer"

TARGETS = (
    Target(
        name="headrace",
        title="Headrace",
        durability="SQLite WAL, synchronous=FULL: fsync before the answer, one per group of appends",
        command=_headrace,
        health="/health/ready",
    ),
    Target(
        name="prisma",
        title="Prisma Streams",
        durability=f"{_PRISMA_DURABILITY}, flushed every 10 ms",
        command=_prisma,
    ),
    Target(
        name="prisma-tuned",
        title="Prisma tuned",
        durability=f"{_PRISMA_DURABILITY}, flushed every 1 ms, 512 ingest slots",
        command=_prisma,
        environment={"DS_INGEST_CONCURRENCY": "512", "DS_INGEST_FLUSH_MS": "1"},
    ),
    Target(
        name="reference",
        title="Reference server",
        durability="file-backed: fdatasync before the answer, shared by waiting appends",
        command=_reference,
        health="/v1/stream/none",
    ),
    Target(
        name="redis",
        title="Redis Streams",
        durability="append-only file, appendfsync always: fsync before the answer, one per loop turn",
        command=_redis,
        redis=True,
    ),
)


@contextmanager
def running(target: Target, space: Path) -> Iterator[Running]:
    """A fresh server on a fresh directory, gone with it afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=space))
    port = _free_port()
    settings = {"DS_HOST": "127.0.0.1", "PORT": str(port), "DS_ROOT": str(directory), **target.environment}
    try:
        with (directory / "server.log").open("wb") as log:
            process = subprocess.Popen(
                target.command(port, directory),
                env={**os.environ, **settings},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _await_ready(target, port, process, directory / "server.log")
            yield Running(target, port, process)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _await_ready(target: Target, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(target, port):
            return
        time.sleep(0.05)
    raise peers.Missing(f"it did not start: {log.read_text(errors='replace')[-400:].strip()}")


def _answers(target: Target, port: int) -> bool:
    question = b"PING\r\n" if target.redis else f"GET {target.health} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(question)
            answer = connection.recv(64)
    except OSError:
        return False
    missing_is_alive = b" 404 " in answer and target.health.startswith("/v1/stream")
    return answer.startswith(b"+PONG") or b" 200 " in answer or missing_is_alive


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
