"""Observations of people: the versions of their type, requests that import them, and reads of what became of each.

Every person is observed as often as any other, in a scattered order, at scattered times, with changing priorities.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.features.pipelines import user_of
from bench.job import Job
from bench.wire import HttpConnection, Tally, connect, http_request
from headrace.schema.entity.identity import entity_id

TYPE, FIRST_TYPE = "person", "first"
LONGEST = 600.0
_TENANT = "local"
#: So many gets stand ready, and are sent over and over where there is no end.
_READY = 20_000
_FIELDS = {"email": "string", "name": "string", "phone": "string", "score": "number", "tags": "array"}
_ENTITY = (
    b'{"entity_type":"%s","email":"u-%06d@example.com","name":"Person %d","phone":"+1 555 %04d",'
    b'"score":%d,"tags":["t%d","t%d"],"colour":"%s"}'
)
_COLOURS = (b"red", b"green", b"blue")
_SINCE = datetime(2024, 1, 1, tzinfo=UTC)
_SPAN_S, _STRIDE_S = 300 * 86_400, 7_919_000
_COUNT = re.compile(rb'"observation_count":(\d+)')


def version(name: str, policies: dict[str, str], *more: str, entity_type: str = TYPE) -> dict[str, Any]:
    """A version of the type with strategies of some fields, and more fields that are texts."""
    fields = {**_FIELDS, **dict.fromkeys(more, "string")}
    return {
        "entity_type": entity_type,
        "schema_version": name,
        "schema_definition": {
            "fields": {field: {"type": kind} for field, kind in fields.items()},
            "canonical_name_fields": ["email"],
        },
        "reducer_config": {"merge_policies": {field: {"strategy": strategy} for field, strategy in policies.items()}},
        "activate": True,
    }


def id_of(person: int, entity_type: str = TYPE) -> str:
    """The id of a person's entity."""
    return entity_id(_TENANT, f"{entity_type}:u-{person:06d}@example.com")


def observations(job: Job) -> Iterator[bytes]:
    """Requests with `batch` observations each of `keys` people, `count` of them, from the one with a number on."""
    return (_import(job, job.first + number * job.batch) for number in range(job.count))


def gets(job: Job) -> Iterator[bytes]:
    """Gets of random people, without end, or `count` of them."""
    made = [_get(id_of(person)) for person in random.Random(9).choices(range(job.keys), k=_READY)]
    return itertools.islice(itertools.cycle(made), job.count) if job.count else itertools.cycle(made)


LOADS: dict[str, Callable[[Job], Iterator[bytes]]] = {"observe": observations, "get-entity": gets}


class _Reader(HttpConnection):
    """A connection that notes a digest of each answer, and how many observations it counts."""

    def __init__(self, tally: Tally, requests: Iterator[bytes], told: dict[str, str], counts: list[int]) -> None:
        super().__init__(tally, requests)
        self._told, self._counts = told, counts

    def succeed(self) -> None:
        body = self.answer.partition(b"\r\n\r\n")[2]
        counted = _COUNT.search(body)
        self._told[body[14:42].decode()] = hashlib.sha256(body).hexdigest()[:16]
        self._counts.append(int(counted[1]) if counted else 0)
        super().succeed()


async def read_entities(job: Job) -> dict[str, Any]:
    """Get every one of `keys` people once: a digest of each answer by entity, and all observations that they count."""
    tally, told, counts = Tally(job.connections), dict[str, str](), list[int]()
    requests = (_get(id_of(person)) for person in range(job.keys))
    connections = [_Reader(tally, requests, told, counts) for _ in range(job.connections)]
    await connect(connections, job.port)
    for connection in connections:
        connection.send()
    await asyncio.wait_for(tally.at_rest.wait(), LONGEST)
    tally.stopping = True
    errors = {"errors": tally.errors, "first_error": tally.first_error}
    return {"told": told, "observations": sum(counts), **errors}


def _import(job: Job, first: int) -> bytes:
    kind = job.stream.encode()
    entities = b",".join(_entity(kind, number, user_of(number, job.keys)) for number in range(first, first + job.batch))
    at = _SINCE + timedelta(seconds=first * _STRIDE_S % _SPAN_S)
    terms = b'"observed_at":"%s","source_priority":%d,"observation_source":"import"' % (
        at.strftime("%Y-%m-%dT%H:%M:%SZ").encode(),
        100 + first // job.batch % 5,
    )
    return http_request("POST", "/v1/observations", b'{"entities":[%s],%s}' % (entities, terms))


def _entity(kind: bytes, number: int, person: int) -> bytes:
    colour = _COLOURS[number % 3]
    return _ENTITY % (kind, person, number, number % 10_000, number % 1_000, number % 7, number % 11, colour)


def _get(entity_id: str) -> bytes:
    return http_request("GET", f"/v1/entities/{entity_id}")
