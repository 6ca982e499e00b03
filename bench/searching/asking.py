"""Asking a server one question after the other, and how long each answer takes."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from bench.driver import DriverFailed
from bench.requests import stream_path
from bench.searching.shape import STREAM

#: Each kind of question is asked so often, after once for warming up; a slow server need not go on for longer.
REPETITIONS = 21
LEAST_REPETITIONS = 3
LONGEST_SERIES = 60.0
SLOWEST_ANSWER = 180.0


class Answer(NamedTuple):
    """What came back, and after how long."""

    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        """The body as a value."""
        return json.loads(self.body)


class Series(NamedTuple):
    """The answers to questions of one kind: the median time, how many there were, and how many came too late (408).

    A question that got no answer at all ends a series; it is the error.
    """

    milliseconds: float
    asked: int
    timed_out: int
    error: str = ""

    @property
    def mark(self) -> str:
        """What must be said beside the number."""
        late = f"{self.timed_out} of {self.asked} timed out (408)" if self.timed_out else ""
        few = f"only {self.asked} repetitions in {LONGEST_SERIES:g} s" if 0 < self.asked < REPETITIONS else ""
        return ", ".join(filter(None, (late, few)))


class Caller:
    """One connection that stays open until it is hung up; the next question opens it again."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SLOWEST_ANSWER)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Ask, whatever the answer is; the clock stops when it has come whole."""
        content = None if body is None else json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request(method, path, content, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        found = response.read()
        return Answer(response.status, found, time.perf_counter() - began)

    def hang_up(self) -> None:
        """Let go of the connection, before a pause in which the server would."""
        self._connection.close()

    def on_stream(self, verb: str, body: Any = None, stream: str = STREAM) -> Answer:
        """The answer of one of a stream's own resources, which must be success or the end of the time."""
        answer = self.ask("GET" if body is None else "POST", f"{stream_path(stream)}/{verb}", body)
        if answer.status not in (200, 408):
            raise DriverFailed(f"{verb} {body}: {answer.status} {answer.body[:500]!r}")
        return answer


def series(caller: Caller, verb: str, questions: Iterable[Any]) -> Series:
    """The time that questions of one kind take; the first is not counted."""
    counted: list[Answer] = []
    for number, question in enumerate(questions):
        try:
            answer = caller.on_stream(verb, question)
        except DriverFailed as error:
            return Series(0.0, 0, 0, str(error))
        if number:
            counted.append(answer)
        if len(counted) >= LEAST_REPETITIONS and sum(one.seconds for one in counted) > LONGEST_SERIES:
            break
    taken = statistics.median(answer.seconds for answer in counted)
    return Series(taken * 1e3, len(counted), sum(answer.status == 408 for answer in counted))
