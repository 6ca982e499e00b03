"""Searches and aggregates while one client appends as fast as it can: how late, how complete and how right they are."""

from __future__ import annotations

import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from bench.driver import DriverFailed, Sample
from bench.memory import MemoryWatch
from bench.requests import stream_path
from bench.scale import Scale
from bench.search import with_pipeline
from bench.searching.asking import Answer, Caller
from bench.searching.rows import Promise
from bench.serving import Running, running
from bench.targets import Target
from bench.wire import http_request

STREAM = "answers"
ARRAY = 1_000
#: Of every array so many events have the word that is searched for.
FOUND = 10
LEAST_SECONDS = 10.0
#: The client is let run for so long before the first question.
HEAD_START = 2.0
MOST_MS = 1_000.0

LEFT_OUT = dict.fromkeys(("prisma", "prisma-tuned", "reference", "redis", "beava"), "measured on Headrace only")

RATE = "answers under ingest: events appended"
ROW = "answers under ingest: {}, {}"
MEMORY = "answers under ingest: memory"
KINDS = ("aggregate", "text search")

_WORDS = ("request", "served", "from", "cache", "after", "retry", "upstream", "closed", "timeout", "queue", "full")
_TIME = b"2000-01-01T00:00:00.000Z"
_FIELDS: dict[str, dict[str, Any]] = {
    "at": {"kind": "date", "exact": True, "column": True, "sortable": True},
    "service": {"kind": "keyword", "exact": True, "prefix": True},
    "ms": {"kind": "float", "column": True, "sortable": True, "aggregatable": True},
    "message": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True},
}
_UPDATE: dict[str, Any] = {
    "schema": {"type": "object", "additionalProperties": True},
    "search": {
        "primaryTimestampField": "at",
        "defaultFields": [{"field": "message"}],
        "fields": {
            name: {**one, "exists": True, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]}
            for name, one in _FIELDS.items()
        },
        "rollups": {
            "requests": {
                "dimensions": ["service"],
                "intervals": ["1m"],
                "measures": {"count": {"kind": "count"}, "latency": {"kind": "summary", "field": "ms"}},
            }
        },
    },
}


@dataclass
class Asked:
    """The answers of one kind."""

    seconds: list[float] = field(default_factory=list)
    late: int = 0
    incomplete: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def mark(self) -> str:
        """What must be said beside the times."""
        troubles = (f"{self.late} answered 408", self.late), (f"{self.incomplete} incomplete", self.incomplete)
        said = ", ".join(text for text, count in troubles if count)
        return said and f"of {len(self.seconds)} {said}"


