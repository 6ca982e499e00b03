from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.main import fitting_connections
from server.registries import append, installed

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


@pytest.mark.parametrize(
    ("begun", "rest"),
    [
        (b"", b"Content-Length: 3\r\n\r\n[1]"),
        (b"", b"Content-Length: 3\r\nContent-Encoding: identity\r\n\r\n[1]"),
        (b"Content-Length: 3\r\n\r\n[", b"1]"),
        (b"Content-Length: 300000\r\n\r\n[1", b" " * 299_997 + b"]"),
    ],
    ids=["head", "head-asgi", "short", "long"],
)
def test_a_request_that_is_arriving_at_shutdown_is_answered(
    start_server: StartServer, api_of: Any, connect: Connect, eventually: Eventually, begun: bytes, rest: bytes
) -> None:
    server = start_server()
    api = api_of(server)
    path, wire = api.stream(), connect(server)
    head = f"POST {path} HTTP/1.1\r\nHost: {wire.host}\r\nContent-Type: application/json\r\n"
    wire.request("HEAD", path).answer("HEAD")
    wire.send(head.encode() + begun)
    api.offset(path)  # what came before on an accepted connection is received by now
    terminate(server)
    eventually(lambda: not listens(server))
    answer = wire.send(rest).answer()
    assert answer.status == 204
    assert answer.headers["connection"] == "close"
    assert wire.ended()
    assert exit_code(server) == 0
    server.stop()
    assert api_of(server.start()).get(path).json() == [1]


def test_who_was_answered_early_is_not_waited_for_at_shutdown(start_server: StartServer, connect: Connect) -> None:
    server = start_server(server__shutdown_grace_s="60")
    wire = connect(server).begin("/v1/streams", "Transfer-Encoding: chunked")
    assert wire.answer().status == 405
    terminate(server)
    assert wire.ended()
    assert exit_code(server) == 0


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


# -- connections and the files that the system allows

_FEW_FILES = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
runpy.run_module("headrace.server", run_name="__main__", alter_sys=True)
"""


@contextlib.contextmanager
def few_files(data_dir: Path, soft: int, hard: int, **settings: str) -> Iterator[SimpleNamespace]:
    """A server that may open so many files, by its ``url``, ``pid`` and ``log``."""
    log, kept = data_dir.with_suffix(".log"), {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    own = {f"HEADRACE_{name.upper()}": value for name, value in settings.items()}
    environ = {**kept, "HEADRACE_SERVER__PORT": "0", "HEADRACE_STORAGE__DATA_DIR": str(data_dir), **own}
    command = [sys.executable, "-c", _FEW_FILES, str(soft), str(hard)]
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=file, text=True)
    with process:
        try:
            assert process.stdout is not None
            yield SimpleNamespace(url=process.stdout.readline().strip(), pid=process.pid, log=log.read_text)
        finally:
            process.kill()


def test_where_files_are_few_one_connection_too_many_is_told_so(tmp_path: Path, connect: Connect, api_of: Any) -> None:
    fields = {"a": {"kind": "keyword", "exact": True}, "t": {"kind": "date", "column": True}}
    bound = {name: {**field, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]} for name, field in fields.items()}
    with few_files(tmp_path / "data", 96, 96) as server:
        api = api_of(server)
        path = installed(api, {"type": "object"}, search={"primaryTimestampField": "t", "fields": bound})
        append(api, path, {"a": "x", "t": "2026-01-01T00:00:00Z"})
        idle = [connect(server) for _ in range(120)]
        refused = idle[-1].answer()
        assert refused.status == 503
        assert refused.code() == "unavailable"
        assert refused.headers["retry-after"] == "1"
        assert api.get(f"{path}/_search", q="a:x").json()["total"]["value"] == 1
        assert idle[0].request("GET", f"{path}/_search?q=a:x").answer().status == 200
        (told,) = [line for line in server.log().splitlines() if "open files" in line]
        assert '"level": "warning"' in told and "96 open files: at most 32 connections" in told


def test_as_many_files_are_allowed_as_connections_take(tmp_path: Path) -> None:
    with few_files(tmp_path / "data", 96, 200, server__max_connections="50") as server:
        assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (200, 200)
        assert "open files" not in server.log()


@given(wanted=st.integers(1, 100_000), files=st.integers(1, 200_000))
def test_connections_leave_files_for_the_data(wanted: int, files: int) -> None:
    fitting = fitting_connections(wanted, files)
    assert 1 <= fitting <= wanted
    assert fitting == 1 or fitting + min(max(64, files // 4), 1024) <= files
    if files >= wanted + 1024:
        assert fitting == wanted


@pytest.mark.parametrize(
    ("files", "fitting"), [(1, 1), (96, 32), (1024, 768), (4096, 3072), (20_000, 18_976), (21_024, 20_000)]
)
def test_how_many_connections_fit(files: int, fitting: int) -> None:
    assert fitting_connections(20_000, files) == fitting
