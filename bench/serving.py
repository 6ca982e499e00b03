"""Running servers: started on a directory, asked, watched and stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import peers
from bench.requests import stream_path
from bench.targets import Target

START_SECONDS = 20.0
STOP_SECONDS = 15.0


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
        return self._memory("VmRSS")

    def most_resident_bytes(self) -> int:
        """The most memory that the server's process has held at any time."""
        return self._memory("VmHWM")

    def _memory(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) * 1024


@contextmanager
def running(target: Target, space: Path) -> Iterator[Running]:
    """A fresh server on a fresh directory, gone with it afterwards."""
    with fresh_directory(target, space) as directory, serving(target, directory) as server:
        yield server


@contextmanager
def fresh_directory(target: Target, space: Path) -> Iterator[Path]:
    """An empty directory for a server, which may be started there again and again."""
    directory = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=space))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def serving(target: Target, directory: Path) -> Iterator[Running]:
    """A server on a directory, with what an earlier one left there."""
    port = _free_port()
    settings = {"DS_HOST": "127.0.0.1", "PORT": str(port), "DS_ROOT": str(directory), **target.environment}
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
