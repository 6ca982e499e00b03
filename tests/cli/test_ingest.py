"""What comes in through a pipe, and what is told when it cannot be appended."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from headrace.client import Client, Stream

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess, StartServer

# A shell's background jobs ignore the interrupt, and so would their children.
LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{LISTENING}; from headrace.cli.main import main; main()"]


class Pipe(io.BytesIO):
    """Input that comes in pieces; calls among them are what happens meanwhile."""

    def __init__(self, *steps: bytes | Callable[[], object]) -> None:
        super().__init__()
        self._steps = iter(steps)

    def read1(self, size: int | None = -1, /) -> bytes:
        for step in self._steps:
            if isinstance(step, bytes):
                return step
            step()
        return b""

    read = read1

    def __next__(self) -> bytes:
        if line := self.read1():
            return line
        raise StopIteration


def too_far() -> None:
    pytest.fail("it reads on although nothing can be appended any more")


@pytest.fixture
def stream(at: ServerProcess, name: str) -> Iterator[Stream]:
    with Client(at.url) as client:
        made = client.stream(name)
        made.create()
        yield made


def test_a_closed_stream_ends_it_with_the_next_line(headrace: Headrace, stream: Stream) -> None:
    pipe = Pipe(b"1\n\n2\n", stream.close, b"3\n4\n", too_far)
    done = headrace("stream", "append", stream.name, stdin=pipe)
    assert done.code == 1
    assert "closed" in done.err
    assert "Events appended: 2; the next is line 4." in done.err
    assert headrace("stream", "read", stream.name).out == b"1\n2\n"


def test_a_deleted_stream_ends_it_with_the_next_line(headrace: Headrace, stream: Stream) -> None:
    done = headrace("stream", "append", stream.name, stdin=Pipe(b"1\n", stream.delete, b"2\n", too_far))
    assert done.code == 1
    assert "there is no such stream" in done.err
    assert "headrace stream ls" in done.err


def test_the_first_failure_is_told_although_a_line_behind_it_is_bad(headrace: Headrace, stream: Stream) -> None:
    done = headrace("stream", "append", stream.name, stdin=Pipe(b"1\n", stream.close, b"2\n{bad\n", too_far))
    assert "closed" in done.err and "JSON" not in done.err
    assert "appended: 1; the next is line 2." in done.err


@pytest.mark.usefixtures("at")
@pytest.mark.parametrize("more", [(), ("--raw",), ("--close",)])
def test_a_missing_stream_is_told_before_anything_is_read(headrace: Headrace, name: str, more: tuple[str, ...]) -> None:
    done = headrace("stream", "append", name, *more, stdin=Pipe(too_far))
    assert done.code == 1
    assert "there is no such stream" in done.err


def test_a_missing_server_is_told_before_anything_is_read(headrace: Headrace, name: str) -> None:
    assert headrace("stream", "append", name, "--url", "http://127.0.0.1:1", stdin=Pipe(too_far)).code == 4


def test_an_event_that_does_not_fit_is_named_by_its_line(headrace: Headrace, stream: Stream) -> None:
    stream.evolve({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    lines = [b'{"n":%d}\n' % number for number in range(1, 7001)]
    lines[4500] = b'{"n":"many"}\n'
    done = headrace("stream", "append", stream.name, stdin=b"\n" + b"".join(lines))
    assert done.code == 1
    assert "line 4502 does not fit" in done.err
    assert "Events appended: 4500; the next is line 4502." in done.err
    assert headrace("stream", "read", stream.name).out == b"".join(lines[:4500])


def test_the_line_is_among_the_facts(headrace: Headrace, stream: Stream) -> None:
    stream.evolve({"type": "integer"})
    done = headrace("stream", "append", stream.name, "--json", stdin=b"1\n\n2.5\n3\n4.5\n")
    assert '"appended":1' in done.err and '"line":3' in done.err and '"line":5' in done.err
    assert '"index"' not in done.err


def test_a_line_of_one_request_is_named_too(headrace: Headrace, stream: Stream) -> None:
    stream.evolve({"type": "integer"})
    done = headrace("stream", "append", stream.name, "--close", stdin=b"1\n\n2.5\n")
    assert "line 3 does not fit" in done.err
    assert headrace("stream", "read", stream.name).out == b""


def test_an_event_that_is_too_large_is_named_by_its_line(
    headrace: Headrace, start_server: StartServer, name: str
) -> None:
    where = ["--url", start_server(limits__body_bytes="1000").url]
    headrace("stream", "create", name, *where)
    lines = [b"%d\n" % number for number in range(1, 1001)]
    lines[299] = b'"%s"\n' % (b"x" * 1000)
    done = headrace("stream", "append", name, *where, stdin=b"".join(lines))
    assert done.code == 1
    assert "line 300 is too large" in done.err
    assert "Events appended: 299; the next is line 300." in done.err
    assert headrace("stream", "read", name, *where).out == b"".join(lines[:299])


def test_a_failure_tells_how_many_bytes_are_appended(headrace: Headrace, at: ServerProcess, name: str) -> None:
    with Client(at.url) as client:
        stream = client.stream(name)
        stream.create(content_type="text/plain")
        done = headrace("stream", "append", name, "--raw", stdin=Pipe(b"abc", stream.close, b"de", too_far))
    assert done.code == 1
    assert "Bytes appended: 3." in done.err
    assert headrace("stream", "read", name).out == b"abc"


def test_lines_may_come_in_any_pieces(headrace: Headrace, stream: Stream) -> None:
    done = headrace("stream", "append", stream.name, stdin=Pipe(b"1", b"2\n", b"3\n4", b"\n\n5", b"6"))
    assert done.lines[0]["appended"] == 4
    assert headrace("stream", "read", stream.name).out == b"12\n3\n4\n56\n"


def test_an_interrupt_tells_how_much_is_appended(headrace: Headrace, stream: Stream) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    done = headrace("stream", "append", stream.name, stdin=Pipe(b"1\n2\n", interrupt, too_far))
    assert done.code == 130
    assert done.out == b""
    assert done.err == "headrace: Interrupted. Events appended: 2.\n"


class Mute(BaseHTTPRequestHandler):
    """A server that knows a stream, and does not answer who appends to it."""

    asked = threading.Event()
    ended = threading.Event()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Stream-Next-Offset", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.asked.set()
        self.ended.wait(60)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_an_interrupt_does_not_wait_for_an_answer() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Mute) as mute:
        threading.Thread(target=mute.serve_forever).start()
        words = ["stream", "append", "s", "--url", f"http://127.0.0.1:{mute.server_port}"]
        pipe = subprocess.PIPE
        appending = subprocess.Popen([*COMMAND, *words], stdin=pipe, stdout=pipe, stderr=pipe)
        assert appending.stdin is not None
        appending.stdin.write(b"1\n")
        appending.stdin.flush()
        try:
            assert Mute.asked.wait(30)
            appending.send_signal(signal.SIGINT)
            out, err = appending.communicate(timeout=30)
        finally:
            appending.kill()
            Mute.ended.set()
            mute.shutdown()
    assert appending.returncode == 130
    assert out == b""
    assert err == b"headrace: Interrupted. Events appended: 0; what was on its way may be, too.\n"
