from __future__ import annotations

import errno
import io
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest

from headrace.config import ConfigError
from headrace.format.object_names import manifest_key, name_hash, segment_key, segment_name
from headrace.storage.object_backends import PAGE, STAGING, Directory
from headrace.storage.objects import STREAMS, ObjectMissing, Objects, Requests, StoreUnavailable
from support.s3 import S3
from support.store_faults import Chance, Fault, Request

KEY = manifest_key("orders", "1", 1)
MiB = 1 << 20


@pytest.fixture(params=["path", "file", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Every kind of store that this machine can run."""
    if request.param == "s3":
        return Objects.open(request.getfixturevalue("bucket").url)
    urls = {"path": str(tmp_path / "plain store"), "file": (tmp_path / "a store").as_uri(), "memory": "memory:///"}
    return Objects.open(urls[request.param])


def test_an_object_is_read_back_whole_and_in_parts(objects: Objects) -> None:
    objects.put(KEY, b"0123456789")
    assert objects.get(KEY) == b"0123456789"
    assert objects.get_range(KEY, 3, 4) == b"3456"
    assert objects.get_range(KEY, 8, 100) == b"89"
    objects.put(KEY, b"new")
    assert objects.get(KEY) == b"new"


def test_an_object_is_created_once(objects: Objects) -> None:
    assert objects.create(KEY, b"mine")
    assert not objects.create(KEY, b"theirs")
    assert objects.get(KEY) == b"mine"


def test_of_many_who_create_at_once_one_succeeds(objects: Objects) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: objects.create(KEY, b"writer %d" % number), range(8)))
    assert sum(won) == 1
    assert objects.get(KEY) == b"writer %d" % won.index(True)


def test_creating_the_same_again_is_no_conflict(objects: Objects) -> None:
    assert objects.create(KEY, b"mine")
    assert objects.create(KEY, b"mine")


def test_a_file_is_uploaded_and_fetched_in_parts(objects: Objects, tmp_path: Path) -> None:
    data = os.urandom(17 * MiB)
    (tmp_path / "sealed").write_bytes(data)
    objects.upload("segments/x", tmp_path / "sealed")
    fetched = io.BytesIO()
    objects.download("segments/x", len(data), fetched)
    assert fetched.getvalue() == data
    assert objects.head("segments/x").bytes == len(data)
    assert (tmp_path / "sealed").read_bytes() == data


def test_an_object_has_a_size_and_an_age(objects: Objects) -> None:
    objects.put(KEY, b"12345")
    found = objects.head(KEY)
    assert found.key == KEY
    assert found.bytes == 5
    assert abs(found.modified_us - time.time() * 1e6) < 60e6


def test_a_listing_finds_what_lies_below_a_prefix(objects: Objects) -> None:
    keys = {f"manifests/{n:04}/1/x.json" for n in range(5)} | {"segments/0001/a", "manifestsx/0"}
    for key in keys:
        objects.put(key, key.encode())
    found = list(objects.list("manifests"))
    assert {info.key for info in found} == {key for key in keys if key.startswith("manifests/")}
    assert {info.bytes for info in found} == {len("manifests/0000/1/x.json")}
    assert {info.key for info in objects.list("")} == keys
    assert [info.key for info in objects.list("segments/0001")] == ["segments/0001/a"]
    assert list(objects.list("nothing")) == []


@pytest.mark.parametrize("count", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
def test_a_listing_of_many_pages_is_whole(tmp_path: Path, count: int) -> None:
    memory, directory = Objects.open("memory:///"), Objects.open(str(tmp_path))
    for number in range(count):
        memory.put(f"a/{number}", b"x")
    (tmp_path / "a").mkdir()
    for number in range(count):
        (tmp_path / "a" / f"{number}").touch()
    for objects in (memory, directory):
        assert sorted(int(info.key[2:]) for info in objects.list("a")) == list(range(count))
        assert -(-count // PAGE) <= objects.requests.totals()["meta", "list", "ok"] <= count // PAGE + 1


def test_deleting_is_no_error_where_nothing_is(objects: Objects) -> None:
    for key in ("a/1", "a/2", "b/1"):
        objects.put(key, b"x")
    objects.delete(["a/1", "a/never", "a/2"])
    objects.delete(["a/1"])
    objects.delete([])
    assert [info.key for info in objects.list("")] == ["b/1"]


def test_a_missing_object_is_named(objects: Objects) -> None:
    for ask in (objects.get, objects.head, lambda key: objects.get_range(key, 0, 5)):
        with pytest.raises(ObjectMissing, match="the object manifests/gone is missing") as caught:
            ask("manifests/gone")
        assert caught.value.facts == {"object": "manifests/gone", "check": "present"}


def test_a_key_cannot_leave_the_store(objects: Objects) -> None:
    for key in ("", "../x", "a//b", "/a", "a/.."):
        with pytest.raises(ValueError, match="is not the key of an object"):
            objects.put(key, b"x")


@pytest.mark.parametrize("url", ["ftp://host/x", "http://host/x", "file://host/x", "file://", "s3:///", "s4://bucket"])
def test_a_url_that_leads_nowhere_is_refused_by_its_setting(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Objects.open(url)
    assert caught.value.facts["field"] == "storage.object_store"


class TestDirectory:
    """What only a local directory promises."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "deep" / "store"

    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The paths that were synced, in order."""
        paths: list[str] = []
        real = os.fsync

        def fsync(file: int) -> None:
            paths.append(os.readlink(f"/proc/self/fd/{file}"))
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)
        return paths

    @pytest.mark.parametrize("verb", ["create", "put", "upload"])
    def test_a_write_is_on_disk_when_it_returns(self, root: Path, tmp_path: Path, synced: list[str], verb: str) -> None:
        objects = Objects.open(str(root))
        (tmp_path / "sealed").write_bytes(b"data")
        synced.clear()
        if verb == "upload":
            objects.upload("a/b/c", tmp_path / "sealed")
        else:
            getattr(objects, verb)("a/b/c", b"data")
        assert synced[0].startswith(str(root / STAGING))
        assert synced[1:] == [str(root), str(root / "a"), str(root / "a" / "b")]
        assert objects.get("a/b/c") == b"data"

    def test_nothing_is_left_in_staging(self, root: Path, tmp_path: Path) -> None:
        objects = Objects.open(str(root))
        (tmp_path / "sealed").write_bytes(b"data")
        objects.create("a", b"1")
        assert not objects.create("a", b"2")
        objects.put("a", b"3")
        objects.upload("b", tmp_path / "sealed")
        assert list((root / STAGING).iterdir()) == []

    def test_what_a_crash_left_in_staging_goes_when_it_is_old(self, root: Path) -> None:
        Directory(root)
        for name, age_s in (("fresh", 10), ("old", 90_000)):
            (root / STAGING / name).write_bytes(b"half")
            os.utime(root / STAGING / name, (time.time() - age_s,) * 2)
        objects = Objects.open(str(root))
        assert [path.name for path in (root / STAGING).iterdir()] == ["fresh"]
        assert list(objects.list("")) == []

    def test_an_upload_from_another_file_system_is_copied(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = Path("/dev/shm")
        if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is no other file system")
        path = other / f"headrace-{os.getpid()}"
        path.write_bytes(b"far away")
        try:
            objects = Objects.open(str(root))
            objects.upload("a", path)
        finally:
            path.unlink()
        assert objects.get("a") == b"far away"

    def test_empty_directories_go_while_others_write_into_them(self, root: Path) -> None:
        objects = Objects.open(str(root))
        stop = threading.Event()

        def churn() -> None:
            while not stop.is_set():
                objects.put("a/b/churn", b"x")
                objects.delete(["a/b/churn"])

        thread = threading.Thread(target=churn)
        thread.start()
        try:
            for number in range(100):
                assert objects.create(f"a/b/{number}", b"x")
                objects.delete([f"a/b/{number}"])
        finally:
            stop.set()
            thread.join()
        assert [path.name for path in root.iterdir()] == [STAGING]

    def test_a_directory_that_comes_and_goes_is_not_taken_for_the_object(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects, mkdir, others = Objects.open(str(root)), Path.mkdir, ["b"]

        def made_and_removed_by_others(path: Path, **facts: Any) -> None:
            mkdir(path, **facts)
            if others and path.name == others[0]:
                others.pop()
                path.rmdir()
                raise FileExistsError(path)

        monkeypatch.setattr(Path, "mkdir", made_and_removed_by_others)
        assert objects.create("a/b/c", b"x") and not others
        assert objects.get("a/b/c") == b"x"

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    @pytest.mark.parametrize(("mode", "files"), [(None, 0o600), (0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
    def test_permissions_are_the_settings_whatever_the_umask(
        self, root: Path, tmp_path: Path, umask: int, mode: int | None, files: int
    ) -> None:
        before = os.umask(umask)
        try:
            (tmp_path / "sealed").write_bytes(b"1")
            objects = Objects.open(str(root), mode=mode)
            objects.create("a/b", b"1")
            objects.put("a/c", b"1")
            objects.upload("d/e/f", tmp_path / "sealed")
            Objects.open(str(root)).put("g/h", b"1")  # of a process that does not know the setting
        finally:
            os.umask(before)
        for path in (root, *root.rglob("*")):
            assert path.stat().st_mode & 0o777 == ((mode or 0o700) if path.is_dir() else files)

    def test_a_root_that_others_may_open_is_tightened_with_a_warning(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        root.mkdir(parents=True)
        root.chmod(0o755)
        Objects.open(str(root))
        assert root.stat().st_mode & 0o777 == 0o755 and not caplog.records
        Objects.open(str(root), mode=0o750)
        assert root.stat().st_mode & 0o777 == 0o750
        assert [str(root) in record.getMessage() for record in caplog.records] == [True]

    def test_an_object_is_a_file_that_can_be_read_in_place(self, root: Path) -> None:
        objects = Objects.open(root.as_uri())
        objects.put(KEY, b"x")
        assert objects.is_local
        assert objects.local_path(KEY) == root / KEY
        assert not Objects.open("memory:///").is_local
        assert Objects.open("memory:///").local_path(KEY) is None

    def test_a_directory_that_cannot_be_written_is_unavailable(self, root: Path) -> None:
        objects = Objects.open(str(root))
        (root / "a").write_bytes(b"a file where a directory should be")
        with pytest.raises(StoreUnavailable) as caught:
            objects.put("a/b", b"x")
        assert caught.value.facts["object"] == "a/b"
        assert caught.value.facts["cause"] == os.strerror(errno.ENOTDIR)


class TestFaults:
    """What a service does on a bad day."""

    @pytest.fixture
    def objects(self, bucket: S3) -> Objects:
        return Objects.open(bucket.url, timeout_s=1.0, retries=3)

    def test_throttled_requests_are_tried_again(self, bucket: S3, objects: Objects) -> None:
        bucket.plan("PUT", "throttle", "throttle")
        objects.put("a", b"1")
        bucket.plan("PUT", "throttle")
        assert objects.create("b", b"2")
        bucket.plan("GET", "throttle")
        assert objects.get("a") == b"1"
        bucket.plan("GET", "throttle")
        assert {info.key for info in objects.list("")} == {"a", "b"}

    def test_throttling_that_does_not_end_is_an_outage(self, bucket: S3, objects: Objects) -> None:
        bucket.plan("GET", *["throttle"] * 20)
        with pytest.raises(StoreUnavailable) as caught:
            objects.get("a")
        assert caught.value.facts["reason"] == "object_store"
        assert caught.value.message == "the object store did not get a: it answered 503 Service Unavailable (SlowDown)"
        assert len(bucket.seen) == 4

    def test_a_create_whose_answer_was_lost_has_succeeded(self, bucket: S3, objects: Objects) -> None:
        bucket.plan("PUT", "lose")
        assert objects.create(KEY, b"mine")
        assert objects.get(KEY) == b"mine"

    def test_a_create_that_lost_to_another_has_not(self, bucket: S3, objects: Objects) -> None:
        assert objects.create(KEY, b"theirs")
        bucket.plan("PUT", "lose")
        assert not objects.create(KEY, b"mine")

    def test_a_create_that_never_arrived_is_sent_again(self, bucket: S3, objects: Objects) -> None:
        bucket.plan("PUT", "cut")
        assert objects.create(KEY, b"mine")

    def test_a_service_that_hangs_is_given_up(self, bucket: S3, objects: Objects) -> None:
        bucket.plan("GET", *["hang"] * 8)
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r": it did not answer in time$"):
            objects.get("a")
        assert time.monotonic() - begin < 8

    def test_a_create_in_conflict_with_one_that_came_to_nothing_is_sent_again(
        self, bucket: S3, objects: Objects
    ) -> None:
        bucket.plan("PUT", "conflict")
        assert objects.create(KEY, b"mine")
        assert objects.get(KEY) == b"mine"

    def test_a_create_that_finds_what_it_has_written_itself_has_succeeded(self, bucket: S3, objects: Objects) -> None:
        bucket.plan("PUT", "exists")
        assert objects.create(KEY, b"mine")

    def test_an_answer_that_ends_too_soon_is_asked_for_again(self, bucket: S3, objects: Objects) -> None:
        data = os.urandom(3 * MiB)
        objects.put("a", data)
        for fault in ("truncate", "reset"):
            bucket.plan("GET", fault)
            assert objects.get("a") == data
            bucket.plan("GET", fault)
            assert objects.get_range("a", 5, MiB) == data[5 : 5 + MiB]
            bucket.plan("GET", fault)
            assert [info.key for info in objects.list("")] == ["a"]

    def test_a_listing_that_is_stale_knows_nothing_of_the_last_moment(self, bucket: S3, objects: Objects) -> None:
        objects.put("a/old", b"1")
        assert len(list(objects.list("a"))) == 1
        bucket.recent.freeze()
        objects.put("a/new", b"2")
        objects.delete(["a/old"])
        bucket.plan("GET", "stale")
        assert [info.key for info in objects.list("a")] == ["a/old"]
        assert [info.key for info in objects.list("a")] == ["a/new"]

    def test_faults_by_chance_are_those_of_their_seed(self) -> None:
        requests = [
            Request(method, path, method == "PUT" and number % 2 == 0)
            for number in range(200)
            for method, path in (("PUT", "/b/k"), ("GET", "/b/k"), ("GET", "/b?list-type=2"), ("DELETE", "/b/k"))
        ]
        first, again, other = Chance(1, 0.3), Chance(1, 0.3), Chance(2, 0.3)
        faults = [first.fault(request) for request in requests]
        assert faults == [again.fault(request) for request in requests]
        assert faults != [other.fault(request) for request in requests]
        assert {fault for fault in faults if fault} == set(get_args(Fault)) - {"hang", "deny"}

    def test_a_service_that_is_not_there_is_told_as_the_system_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closing:
            monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{closing.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        with pytest.raises(StoreUnavailable, match=f": {os.strerror(errno.ECONNREFUSED)}$"):
            Objects.open("s3://bucket", timeout_s=1.0, retries=0).put("a", b"1")

    def test_after_an_outage_everything_goes_on(self, bucket: S3, objects: Objects) -> None:
        objects.put("a", b"1")
        bucket.outage.set()
        for ask in (lambda: objects.put("b", b"2"), lambda: objects.create("b", b"2"), lambda: objects.get("a")):
            with pytest.raises(StoreUnavailable):
                ask()
        with pytest.raises(StoreUnavailable):
            list(objects.list(""))
        bucket.outage.clear()
        assert objects.create("b", b"2")
        assert objects.get("a") == b"1"

    def test_a_large_upload_survives_throttled_parts(self, bucket: S3, tmp_path: Path) -> None:
        objects = Objects.open(bucket.url, timeout_s=20.0, retries=3)
        data = os.urandom(20 * MiB)
        (tmp_path / "sealed").write_bytes(data)
        bucket.plan("PUT", "throttle")
        objects.upload("segments/x", tmp_path / "sealed")
        assert objects.get("segments/x") == data

    def test_a_bucket_that_does_not_exist_is_not_an_empty_one(self, bucket: S3) -> None:
        objects = Objects.open("s3://no-such-bucket-here", timeout_s=1.0, retries=0)
        with pytest.raises(StoreUnavailable):
            list(objects.list("manifests"))
        with pytest.raises(StoreUnavailable):
            objects.put("a", b"1")


def test_requests_are_counted_by_artifact_verb_and_stream() -> None:
    objects = Objects.open("memory:///")
    segment = segment_key("orders", "1", segment_name(0, 1, "a"))
    objects.put(segment, b"x")
    objects.create(KEY, b"y")
    objects.get(KEY)
    objects.get_range(segment, 0, 1)
    objects.put("lease/1", b"z")
    list(objects.list("manifests"))
    with pytest.raises(ObjectMissing):
        objects.head(manifest_key("other", "1", 1))
    assert objects.requests.of(name_hash("orders")) == {
        ("segment", "put"): 1, ("manifest", "put"): 1, ("manifest", "get"): 1, ("segment", "get"): 1,
    }  # fmt: skip
    assert objects.requests.of(name_hash("other")) == {("manifest", "head"): 1}
    assert objects.requests.of(name_hash("never")) == {}
    totals = objects.requests.totals()
    assert totals["manifest", "head", "missing"] == totals["meta", "put", "ok"] == totals["manifest", "list", "ok"] == 1
    assert sum(totals.values()) == 7


def test_counts_of_streams_are_bounded_and_totals_are_not_lost() -> None:
    requests = Requests()
    for number in range(STREAMS + 10):
        requests.count("get", manifest_key(f"s{number}", "1", 1), "ok")
    assert requests.of(name_hash("s9")) == {}
    assert requests.of(name_hash("s10")) == {("manifest", "get"): 1}
    assert requests.totals() == {("manifest", "get", "ok"): STREAMS + 10}
