"""How long an append takes beside the load: a process of its own appends one event after the other."""

from __future__ import annotations

import http.client
import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from bench.soak.written import Written, event

STREAM = "probe"
_EVERY_S = 0.02
_SLOWEST_S = 60.0


@dataclass(frozen=True)
class Probed:
    """The times of all appends in seconds, those that were refused, by status, and what is in the stream."""

    seconds: list[float]
    refused: dict[int, int]
    written: Written

    def quantile(self, share: float) -> float:
        """The time that such a share of the appends took at most."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Probe:
    """Appends until it is told to stop."""

    def __init__(self, port: int, stream: str = STREAM) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._results, sending = context.Pipe(duplex=False)
        self._process = context.Process(target=_append, args=(port, stream, self._stop, sending), daemon=True)
        self._process.start()

    def end(self) -> Probed:
        """What came of it."""
        self._stop.set()
        if not self._results.poll(_SLOWEST_S):
            self._process.kill()
            raise OSError("the probe has no results")
        probed: Probed = self._results.recv()
        self._process.join()
        return probed


def _append(port: int, stream: str, stop: Any, results: Connection) -> None:
    written, seconds, refused = Written(stream), [], {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SLOWEST_S)
    _ask(connection, "PUT", written.path, b"")
    while not stop.wait(_EVERY_S):
        body = msgspec.json.encode(event(written.send(1)))
        began = time.perf_counter()
        try:
            status = _ask(connection, "POST", written.path, body)
        except (OSError, http.client.HTTPException):
            connection.close()
            status = 408
        seconds.append(time.perf_counter() - began)
        written.settle(status)
        if status not in (200, 204):
            refused[status] = refused.get(status, 0) + 1
    results.send(Probed(seconds, refused, written))


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> int:
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status
