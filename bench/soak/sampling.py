"""What a server's process holds, looked at again and again while the block runs."""

from __future__ import annotations

import http.client
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

EVERY_S = 0.5
_HELD = re.compile(r'headrace_memory_held_bytes\{holder="(\w+)"\}')
#: Who holds memory that is not given back at rest, besides caches: what the process had when it started.
_PROCESS = "process"
#: What costs more is looked at once in so many samples.
_SELDOM = 10
_METRICS = (
    "headrace_memory_limit_bytes",
    "headrace_memory_refused_total",
    "headrace_memory_reliefs_total",
    "headrace_loop_stall_seconds_count",
    "headrace_loop_stall_seconds_sum",
    "headrace_loop_stall_busy_seconds_sum",
    "headrace_loop_longest_stall_seconds",
)


@dataclass
class Sample:
    """One look at a process: bytes, and how many there are."""

    at: float
    rss: int
    descriptors: int
    deleted: int
    threads: int
    wal: int
    disk: int = 0
    others_rss: int = 0


class Sampler:
    """Samples of one server process; ``most`` and ``of`` look over all of them."""

    def __init__(self, process: int, port: int, data_dir: Path) -> None:
        self._process, self._port, self._data_dir = process, port, data_dir
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)
        self.samples: list[Sample] = []
        #: The last value of each metric that the server has.
        self.metrics: dict[str, float] = {}
        #: The last account of memory, by holder.
        self.held: dict[str, float] = {}

    def __enter__(self) -> Sampler:
        self.samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def most(self, name: str) -> int:
        """The highest value of something."""
        return max(getattr(sample, name) for sample in self.samples)

    def rss(self, kind: str = "VmRSS") -> int:
        """The resident memory of the process now, or the part of it of a kind."""
        return _number(Path(f"/proc/{self._process}/status").read_text(), kind) * 1024

    def caches(self) -> int:
        """What the server says that its caches and queues hold now; 0 where it does not say."""
        self._read_metrics()
        return int(sum(size for holder, size in self.held.items() if holder != _PROCESS))

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                sample = self._sample()
            except OSError:
                return  # the server is gone, and whoever asks it will say so
            last = self.samples[-1]
            sample.disk, sample.others_rss = last.disk, last.others_rss
            if len(self.samples) % _SELDOM == 0:
                sample.disk, sample.others_rss = _size(self._data_dir), _descendants_rss(self._process)
                self._read_metrics()
            self.samples.append(sample)

    def _sample(self) -> Sample:
        status = Path(f"/proc/{self._process}/status").read_text()
        files = _open_files(self._process)
        wal = self._data_dir / "headrace.db-wal"
        return Sample(
            at=time.monotonic(),
            rss=_number(status, "VmRSS") * 1024,
            descriptors=len(files),
            deleted=sum(file.endswith(" (deleted)") for file in files),
            threads=_number(status, "Threads"),
            wal=wal.stat().st_size if wal.exists() else 0,
        )

    def _read_metrics(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name in _METRICS:
                self.metrics[name] = float(value)
            elif holder := _HELD.fullmatch(name):
                self.held[holder[1]] = float(value)


def _number(status: str, name: str) -> int:
    return int(status.split(f"{name}:")[1].split(maxsplit=1)[0])


def _open_files(process: int) -> list[str]:
    files = []
    for entry in os.scandir(f"/proc/{process}/fd"):
        try:
            files.append(os.readlink(entry.path))
        except FileNotFoundError:
            pass  # it was closed meanwhile
    return files


def _size(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # it was removed meanwhile
    return total


def _descendants_rss(process: int) -> int:
    """The memory of the processes below one: those of the pipeline."""
    total = 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            for child in (thread / "children").read_text().split():
                status = Path(f"/proc/{child}/status").read_text()
                total += _number(status, "VmRSS") * 1024 + _descendants_rss(int(child))
        except (OSError, IndexError):
            continue  # it has just ended
    return total
