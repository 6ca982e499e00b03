"""The beava server, a peer whose features can be compared with ours: its binary out of the wheel, on free ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

VERSION = "0.0.6"
START_SECONDS = 20.0


class Beava:
    """A running server: what is registered, pushed and read over its HTTP interface."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=10)

    def register(self, nodes: list[dict[str, Any]]) -> None:
        """Register descriptors in its own shape."""
        self._ask("/register", {"nodes": nodes})

    def push(self, event: str, fields: dict[str, Any]) -> None:
        """Push one event."""
        self._ask(f"/push/{event}", fields)

    def get(self, table: str, key: str, features: list[str] | None = None) -> dict[str, Any]:
        """The row of a key."""
        wanted = {} if features is None else {"features": features}
        row: dict[str, Any] = self._ask("/get", {"table": table, "key": key, **wanted})
        return row

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, f"beava, {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()


def binary(cache: Path) -> Path:
    """The server out of the wheel, kept in a directory for the next time, or the test is skipped."""
    program = cache / f"beava-{VERSION}"
    if program.exists():
        return program
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--retries=1",
        "--timeout=5",
    ]
    with tempfile.TemporaryDirectory(dir=cache) as wheel:
        command = [sys.executable, "-m", "pip", "install", *options, "--target", wheel, f"beava=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            pytest.skip(f"the wheel of beava {VERSION} did not install: {done.stderr[-500:].strip()}")
        return (Path(wheel) / "bin" / "beava").rename(program)


@contextmanager
def serving(program: Path, directory: Path) -> Iterator[Beava]:
    """A server that keeps everything in memory, or the test is skipped where its binary does not run."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(3)]
    log = directory / "beava.log"
    command = [str(program), "--memory-only", "--http-addr", addresses[0], "--tcp-addr", addresses[1]]
    with log.open("wb") as sink:
        try:
            environ = {**os.environ, "BEAVA_ADMIN_ADDR": addresses[2]}
            process = subprocess.Popen(command, env=environ, stdout=sink, stderr=sink, cwd=directory)
        except OSError as error:
            pytest.skip(f"the binary of beava {VERSION} does not run here: {error}")
    try:
        _await_ready(f"http://{addresses[0]}", process, log)
        peer = Beava(f"http://{addresses[0]}")
        yield peer
        peer.close()
    finally:
        process.kill()
        process.wait(timeout=20)


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx2.post(f"{url}/ping", json={}, timeout=2)
            return
        except httpx2.TransportError:
            time.sleep(0.02)
    pytest.skip(f"beava {VERSION} did not start here: {log.read_text(errors='replace')[-500:]}")


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
