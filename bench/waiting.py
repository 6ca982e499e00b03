"""Waits on touches: many connections, each waiting for the changes of one key, and a model of what they must see.

Changes have the sequence numbers 0, 1, 2 … because one connection sends them in turn. An answer says up to which number
it has seen everything, so the model knows for each change and each of its waiters when that waiter was told of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any, cast

from bench.job import Job
from bench.wire import http_request, response_complete
from headrace.profiles.state_protocol import keys

ENTITY, FIELD = "public.todos", "listId"
TEMPLATE = keys.template_id(ENTITY, [FIELD])
_CURSOR = re.compile(rb'"cursor":"([^"]+)"')
_SEEN = re.compile(rb'"bucketMaxSourceOffsetSeq":"(-?\d+)"')
CONNECT_AT_ONCE = 200
SLOWEST_PARK, SLOWEST_WAKE = 60.0, 10.0
WARM_CHANGES = 20


def change(number: int, key: int) -> bytes:
    """A change of a row on one list."""
    value = {"id": str(number), "title": f"todo {number}", FIELD: f"list-{key}"}
    headers = {"operation": "insert"}
    return json.dumps({"type": ENTITY, "key": str(number), "value": value, "headers": headers}).encode()


def watched(key: int) -> str:
    """What is waited for where a list may change."""
    return keys.format_key(keys.watch_key(TEMPLATE, [f"list-{key}"]))


class Model:
    """Every change, and who has been told of it when."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, float]] = []
        self.by_key: dict[int, list[int]] = {}
        self.seconds: list[float] = []
        self.for_nothing = self.timeouts = self.errors = 0
        self.first_error = ""
        self.answers = 0

    def sending(self, key: int) -> None:
        """The next change is about to be sent."""
        number = len(self.changes)
        self.changes.append((key, time.perf_counter()))
        self.by_key.setdefault(key, []).append(number)

    def told(self, key: int, before: int, seen: int) -> None:
        """A waiter that had seen the changes up to one was told, and has now seen them up to another."""
        now = time.perf_counter()
        mine = [number for number in reversed(self.by_key.get(key, ())) if before < number <= seen]
        self.for_nothing += not mine
        self.seconds += [now - self.changes[number][1] for number in mine if number >= WARM_CHANGES]

    def failed(self, reason: str) -> None:
        """Something else than an answer came."""
        self.errors += 1
        self.first_error = self.first_error or reason


class Waiter(asyncio.Protocol):
    """One connection that waits for its key again and again, each time from where it was told to go on."""

    def __init__(self, model: Model, job: Job, key: int, cursor: bytes) -> None:
        self.model = model
        self.job = job
        self.key = key
        self.cursor = cursor
        self.seen = -1
        self.partial = b""
        self.transport: asyncio.Transport | None = None
        self.watched = watched(key)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is not None:
            self.model.failed(f"connection lost: {exc!r}")

    def wait(self) -> None:
        """Ask once more."""
        assert self.transport
        body = b'{"cursor":"%s","keys":["%s"],"timeoutMs":%d}' % (self.cursor, self.watched.encode(), self.job.count)
        self.transport.write(http_request("POST", f"/v1/stream/{self.job.stream}/touch/wait", body))

    def data_received(self, data: bytes) -> None:
        self.partial += data
        if not response_complete(self.partial):
            return
        answer, self.partial = self.partial, b""
        self.model.answers += 1
        cursor, seen = _CURSOR.search(answer), _SEEN.search(answer)
        if not answer.startswith(b"HTTP/1.1 200") or b'"stale"' in answer or cursor is None or seen is None:
            self.model.failed(answer[-300:].decode("latin-1"))
            return
        if b'"touched":true' in answer:
            self.model.told(self.key, self.seen, int(seen[1]))
            self.seen = int(seen[1])
        else:
            # Whatever was touched before is among what it has seen, or will be told.
            self.model.timeouts += 1
        self.cursor = cursor[1]
        self.wait()

    def leave(self) -> None:
        """Hang up."""
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()


async def measure_touch(job: Job) -> dict[str, Any]:
    """Park the waiters, send changes at a steady rate, and see who is told of them, and when."""
    model, chance = Model(), random.Random(7)
    reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
    cursor = json.loads(await _ask(reader, writer, "GET", f"/v1/stream/{job.stream}/touch/meta"))["cursor"].encode()
    waiters = [Waiter(model, job, number % job.keys, cursor) for number in range(job.connections)]
    await _park(job, waiters, reader, writer)
    began, due = time.perf_counter(), _schedule(job)
    for number, at in enumerate(due):
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        key = chance.randrange(job.keys)
        model.sending(key)
        await _ask(reader, writer, "POST", f"/v1/stream/{job.stream}", change(number, key))
    took = time.perf_counter() - began
    missed = await _drain(model, waiters)
    for waiter in waiters:
        waiter.leave()
    writer.close()
    found = sorted(model.seconds) or [float("nan")]
    return {
        **{f"p{q}": found[min(len(found) - 1, len(found) * q // 100)] for q in (50, 95, 99)},
        "per_second": len(model.changes) / took,
        "wakes": len(model.seconds),
        "missed": missed,
        "for_nothing": model.for_nothing,
        "timeouts": model.timeouts,
        "errors": model.errors + missed,
        "first_error": model.first_error or (f"{missed} wake-ups were missed" if missed else ""),
    }


def _schedule(job: Job) -> Iterator[float]:
    """When changes are due: so many a second."""
    return (number / job.batch for number in range(int(job.seconds * job.batch)))


async def _park(job: Job, waiters: list[Waiter], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop, until = asyncio.get_running_loop(), time.perf_counter() + SLOWEST_PARK
    for first in range(0, len(waiters), CONNECT_AT_ONCE):
        some = waiters[first : first + CONNECT_AT_ONCE]
        await asyncio.gather(*(loop.create_connection(lambda one=one: one, "127.0.0.1", job.port) for one in some))  # type: ignore[misc]
    while time.perf_counter() < until:
        meta = json.loads(await _ask(reader, writer, "GET", f"/v1/stream/{job.stream}/touch/meta"))
        if meta["activeWaiters"] >= len(waiters) * 0.99:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"only {meta['activeWaiters']} of {len(waiters)} waiters were parked")


async def _drain(model: Model, waiters: list[Waiter]) -> int:
    """Wait for the last wake-ups; answers how many never came."""
    until, missing = time.perf_counter() + SLOWEST_WAKE, 1
    while missing and time.perf_counter() < until:
        await asyncio.sleep(0.1)
        last = {key: numbers[-1] for key, numbers in model.by_key.items()}
        missing = sum(waiter.seen < last.get(waiter.key, -1) for waiter in waiters)
    return missing


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes = b""
) -> bytes:
    writer.write(http_request(method, path, body))
    answer = b""
    while not response_complete(answer):
        more = await reader.read(65536)
        if not more:
            raise OSError(f"{method} {path}: the connection was closed")
        answer += more
    if not answer.startswith(b"HTTP/1.1 2"):
        raise OSError(f"{method} {path}: {answer[:500]!r}")
    return answer.partition(b"\r\n\r\n")[2]