def answers(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Append and ask at the same time."""
    seconds = max(LEAST_SECONDS, scale.times.seconds * 30)
    with running(with_pipeline(target), space) as server, MemoryWatch(server) as memory:
        server.create(STREAM)
        server.ask("POST", f"{stream_path(STREAM)}/_schema", json.dumps(_UPDATE).encode())
        asked, rate = _under_load(server, seconds)
    return [*_samples(asked), Sample(RATE, rate, "/s"), Sample(MEMORY, memory.most_mb, "MB")]


def promises(value: Callable[[str, str], float | None]) -> Iterator[Promise]:
    """The bars that hold for the slowest answers."""
    for kind in KINDS:
        worst = value(ROW.format(kind, "slowest"), "headrace")
        if worst is not None:
            text = f"the slowest {kind} while one client appends (at most {MOST_MS:,.0f} ms)"
            yield Promise(text, worst, worst <= MOST_MS)


def _under_load(server: Running, seconds: float) -> tuple[dict[str, Asked], float]:
    """Ask while another process appends; answers what came of it, and how many events a second were appended."""
    context = multiprocessing.get_context("spawn")
    sent, acknowledged, stopping = context.Value("q", 0), context.Value("q", 0), context.Event()
    client = context.Process(target=_append, args=(server.port, sent, acknowledged, stopping), daemon=True)
    client.start()
    try:
        began = _await_first(acknowledged)
        time.sleep(HEAD_START)
        asked = _ask(server.port, sent, acknowledged, seconds)
        rate = acknowledged.value / (time.monotonic() - began)
        if not client.is_alive():
            raise DriverFailed("the client that appends has ended")
    finally:
        stopping.set()
        client.join(10)
    return asked, rate


def _await_first(acknowledged: Synchronized[int]) -> float:
    deadline = time.monotonic() + 20
    while not acknowledged.value:
        if time.monotonic() > deadline:
            raise DriverFailed("nothing was appended")
        time.sleep(0.01)
    return time.monotonic()


def _append(port: int, sent: Synchronized[int], acknowledged: Synchronized[int], stopping: Any) -> None:
    """Append arrays over one connection, each when the one before it is acknowledged."""
    bodies = [_array(number) for number in range(16)]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = 0
        while not stopping.is_set():
            body = bodies[number % len(bodies)].replace(_TIME, _now())
            sent.value += ARRAY
            connection.sendall(http_request("POST", stream_path(STREAM), body))
            answer = b""
            while b"\r\n\r\n" not in answer:
                received = connection.recv(65536)
                if not received:
                    raise DriverFailed("the server has closed the connection")
                answer += received
            if not answer.startswith(b"HTTP/1.1 2"):
                raise DriverFailed(answer[:300].decode("latin-1"))
            acknowledged.value += ARRAY
            number += 1


def _array(number: int) -> bytes:
    """Events with a place for their time; one in a hundred has the word that is searched for."""
    events = []
    for at in range(ARRAY):
        text = " ".join(_WORDS[(at * step + number) % len(_WORDS)] for step in (1, 3, 5, 7, 9))
        message = f"{text} needle" if at % (ARRAY // FOUND) == 0 else text
        event = {"at": _TIME.decode(), "service": f"svc-{at % 20:02d}", "ms": (at * 37 + number) % 1000 / 8}
        events.append(json.dumps({**event, "message": message}, separators=(",", ":")))
    return b"[" + ",".join(events).encode() + b"]"


def _now() -> bytes:
    now = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z".encode()


def _ask(port: int, sent: Synchronized[int], acknowledged: Synchronized[int], seconds: float) -> dict[str, Asked]:
    """Ask one question after the other, and hold each count against what was sent and acknowledged."""
    asked, caller = {kind: Asked() for kind in KINDS}, Caller(port)
    ends, number = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        kind = KINDS[number % len(KINDS)]
        before = acknowledged.value
        answer = _aggregate(caller) if kind == "aggregate" else _search(caller)
        _note(asked[kind], kind, answer, before, sent.value)
        number += 1
    caller.hang_up()
    return asked


def _aggregate(caller: Caller) -> Answer:
    minute = int(time.time()) // 60 * 60
    start, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(minute + shift)) for shift in (-3600, 120))
    question = {"rollup": "requests", "from": start, "to": end, "interval": "1m", "group_by": ["service"]}
    return caller.on_stream("_aggregate", question, STREAM)


def _search(caller: Caller) -> Answer:
    question = {"q": "message:needle", "size": 10, "track_total_hits": True}
    return caller.on_stream("_search", question, STREAM)


def _note(asked: Asked, kind: str, answer: Answer, before: int, after: int) -> None:
    asked.seconds.append(answer.seconds)
    if answer.status == 408:
        asked.late += 1
        return
    found = answer.json()
    if not found["coverage"]["complete"]:
        asked.incomplete += 1
        return
    if kind == "aggregate":
        groups = (group for bucket in found["buckets"] for group in bucket["groups"])
        count = sum(group["measures"]["count"]["count"] for group in groups)
    else:
        count = found["total"]["value"] * (ARRAY // FOUND)
    if not before <= count <= after:
        asked.wrong.append(f"counted {count:,}, and between {before:,} and {after:,} had been appended")


def _samples(asked: dict[str, Asked]) -> Iterator[Sample]:
    for kind, found in asked.items():
        if not found.seconds:
            raise DriverFailed(f"no {kind} was answered")
        numbers = {"median": statistics.median(found.seconds), "slowest": max(found.seconds)}
        errors = found.late + found.incomplete + len(found.wrong)
        note = "; ".join([*filter(None, [found.mark]), *found.wrong[:3]])
        for name, seconds in numbers.items():
            is_last = name == "slowest"
            yield Sample(ROW.format(kind, name), seconds * 1e3, "ms", errors if is_last else 0, note if is_last else "")
