"""What was appended is found by the very next question, while others write and companions come and go."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from logs import Logs, event
from worker import Worker

if TYPE_CHECKING:
    from tests.conftest import StartServer

WRITERS, SECONDS = 8, 3.0
STREAM = "/v1/stream/logs"
EVER = {"from": 0, "to": 8_000_000_000_000_000}


class Writer:
    """Appends events of a service of its own, and asks for each of them at once."""

    def __init__(self, url: str, number: int, places: list[str]) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._number = number
        self._places = places
        self.appended = 0

    def run(self, until: float) -> int:
        """Until a moment, and at least twice; answers how many events were appended and found."""
        with closing(self._connection):
            while time.monotonic() < until or self.appended < 2:
                self._append_and_ask()
        return self.appended

    def _append_and_ask(self) -> None:
        name = f"w{self._number}-{self.appended}"
        before = self._places[0]
        made = event(self.appended) | {"service": f"writer-{self._number}", "request": name}
        _, headers = self._ask("POST", STREAM, made)
        self.appended += 1
        if not self.appended % 5:
            self._places[0] = headers["stream-next-offset"]
        body = {"q": f'request:"{name}"', "track_total_hits": True}
        answer = self._timely(body)
        assert [hit["source"]["request"] for hit in answer["hits"]] == [name]
        mine = {"rollup": "requests", "interval": "1h", "measures": ["requests"], "q": f"service:writer-{self._number}"}
        found, _ = self._ask("POST", f"{STREAM}/_aggregate", {**mine, **EVER})
        counted = [group["measures"]["requests"]["count"] for one in found["buckets"] for group in one["groups"]]
        assert sum(counted) == self.appended
        # All writers ask this at the same time, from the same place.
        read, _ = self._ask("GET", f"{STREAM}?filter={quote('status:>0')}&offset={before}")
        assert name in [one["request"] for one in read]

    def _timely(self, body: dict[str, Any]) -> Any:
        """The answer to a search; a busy machine may have no time for it at first."""
        for _ in range(20):
            answer, _ = self._ask("POST", f"{STREAM}/_search", body)
            if not answer["timed_out"]:
                break
        return answer

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[Any, dict[str, str]]:
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        read, headers = answer.read(), {name.lower(): value for name, value in answer.headers.items()}
        assert answer.status in (200, 204, 408), (method, path, answer.status, read)
        return json.loads(read) if read else None, headers


def test_every_append_is_found_at_once_under_constant_ingest(start_server: StartServer) -> None:
    server = start_server(
        storage__seal_rows="40",
        pipeline__min_rows="0",
        pipeline__fan_out="3",
        pipeline__unit_bytes="20000",
        server__resolver_timeout_s="60",
    )
    logs, stop, done = Logs(server.url), threading.Event(), []
    logs.create("logs")
    places = ["0" * 26]
    writers = [Writer(server.url, number, places) for number in range(WRITERS)]

    def work() -> None:
        worker = Worker(server.url)
        while not stop.is_set():
            settled = worker.work_once()
            done.extend(one["outcome"] for one in settled)
            stop.wait(0.05 if settled else 0.2)

    with ThreadPoolExecutor(WRITERS + 1) as threads:
        working = threads.submit(work)
        until = time.monotonic() + SECONDS
        try:
            appended = sum(threads.map(lambda writer: writer.run(until), writers))
        finally:
            stop.set()
        working.result()
    body = {"q": "has:request", "size": 0, "track_total_hits": True}
    assert logs.ask("POST", f"{STREAM}/_search", body)["total"] == {"value": appended, "relation": "eq"}
    assert set(done) == {"committed"}, "companions came meanwhile"


def test_an_answer_that_nobody_took_is_not_given_to_the_next(start_server: StartServer) -> None:
    server = start_server()
    logs, numbers = Logs(server.url), count()
    logs.create("logs")
    path = f"{STREAM}?filter={quote('status:>0')}"
    for _ in range(5):
        logs.ask("POST", STREAM, event(next(numbers)))
        _ask_and_leave(server.url, path)
        logs.ask("POST", STREAM, event(next(numbers)))
        read = logs.ask("GET", path)
        assert [one["request"] for one in read] == [event(at)["request"] for at in range(len(read))]
        assert len(read) == next(numbers), "the newest is there"
        logs.ask("POST", STREAM, event(len(read)))


def _ask_and_leave(url: str, path: str) -> None:
    """Ask, and hang up before the answer comes."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "", place.port or 0)) as caller:
        caller.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
    time.sleep(0.2)  # the answer is found, and there is nobody to give it to
