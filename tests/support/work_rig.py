"""A worker that writes objects of no meaning: what counts here is which, for what, and when they are listed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from engine.registries import change
from headrace.engine.derive.commit import Committed
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.search.companion_coverage import widest
from headrace.format.companion.layout import Companion, PartFile
from headrace.format.object_names import companion_key
from headrace.query.definition import Definition
from headrace.reduce.work_units import JOBS, Result, Unit
from headrace.schema.registry import Registry
from headrace.storage.derived import Companions
from headrace.storage.objects import Objects
from headrace.storage.work import FailureRow, Work
from headrace.types import JSON
from support.engine_rig import Rig, array

SECOND = 1_000_000
SCHEMA: dict[str, Any] = {"type": "object"}
PARTS = ("columns", "postings", "panes")
_attempts = count(1)


def search(*fields: str, **rollups: dict[str, Any]) -> dict[str, Any]:
    """A search document with a time and these keywords."""
    kinds = {"at": "date"} | dict.fromkeys(fields, "keyword")
    bound = {
        name: {"kind": kind, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}], "exact": True, "column": True}
        for name, kind in kinds.items()
    }
    return {"primaryTimestampField": "at", "fields": bound, **({"rollups": rollups} if rollups else {})}


def opened(directory: Path, **pipeline: Any) -> Rig:
    """An engine that seals ten entries at a time, and for which any number of entries is worth the work."""
    return Rig(directory, storage={"seal_rows": 10}, pipeline={"min_rows": 0, "unit_bytes": 1, **pipeline})


def searched(rig: Rig, name: str, entries: int = 0, *fields: str) -> None:
    """A stream with a search configuration and so many published entries, ten to a segment."""
    rig.create(name, JSON)
    change(rig, name, schema=SCHEMA, search=search(*(fields or ("user",))))
    publish(rig, name, entries)


def publish(rig: Rig, name: str, entries: int) -> None:
    """Append entries in requests of up to ten, and publish them."""
    for start in range(0, entries, 10):
        rig.append(name, array(*({"user": str(n)} for n in range(start, min(start + 10, entries)))))
    rig.publish(name)


class Worker:
    """Leases from an engine, and does what it is told."""

    def __init__(self, rig: Rig, name: str = "w") -> None:
        self.rig = rig
        self.name = name

    def lease(self, limit: int = 256, jobs: Sequence[Any] = JOBS) -> Grant | None:
        return self.rig.run(self.rig.engine.work.lease(self.name, limit, jobs))

    def granted(self, limit: int = 256, jobs: Sequence[Any] = JOBS) -> Grant:
        found = self.lease(limit, jobs)
        assert found is not None, "nothing was due"
        return found

    def beat(self, grant: Grant, done: int = 0, total: int = 0) -> tuple[int, list[str]]:
        work = self.rig.engine.work
        return self.rig.run(work.heartbeat(grant.lease.id, grant.lease.token, done, total))

    def release(self, grant: Grant) -> None:
        self.rig.run(self.rig.engine.work.release(grant.lease.id, grant.lease.token))

    def commit(self, grant: Grant, results: Iterable[Result] | None = None) -> Committed:
        given = self.made(grant) if results is None else list(results)
        return self.rig.run(self.rig.engine.work.commit(grant.lease.id, grant.lease.token, given))

    def made(self, grant: Grant) -> list[Result]:
        """Write everything that a lease asks for."""
        return [Result(unit.unit, make(self.rig.engine.objects, unit)) for unit in grant.units]

    def work(self, limit: int = 256) -> int:
        """Lease and commit until nothing is due; answers how many units that were."""
        units = 0
        while (grant := self.lease(limit)) is not None:
            self.commit(grant)
            units += len(grant.units)
        return units


def make(objects: Objects, unit: Unit) -> Companion:
    """Write the objects of a unit, and tell how they are listed."""
    definition = Definition.of(Registry.load(msgspec.to_builtins(unit.registry)))
    assert definition is not None
    through = unit.through_version or definition.current_version
    name = f"{unit.name_begins}{next(_attempts):x}"
    data = name.encode()
    for part in PARTS:
        objects.put(companion_key(unit.stream, unit.incarnation, name, part), data)
    one = PartFile(len(data), hashlib.sha256(data).hexdigest())
    return Companion(
        name=name,
        first_seq=unit.first_seq,
        count=unit.count,
        level=unit.level,
        through_version=through,
        fields={field: definition.field_hash(field, through) for field in definition.search.fields},
        rollups={rollup: definition.rollup_hash(rollup, through) for rollup in definition.search.rollups},
        keys=True,
        columns=one,
        postings=one,
        panes=one,
        times=None,
        segments=len(unit.segments),
        words={},
    )


def spans(found: Iterable[Unit | Companion]) -> list[tuple[int, int]]:
    """Where units or companions begin and end."""
    return [(one.first_seq, one.end_seq) for one in found]


def listed(rig: Rig, name: str) -> list[Companion]:
    """The companions of a stream that count."""
    return Companions(rig.engine._reader).listed(rig.find(name).id)


def covered(
    rig: Rig, name: str, *, fields: Collection[str] | None = None, rollups: Collection[str] = (), keys: bool = False
) -> list[tuple[int, int]]:
    """Where the companions begin and end that answer for some fields of a stream, or for all that is defined."""
    stream, coverage = rig.find(name), rig.engine.coverage
    defined = coverage.defined(stream)
    if defined is None:
        return []
    start = max(stream.head.first_seq, defined.registry.readable_from)
    usable = [
        companion
        for companion in coverage.listed(stream)
        if (
            defined.is_current(companion)
            if fields is None
            else companion.keys >= keys and defined.may_answer(companion, fields, rollups)
        )
    ]
    return spans(companion for companion in widest(usable) if companion.end_seq > start)


def failures(rig: Rig, name: str) -> list[FailureRow]:
    return Work(rig.engine._reader).failures(rig.find(name).id)


def stored(rig: Rig, kind: str = "companions") -> set[str]:
    """The names of the companions whose objects are in the store."""
    keys = [info.key for info in rig.engine.objects.list(kind)]
    return {key.rpartition("/")[2].partition(".")[0] for key in keys}


def forget(rig: Rig) -> None:
    """Let the objects go that nothing refers to."""
    rig.clock.us += 61 * SECOND
    rig.clear()
