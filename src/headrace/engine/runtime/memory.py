"""Memory: the limit of the process, what it uses, and the caches that are shrunk when it uses too much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from headrace.config import MemoryConfig, MiB
from headrace.engine.runtime import allocators
from headrace.engine.runtime.background import BackgroundLoop
from headrace.engine.runtime.gates import Gates
from headrace.types import Clock, rfc3339

CHECK_S = 0.25
SAMPLE_S = 1.0
# Pressure begins at this part of the limit, and ends well below it, so that it does not flutter.
PRESSURE_AT = 0.85
RELEASED_AT = 0.9 * PRESSURE_AT
# From here on work is refused that takes much memory, until there is a little less.
REFUSED_AT, TAKEN_AT = 0.97, 0.93
#: Pages of files that count: the system drops pages of files where memory is short, but not those of running code.
FILE_SHARE = 4
#: Without a setting the limit is this part of the machine's memory, within these.
DEFAULT_SHARE, MIN_DEFAULT, MAX_DEFAULT = 2, 256 * MiB, 2048 * MiB
#: Caches are made smaller so often while there is pressure.
RELIEF_S = 2.0
#: Below this part of a processor the server has nothing to do; after so long free pages are given back, once.
IDLE_CPU, IDLE_S = 0.05, 5.0
#: While it works, free pages are given back no more often than this.
TRIM_S = 30.0
_TRIMMED_FREE = 64 * MiB


class ProcessMemory(msgspec.Struct, frozen=True):
    """The memory of this process by the kernel; None where it is unknown."""

    rss_bytes: int | None = None
    rss_anon_bytes: int | None = None
    rss_file_bytes: int | None = None
    rss_shmem_bytes: int | None = None
    peak_rss_bytes: int | None = None


_STATUS_LINES = {
    "VmRSS": "rss_bytes",
    "RssAnon": "rss_anon_bytes",
    "RssFile": "rss_file_bytes",
    "RssShmem": "rss_shmem_bytes",
    "VmHWM": "peak_rss_bytes",
}


def read_process(status: Path = Path("/proc/self/status")) -> ProcessMemory:
    """The process as it is now; all unknown where there is no such file."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return ProcessMemory()
    pairs = (line.partition(":")[::2] for line in lines)
    sizes = {_STATUS_LINES[name]: int(value.split()[0]) * 1024 for name, value in pairs if name in _STATUS_LINES}
    return ProcessMemory(**sizes)


