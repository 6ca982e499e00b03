"""``headrace touch`` against a real server process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.client.requests import Request
from headrace.client.touches import Template

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

pytestmark = pytest.mark.usefixtures("at")

CHANGE = '{"type": "todos", "key": "1", "value": {"user": "a", "n": 7, "on": true}, "headers": {"operation": "insert"}}'
BODY = b'{"profile": {"kind": "state-protocol", "touch": {"enabled": true}}}'


@pytest.fixture
def client(at: ServerProcess) -> Iterator[hr.Client]:
    with hr.Client(at.url) as client:
        yield client


@pytest.fixture
def db(client: hr.Client, name: str) -> hr.Stream:
    """A stream whose touches are told."""
    stream = client.stream(name)
    stream.create()
    client.send(Request("POST", f"/v1/stream/{name}/_profile", {"content-type": "application/json"}, BODY)).checked()
    return stream


@pytest.mark.parametrize(
    "words", [(), ("user=a",), ("n:int64=7", "user=a"), ("on:bool=true",)], ids=["table", "text", "two", "flag"]
)
def test_a_row_that_comes_ends_the_wait(headrace: Headrace, db: hr.Stream, words: tuple[str, ...]) -> None:
    # The first wait activates the template, and says where to go on from.
    first = headrace("touch", "wait", db.name, "todos", *words, "--timeout", "0s")
    assert (first.code, first.lines[0]["touched"]) == (3, False)
    headrace("stream", "append", db.name, CHANGE)
    cursor = first.lines[0]["cursor"]
    done = headrace("touch", "wait", db.name, "todos", *words, "--cursor", cursor, "--timeout", "20s")
    assert (done.code, done.lines[0]["touched"]) == (0, True)
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
    assert (done.code, done.lines[0]["touched"]) == (0, True)


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


@pytest.mark.parametrize("words", [(), ("todos", "--touch-key", "a"), ("todos", "user"), ("todos", "n:int64=x")])
def test_what_cannot_be_waited_for_is_a_wrong_use(headrace: Headrace, db: hr.Stream, words: tuple[str, ...]) -> None:
    assert headrace("touch", "wait", db.name, *words).code == 2


def test_a_stream_without_touches_says_so(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    done = headrace("touch", "wait", name, "todos")
    assert done.code == 1
    assert "touch not enabled" in done.err
