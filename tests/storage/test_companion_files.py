from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from headrace.errors import CorruptData, Unavailable
from headrace.format.companion.layout import Companion, CompanionInfo, FieldShape
from headrace.format.companion.postings import SCHEMA
from headrace.format.companion.writer import write
from headrace.format.object_names import companion_key
from headrace.storage import companion_files as module
from headrace.storage.companion_files import CompanionFiles
from headrace.storage.objects import ObjectMissing, Objects
from storage.test_segments import Shelf
from support.stored_objects import flipped, open_files

MiB = 1 << 20
NUMBERS = count()
STREAM, INCARNATION = "stream", "1"
PARTS = ("columns", "postings")


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(shelf: Shelf, directory: Path, limit_bytes: int = MiB) -> CompanionFiles:
    return CompanionFiles(Objects(shelf), directory, limit_bytes=limit_bytes, decoded_bytes=MiB)


def made(directory: Path, text: str = "x", *, stream: str = STREAM, incarnation: str = INCARNATION) -> Companion:
    """A companion of one event, in files."""
    shape = FieldShape(kind="keyword", many=False, indexed=True, hash="0" * 16)
    info = CompanionInfo(
        stream=stream, incarnation=incarnation, first_seq=0, count=1, through_version=1, fields={"f": shape},
        rollups={}, keys=False, times=None, words={}, odd=0,
    )  # fmt: skip
    columns = pa.table({"seq": [0], "odd": [False], "f.f": [text]})
    postings = pa.table([["f"], [text], [[0]], [None]], schema=SCHEMA)
    directory.mkdir(parents=True, exist_ok=True)
    return write(directory, info, unique=f"{next(NUMBERS):08x}", columns=columns, postings=postings)


