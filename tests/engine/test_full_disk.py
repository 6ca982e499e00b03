"""On a full disk what fits into free pages is done, and what frees more, with what was set aside for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from headrace.errors import Unavailable
from headrace.storage import database
from headrace.storage.database import WriteAheadLog
from headrace.storage.page_checksums import checksum_vfs
from headrace.storage.reserve import LEAST_BYTES, MiB
from headrace.types import OCTETS
from support.engine_rig import Rig

NUMBERS = count()
ENTRY = b"x" * 20_000
PAGES = 200
#: Nothing can compress it.
LARGE = Random(4).randbytes(100_000)


class FullDisk(apsw.VFS):
    """A file system without room for any larger file, as long as the reserve takes it."""

    def __init__(self, reserve: Path) -> None:
        self.name = f"full-{next(NUMBERS)}"
        self.reserve = reserve
        self.is_full = False
        super().__init__(self.name, checksum_vfs())

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def check(self, growth: int) -> None:
        if self.is_full and growth > 0 and self.reserve.exists():
            raise apsw.FullError()


class SmallDisk(FullDisk):
    """A file system of some size, on which nothing lies but a data directory."""

    def __init__(self, reserve: Path, size: int) -> None:
        super().__init__(reserve)
        self.size = size

    @property
    def free(self) -> int:
        files = [path.stat().st_size for path in self.reserve.parent.rglob("*") if path.is_file()]
        return max(0, self.size - sum(files))

    def check(self, growth: int) -> None:
        if growth > self.free:
            raise apsw.FullError()


class _File(apsw.VFSFile):
    def __init__(self, disk: FullDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(checksum_vfs(), name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check(offset + len(data) - self.xFileSize())
        super().xWrite(data, offset)


@pytest.fixture
def disk(tmp_path: Path) -> FullDisk:
    return FullDisk(tmp_path / "reserve")


@pytest.fixture
def rig(tmp_path: Path, disk: FullDisk) -> Iterator[Rig]:
    with Rig(tmp_path, vfs=disk.name) as rig:
        yield rig
        disk.is_full = False


def _is_full(change: Callable[[], object]) -> None:
    with pytest.raises(Unavailable) as refusal:
        change()
    assert refusal.value.facts["reason"] == "disk_full"


def _appended(rig: Rig, name: str) -> bool:
    try:
        rig.append(name, LARGE)
    except Unavailable:
        return False
    return True


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A reader who sees the database as it is now, so that no checkpoint can go further."""
    reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    with reader:
        reader.execute("SELECT count(*) FROM streams").fetchall()
        yield
    reader.close()


def _no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=LEAST_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def test_a_deletion_goes_through_and_appends_wait_until_there_is_room(
    rig: Rig, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        rig.create(name, OCTETS, ENTRY)
    disk.is_full = True
    _no_room(monkeypatch)
    _is_full(lambda: rig.append("new", ENTRY))
    assert disk.reserve.exists()  # an append never takes it
    rig.delete("old")
    assert not disk.reserve.exists()
    for change in (lambda: rig.append("new", b"x"), lambda: rig.create("more"), lambda: rig.run(rig.engine.probe())):
        _is_full(change)
    rig.retain("new", size=1_000_000)
    assert rig.read("new") == [ENTRY]
    monkeypatch.undo()
    disk.is_full = False
    rig.sweep()
    assert disk.reserve.exists()
    assert rig.append("new", ENTRY).position == 2
    assert rig.read("new") == [ENTRY, ENTRY]


def test_without_the_reserve_only_what_fits_into_free_pages_is_appended(
    rig: Rig, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        rig.create(name, OCTETS)
    for _ in range(30):
        rig.append("old", LARGE)
    disk.is_full = True
    _no_room(monkeypatch)
    rig.delete("old")
    rig.sweep()
    assert not disk.reserve.exists()
    _is_full(lambda: rig.append("new", LARGE * 40))
    rig.append("new", LARGE)
    assert rig.read("new") == [LARGE]
    monkeypatch.undo()
    disk.is_full = False
    rig.sweep()
    assert rig.append("new", LARGE * 40).position == 2


def test_others_in_the_commit_of_a_deletion_are_told_that_the_disk_is_full(rig: Rig, disk: FullDisk) -> None:
    for name in ("old", "new"):
        rig.create(name, OCTETS, ENTRY)
    disk.is_full = True
    outcomes: list[Any] = []

    def both(done: Callable[[Any], None]) -> None:
        rig.submit("new", ENTRY, outcomes.append)
        rig.engine.log.delete(rig.find("old"), done)

    rig.settle(both)
    [append] = outcomes
    assert append.error.facts["reason"] == "disk_full"
    assert rig.engine.log.catalog.find("old") is None
    assert rig.read("new") == [ENTRY]
    rig.reopen()
    assert rig.read("new") == [ENTRY]


def test_a_node_starts_on_a_full_disk(rig: Rig, disk: FullDisk) -> None:
    rig.create("s", OCTETS, ENTRY)
    rig.run(rig.engine.close())
    disk.is_full = True
    rig.engine = rig.run(rig._open())
    assert rig.read("s") == [ENTRY]
    assert not disk.reserve.exists()
    disk.is_full = False
    rig.sweep()
    assert rig.append("s", b"more").position == 2


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    disk = SmallDisk(tmp_path / "reserve", 12 * MiB)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=disk.free, total=disk.size))
    return disk


