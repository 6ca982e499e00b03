"""On a full disk only what frees space is done, with what was set aside for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from headrace.errors import Unavailable
from headrace.storage.reserve import LEAST_BYTES
from headrace.types import OCTETS
from rig import Rig

NUMBERS = count()
ENTRY = b"x" * 20_000


class FullDisk(apsw.VFS):
    """A file system without room for any larger file, as long as the reserve takes it."""

    def __init__(self, reserve: Path) -> None:
        self.name = f"full-{next(NUMBERS)}"
        self.reserve = reserve
        self.is_full = False
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def check(self, grows: bool) -> None:
        if self.is_full and grows and self.reserve.exists():
            raise apsw.FullError()


class _File(apsw.VFSFile):
    def __init__(self, disk: FullDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check(offset + len(data) > self.xFileSize())
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
