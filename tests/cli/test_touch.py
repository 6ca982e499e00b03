"""``headrace touch`` against a real server process."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.client.touches import Template
from support.polling import wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess, StartServer

pytestmark = pytest.mark.usefixtures("at")

CHANGE = '{"type": "todos", "key": "1", "value": {"user": "a", "n": 7, "on": true}, "headers": {"operation": "insert"}}'


@pytest.fixture
def client(at: ServerProcess) -> Iterator[hr.Client]:
    with hr.Client(at.url) as client:
        yield client


@pytest.fixture
def db(client: hr.Client, name: str) -> hr.Stream:
    """A stream whose touches are told."""
    return touched(client, name)


def touched(client: hr.Client, name: str, **touch: Any) -> hr.Stream:
    stream = client.stream(name)
    stream.create()
    stream.set_profile("state-protocol", {"touch": {"enabled": True, **touch}})
    return stream


@pytest.mark.parametrize(
    "words", [(), ("user=a",), ("n:int64=7", "user=a"), ("on:bool=true",)], ids=["table", "text", "two", "flag"]
)
def test_a_row_that_comes_ends_the_wait(headrace: Headrace, db: hr.Stream, words: tuple[str, ...]) -> None:
    # The first wait activates the template, and says where to go on from.
    first = headrace("touch", "wait", db.name, "todos", *words, "--timeout", "0s")
    assert first.code == 3
    assert first.lines[0]["touched"] is False
    headrace("stream", "append", db.name, CHANGE)
    cursor = first.lines[0]["cursor"]
    done = headrace("touch", "wait", db.name, "todos", *words, "--cursor", cursor, "--timeout", "20s")
    assert done.code == 0
    assert done.lines[0]["touched"] is True
    again = headrace("touch", "wait", db.name, "todos", *words, "--cursor", done.lines[0]["cursor"], "--timeout", "0s")
    assert again.code == 3


def test_another_row_does_not_end_the_wait(headrace: Headrace, db: hr.Stream) -> None:
    first = headrace("touch", "wait", db.name, "todos", "user=b", "--timeout", "0s")
    headrace("stream", "append", db.name, CHANGE)
    headrace("touch", "meta", db.name, "--settle")
    cursor = first.lines[0]["cursor"]
    assert headrace("touch", "wait", db.name, "todos", "user=b", "--cursor", cursor, "--timeout", "0s").code == 3


def test_keys_can_be_waited_for_as_they_are(headrace: Headrace, db: hr.Stream) -> None:
    template = Template("todos", user="string")
    db.touch.activate(template)
    threading.Timer(
        0.1, db.append, [{"type": "todos", "key": "1", "value": {"user": "a"}, "headers": {"operation": "insert"}}]
    ).start()
    done = headrace(
        "touch", "wait", db.name, "--touch-key", template.key(user="a"), "--touch-key", "f" * 16, "--exact", "--json"
    )
    assert done.code == 0
    assert done.lines[0]["touched"] is True


class Following:
    """``headrace touch wait --follow`` in a process of its own, whose lines come as they are printed."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-c", "from headrace.cli.main import main; main()", "touch", "wait", *words]
        self._process = subprocess.Popen([*command, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def next(self) -> dict[str, Any]:
        """The next line."""
        found: dict[str, Any] = json.loads(self._lines.get(timeout=30))
        return found

    def interrupt(self) -> int:
        """Press Control-C; nothing more was printed."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(timeout=30)
        self._reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        assert self._lines.empty()
        return code


def insert(user: str) -> dict[str, Any]:
    return {"type": "todos", "key": "1", "value": {"user": user}, "headers": {"operation": "insert"}}


def waits(db: hr.Stream, count: int = 1) -> None:
    """Return when so many wait."""
    wait_until(lambda: db.touch.meta()["activeWaiters"] >= count)


def test_who_follows_is_told_of_every_touch_until_interrupted(db: hr.Stream) -> None:
    following = Following(db.name, "todos", "user=a", "--timeout", "0s")
    waits(db)
    seen = []
    for user in ("a", "b", "a"):
        db.append(insert(user))
        if user == "a":
            seen.append(following.next())
            waits(db)
    assert [line["touched"] for line in seen] == [True, True]
    assert seen[0]["cursor"] != seen[1]["cursor"]
    assert following.interrupt() == 130


def test_who_follows_outlives_a_restart_of_the_server(start_server: StartServer, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start_server(server__port=str(port))
    with hr.Client(server.url) as client:
        db = touched(client, name)
        following = Following(name, "todos", "--url", server.url)
        waits(db)
        db.append(insert("a"))
        assert following.next()["touched"] is True
        server.stop()
        server.start()
        waits(db)
        db.append(insert("b"))
        assert following.next()["touched"] is True
        assert following.interrupt() == 130


def test_who_follows_is_told_once_that_nothing_can_be_told(client: hr.Client, name: str) -> None:
    db = touched(client, name, onMissingBefore="error")
    db.touch.activate(Template("todos", user="string"))
    following = Following(name, "todos")
    waits(db)
    db.append({"type": "todos", "key": "1", "value": {"user": "a"}, "headers": {"operation": "update"}})
    told = following.next()
    assert told["stale"] is True and "onMissingBefore" in told["reason"]
    time.sleep(2.5)
    assert db.touch.meta()["waitStaleTotal"] <= 5
    following.interrupt()


def test_a_cursor_that_means_nothing_any_more_is_told(headrace: Headrace, db: hr.Stream) -> None:
    done = headrace("touch", "wait", db.name, "todos", "--cursor", f"{'0' * 16}:7", "--json")
    assert done.code == 5
    assert done.lines[0]["stale"] is True
    assert "another journal" in done.lines[0]["reason"]


def test_meta_shows_the_cursor(headrace: Headrace, db: hr.Stream) -> None:
    headrace("stream", "append", db.name, CHANGE)
    found = headrace("touch", "meta", db.name, "--settle", "--json").lines[0]
    assert found["settled"] is True
    assert found["cursor"] == f"{found['epoch']}:{found['generation']}"


@pytest.mark.parametrize(
    "words",
    [(), ("todos", "--touch-key", "a"), ("todos", "user"), ("todos", "n:int64=x"), ("todos", "on:bool=yes")],
)
def test_what_cannot_be_waited_for_is_a_wrong_use(headrace: Headrace, db: hr.Stream, words: tuple[str, ...]) -> None:
    assert headrace("touch", "wait", db.name, *words).code == 2


def test_a_stream_without_touches_says_so(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    done = headrace("touch", "wait", name, "todos")
    assert done.code == 1
    assert "touch not enabled" in done.err
