from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.runtime import allocators
from headrace.engine.runtime.memory import read_process
from support.engine_rig import Rig

MiB = 1 << 20


def test_what_is_decoded_is_accounted_for_and_can_be_let_go(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s")
        rig.append("s", b",".join(b'{"text": "%s"}' % (b"x" * 500) for _ in range(2000)))
        rig.publish("s")
        assert rig.read("s")
        account = rig.engine.account
        account.add("answers", lambda: 7)
        before = account.held()
        assert before["decoded_segments"] > MiB // 2 and before["segment_footers"] > 0 and before["answers"] == 7
        assert before["sqlite"] > 0 and before["cached_streams"] > 0
        for _ in range(5):
            account.relieve()
        after = account.held()
        assert after["decoded_segments"] == 0
        assert after["segment_footers"] == 0
        assert rig.read("s")
        account.balance()
        account.drop_mapped_pages()


_ASKED_DURING_IMPORTS = """
import sys
from headrace.engine.memory_account import DuckDBMemory

memory, asked = DuckDBMemory(), []

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "duckdb":
            asked.append(name)
            assert memory.bytes() == 0

sys.meta_path.insert(0, Finder())
import headrace.reduce.duck
assert asked
"""


def test_memory_is_measured_while_a_thread_still_imports_what_holds_it() -> None:
    """The server imports some modules only when it has begun to answer, and each is known before it is whole."""
    done = subprocess.run(
        [sys.executable, "-c", _ASKED_DURING_IMPORTS], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_pages_of_a_mapped_file_can_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(b"x" * (32 * MiB))
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    assert set(pages[::4096]) == {ord("x")}
    filled = read_process().rss_file_bytes
    if filled is None:
        pytest.skip("this system does not say what is resident")
    import numpy as np

    address = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    allocators.drop_mapped_pages(address, len(pages))
    left = read_process().rss_file_bytes
    assert left is not None and left < filled - 24 * MiB
    assert pages[:4] == b"xxxx" and pages[-4:] == b"xxxx"
