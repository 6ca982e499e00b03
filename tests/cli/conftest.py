"""The command line in this process, with a pipe where a terminal would be."""

from __future__ import annotations

import io
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headrace.cli.main import run

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

_numbers = itertools.count(1)


class Done(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its output, a JSON value per line."""
        return [json.loads(line) for line in self.out.splitlines()]


Headrace = Callable[..., Done]


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Headrace]:
    """Run a command by its words; what it makes of the loggers goes with the stderr that they write to."""
    logs = [logging.getLogger(name) for name in (None, "headrace", "headrace.pipeline")]
    before = [(log.handlers[:], log.level) for log in logs]

    def command(*words: str, stdin: bytes | io.BytesIO = b"") -> Done:
        pipe = io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
        try:
            code = run(words)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        sys.stdout.flush()
        written = capfdbinary.readouterr()
        return Done(code, written.out, written.err.decode())

    yield command
    for log, (handlers, level) in zip(logs, before, strict=True):
        log.handlers[:] = handlers
        log.setLevel(level)


@pytest.fixture
def at(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    """The server that commands speak to unless told otherwise."""
    monkeypatch.setenv("HEADRACE_URL", server.url)
    monkeypatch.delenv("HEADRACE_KEY", raising=False)
    return server


@pytest.fixture
def name() -> str:
    """A stream name that no other test has."""
    return f"cli/{next(_numbers)}"
