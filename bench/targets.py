"""The servers under test: how each is started, and what makes its appends durable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import peers


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
    #: The measures that it takes part in, if not in all.
    only: tuple[str, ...] = ()
    #: Before the paths of features.
    features: str = "/v1"

    def joins(self, measure: str) -> bool:
        """Whether it takes part in a measure."""
        return not self.only or measure in self.only

    def with_settings(self, **environment: str) -> Target:
        """The same server with more in its environment."""
        return replace(self, environment={**self.environment, **environment})

    def with_flags(self, *flags: str) -> Target:
        """The same server with more flags."""
        command = self.command
        return replace(self, command=lambda port, home: [*command(port, home), *flags])


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


def _beava(port: int, directory: Path) -> list[str]:
    addresses = ["--http-addr", f"127.0.0.1:{port}", "--tcp-addr", "127.0.0.1:0"]
    return [peers.beava(), *addresses, "--data-dir", str(directory)]


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
    Target(
        name="beava",
        title="beava",
        durability="answers BEFORE fsync: a log in memory that is written and synced every 20 ms",
        command=_beava,
        environment={"BEAVA_ADMIN_ADDR": "127.0.0.1:0"},
        health="/v1/stream/none",
        only=("features", "entities"),
        features="",
    ),
)
