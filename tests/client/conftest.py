"""A client, fresh stream names, and a line to the server that can be cut."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import headrace as hr

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

_numbers = itertools.count(1)


class Line:
    """A TCP proxy that loses answers on demand: the server gets the request, the client gets a closed line."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost = 0
        self._to_lose = 0
        self._skip = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def lose_answers(self, count: int, *, after: int = 0) -> None:
        """Let ``after`` pieces of answers pass, then lose ``count``."""
        with self._lock:
            self._to_lose, self._skip = count, after

    def cut(self) -> None:
        """Close every open line, now."""
        with self._lock:
            for end in self._open:
                _shut(end)

    def close(self) -> None:
        """Stop, and wait for the threads."""
        _shut(self._listener)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._upstream)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            self._start(self._pump, near, far)
            self._start(self._pump_answers, far, near)

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        self._forward(near, far, lambda: False)

    def _pump_answers(self, far: socket.socket, near: socket.socket) -> None:
        self._forward(far, near, self._loses)
        with self._lock:
            self._open -= {near, far}
        far.close()
        near.close()

    def _forward(self, source: socket.socket, target: socket.socket, loses: Callable[[], bool]) -> None:
        try:
            while (data := source.recv(65536)) and not loses():
                target.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(target)

    def _loses(self) -> bool:
        with self._lock:
            if self._skip:
                self._skip -= 1
                return False
            loses = self._to_lose > 0
            self._to_lose -= loses
            self.lost += loses
            return loses


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@pytest.fixture
def client(server: ServerProcess) -> Iterator[hr.Client]:
    with hr.Client(server.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A stream name that no other test has."""
    return f"client/{next(_numbers)}"


@pytest.fixture
def line(server: ServerProcess) -> Iterator[Line]:
    line = Line(server.url)
    yield line
    line.close()
