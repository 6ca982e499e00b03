from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Wire

Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]


def listens(server: ServerProcess) -> bool:
    parts = urlsplit(server.url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=2).close()
    except OSError:
        return False
    return True


def terminate(server: ServerProcess) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)


def exit_code(server: ServerProcess) -> int:
    """Wait for a server that was told to stop."""
    assert server.process is not None
    return server.process.wait(timeout=15)


def test_what_was_accepted_is_answered_at_shutdown(
    start_server: StartServer, api_of: Any, connect: Connect, stopped_writer: Any, eventually: Eventually
) -> None:
    server = start_server()
    api = api_of(server)
    path, created = api.stream(), api.name()
    appends = [connect(server) for _ in range(10)]
    creating = connect(server)
    with stopped_writer(server):
        for number, wire in enumerate(appends):
            lines = ("Content-Encoding: identity",) if number % 2 else ()
            wire.append(path, b"%d" % number, *lines)
        creating.request("PUT", created, b"1", "Content-Type: application/json")
        eventually(lambda: api.metric("headrace_append_queue_requests") == 11)
        terminate(server)
        eventually(lambda: not listens(server))
    assert [wire.answer().status for wire in appends] == [204] * 10
    assert creating.answer().status == 201
    assert exit_code(server) == 0
    server.stop()
    again = api_of(server.start())
    assert sorted(again.get(path).json()) == list(range(10))
    assert again.get(created).json() == [1]


def test_parked_readers_are_answered_at_shutdown(
    start_server: StartServer, api_of: Any, connect: Connect, eventually: Eventually
) -> None:
    server = start_server()
    api = api_of(server)
    path = api.stream(1)
    tail = api.offset(path)
    waiting, behind, streaming = connect(server), connect(server), connect(server)
    waiting.request("GET", f"{path}?live=long-poll&offset=now&timeout=60s")
    behind.append(path + "x", b"1").request("GET", f"{path}?live=long-poll&offset=now&timeout=60s")
    streaming.request("GET", f"{path}?live=sse&offset=-1").head()
    eventually(lambda: api.metric("headrace_watchers") == 3)
    started = time.monotonic()
    terminate(server)
    for wire in (waiting, behind):
        if wire is behind:
            assert wire.answer().status == 404
        answer = wire.answer()
        assert answer.status in (204, 503)
        assert answer.status == 503 or answer.headers["stream-next-offset"] == tail
    while (event := streaming.event()) is not None:
        assert event.kind in ("data", "control")
    assert exit_code(server) == 0
    assert time.monotonic() - started < 5


def test_new_requests_are_refused_while_stopping(
    start_server: StartServer, api_of: Any, connect: Connect, stopped_writer: Any, eventually: Eventually
) -> None:
    server = start_server()
    path, holding, late = api_of(server).stream(), connect(server), connect(server)
    with stopped_writer(server):
        holding.append(path, b"1")
        time.sleep(0.1)
        terminate(server)
        eventually(lambda: not listens(server))
        late.append(path, b"2")
        try:
            answer = late.answer()
        except (AssertionError, ConnectionError):
            answer = None
        assert answer is None or (answer.status, answer.code()) == (503, "unavailable")
    assert holding.answer().status == 204


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(start_server: StartServer, api_of: Any, number: signal.Signals) -> None:
    server = start_server()
    api_of(server).stream(1)
    assert server.process is not None
    server.process.send_signal(number)
    assert server.process.wait(timeout=10) == 0
    # A closed database has folded its write-ahead log into itself.
    assert not (server.data_dir / "headrace.db-wal").exists()


def test_what_lives_in_memory_is_persisted_by_a_graceful_stop(start_server: StartServer, api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    path = api.stream(1, headers={"stream-ttl": "1h"})
    first = api.head(path).headers["stream-expires-at"]
    time.sleep(0.02)
    api.get(path)
    touched = api.head(path).headers["stream-expires-at"]
    assert touched > first
    server.stop()
    assert api_of(server.start()).head(path).headers["stream-expires-at"] >= touched


def test_streams_and_offsets_survive_kill_and_stop(start_server: StartServer, api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    path = api.stream()
    offsets = []
    for number, end in enumerate((server.kill, server.stop, server.kill)):
        offsets.append(api.post(path, [number]).headers["stream-next-offset"])
        end()
        api = api_of(server.start())
        assert api.offset(path) == offsets[-1]
    assert api.get(path).json() == [0, 1, 2]
    assert [api.get(path, offset=offset).json() for offset in offsets] == [[1, 2], [2], []]
    fresh = api.stream("x")
    assert api.offset(fresh) > offsets[-1]


def test_a_second_server_on_the_same_directory_is_refused(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    environ = {"HEADRACE_SERVER__PORT": "0", "HEADRACE_STORAGE__DATA_DIR": str(server.data_dir)}
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server"], env=environ, capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode != 0
    assert str(server.data_dir) in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"HEADRACE_SERVER__HOST": "0.0.0.0"}, "0.0.0.0"),
        ({"HEADRACE_SERVER__PORT": "many"}, "server.port"),
        ({"HEADRACE_SERVER__COLOUR": "red"}, "server.colour"),
        ({"HEADRACE_LIMITS__BODY_BYTES": "1.5"}, "limits.body_bytes"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(environ: dict[str, str], named: str, tmp_path: Path) -> None:
    settings = {"HEADRACE_SERVER__PORT": "0", "HEADRACE_STORAGE__DATA_DIR": str(tmp_path / "data"), **environ}
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server"], env=settings, capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode != 0
    assert named in done.stderr.splitlines()[-1]


def test_appends_during_shutdown_are_kept_or_refused_but_never_lost(start_server: StartServer, api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    path = api.stream()
    taken: list[int] = []

    def write(first: int) -> None:
        for number in range(first, first + 5000):
            try:
                answer = api.post(path, [number])
            except Exception:
                return
            if answer.status_code == 204:
                taken.append(number)
            else:
                assert answer.status_code == 503

    threads = [threading.Thread(target=write, args=(index * 10_000,)) for index in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.4)
    server.stop()
    for thread in threads:
        thread.join()
    assert taken
    kept = set()
    again = api_of(server.start())
    offset = "-1"
    while True:
        page = again.get(path, offset=offset)
        kept |= set(page.json())
        offset = page.headers["stream-next-offset"]
        if "stream-up-to-date" in page.headers:
            break
    assert set(taken) <= kept
