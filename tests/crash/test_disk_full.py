"""A full disk refuses appends with 503 and keeps answering reads; with room again, appends go on."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.crash

ENTRY = Random(1).randbytes(10_000)
MOST = 400


def _url(server: Any, name: str) -> str:
    return f"{server.url}/v1/stream/{name}"


def _append(server: Any, name: str, entry: bytes = ENTRY) -> httpx2.Response:
    return httpx2.post(_url(server, name), content=entry, headers={"content-type": "application/octet-stream"})


def _fill(server: Any, name: str, entry: bytes = ENTRY) -> int:
    """Append until the disk is full; answers how many entries were acknowledged."""
    for number in range(MOST):
        answer = _append(server, name, entry)
        if answer.status_code != 204:
            _is_disk_full(answer)
            return number
    raise AssertionError("the disk never got full")


def _is_disk_full(answer: httpx2.Response) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    error = answer.json()["error"]
    assert error["code"] == "unavailable"
    assert error["reason"] == "disk_full"


def _count(server: Any, name: str, entry: bytes = ENTRY) -> int:
    """How many whole entries a reader finds."""
    size, offset = 0, "-1"
    while True:
        answer = httpx2.get(_url(server, name), params={"offset": offset})
        assert answer.status_code == 200
        size, offset = size + len(answer.content), answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            assert size % len(entry) == 0
            return size // len(entry)


@pytest.fixture
def small(start_server: Callable[..., Any]) -> Any:
    """A server whose log may have a megabyte, with two streams in it; the second takes what is left."""
    server = start_server(storage__max_database_bytes=str(1024 * 1024))
    for name in ("old", "new"):
        assert httpx2.put(_url(server, name)).status_code == 201
    for _ in range(10):
        assert _append(server, "old").status_code == 204
    return server


def test_a_full_log_refuses_appends_and_still_answers_reads(small: Any) -> None:
    written = _fill(small, "new")
    assert written > 10
    _is_disk_full(_append(small, "old"))
    assert _count(small, "old") == 10
    assert _count(small, "new") == written
    assert httpx2.head(_url(small, "new")).status_code == 200
    assert httpx2.get(f"{small.url}/v1/streams").status_code == 200
    assert httpx2.get(f"{small.url}/health/live").status_code == 200
    assert httpx2.get(f"{small.url}/health/ready").status_code == 503


def test_appends_go_on_after_the_limit_was_raised(small: Any, start_server: Callable[..., Any]) -> None:
    written = _fill(small, "new")
    small.stop()
    larger = start_server(storage__max_database_bytes=str(1536 * 1024))
    assert _append(larger, "new").status_code == 204
    assert _count(larger, "new") == written + 1
    assert httpx2.get(f"{larger.url}/health/ready").status_code == 200


def test_appends_go_on_after_a_stream_was_deleted_and_swept(small: Any) -> None:
    written = _fill(small, "new")
    assert httpx2.delete(_url(small, "old")).status_code == 204
    small.stop()  # the last thing it does is a sweep
    small.start()
    assert [_append(small, "new").status_code for _ in range(8)] == [204] * 8
    assert _count(small, "new") == written + 8


def test_a_full_log_survives_a_kill(small: Any) -> None:
    written = _fill(small, "new")
    small.kill()
    small.start()
    assert _count(small, "new") == written
    _is_disk_full(_append(small, "new"))


@contextmanager
def _disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of a few megabytes."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a real small disk needs the right to mount one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with _disk(tmp_path / "tiny", 4) as place:
        yield place


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with _disk(tmp_path / "small", 12) as place:
        yield place


def test_a_real_full_disk_refuses_appends_and_takes_them_again_when_space_returns(
    tiny_disk: Path, start_server: Callable[..., Any]
) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(1024 * 1024))
    server = start_server(data="tiny/data")
    assert httpx2.put(_url(server, "new")).status_code == 201
    written = _fill(server, "new")
    assert _count(server, "new") == written
    ballast.unlink()
    assert [_append(server, "new").status_code for _ in range(20)] == [204] * 20
    assert _count(server, "new") == written + 20
    server.kill()
    server.start()
    assert _count(server, "new") == written + 20
    server.stop()


#: Nothing can compress it.
LARGE = random.Random(4).randbytes(100_000)


def _takes_again(server: Any, name: str, within_s: float = 95) -> None:
    """Wait until appends are taken; a store that took nothing is asked again within a minute."""
    until = time.monotonic() + within_s
    while (answer := _append(server, name, LARGE)).status_code != 204:
        _is_disk_full(answer)
        assert time.monotonic() < until, "the space that was freed is of no use"
        time.sleep(0.2)


def test_a_stream_can_be_deleted_on_a_truly_full_disk_and_appends_go_on(
    small_disk: Path, start_server: Callable[..., Any]
) -> None:
    server = start_server(data="small", storage__seal_age_s="3600", storage__checkpoint_pages="200")
    for name in ("old", "new"):
        assert httpx2.put(_url(server, name)).status_code == 201
    for _ in range(25):
        assert _append(server, "old", LARGE).status_code == 204
    written = _fill(server, "new", LARGE)
    (small_disk / "ballast").write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free)))
    assert shutil.disk_usage(small_disk).free == 0
    _is_disk_full(_append(server, "new", LARGE))
    assert httpx2.delete(_url(server, "old")).status_code == 204
    assert httpx2.get(_url(server, "old"), params={"offset": "-1"}).status_code == 404
    _takes_again(server, "new")
    for _ in range(10):
        assert _append(server, "new", LARGE).status_code == 204
    assert _count(server, "new", LARGE) == written + 11
    assert httpx2.get(f"{server.url}/health/ready").status_code == 200
    server.kill()
    server.start()
    assert _count(server, "new", LARGE) == written + 11
    server.stop()