def stored(shelf: Shelf, tmp_path: Path, size: int = 0) -> Companion:
    """A companion in the store, of so many bytes that nothing can compress."""
    companion = made(tmp_path / "made", os.urandom(size // 2).hex() or "x")
    for part in PARTS:
        path = tmp_path / "made" / f"{companion.name}.{part}.parquet"
        shelf.objects[companion_key(STREAM, INCARNATION, companion.name, part)] = path.read_bytes()
    return companion


def ask(files: CompanionFiles, companion: Companion, *parts: Any) -> list[int]:
    with files.open(STREAM, INCARNATION, companion, parts or PARTS) as found:
        return [int(row) for row in found.rows_with_prefix("f", "")] if "columns" not in parts else [found.end_seq - 1]


def test_files_are_fetched_once_and_outlive_a_restart(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companion = stored(shelf, tmp_path)
    files = opened(shelf, directory)
    assert ask(files, companion) == ask(files, companion) == [0]
    assert shelf.reads == 2
    assert files.usage().fetches == 2
    assert files.usage().files == 2
    assert files.usage().opened == 1
    shelf.objects.clear()
    again = opened(shelf, directory)
    assert ask(again, companion) == [0]
    assert again.usage().fetches == 0


def test_only_the_parts_that_are_asked_are_fetched(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companion = stored(shelf, tmp_path)
    files = opened(shelf, directory)
    assert ask(files, companion, "columns") == [0]
    assert files.usage().fetches == 1
    assert ask(files, companion) == [0]
    assert files.usage().fetches == 2


def test_a_local_store_is_read_in_place(directory: Path, tmp_path: Path) -> None:
    objects = Objects.open(str(tmp_path / "objects"))
    place = objects.local_path(companion_key(STREAM, INCARNATION, "0-0-0", "columns"))
    assert place is not None
    place.parent.mkdir(parents=True)
    companion = made(place.parent)
    files = CompanionFiles(objects, directory, limit_bytes=MiB, decoded_bytes=MiB)
    assert ask(files, companion) == [0]
    assert not directory.exists()
    assert files.usage()[:2] == (0, 0)
    gone = made(place.parent)
    (place.parent / f"{gone.name}.columns.parquet").unlink()
    with pytest.raises(ObjectMissing):
        ask(files, gone)


def test_what_was_used_longest_ago_makes_room(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companions = [stored(shelf, tmp_path, 100_000) for _ in range(4)]
    files = opened(shelf, directory, 120_000)
    for companion in companions:
        ask(files, companion, "columns")
        assert files.usage().bytes == sum(path.stat().st_size for path in directory.iterdir()) <= 120_000
    fetched = files.usage().fetches
    ask(files, companions[-1], "columns")
    assert files.usage().fetches == fetched
    ask(files, companions[0], "columns")
    assert files.usage().fetches == fetched + 1


def test_files_in_use_stay(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companions = [stored(shelf, tmp_path, 100_000) for _ in range(3)]
    files = opened(shelf, directory, 1)
    with ExitStack() as stack:
        for companion in companions:
            stack.enter_context(files.open(STREAM, INCARNATION, companion, ["columns"]))
        assert len(list(directory.iterdir())) == 3
    assert list(directory.iterdir()) == [] and files.usage().bytes == 0


def test_two_that_want_the_same_wait_for_one_fetch(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companion = stored(shelf, tmp_path)
    files = opened(shelf, directory)
    shelf.gate.clear()
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(ask, files, companion) for _ in range(4)]
        assert shelf.asked.wait(10)
        shelf.gate.set()
        assert [answer.result() for answer in answers] == [[0]] * 4
    assert files.usage().fetches == 2


def test_what_is_not_what_was_written_is_refused_and_not_kept(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companion = stored(shelf, tmp_path)
    key = companion_key(STREAM, INCARNATION, companion.name, "columns")
    whole = shelf.objects[key]
    shelf.objects[key] = whole[:-1] + bytes([whole[-1] ^ 1])
    files = opened(shelf, directory)
    with pytest.raises(CorruptData, match="checksum"):
        ask(files, companion)
    assert files.usage().bytes == 0 and not list(directory.iterdir())
    shelf.objects[key] = whole
    assert ask(files, companion) == [0]


def test_an_object_that_is_missing_is_reported(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companion = stored(shelf, tmp_path)
    shelf.objects.clear()
    files = opened(shelf, directory)
    with pytest.raises(ObjectMissing):
        ask(files, companion)
    assert files.usage().files == 0


def test_a_full_disk_is_cleared_once(
    shelf: Shelf, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stored(shelf, tmp_path, 1000), stored(shelf, tmp_path, 1000)
    files = opened(shelf, directory)
    ask(files, first, "columns")
    download, failures = Objects.download, [True]

    def failing(self: Objects, key: str, size: int, file: BinaryIO) -> None:
        if failures and failures.pop():
            raise OSError(errno.ENOSPC, "full")
        download(self, key, size, file)

    monkeypatch.setattr(Objects, "download", failing)
    assert ask(files, second, "columns") == [0]
    assert len(list(directory.iterdir())) == 1
    failures += [True, True]
    with pytest.raises(Unavailable):
        ask(files, first, "columns")
    assert not list(directory.glob("*.part"))


def test_few_footers_stay_open(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    files = opened(shelf, directory)
    files.footer_bytes = 1
    for _ in range(3):
        ask(files, stored(shelf, tmp_path))
    assert files.usage().opened == 1


def test_few_files_stay_open_whatever_they_take(
    shelf: Shelf, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 6)
    files = opened(shelf, directory)
    companions = [stored(shelf, tmp_path) for _ in range(8)]
    for companion in [*companions, *reversed(companions)]:
        assert ask(files, companion) == [0]
        assert len(open_files(directory)) <= 6
    assert files.usage().opened == 3
    assert files.usage().open_bytes > 0


def test_files_of_removed_companions_are_closed(directory: Path, tmp_path: Path) -> None:
    objects = Objects.open(str(tmp_path / "objects"))
    place = objects.local_path(companion_key(STREAM, INCARNATION, "0-0-0", "columns"))
    assert place is not None
    place.parent.mkdir(parents=True)
    kept, removed = made(place.parent), made(place.parent)
    files = CompanionFiles(objects, directory, limit_bytes=MiB, decoded_bytes=MiB)
    assert ask(files, kept) == [0]
    assert ask(files, removed) == [0]
    keys = [companion_key(STREAM, INCARNATION, removed.name, part) for part in removed.parts]
    objects.delete(keys)
    assert len(open_files(tmp_path)) == 4
    files.forget([*keys, "segments/other"])
    assert [Path(path).name.split(".")[0] for path in open_files(tmp_path)] == [kept.name] * 2
    assert ask(files, kept) == [0]


def test_what_a_fetch_left_behind_goes(shelf: Shelf, directory: Path) -> None:
    directory.mkdir()
    (directory / "half.part").write_bytes(b"x")
    opened(shelf, directory)
    assert list(directory.iterdir()) == []


def test_a_copy_that_was_damaged_between_two_runs_is_fetched_again(
    shelf: Shelf, directory: Path, tmp_path: Path
) -> None:
    companion = stored(shelf, tmp_path)
    ask(opened(shelf, directory), companion)
    for path in sorted(directory.iterdir()):
        for place in range(0, path.stat().st_size, 41):
            flipped(path, place, place % 8)
            again = opened(shelf, directory)
            assert ask(again, companion) == [0]
            assert again.usage().dropped == 1
            assert again.usage().fetches == 1
            assert again.usage().bytes == sum(one.stat().st_size for one in directory.iterdir())


def test_a_copy_that_is_damaged_while_it_is_open_is_fetched_again(
    shelf: Shelf, directory: Path, tmp_path: Path
) -> None:
    companion = stored(shelf, tmp_path)
    files = CompanionFiles(Objects(shelf), directory, limit_bytes=MiB, decoded_bytes=0)
    assert ask(files, companion) == [0]
    for place in range(4, 300, 11):
        for path in directory.iterdir():
            flipped(path, place)
        assert ask(files, companion) == [0]
        for path in directory.iterdir():
            path.write_bytes(shelf.objects[key_of(companion, path.stem)])
    assert files.usage().dropped > 3


def test_damage_here_and_in_the_store_is_refused(shelf: Shelf, directory: Path, tmp_path: Path) -> None:
    companion = stored(shelf, tmp_path)
    ask(opened(shelf, directory), companion)
    for path in directory.iterdir():
        flipped(path, 9)
        shelf.objects[key_of(companion, path.stem)] = b"PAR1"
    again = opened(shelf, directory)
    for _ in range(2):
        with pytest.raises(CorruptData, match="checksum"):
            ask(again, companion)
    assert again.usage().bytes == sum(one.stat().st_size for one in directory.iterdir())


def test_a_footer_that_is_damaged_in_a_local_store_is_refused(directory: Path, tmp_path: Path) -> None:
    objects = Objects.open(str(tmp_path / "objects"))
    place = objects.local_path(companion_key(STREAM, INCARNATION, "0-0-0", "columns"))
    assert place is not None
    place.parent.mkdir(parents=True)
    companion = made(place.parent)
    for part in PARTS:
        path = place.parent / f"{companion.name}.{part}.parquet"
        for at in range(path.stat().st_size - 400, path.stat().st_size, 7):
            flipped(path, at)
            with pytest.raises(CorruptData):
                ask(CompanionFiles(objects, directory, limit_bytes=MiB, decoded_bytes=MiB), companion)
            flipped(path, at)


def test_a_footer_that_is_damaged_before_it_is_opened_again_is_refused(directory: Path, tmp_path: Path) -> None:
    objects = Objects.open(str(tmp_path / "objects"))
    place = objects.local_path(companion_key(STREAM, INCARNATION, "0-0-0", "columns"))
    assert place is not None
    place.parent.mkdir(parents=True)
    first, second = made(place.parent), made(place.parent)
    files = CompanionFiles(objects, directory, limit_bytes=MiB, decoded_bytes=MiB, footer_bytes=1)
    ask(files, first)
    ask(files, second)
    path = place.parent / f"{first.name}.columns.parquet"
    flipped(path, path.stat().st_size - 100)
    with pytest.raises(CorruptData, match="checksum"):
        ask(files, first)


def key_of(companion: Companion, sha256: str) -> str:
    part = next(name for name, part in companion.parts.items() if part.sha256 == sha256)
    return companion_key(STREAM, INCARNATION, companion.name, part)