def limit_bytes(config: MemoryConfig, root: Path = Path("/")) -> int | None:
    """The limit of this process; None where neither a setting nor the system has one.

    Without a setting it is a part of what the machine or the container has, and with auto-tune all of that.
    """
    if config.limit_mb:
        return config.limit_mb * MiB
    total = min(_system_limits(root), default=None)
    if total is None or config.auto_tune:
        return total
    return max(MIN_DEFAULT, min(total // DEFAULT_SHARE, MAX_DEFAULT))


def _system_limits(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            yield int(line.split()[1]) * 1024
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield from _group_limits(root / "sys/fs/cgroup", group, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _group_limits(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes")


def _group_limits(mount: Path, group: str, file: str) -> Iterator[int]:
    """The limits of a control group and of those around it; a container may see its own as the root."""
    group_path = Path(group.lstrip("/"))
    for path in (group_path, *group_path.parents):
        for line in _lines(mount / path / file):
            if line.strip().isdigit():
                yield int(line)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


class HighWater:
    """The highest value of every number in a tree, and when it was reached."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[str, Any] = {}

    def note(self, tree: Mapping[str, Any]) -> None:
        """Raise the marks that these numbers exceed; what is not a number is passed over."""
        self._note(tree, self._marks, rfc3339(self._clock.now_us()))

    def marks(self) -> dict[str, Any]:
        """The tree with ``{"value", "at"}`` in place of each number."""
        return self._marks

    def _note(self, tree: Mapping[str, Any], marks: dict[str, Any], at: str) -> None:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                self._note(value, marks.setdefault(name, {}), at)
            elif type(value) is int and (name not in marks or value > marks[name]["value"]):
                marks[name] = {"value": value, "at": at}


class Caches(Protocol):
    """Caches that can be shrunk."""

    def relieve(self) -> None:
        """Shrink them."""

    def balance(self) -> None:
        """Divide the available memory among them."""

    def drop_mapped_pages(self) -> None:
        """Evict the resident pages of mapped files."""


class MemoryMonitor:
    """Watches the memory of the process, and shrinks caches when it exceeds the limits.

    Under pressure the gates for searches and background work halve, caches shrink, and free pages go back to the
    system. Near the limit, work that takes much memory is refused. Free pages also go back when the server comes to
    rest.
    """

    def __init__(
        self,
        gates: Gates,
        *,
        limit_bytes: int | None,
        read: Callable[[], ProcessMemory] = read_process,
        caches: Caches | None = None,
        trim: Callable[[], None] = allocators.trim,
    ) -> None:
        self._gates = gates
        self._read = read
        self._caches = caches
        self._trim = trim
        self.limit_bytes = limit_bytes
        self.pressure_limit_bytes = None if limit_bytes is None else int(limit_bytes * PRESSURE_AT)
        #: From here on work is refused that takes much memory.
        self.refusal_limit_bytes = None if limit_bytes is None else int(limit_bytes * REFUSED_AT)
        self.pressure_active = False
        self.last = ProcessMemory()
        self.max_rss_bytes: int | None = None
        self.on_sample: list[Callable[[], None]] = []
        #: How often free pages were given back, how much resident memory that took away, and how often caches shrank.
        self.trims = self.trimmed_bytes = self.reliefs = 0
        self._relieved_at = self._trimmed_at = self._worked_at = time.monotonic()
        self._cpu_s = time.process_time()
        self._is_trimmed = False
        self._checks = 0
        self._loop = BackgroundLoop(
            "headrace.memory", self._check_again, failed="memory was not checked", retry_s=CHECK_S
        )
        self.sample()
        #: What the process held at first.
        self.first = self.last

    def sample(self) -> ProcessMemory:
        """Check memory, and call the hooks."""
        self.check()
        for hook in self.on_sample:
            hook()
        return self.last

    def check(self) -> None:
        """Measure the memory of the process, and react to pressure."""
        self.last = self._read()
        rss = self.last.rss_bytes
        if rss is not None:
            self.max_rss_bytes = max(rss, self.max_rss_bytes or 0, self.last.peak_rss_bytes or 0)
            self._judge(rss, self.last.rss_file_bytes or 0)

    def start(self) -> None:
        """Check memory from now on, several times for each sample."""
        self._loop.start(after_s=CHECK_S)

    async def stop(self) -> None:
        """Stop checking memory."""
        await self._loop.stop(timeout_s=0)

    async def _check_again(self) -> float:
        self._checks += 1
        if self._checks % max(1, round(SAMPLE_S / CHECK_S)):
            self.check()
            await self._upkeep()
        else:
            self.sample()
            if self._caches is not None:
                self._caches.balance()
        return CHECK_S

    def _judge(self, rss: int, files: int) -> None:
        if self.limit_bytes is None:
            return
        held = rss - files + min(files, self.limit_bytes // FILE_SHARE)
        if rss > self.limit_bytes * PRESSURE_AT and self._caches is not None:
            self._caches.drop_mapped_pages()
        if not self.pressure_active and held > self.limit_bytes * PRESSURE_AT:
            self.pressure_active = True
            self._gates.relieve()
        elif self.pressure_active and held < self.limit_bytes * RELEASED_AT:
            self.pressure_active = False
            self._gates.restore()
        shortage = self._gates.shortage
        shortage.is_on = held > self.limit_bytes * (TAKEN_AT if shortage.is_on else REFUSED_AT)

    async def _upkeep(self) -> None:
        """Shrink caches under pressure; give free pages back then, at rest, and now and then."""
        now = time.monotonic()
        if self.pressure_active and now - self._relieved_at >= RELIEF_S:
            self._relieved_at = now
            self.reliefs += 1
            if self._caches is not None:
                self._caches.relieve()
            await self._give_back()
        elif self._is_at_rest(now):
            if not self._is_trimmed:
                await self._give_back()
                self._is_trimmed = True
        elif now - self._trimmed_at >= TRIM_S:
            self._trimmed_at = now
            heap = allocators.heap_bytes()
            if heap is not None and heap[1] > _TRIMMED_FREE:
                await self._give_back()

    def _is_at_rest(self, now: float) -> bool:
        """Whether the process has been idle for a while."""
        cpu_s = time.process_time()
        if cpu_s - self._cpu_s > IDLE_CPU * CHECK_S:
            self._worked_at, self._is_trimmed = now, False
        self._cpu_s = cpu_s
        return now - self._worked_at >= IDLE_S

    async def _give_back(self) -> None:
        before = self._read().rss_bytes or 0
        await asyncio.to_thread(self._trim)
        self._trimmed_at, self._cpu_s = time.monotonic(), time.process_time()
        self.trims += 1
        self.trimmed_bytes += max(0, before - (self._read().rss_bytes or 0))
