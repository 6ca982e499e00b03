"""The requests of each kind of job, one after the other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from bench import observing
from bench.events import EVENTS, array, event, keyed_event
from bench.features.loads import LOADS
from bench.job import Job
from bench.keys import assigned
from bench.wire import http_request, redis_command

DISTINCT_REQUESTS = 64


def stream_path(name: str) -> str:
    """The URL path of a stream."""
    return f"/v1/stream/{name}"


def numbered(prefix: str, number: int) -> str:
    """The name of one of many streams; names sort by number."""
    return f"{prefix}-{number:07d}"


def append_requests(job: Job) -> Iterator[bytes]:
    """Appends of `batch` events to one stream, without end, or `count` of them."""
    made = [_append(job, job.stream, n * job.batch) for n in range(DISTINCT_REQUESTS)]
    return itertools.islice(itertools.cycle(made), job.count) if job.count else itertools.cycle(made)


def fill_requests(job: Job) -> Iterator[bytes]:
    """Appends of `batch` events to one stream, `count` of them, no two events alike."""
    return (_append(job, job.stream, n * job.batch) for n in range(job.count))


def keyed_fill_requests(job: Job) -> Iterator[bytes]:
    """The same with events that have keys."""
    path = stream_path(job.stream)
    for first, keys in zip(range(0, job.count * job.batch, job.batch), assigned(job.keys, job.batch), strict=False):
        events = (keyed_event(number, key) for number, key in enumerate(keys, start=first))
        yield http_request("POST", path, b"[" + b",".join(events) + b"]")


def create_requests(job: Job) -> Iterator[bytes]:
    """Creations of `count` streams named by number, in a scattered order."""
    numbers = list(range(job.count))
    random.Random(1).shuffle(numbers)
    return (http_request("PUT", stream_path(numbered(job.stream, n))) for n in numbers)


def random_append_requests(job: Job) -> Iterator[bytes]:
    """Single appends to random streams among `count` numbered ones, to others each time: none is warm from before."""
    choose = random.Random()
    while True:
        yield http_request("POST", stream_path(numbered(job.stream, choose.randrange(job.count))), event(1))


def list_requests(job: Job) -> Iterator[bytes]:
    """Listings of one page after a random name among `count` numbered streams."""
    choose = random.Random(job.count)
    while True:
        after = numbered(job.stream, choose.randrange(job.count))
        yield http_request("GET", f"/v1/streams?after={after}&limit=100")


SOURCES: dict[str, Callable[[Job], Iterator[bytes]]] = {
    "append": append_requests,
    "fill": fill_requests,
    "keyed-fill": keyed_fill_requests,
    "create": create_requests,
    "random-append": random_append_requests,
    "list": list_requests,
    **LOADS,
    **observing.LOADS,
}

#: Jobs that end with the last of their requests; the others go on for a while.
COUNTED = ("append", "fill", "keyed-fill", "create", "push", "get", "observe")


def _append(job: Job, stream: str, first: int) -> bytes:
    make = EVENTS[job.event]
    if job.redis:
        adds = (redis_command(b"XADD", stream.encode(), b"*", b"d", make(first + n)) for n in range(job.batch))
        return b"".join(adds)
    body = make(first) if job.batch == 1 else array(first, job.batch, make)
    return http_request("POST", stream_path(stream), body)
