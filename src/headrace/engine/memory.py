"""Memory: the limit we live under, what the process holds, and the relief when it becomes too much."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import MiB
from headrace.engine.gates import Gates
from headrace.types import Clock, rfc3339

SAMPLE_S = 1.0
# Pressure begins at this part of the limit, and ends well below it, so that it does not flutter.
PRESSURE_AT = 0.85
RELEASED_AT = 0.9 * PRESSURE_AT


# Parameters of glibc's mallopt: what is larger gets pages of its own, and how much free memory a heap keeps.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 4 * MiB), (-1, 16 * MiB)


def keep_freed_pages() -> None:
    """Let one answer of a mebibyte use the pages of the last: asking the kernel for new ones costs more than copying.

    Nothing happens where the C library is not glibc.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(parameter, value)


class ProcessMemory(msgspec.Struct, frozen=True):
    """What the kernel says this process holds; None where it does not say."""

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
    found = {_STATUS_LINES[name]: int(value.split()[0]) * 1024 for name, value in pairs if name in _STATUS_LINES}
    return ProcessMemory(**found)


def limit_bytes(given_mb: int = 0, root: Path = Path("/")) -> int | None:
    """The limit given, or the least of the container's and the machine's; None where nobody knows one."""
    if given_mb:
        return given_mb * MiB
    return min(_system_limits(root), default=None)


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
    place = Path(group.lstrip("/"))
    for part in (place, *place.parents):
        for line in _lines(mount / part / file):
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


class MemoryMonitor:
    """Looks at the process once a second, and narrows the gates while it holds too much."""

    def __init__(
        self, gates: Gates, *, limit_bytes: int | None, read: Callable[[], ProcessMemory] = read_process
    ) -> None:
        self._gates = gates
        self._read = read
        self.limit_bytes = limit_bytes
        self.pressure_limit_bytes = None if limit_bytes is None else int(limit_bytes * PRESSURE_AT)
        self.pressure_active = False
        self.last = ProcessMemory()
        self.max_rss_bytes: int | None = None
        self.on_sample: list[Callable[[], None]] = []
        self.sample()

    def sample(self) -> ProcessMemory:
        """Look once, and act on it."""
        self.last = self._read()
        rss = self.last.rss_bytes
        if rss is not None:
            self.max_rss_bytes = max(rss, self.max_rss_bytes or 0, self.last.peak_rss_bytes or 0)
            # Pages of files can be dropped, and columns in files that many questions read may be many.
            self._judge(rss - (self.last.rss_file_bytes or 0))
        for hook in self.on_sample:
            hook()
        return self.last

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.sample()

    def _judge(self, rss: int) -> None:
        if self.limit_bytes is None:
            return
        if not self.pressure_active and rss > self.limit_bytes * PRESSURE_AT:
            self.pressure_active = True
            self._gates.relieve()
        elif self.pressure_active and rss < self.limit_bytes * RELEASED_AT:
            self.pressure_active = False
            self._gates.restore()
