"""Fixtures are factories: real servers in real processes, each on its own port and directory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from support.nursery import Child, Nursery

if TYPE_CHECKING:
    from support.s3 import S3

gc.disable()  # until everything is collected: nothing of it goes

settings.register_profile(
    "default",
    max_examples=60,  # the same ones every time: many more, and others, are for the deep profile
    deadline=None,
    derandomize=True,
    print_blob=True,
    # Not Phase.explain: it traces, and in Python 3.11 a traced call may spin once another thread was interrupted.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("deep", settings.get_profile("default"), max_examples=2_000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what may take longest, so that nobody is left alone with it in the end."""
    items.sort(key=_patience_s, reverse=True)


def _patience_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(item.config.getini("timeout") if mark is None else mark.args[0])


def pytest_collection_finish() -> None:
    """Let the collector of garbage look at what tests leave behind."""
    gc.enable()


class ServerProcess:
    """A server in its own process; ``stop`` is graceful, ``kill`` is not, ``start`` may follow either."""

    def __init__(self, data_dir: Path, settings: dict[str, str]) -> None:
        self.data_dir = data_dir
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            "HEADRACE_SERVER__PORT": "0",
            "HEADRACE_STORAGE__DATA_DIR": str(data_dir),
            **{f"HEADRACE_{name.upper()}": value for name, value in settings.items()},
        }
        self.url = ""
        self._log = data_dir.with_name(data_dir.name + ".log")
        self.process: subprocess.Popen[str] | Child | None = None

    def start(self) -> ServerProcess:
        """Start it and wait until it listens."""
        self.process = _begin(self._environ, self._log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the server did not start:\n{self.log()}")
        self.url = line
        return self

    def log(self) -> str:
        """What it wrote to its error stream."""
        return self._log.read_text()

    def stop(self) -> int:
        """Ask it to finish and wait."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code


@cache
def _nursery() -> Nursery:
    return Nursery()


def _begin(environ: dict[str, str], log: Path) -> subprocess.Popen[str] | Child:
    """A process that runs a server; where the system allows it, one that need not import it first."""
    if sys.platform == "linux":
        return _nursery().begin(environ, log)
    command = [sys.executable, "-m", "headrace.server"]
    with log.open("a") as file:
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=file, text=True)


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers by ``start_server(server__port="0", limits__body_bytes="1000", data="name")``."""
    started: list[ServerProcess] = []

    def start(*, data: str = "data", **settings: str) -> ServerProcess:
        server = ServerProcess(tmp_path / data, settings).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with default settings for all tests of a module."""
    running = ServerProcess(tmp_path_factory.mktemp("server") / "data", {}).start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, int]]:
    """The address of an S3 API for all tests of a module."""
    from support import s3

    with s3.service() as address:
        yield address


@pytest.fixture
def bucket(service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A bucket of its own there, to which the environment leads."""
    from support import s3

    made = s3.bucket(service)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()
