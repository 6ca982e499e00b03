from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.config import ConfigError
from headrace.errors import Unavailable
from headrace.storage.lock import DirectoryLock, make_directory


def test_a_new_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "data"
    make_directory(directory)
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("found", "mode", "wanted"), [
    (0o755, 0o700, 0o700), (0o777, 0o700, 0o700), (0o500, 0o700, 0o500), (0o755, 0o710, 0o710), (0o700, 0o711, 0o711),
    (0o1777, 0o700, 0o1777),
])  # fmt: skip
def test_a_directory_that_others_may_open_is_tightened_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, found: int, mode: int, wanted: int
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(found)
    make_directory(directory, mode)
    assert directory.stat().st_mode & 0o7777 == wanted
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == bool(found & 0o077 & ~mode)
    assert all(str(directory) in warning and f"{found:04o}" in warning for warning in warnings)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
def test_directories_are_made_for_their_owner_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_directory(tmp_path / "a" / "b" / "c")
        lock = DirectoryLock(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    lock.release()
    for name in ("a", "a/b", "a/b/c"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a/b/c/lock").stat().st_mode & 0o777 & ~0o600 == 0


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lock_that_leads_elsewhere_is_refused_and_nothing_is_written(tmp_path: Path, is_there: bool) -> None:
    victim = tmp_path / "victim"
    if is_there:
        victim.write_text("precious")
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "lock").symlink_to(victim)
    with pytest.raises(Unavailable, match=r"is a symbolic link.*remove it"):
        DirectoryLock(tmp_path / "data")
    assert victim.exists() == is_there
    assert not is_there or victim.read_text() == "precious"


@pytest.mark.parametrize("place", ["file", "file/data"])
def test_a_place_that_cannot_hold_the_log_is_refused_with_a_way_out(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="choose another with --data-dir"):
        make_directory(tmp_path / place)


def test_a_directory_is_held_by_one_and_let_go_of(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(Unavailable, match="stop it, or choose another --data-dir"):
        DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()