@pytest.fixture
def small_rig(tmp_path: Path, small: SmallDisk) -> Iterator[Rig]:
    """An engine with a stream of 25 entries, and one that will take the rest of the disk."""
    with Rig(tmp_path, vfs=small.name, storage={"checkpoint_pages": PAGES}) as rig:
        for name in ("0", "1"):
            rig.create(name, OCTETS)
        for _ in range(25):
            rig.append("0", LARGE)
        yield rig
        small.size += 8 * MiB


def _fill(rig: Rig, name: str, small: SmallDisk, until_free: int = 0) -> int:
    """Append as long as there is room; answers how many entries fitted."""
    for number in range(100):
        if small.free < until_free or not _appended(rig, name):
            return number
    raise AssertionError("the disk never got full")


def _fill_beside_reader(rig: Rig, small: SmallDisk, until_free: int) -> None:
    """Take the whole disk, the last of it while nothing can be moved from the log into the database."""
    _fill(rig, "1", small, until_free)
    with _reading(small.reserve.with_name("headrace.db")):
        _fill(rig, "1", small)
    small.size -= small.free


@pytest.mark.parametrize("until_free", [0, 1 * MiB, 2 * MiB])
def test_what_deletions_free_can_be_filled_again_and_again_however_long_a_reader_made_the_log(
    small_rig: Rig, small: SmallDisk, until_free: int
) -> None:
    rig = small_rig
    _fill_beside_reader(rig, small, until_free)
    for number in range(4):
        rig.delete(str(number))
        rig.sweep()
        rig.create(str(number + 2), OCTETS)
        fitted = _fill(rig, str(number + 2), small)
        assert fitted >= 25 - LEAST_BYTES // len(LARGE) - 1
        assert rig.read(str(number + 2)) == [LARGE] * fitted
        left = rig.engine.connect().pragma("freelist_count") * database.PAGE_BYTES
        assert LEAST_BYTES - 2 * len(LARGE) < left < LEAST_BYTES
    assert small.reserve.with_name("headrace.db-wal").stat().st_size <= WriteAheadLog(small.reserve, PAGES).max_bytes
    small.size += 8 * MiB
    rig.sweep()
    assert small.reserve.exists()
    rig.create("new", OCTETS)
    assert _fill(rig, "new", small) > 0


def test_a_log_that_is_longer_than_the_reserve_waits_for_room(small_rig: Rig, small: SmallDisk) -> None:
    rig = small_rig
    _fill_beside_reader(rig, small, 3 * MiB)
    rig.delete("0")
    rig.sweep()
    _is_full(lambda: rig.append("1", LARGE))
    small.size += 8 * MiB
    rig.sweep()
    assert small.reserve.exists()
    assert _appended(rig, "1")
