"""The requests of features: pushes, gets, and gets of many keys at once."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator

from bench.features.pipelines import PIPELINES, user_name, user_of
from bench.job import Job
from bench.wire import http_request

#: So many events stand ready, and are sent over and over where there is no end.
_READY = 20_000


def pushes(job: Job) -> Iterator[bytes]:
    """Pushes of `batch` events, whose users take turns, without end, or `count` of them."""
    if job.count:
        return (_push(job, n * job.batch) for n in range(job.count))
    return itertools.cycle([_push(job, first) for first in range(0, _READY, job.batch)])


def gets(job: Job) -> Iterator[bytes]:
    """Gets of a random user's row, without end, or `count` of them."""
    made = [_get(job, user) for user in _random_users(job)]
    return itertools.islice(itertools.cycle(made), job.count) if job.count else itertools.cycle(made)


def batch_gets(job: Job) -> Iterator[bytes]:
    """Gets of `batch` random users' rows at once."""
    users = _random_users(job)
    made = [_batch_get(job, users[first : first + job.batch]) for first in range(0, len(users), job.batch)]
    return itertools.islice(itertools.cycle(made), job.count) if job.count else itertools.cycle(made)


def turns(job: Job) -> Iterator[bytes]:
    """A push, then a get of the same user's row, without end."""
    pairs = ((_push(job, number), _get(job, user_of(number, job.keys))) for number in range(_READY))
    return itertools.cycle(list(itertools.chain.from_iterable(pairs)))


LOADS: dict[str, Callable[[Job], Iterator[bytes]]] = {
    "push": pushes,
    "get": gets,
    "batch-get": batch_gets,
    "turns": turns,
}


def get_body(job: Job, user: int) -> dict[str, str]:
    """What is asked for one user."""
    return {"table": PIPELINES[job.pipeline].table, "key": user_name(user)}


def _random_users(job: Job) -> list[int]:
    return random.Random(9).choices(range(job.keys), k=_READY)


def _push(job: Job, first: int) -> bytes:
    pipeline = PIPELINES[job.pipeline]
    events = [pipeline.make(number, user_of(number, job.keys)) for number in range(first, first + job.batch)]
    body = events[0] if job.batch == 1 else b"[" + b",".join(events) + b"]"
    return http_request("POST", f"{job.prefix}/push/{pipeline.event}", body)


def _get(job: Job, user: int) -> bytes:
    return http_request("POST", f"{job.prefix}/get", _json(get_body(job, user)))


def _batch_get(job: Job, users: list[int]) -> bytes:
    return http_request("POST", f"{job.prefix}/batch_get", _json({"requests": [get_body(job, user) for user in users]}))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
