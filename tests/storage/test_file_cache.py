"""A cache of files against a model, and what is kept open."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import CorruptData
from headrace.storage.file_cache import CachedFile, FileCache, OpenFiles

LIMIT, SUFFIX = 100, ".x"
NAMES = st.sampled_from([f"{number:064x}" for number in range(6)])


def content(sha256: str) -> bytes:
    """What the file of an object holds: 10 to 60 bytes."""
    return b"x" * (10 * (int(sha256, 16) + 1))


class Caching(RuleBasedStateMachine):
    """Files are made, held, pruned, discarded, damaged and found again by the next cache."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.directory = Path(self.temporary.name)
        self.removed: list[str] = []
        self.held: list[CachedFile] = []
        self.open()

    def open(self) -> None:
        self.cache = FileCache(self.directory, SUFFIX, limit_bytes=LIMIT, on_remove=self.removed.append)

    def make(self, file: CachedFile) -> Path:
        def write(path: Path) -> str:
            path.write_bytes(content(file.sha256))
            return ""

        return self.cache.ensure(file, len(content(file.sha256)), write)

    @rule(sha256=NAMES)
    def hold(self, sha256: str) -> None:
        file = self.cache.pin(sha256)
        assert self.make(file).read_bytes() == content(sha256)
        self.held.append(file)

    @rule(sha256=NAMES)
    def fail(self, sha256: str) -> None:
        def write(path: Path) -> str:
            path.write_bytes(b"half")
            raise CorruptData("no such object")

        with self.cache.pinned(sha256) as file:
            if not file.size:
                with pytest.raises(CorruptData):
                    self.cache.ensure(file, 1, write)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.cache.unpin(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        file, dropped = data.draw(st.sampled_from(self.held)), self.cache.dropped

        def write(path: Path) -> str:
            path.write_bytes(content(file.sha256))
            return ""

        path = self.cache.replace(file, "the object", len(content(file.sha256)), write)
        assert path.read_bytes() == content(file.sha256)
        assert self.cache.dropped == dropped + 1

    @rule(listed=st.sets(NAMES))
    def prune(self, listed: set[str]) -> None:
        unlisted = {file.sha256 for file in self.held if file.sha256 not in listed}
        assert self.cache.prune(listed) == len(unlisted)
        assert self.on_disk() <= listed | unlisted

    @rule(names=st.sets(NAMES))
    def discard(self, names: set[str]) -> None:
        self.cache.discard(names)
        assert self.on_disk().isdisjoint(names - {file.sha256 for file in self.held})

    @rule()
    def reopen(self) -> None:
        while self.held:
            self.cache.unpin(self.held.pop())
        before = self.on_disk()
        (self.directory / "cut.part").touch()
        self.open()
        assert self.on_disk() == before and not (self.directory / "cut.part").exists()

    def teardown(self) -> None:
        self.temporary.cleanup()

    def on_disk(self) -> set[str]:
        return {path.stem for path in self.directory.iterdir()}

    @invariant()
    def the_disk_holds_what_is_counted_and_little_that_is_not_held(self) -> None:
        held = {file.sha256 for file in self.held}
        assert self.cache.bytes == sum(path.stat().st_size for path in self.directory.iterdir())
        assert held <= self.on_disk()
        assert self.cache.held_bytes(self.on_disk()) == self.cache.bytes
        assert self.cache.bytes <= LIMIT or self.on_disk() == held


TestCaching = Caching.TestCase
TestCaching.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_threads_that_want_one_file_wait_for_it_to_be_made_once(tmp_path: Path) -> None:
    cache, made, gate = FileCache(tmp_path, SUFFIX, limit_bytes=LIMIT), [], threading.Barrier(4)

    def write(path: Path) -> str:
        made.append(path)
        path.write_bytes(b"xyz")
        return "-tag"

    def want() -> None:
        with cache.pinned("ab") as file:
            gate.wait(20)
            assert cache.ensure(file, 3, write).name == "ab-tag.x"
            assert file.verified

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(made) == 1 == cache.fetches
    assert (tmp_path / "ab-tag.x").read_bytes() == b"xyz"


def test_what_is_open_is_bounded_in_files_and_in_memory() -> None:
    opened: OpenFiles[str, tuple[int, int]] = OpenFiles(
        5, limit_bytes=100, footprint=lambda pair: pair[0], files=lambda pair: pair[1]
    )
    assert opened.put("a", (10, 2)) == opened.put("b", (10, 2)) == []
    assert opened.get("a") == (10, 2)
    assert opened.put("c", (10, 2)) == [(10, 2)] and opened.peek("b") is None
    assert opened.put("d", (85, 1)) == [(10, 2)]
    assert opened.put("e", (500, 9)) == [(10, 2), (85, 1)], "one stays, however large"
    assert len(opened) == 1
    assert opened.bytes == 500
    assert opened.pop_where(lambda key, pair: key == "e") == ["e"] and opened.pop("e") is None
    opened.put("f", (1, 1))
    opened.put("g", (2, 1))
    assert opened.pop_oldest(1) == [(1, 1)] and opened.clear() == [(2, 1)]
