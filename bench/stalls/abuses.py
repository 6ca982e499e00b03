"""Loads at the limits of what may be asked, each for a server of its own that is prepared for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from bench import observing
from bench.driver import drive, job
from bench.events import array, event
from bench.features.loads import batch_gets, pushes
from bench.features.pipelines import TWO
from bench.requests import stream_path
from bench.serving import Running
from bench.stalls.load import Load
from bench.waiting import ENTITY, FIELD, change, watched
from bench.wire import http_request

_ROWS, _USERS, _OBSERVATIONS, _EVENTS = 10_000, 10_000, 10_000, 100_000
_BODY_BYTES = 9 * 1024 * 1024
_STREAM = "abused"
_WAITERS, _SLOW_READERS = 10_000, 1_000


class Abuse(NamedTuple):
    """A load, and what a server needs before it."""

    title: str
    prepare: Callable[[Running], Load]


def _posted(path: str, body: Any) -> bytes:
    return http_request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())


def _batch_gets(connections: int) -> Callable[[Running], Load]:
    def prepare(server: Running) -> Load:
        server.ask("POST", "/v1/register", json.dumps({"nodes": TWO.nodes()}).encode())
        drive(job(server, "push", TWO.event, keys=_USERS, pipeline=TWO.name, prefix="/v1", batch=100, count=200))
        request = next(
            batch_gets(job(server, "batch-get", "", keys=_USERS, pipeline=TWO.name, prefix="/v1", batch=_ROWS))
        )
        return Load([request], connections)

    return prepare


def _large_pushes(server: Running) -> Load:
    server.ask("POST", "/v1/register", json.dumps({"nodes": TWO.nodes()}).encode())
    wanted = job(server, "push", TWO.event, keys=_USERS, pipeline=TWO.name, prefix="/v1", batch=_EVENTS, count=2)
    return Load(list(pushes(wanted)), 8)


def _observations(server: Running) -> Load:
    server.ask("POST", "/v1/entity-types", json.dumps(observing.version("1.0.0", {})).encode())
    wanted = job(server, "observe", observing.TYPE, keys=_USERS, batch=_OBSERVATIONS, count=8)
    return Load(list(observing.observations(wanted)), 8)


def _large_appends(server: Running) -> Load:
    server.create(_STREAM)
    return Load([_posted(stream_path(_STREAM), array(0, _BODY_BYTES // 116, event))], 20)


def _large_values(server: Running) -> Load:
    server.create(_STREAM)
    return Load([_posted(stream_path(_STREAM), b'{"text":"%s"}' % (b"x" * _BODY_BYTES))], 20)


def _waiters(query: str) -> Callable[[Running], Load]:
    def prepare(server: Running) -> Load:
        server.create(_STREAM)
        path = stream_path(_STREAM)
        return Load(
            [http_request("GET", f"{path}?{query}&offset=now")],
            _WAITERS,
            kind="wait",
            wakes=[_posted(path, event(number)) for number in range(3)],
        )

    return prepare


def _touch_waiters(server: Running) -> Load:
    path = stream_path(_STREAM)
    server.create(_STREAM)
    profile = {"kind": "state-protocol", "touch": {"enabled": True}}
    server.ask("POST", f"{path}/_profile", json.dumps({"profile": profile}).encode())
    template = {"entity": ENTITY, "fields": [{"name": FIELD, "encoding": "string"}]}
    server.ask("POST", f"{path}/touch/templates/activate", json.dumps({"templates": [template]}).encode())
    cursor = json.loads(server.ask("GET", f"{path}/touch/meta"))["cursor"]
    body = {"cursor": cursor, "keys": [watched(1)], "timeoutMs": 60_000}
    return Load([_posted(f"{path}/touch/wait", body)], _WAITERS, kind="wait", wakes=[_posted(path, change(1, 1))])


def _slow_readers(server: Running) -> Load:
    server.create(_STREAM)
    path = stream_path(_STREAM)
    for _ in range(4):
        server.ask("POST", path, array(0, 10_000, event))
    return Load([http_request("GET", f"{path}?offset=-1")], _SLOW_READERS, kind="slow")


ABUSES: dict[str, Abuse] = {
    "batch-get-10": Abuse("10 batch gets of 10,000 rows", _batch_gets(10)),
    "batch-get-40": Abuse("40 batch gets of 10,000 rows", _batch_gets(40)),
    "observations": Abuse("8 batches of 10,000 observations", _observations),
    "pushes": Abuse("8 pushes of 100,000 events", _large_pushes),
    "appends": Abuse("20 appends of 9 MiB in small events", _large_appends),
    "values": Abuse("20 appends of one event of 9 MiB", _large_values),
    "long-poll": Abuse("10,000 long-polls woken at once", _waiters("live=long-poll&timeout=60s")),
    "sse": Abuse("10,000 SSE readers woken at once", _waiters("live=sse")),
    "touch": Abuse("10,000 touch waits woken at once", _touch_waiters),
    "slow-readers": Abuse("1,000 readers that take nothing", _slow_readers),
}
