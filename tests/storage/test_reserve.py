from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import StoreUnavailable, Unavailable
from headrace.storage.database import WriteAheadLog
from headrace.storage.reserve import LEAST_BYTES, MiB, Reserve, is_disk_full

SIZE = 6 * MiB
LOG_PAGES = 256


class Disk:
    """A disk of some size on which only the reserve lies, and perhaps a log."""

    def __init__(self, path: Path, free: int) -> None:
        self.path = path
        self.size = self.total = free
        self._usage = shutil.disk_usage(path.parent)
        self.log = WriteAheadLog(path.with_name("headrace.db"), LOG_PAGES)

    def usage(self, _: Path) -> Any:
        return self._usage._replace(free=max(0, self.size - self.held - self.log_bytes), total=self.total)

    @property
    def log_bytes(self) -> int:
        return self.log.max_bytes - self.log.growth

    @property
    def held(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path / "reserve", 1024 * MiB)
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    return disk


@pytest.fixture
def reserve(disk: Disk) -> Reserve:
    return Reserve(disk.path, SIZE, disk.log)


def test_space_is_really_set_aside(disk: Disk, reserve: Reserve) -> None:
    assert disk.held == 0
    reserve.restock()
    assert disk.held == SIZE <= disk.path.stat().st_blocks * 512
    assert not reserve.is_out


def test_of_a_small_disk_only_a_part_is_taken(disk: Disk, reserve: Reserve) -> None:
    disk.size = 12 * MiB
    reserve.restock()
    assert disk.held == 3 * MiB
    reserve.restock()
    assert disk.held == 3 * MiB
    disk.size = 16 * MiB
    reserve.restock()
    assert disk.held == 4 * MiB
    disk.size = 48 * MiB
    reserve.restock()
    assert disk.held == SIZE


def test_of_a_tiny_disk_nothing_is_taken_and_nothing_can_be_given(disk: Disk, reserve: Reserve) -> None:
    disk.size = 3 * MiB
    reserve.restock()
    assert disk.held == 0
    assert not reserve.release()
    assert not reserve.is_out


def test_what_was_given_comes_back_when_there_is_room(disk: Disk, reserve: Reserve) -> None:
    reserve.restock()
    assert reserve.release()
    assert disk.held == 0
    assert reserve.is_out is True
    assert not reserve.release()
    disk.size = LEAST_BYTES
    reserve.restock()
    assert disk.held == 0
    assert reserve.is_out is True
    enough = LEAST_BYTES + disk.log.max_bytes
    disk.size = enough + disk.log.max_bytes + LEAST_BYTES - 1
    reserve.restock()
    assert disk.held == 0
    assert reserve.is_out is True
    disk.size += 1
    reserve.restock()
    assert disk.held == enough
    assert reserve.is_out is False


def test_what_the_log_takes_already_need_not_be_left_to_it(disk: Disk, reserve: Reserve) -> None:
    reserve.restock()
    reserve.release()
    disk.path.with_name("headrace.db-wal").write_bytes(bytes(disk.log.max_bytes + 100))
    assert disk.log.growth == 0
    disk.size = 2 * disk.log.max_bytes + 2 * LEAST_BYTES
    reserve.restock()
    assert disk.held == disk.log.max_bytes + LEAST_BYTES
    assert reserve.is_out is False


def test_a_disk_that_is_too_small_for_enough_gives_a_quarter(disk: Disk, reserve: Reserve) -> None:
    reserve.restock()
    reserve.release()
    disk.size = disk.total = 8 * MiB
    reserve.restock()
    assert disk.held == 8 * MiB - disk.log.max_bytes - LEAST_BYTES
    assert reserve.is_out is False
    reserve.release()
    disk.size = disk.log.max_bytes + LEAST_BYTES + 2 * MiB - 1
    reserve.restock()
    assert disk.held == 0
    assert reserve.is_out is True
    disk.size += 1
    reserve.restock()
    assert disk.held == 2 * MiB
    assert reserve.is_out is False


def test_nothing_is_kept_when_somebody_else_was_quicker(
    disk: Disk, reserve: Reserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(file: int, start: int, size: int) -> None:
        os.ftruncate(file, size // 2)
        raise OSError(errno.ENOSPC, "full")

    reserve.restock()
    reserve.release()
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", partly)
        reserve.restock()
    assert disk.held == 0
    assert reserve.is_out is True
    reserve.restock()
    assert disk.held == SIZE
    assert reserve.is_out is False


def test_an_earlier_run_has_left_one(disk: Disk) -> None:
    Reserve(disk.path, SIZE, disk.log).restock()
    assert Reserve(disk.path, SIZE, disk.log).release()
    assert disk.held == 0


def test_nothing_is_left_behind(disk: Disk, reserve: Reserve) -> None:
    reserve.restock()
    reserve.close()
    assert not disk.path.exists()
    reserve.close()


def _caused(reason: Exception, cause: Exception) -> Exception:
    reason.__cause__ = cause
    return reason


@pytest.mark.parametrize(
    ("reason", "is_full"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EIO, "broken"), False),
        (_caused(StoreUnavailable("refused"), OSError(errno.ENOSPC, "full")), True),
        (_caused(StoreUnavailable("refused"), OSError(errno.EACCES, "forbidden")), False),
        (Unavailable("full", reason="disk_full"), True),
        (Unavailable("stopping"), False),
        (None, False),
    ],
)
def test_a_full_disk_is_told_from_other_failures(reason: Exception | None, is_full: bool) -> None:
    assert is_disk_full(reason) is is_full


@pytest.mark.parametrize("is_there", [True, False])
def test_what_a_symbolic_link_in_its_place_leads_to_is_left_alone(
    tmp_path: Path, disk: Disk, reserve: Reserve, is_there: bool
) -> None:
    victim = tmp_path / "victim"
    if is_there:
        victim.write_text("precious")
    disk.path.symlink_to(victim)
    reserve.restock()
    assert not disk.path.is_symlink() and disk.held == SIZE
    assert disk.path.stat().st_mode & 0o777 == 0o600
    assert victim.exists() == is_there
    assert not is_there or victim.read_text() == "precious"
