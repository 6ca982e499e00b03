from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config import LimitsConfig, MemoryConfig, MiB
from headrace.engine.runtime import memory
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import HighWater, MemoryMonitor, ProcessMemory

GiB = 1024 * MiB


def _machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


_COPIES = """
import resource
from headrace.engine.runtime.allocators import configure

configure()
source, rounds = memoryview(bytes(1 << 20)), 200
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(rounds):
    b"[" + bytes(source) + b"]"
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // rounds)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_answers_of_a_mebibyte_use_the_same_pages_again() -> None:
    done = subprocess.run([sys.executable, "-c", _COPIES], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 20  # of 768 that the copies of one round have


_MEMINFO = {"proc/meminfo": "MemTotal:        8388608 kB\nMemFree:  100 kB\n"}


_WHOLE = MemoryConfig(auto_tune=True)


@pytest.mark.parametrize("auto_tune", [False, True])
def test_a_given_limit_counts_before_all_others(tmp_path: Path, auto_tune: bool) -> None:
    config = MemoryConfig(limit_mb=300, auto_tune=auto_tune)
    assert memory.limit_bytes(config, _machine(tmp_path, _MEMINFO)) == 300 * MiB


def test_with_auto_tune_the_limit_is_all_of_the_machine(tmp_path: Path) -> None:
    assert memory.limit_bytes(_WHOLE, _machine(tmp_path, _MEMINFO)) == 8 * GiB


@pytest.mark.parametrize(
    ("machine_mb", "limit_mb"), [(100, 256), (600, 300), (3000, 1500), (8192, 2048), (10**6, 2048)]
)
def test_without_a_setting_the_limit_is_a_part_of_the_machine(tmp_path: Path, machine_mb: int, limit_mb: int) -> None:
    machine = _machine(tmp_path, {"proc/meminfo": f"MemTotal: {machine_mb * 1024} kB\n"})
    assert memory.limit_bytes(MemoryConfig(), machine) == limit_mb * MiB


def test_without_a_setting_the_limit_is_a_part_of_the_container(tmp_path: Path) -> None:
    group = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": str(1200 * MiB)}
    assert memory.limit_bytes(MemoryConfig(), _machine(tmp_path, _MEMINFO | group)) == 600 * MiB


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"},
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.max": "1073741824\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
        },
        {
            "proc/self/cgroup": "5:cpu:/x\n4:memory:/box/1\n0::/\n",
            "sys/fs/cgroup/memory/box/1/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        # The group of the host is named, but the container sees its own as the root.
        {
            "proc/self/cgroup": "4:memory,other:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
        },
    ],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, files: dict[str, str]) -> None:
    assert memory.limit_bytes(_WHOLE, _machine(tmp_path, _MEMINFO | files)) == GiB


def test_where_nobody_knows_a_limit_there_is_none(tmp_path: Path) -> None:
    assert memory.limit_bytes(MemoryConfig(), tmp_path) is None


def test_this_process_has_memory() -> None:
    seen = memory.read_process()
    assert seen.rss_bytes is not None
    assert seen.rss_bytes > 5 * MiB
    assert seen.peak_rss_bytes is not None
    assert seen.peak_rss_bytes >= seen.rss_bytes * 0.9


def test_where_the_kernel_does_not_say_everything_is_unknown(tmp_path: Path) -> None:
    assert memory.read_process(tmp_path / "status") == ProcessMemory()


class _Process:
    """A process whose memory the test decides."""

    def __init__(self) -> None:
        self.rss_bytes: int | None = 100

    def __call__(self) -> ProcessMemory:
        return ProcessMemory(rss_bytes=self.rss_bytes)


def test_pressure_halves_the_gates_and_lifts_only_well_below_the_threshold() -> None:
    process, gates = _Process(), Gates(LimitsConfig(concurrent_searches=4))
    monitor = MemoryMonitor(gates, limit_bytes=1000, read=process)
    seen = []
    for rss in (850, 851, 800, 766, 764, 800, 849):
        process.rss_bytes = rss
        monitor.sample()
        seen.append((monitor.pressure_active, gates.search.current_limit))
    tight, loose = (True, 2), (False, 4)
    assert seen == [loose, tight, tight, tight, loose, loose, loose]
    assert monitor.pressure_limit_bytes == 850
    assert monitor.max_rss_bytes == 851


def test_pages_of_files_are_no_reason_for_pressure() -> None:
    held = ProcessMemory(rss_bytes=1700, rss_file_bytes=1200)
    monitor = MemoryMonitor(Gates(LimitsConfig()), limit_bytes=1000, read=lambda: held)
    assert not monitor.pressure_active and monitor.max_rss_bytes == 1700


def test_pages_of_code_count_for_a_quarter_of_the_limit() -> None:
    held = ProcessMemory(rss_bytes=1820, rss_file_bytes=1200)
    assert MemoryMonitor(Gates(LimitsConfig()), limit_bytes=1000, read=lambda: held).pressure_active


class _Caches:
    """Counts what it is told to do."""

    def __init__(self) -> None:
        self.relieved = self.balanced = self.dropped = 0

    def relieve(self) -> None:
        self.relieved += 1

    def balance(self) -> None:
        self.balanced += 1

    def drop_mapped_pages(self) -> None:
        self.dropped += 1


def test_near_the_limit_work_is_refused_until_there_is_less() -> None:
    process, gates = _Process(), Gates(LimitsConfig())
    monitor = MemoryMonitor(gates, limit_bytes=1000, read=process)
    seen = []
    for rss in (970, 971, 940, 931, 930, 970):
        process.rss_bytes = rss
        monitor.sample()
        seen.append(gates.shortage.is_on)
    assert seen == [False, True, True, True, False, False]
    assert monitor.pressure_limit_bytes == 850
    assert monitor.refusal_limit_bytes == 970


async def _looked(monitor: MemoryMonitor, done: Callable[[], bool]) -> None:
    """Watch until something holds."""
    monitor.start()
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.001)
    await monitor.stop()


def test_under_pressure_caches_shrink_again_and_again_and_free_pages_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "CHECK_S", 0.001)
    monkeypatch.setattr(memory, "SAMPLE_S", 0.004)
    monkeypatch.setattr(memory, "RELIEF_S", 0.002)
    process, caches, trims = _Process(), _Caches(), [0]

    def trim() -> None:
        trims[0] += 1
        process.rss_bytes = 900 - trims[0]

    async def scenario() -> None:
        process.rss_bytes = 900
        monitor = MemoryMonitor(Gates(LimitsConfig()), limit_bytes=1000, read=process, caches=caches, trim=trim)
        await _looked(monitor, lambda: monitor.trims >= 3 and caches.balanced > 0)
        assert monitor.reliefs >= 3 and caches.relieved >= 3 and caches.dropped >= 3
        assert monitor.trimmed_bytes >= 3

    asyncio.run(scenario())


def test_free_pages_are_given_back_once_when_the_server_comes_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CHECK_S", 0.001)
    monkeypatch.setattr(memory, "SAMPLE_S", 0.004)
    monkeypatch.setattr(memory, "IDLE_S", 0.01)
    monkeypatch.setattr(memory, "IDLE_CPU", 10**6)
    caches = _Caches()

    async def scenario() -> None:
        monitor = MemoryMonitor(
            Gates(LimitsConfig()), limit_bytes=1000, read=_Process(), caches=caches, trim=lambda: None
        )
        await _looked(monitor, lambda: monitor.trims > 0)
        balanced = caches.balanced
        await _looked(monitor, lambda: caches.balanced > balanced + 3)
        assert monitor.trims == 1
        assert caches.relieved == 0

    asyncio.run(scenario())


_FREED = """
import random, threading
from headrace.engine.runtime import allocators
from headrace.engine.runtime.memory import read_process

