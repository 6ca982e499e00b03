from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from headrace.errors import CorruptData, Unavailable
from headrace.format.manifest import Segment
from headrace.storage import segments as module
from headrace.storage.file_cache import max_open_files
from headrace.storage.object_backends import ObjectInfo
from headrace.storage.objects import ObjectMissing, Objects, StoreUnavailable
from headrace.storage.segments import Segments
from support.segment_files import Cell, published
from support.stored_objects import flipped

MiB = 1 << 20


class Shelf:
    """A backend in memory that can be slow, and can fail."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads = 0
        self.failure: OSError | None = None
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads += 1
        self.asked.set()
        self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][start : start + length]

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def create(self, key: str, data: bytes) -> bool:
        raise NotImplementedError

    def upload(self, key: str, path: Path) -> None:
        raise NotImplementedError

    def get(self, key: str) -> bytes:
        raise NotImplementedError

    def head(self, key: str) -> ObjectInfo:
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        raise NotImplementedError

    def delete(self, keys: Sequence[str]) -> None:
        raise NotImplementedError


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(shelf: Shelf, directory: Path) -> Segments:
    return Segments(Objects(shelf), directory, limit_bytes=MiB, decoded_bytes=MiB)


def stored(shelf: Shelf, key: str, text: bytes = b"1", size: int = 0) -> Segment:
    """A segment in the store, of one short text or of so many bytes that nothing can compress."""
    if size:
        shelf.objects[key], segment = published([Cell(os.urandom(size))], is_json=False)
    else:
        shelf.objects[key], segment = published([Cell(text)])
    return segment


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def text_of(cache: Segments, key: str, segment: Segment) -> bytes:
    with cache.open(key, segment) as reader:
        return bytes(reader.read(reader.first_seq, reader.end_seq, 1 << 30).parts[0].body)


def test_a_segment_is_fetched_once(cache: Segments, shelf: Shelf, directory: Path) -> None:
    segment = stored(shelf, "segments/a", b'"hello"')
    assert cache.ready(segment) is None
    assert [text_of(cache, "segments/a", segment) for _ in range(3)] == [b'"hello"'] * 3
    assert shelf.reads == cache.usage().fetches == 1
    assert files(directory) == {f"{segment.sha256}.parquet"}
    assert cache.usage().bytes == segment.bytes
    assert cache.usage().files == 1
    assert cache.usage().readers == 1
    assert cache.ready(segment) is not None


def test_a_restart_finds_what_was_fetched(cache: Segments, shelf: Shelf, directory: Path) -> None:
    segment = stored(shelf, "segments/a")
    text_of(cache, "segments/a", segment)
    (directory / "0123.part").write_bytes(b"cut short")
    again = Segments(Objects(shelf), directory, limit_bytes=MiB, decoded_bytes=MiB)
    assert again.usage().bytes == segment.bytes
    assert files(directory) == {f"{segment.sha256}.parquet"}
    assert text_of(again, "segments/a", segment) == b"1"
    assert shelf.reads == 1


def test_a_file_that_was_damaged_here_is_fetched_again(cache: Segments, shelf: Shelf, directory: Path) -> None:
    segment = stored(shelf, "segments/a")
    text_of(cache, "segments/a", segment)
    path = directory / f"{segment.sha256}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    again = Segments(Objects(shelf), directory, limit_bytes=MiB, decoded_bytes=MiB)
    assert text_of(again, "segments/a", segment) == b"1"
    assert shelf.reads == 2


@pytest.mark.parametrize("damage", ["changed", "short", "empty"])
def test_an_object_that_is_not_what_was_written_is_named(cache: Segments, shelf: Shelf, damage: str) -> None:
    segment, other = stored(shelf, "segments/a"), stored(shelf, "segments/b", b"2")
    data = shelf.objects["segments/a"]
    shelf.objects["segments/a"] = {"changed": data[:50] + b"\xff" + data[51:], "short": data[:-9], "empty": b""}[damage]
    for _ in range(2):
        with pytest.raises(CorruptData, match="segments/a is not what was written") as caught:
            text_of(cache, "segments/a", segment)
        assert caught.value.facts["object"] == "segments/a"
    assert text_of(cache, "segments/b", other) == b"2"
    shelf.objects["segments/a"] = data
    assert text_of(cache, "segments/a", segment) == b"1"


def test_a_missing_object_is_named(cache: Segments, shelf: Shelf, directory: Path) -> None:
    segment = stored(shelf, "segments/a")
    del shelf.objects["segments/a"]
    with pytest.raises(ObjectMissing, match="segments/a is missing"):
        text_of(cache, "segments/a", segment)
    assert files(directory) == set()
    assert cache.usage().bytes == 0


def test_a_store_that_fails_leaves_no_trace(cache: Segments, shelf: Shelf, directory: Path) -> None:
    segment = stored(shelf, "segments/a")
    shelf.failure = OSError(errno.ECONNRESET, "reset")
    with pytest.raises(StoreUnavailable):
        text_of(cache, "segments/a", segment)
    assert files(directory) == set()
    assert cache.usage().bytes == 0
    shelf.failure = None
    assert text_of(cache, "segments/a", segment) == b"1"


def test_many_who_want_a_segment_wait_for_one_fetch(cache: Segments, shelf: Shelf) -> None:
    segment = stored(shelf, "segments/a")
    shelf.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(text_of, cache, "segments/a", segment) for _ in range(8)]
        shelf.asked.wait(10)
        shelf.gate.set()
        assert {answer.result() for answer in asked} == {b"1"}
    assert shelf.reads == 1


def test_many_who_wait_for_a_fetch_share_its_failure(cache: Segments, shelf: Shelf) -> None:
    segment = stored(shelf, "segments/a")
    shelf.failure = OSError(errno.ETIMEDOUT, "timeout")
    shelf.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(text_of, cache, "segments/a", segment) for _ in range(8)]
        while cache._files._files[segment.sha256].pins < 8 if len(cache._files) else True:
            time.sleep(0.002)
        shelf.gate.set()
        assert all(isinstance(answer.exception(), StoreUnavailable) for answer in asked)
    assert shelf.reads < 8


def test_what_was_used_longest_ago_makes_room(cache: Segments, shelf: Shelf, directory: Path) -> None:
    kept = {name: stored(shelf, f"segments/{name}", size=400_000) for name in "abcd"}
    for name in "abac":
        text_of(cache, f"segments/{name}", kept[name])
    assert files(directory) == {f"{kept[name].sha256}.parquet" for name in "ac"}
    for name in "abcd" * 3:
        text_of(cache, f"segments/{name}", kept[name])
        assert cache.usage().bytes <= MiB
        assert cache.usage().bytes == sum(path.stat().st_size for path in directory.iterdir())


def test_what_is_being_read_stays(cache: Segments, shelf: Shelf, directory: Path) -> None:
    kept = {name: stored(shelf, f"segments/{name}", size=900_000) for name in "abc"}
    with ExitStack() as reading:
        readers = [reading.enter_context(cache.open(f"segments/{name}", kept[name])) for name in "abc"]
        assert len(files(directory)) == 3
        assert [len(reader.read(0, 1, 1).parts[0].body) for reader in readers] == [900_000] * 3
    assert cache.usage().bytes <= MiB
    assert len(files(directory)) == 1


def test_a_segment_that_was_just_sealed_need_not_be_fetched(
    cache: Segments, shelf: Shelf, directory: Path, tmp_path: Path
) -> None:
    segment = stored(shelf, "segments/a")
    (tmp_path / "sealed").write_bytes(shelf.objects["segments/a"])
    cache.adopt(tmp_path / "sealed", segment)
    assert text_of(cache, "segments/a", segment) == b"1"
    assert shelf.reads == 0
    assert cache.usage().bytes == segment.bytes
    assert (tmp_path / "sealed").exists() is False


def test_a_segment_that_nobody_needs_any_more_goes(cache: Segments, shelf: Shelf, directory: Path) -> None:
    segment = stored(shelf, "segments/a")
    with cache.open("segments/a", segment) as reader:
        cache.forget({"segments/a"})
        assert reader.read(0, 1, 1).position == 1
    assert cache.ready(segment) is None
    text_of(cache, "segments/a", segment)
    cache.forget({"segments/b"})
    assert cache.ready(segment) is not None
    for _ in range(2):
        cache.forget({"segments/a"})
        assert files(directory) == set()
        assert cache.usage().bytes == 0
        assert cache.ready(segment) is None


def test_only_so_many_segments_stay_open(cache: Segments, shelf: Shelf) -> None:
    kept = [(f"segments/{n}", stored(shelf, f"segments/{n}", b"%d" % n)) for n in range(6)]
    with cache.open(*kept[0]) as reader:
        cache.footer_bytes = 3 * reader.footprint
    for _ in range(2):
        assert [text_of(cache, key, segment) for key, segment in kept] == [b"%d" % n for n in range(6)]
        assert cache.usage().readers == 3
        assert cache.usage().reader_bytes == 3 * reader.footprint
    cache.forget({key for key, _ in kept})
    assert cache.usage().readers == 0
    assert cache.usage().reader_bytes == 0
    assert shelf.reads == 6


def test_the_segments_used_last_stay_open_and_the_last_one_always(cache: Segments, shelf: Shelf) -> None:
    kept = [(f"segments/{n}", stored(shelf, f"segments/{n}", b"%d" % n)) for n in range(4)]
    with cache.open(*kept[0]) as reader:
        cache.footer_bytes = 3 * reader.footprint
    for number in (1, 2, 0, 3):
        text_of(cache, *kept[number])
    assert [cache.ready(segment) is not None for _, segment in kept] == [True, False, True, True]
    cache.footer_bytes = 1
    text_of(cache, *kept[1])
    assert [cache.ready(segment) is not None for _, segment in kept] == [False, True, False, False]


def test_a_removed_segment_that_is_being_read_stays_until_then_and_is_the_first_to_go(
    cache: Segments, shelf: Shelf, directory: Path
) -> None:
    kept = {name: stored(shelf, f"segments/{name}", size=400_000) for name in "abc"}
    text_of(cache, "segments/a", kept["a"])
    with cache.open("segments/b", kept["b"]):
        cache.forget({"segments/b"})
        assert files(directory) == {f"{kept[name].sha256}.parquet" for name in "ab"}
    text_of(cache, "segments/c", kept["c"])
    assert files(directory) == {f"{kept[name].sha256}.parquet" for name in "ac"}


def test_open_segments_are_a_small_part_of_the_files_that_may_be_open(
    cache: Segments, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for files_allowed, most in ((96, 6), (1024, 64), (10**6, 512), (resource.RLIM_INFINITY, 512)):
        limits = {resource.RLIMIT_NOFILE: (files_allowed, resource.RLIM_INFINITY)}
        monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
        assert max_open_files(module.MAX_READERS) == most
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    for number in range(6):
        text_of(cache, f"segments/{number}", stored(shelf, f"segments/{number}", b"%d" % number))
    assert cache.usage().readers == 4


def test_a_full_disk_gives_up_what_can_be_fetched_again(
    cache: Segments, shelf: Shelf, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = stored(shelf, "segments/a"), stored(shelf, "segments/b", b"2")
    text_of(cache, "segments/a", old)
    real = Objects.download

    def download(self: Objects, key: str, size: int, file: BinaryIO) -> None:
        if len(files(directory)) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, key, size, file)

    monkeypatch.setattr(Objects, "download", download)
    room = 1
    assert text_of(cache, "segments/b", new) == b"2"
    assert files(directory) == {f"{new.sha256}.parquet"}
    room = 0
    with pytest.raises(Unavailable) as caught:
        text_of(cache, "segments/a", old)
    assert caught.value.facts["reason"] == "disk_full"
    assert files(directory) == set()
    assert cache.usage().bytes == 0


class TestLocal:
    """A store that is a local directory is read in place."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> Objects:
        return Objects.open(str(tmp_path / "store"))

    @pytest.fixture
    def cache(self, objects: Objects, directory: Path) -> Segments:
        return Segments(objects, directory, limit_bytes=MiB, decoded_bytes=MiB)

    def test_nothing_is_copied(self, cache: Segments, objects: Objects, directory: Path, tmp_path: Path) -> None:
        data, segment = published([Cell(b"1")])
        (tmp_path / "sealed").write_bytes(data)
        objects.upload("segments/a", tmp_path / "sealed")
        cache.adopt(tmp_path / "sealed", segment)
        assert text_of(cache, "segments/a", segment) == b"1"
        assert files(directory) == set()
        assert not (tmp_path / "sealed").exists()
        cache.forget({"segments/a"})
        assert objects.get("segments/a") == data

    def test_damaged_and_missing_objects_are_named(self, cache: Segments, objects: Objects) -> None:
        data, segment = published([Cell(b"1")])
        with pytest.raises(ObjectMissing, match="segments/a is missing"):
            text_of(cache, "segments/a", segment)
        objects.put("segments/a", data[:-1])
        with pytest.raises(CorruptData, match="segments/a is not what was written"):
            text_of(cache, "segments/a", segment)
        objects.put("segments/a", data)
        assert text_of(cache, "segments/a", segment) == b"1"

    def test_what_is_known_of_files_is_bounded(
        self, cache: Segments, objects: Objects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache._files, "_max_files", 3)
        for number in range(6):
            data, segment = published([Cell(b"%d" % number)])
            objects.put(f"segments/{number}", data)
            assert text_of(cache, f"segments/{number}", segment) == b"%d" % number
        assert cache.usage().files == 3


