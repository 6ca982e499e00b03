"""Streams whose events carry routing keys, on a rig, with companions that real kernels make."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from engine.registries import change
from headrace.deadline import Deadline
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.search.routing_keys import KeyPage, KeyQuery, RoutingKeyReader
from headrace.reduce.work_units import Result
from headrace.server.routes.work import store_url
from headrace.types import JSON
from support.engine_rig import Rig, array
from support.plain_worker import perform
from support.work_rig import SCHEMA, Worker, search

KEY = {"jsonPointer": "/k", "required": False}


def opened(directory: Path, **pipeline: Any) -> Rig:
    """An engine that seals few entries at a time, and for which any number of them is worth the work."""
    facts = {"min_rows": 0, "unit_bytes": 1, "fan_out": 3, **pipeline}
    return Rig(directory, storage={"seal_rows": 4}, pipeline=facts)


def keyed(rig: Rig, name: str, *, searched: bool = True) -> None:
    """A stream with a routing key, and a search configuration or none."""
    rig.create(name, JSON)
    change(rig, name, schema=SCHEMA, routingKey=KEY, **({"search": search("user")} if searched else {}))


def append(rig: Rig, name: str, keys: Iterable[str | None]) -> None:
    """One append of an event for every key."""
    rig.append(name, array(*({"user": "u"} if key is None else {"k": key, "user": "u"} for key in keys)))


class Indexer(Worker):
    """A worker that makes what it is asked for."""

    def made(self, grant: Grant) -> list[Result]:
        store = store_url(self.rig.engine.objects, "")
        return [msgspec.convert(perform(msgspec.to_builtins(unit), store), Result) for unit in grant.units]


def page(
    rig: Rig, name: str, after: str = "", limit: int = 500, time_s: float = 60, reader: RoutingKeyReader | None = None
) -> KeyPage:
    """One page of keys, as of now."""
    stream = rig.find(name)
    return (reader or reader_of(rig)).page(KeyQuery(stream, stream.head, after, limit, Deadline(time_s)))


def reader_of(rig: Rig) -> RoutingKeyReader:
    """What lists the routing keys of a server."""
    return RoutingKeyReader(
        config=rig.engine.config, open_archive=rig.engine.caches.archive, connect=rig.engine.connect
    )


def pages(rig: Rig, name: str, limit: int) -> list[str]:
    """All keys, page by page."""
    reader, found = reader_of(rig), list[str]()
    while True:
        one = page(rig, name, found[-1] if found else "", limit, reader=reader)
        assert one.is_complete and len(one.keys) <= limit
        found += one.keys
        if not one.has_more:
            return found