allocators.configure()
kept = []

def work():
    blocks = [bytes(random.Random(n).randrange(20_000, 200_000)) for n in range(400)]
    kept.append(blocks[::50])

threads = [threading.Thread(target=work) for _ in range(4)]
before = read_process().rss_bytes
[thread.start() for thread in threads]
[thread.join() for thread in threads]
allocators.trim()
used, free = allocators.heap_bytes()
print(read_process().rss_bytes - before, used)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_what_threads_have_freed_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, timeout=60, check=True)
    grown, used = map(int, done.stdout.split())
    assert grown < 16 * MiB  # of 170, of which 4 are still used
    assert used > 3 * MiB


_ARROW_FREED = """
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from headrace.engine.runtime import allocators
from headrace.engine.runtime.memory import read_process

allocators.use_jemalloc_in_arrow()
allocators.configure()
import pyarrow as pa, pyarrow.parquet as pq
from headrace.format import decoded_columns

decoded_columns.keep_freed_pages()
table = pa.table({"text": [f"x{n}" * 10 for n in range(50_000)], "n": range(50_000)})

def work(_):
    pq.write_table(table, BytesIO())
    table.group_by("text").aggregate([("n", "sum")])

before = read_process().rss_anon_bytes
with ThreadPoolExecutor(8) as threads:
    list(threads.map(work, range(40)))
    until = time.monotonic() + 10  # jemalloc keeps pages for a second
    while read_process().rss_anon_bytes - before > 32 << 20 and time.monotonic() < until:
        time.sleep(0.2)
        allocators.trim()
    print(read_process().rss_anon_bytes - before)
"""
_FIRST_IMPORT = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            print(os.environ.get("ARROW_DEFAULT_MEMORY_POOL"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Finder())
"""
_STARTS = {
    "server": "import runpy; runpy.run_module('headrace.server', run_name='__main__')",
    "serve": "sys.argv = ['headrace', 'serve', '--port', '0']; from headrace.cli.main import main; main()",
    "up": "sys.argv = ['headrace', 'up', '--port', '0']; from headrace.cli.main import main; main()",
}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="Arrow has jemalloc there")
def test_what_arrow_has_freed_in_threads_goes_back_to_the_system() -> None:
    kept = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run(
        [sys.executable, "-c", _ARROW_FREED], env=kept, capture_output=True, text=True, timeout=100, check=True
    )
    assert int(done.stdout) <= 32 * MiB  # with Arrow's own choice 230 are left


@pytest.mark.skipif(sys.platform != "linux", reason="Arrow has jemalloc there")
@pytest.mark.parametrize("chosen", [None, "system"])
@pytest.mark.parametrize("start", _STARTS)
def test_arrow_is_loaded_with_an_allocator_that_gives_memory_back(
    tmp_path: Path, start: str, chosen: str | None
) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    environ |= {"HEADRACE_STORAGE__DATA_DIR": str(tmp_path / "data"), "HEADRACE_SERVER__PORT": "0"}
    if chosen is not None:
        environ["ARROW_DEFAULT_MEMORY_POOL"] = chosen
    command = [sys.executable, "-c", _FIRST_IMPORT + _STARTS[start]]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == [chosen or "jemalloc"]


def test_without_a_limit_or_a_reading_there_is_no_pressure() -> None:
    process, gates = _Process(), Gates(LimitsConfig())
    process.rss_bytes = 10**15
    assert not MemoryMonitor(gates, limit_bytes=None, read=process).pressure_active
    process.rss_bytes = None
    silent = MemoryMonitor(gates, limit_bytes=1, read=process)
    assert not silent.pressure_active
    assert silent.max_rss_bytes is None


def test_watching_samples_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CHECK_S", 0.001)
    monkeypatch.setattr(memory, "SAMPLE_S", 0.004)

    async def scenario() -> None:
        monitor = MemoryMonitor(Gates(LimitsConfig()), limit_bytes=GiB)
        sampled = asyncio.Semaphore(0)
        monitor.on_sample.append(sampled.release)
        monitor.start()
        for _ in range(3):
            await asyncio.wait_for(sampled.acquire(), 10)
        await monitor.stop()

    asyncio.run(scenario())


class _Clock:
    now = 0

    def now_us(self) -> int:
        return self.now


def test_high_water_keeps_the_highest_value_and_its_moment() -> None:
    clock = _Clock()
    water = HighWater(clock)
    water.note({"process": {"rss": 5, "heap": None}, "source": "text", "flag": True})
    clock.now = 1_000_000
    water.note({"process": {"rss": 7, "heap": 1}})
    clock.now = 2_000_000
    water.note({"process": {"rss": 6, "heap": 1}})
    at = "1970-01-01T00:00:01Z"
    assert water.marks() == {"process": {"rss": {"value": 7, "at": at}, "heap": {"value": 1, "at": at}}}