class _HidesAll:
    """A mask over every row."""

    keys, before_seq = ("k",), 1 << 30

    def __init__(self, number: int) -> None:
        self.number = number

    def rows(self, batch: Any) -> list[int]:
        return list(range(batch.num_rows))

    def tombstone(self, size: int) -> bytes:
        return b"0" * size


def test_a_mask_holds_for_segments_that_are_open_already_and_no_longer_than_it_is_there(
    shelf: Shelf, directory: Path
) -> None:
    masks: dict[str, Any] = {}
    cache = Segments(Objects(shelf), directory, limit_bytes=MiB, decoded_bytes=MiB, masks=masks)
    keys, found = [f"segments/hash/{life}/name" for life in ("one", "two")], []
    for key in keys:
        shelf.objects[key], segment = published([Cell(f'"{key[14:17]}"'.encode(), "k")])
        found.append(segment)
    texts = [text_of(cache, key, segment) for key, segment in zip(keys, found, strict=True)]
    masks["one"] = _HidesAll(1)
    assert cache.ready(found[0]) is None and cache.ready(found[1]) is not None
    assert cache.mask_number(keys[0]) == 1
    assert cache.mask_number(keys[1]) == 0
    assert [text_of(cache, key, segment) for key, segment in zip(keys, found, strict=True)] == [b"00000", texts[1]]
    with cache.open_unmasked(keys[0], found[0]) as reader:
        assert bytes(reader.read(reader.first_seq, reader.end_seq, 1 << 30).parts[0].body) == texts[0]
    assert text_of(cache, keys[0], found[0]) == b"00000"
    del masks["one"]
    assert cache.ready(found[0]) is None
    assert [text_of(cache, key, segment) for key, segment in zip(keys, found, strict=True)] == texts


def test_a_copy_that_is_damaged_while_it_is_open_is_fetched_again(shelf: Shelf, directory: Path) -> None:
    cells = [Cell(b'"%d"' % n, key=f"k{n % 50}") for n in range(400)]
    shelf.objects["segments/a"], segment = published(cells)
    cache = Segments(Objects(shelf), directory, limit_bytes=MiB, decoded_bytes=0)
    path = directory / f"{segment.sha256}.parquet"

    def found(key: str) -> list[bytes]:
        with cache.open("segments/a", segment) as reader:
            return [bytes(part.body) for part in reader.read(0, 400, 1 << 20, key).parts]

    right = [found(f"k{n}") for n in range(0, 60, 3)]
    for place in range(4, segment.bytes - 8, segment.bytes // 80):
        flipped(path, place, place % 8)
        assert [found(f"k{n}") for n in range(0, 60, 3)] == right, place
        path.write_bytes(shelf.objects["segments/a"])
    assert cache.usage().dropped > 3
    assert cache.usage().bytes == segment.bytes
