from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import ConfigError
from headrace.errors import Unavailable
from headrace.storage.lock import DirectoryLock, make_directory


def test_a_new_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "data"
    make_directory(directory)
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o750)
    make_directory(directory)
    assert directory.stat().st_mode & 0o777 == 0o750


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
