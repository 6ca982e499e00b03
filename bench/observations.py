"""Entities: an import of observations with a change of the schema in the middle, gets, and all snapshots made anew.

The import goes to a server alone, as it is by default, which keeps its snapshots as observations come. Then the same
data are given to a server with its pipeline, policies change twice, forth and back, and Spark makes every snapshot anew
each time. In the end they must be what was kept, byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.driver import DriverFailed, Sample, difference, drive, job
from bench.features.entities import working
from bench.observing import FIRST_TYPE, TYPE, id_of, version
from bench.published import await_published, sealing
from bench.scale import Scale
from bench.search import Marked
from bench.searching.asking import Caller
from bench.searching.covering import await_rest
from bench.searching.rows import Promise
from bench.serving import Running, fresh_directory, serving
from bench.snapshots import packed
from bench.targets import Target

LEFT_OUT = dict.fromkeys(("prisma", "prisma-tuned", "reference", "redis"), "they have no entities")

BATCH, CONNECTIONS, OBSERVATIONS_EACH = 500, 4, 10
#: Both halves of an import are whole batches, and so is every person's share.
STEP = 10_000

IMPORT = f"observations imported in batches of {BATCH}, {CONNECTIONS} connections"
REBUILD = "observations folded anew by Spark, on two cores"
CAUGHT_UP = "from the last of them until snapshots are kept by the new policies"
GETS = "get of an entity, 64 connections"
GET_TIME = "get of an entity, {}"

LEAST_IMPORTED, LEAST_REBUILT, MOST_GET_MS = 20_000.0, 100_000.0, 3.0
#: What the peer says of itself, which is no measure of ours.
STATED = (
    "for orientation, stated and not measured here: the documents of Neotoma, a Node program, tell of 10,000 contacts"
    " imported in 9.9 s and rebuilt in 8.1 s, in process, which is about 1,000 entities a second"
)

_KEPT = {"tags": "merge_array"}
FIRST = version("1.0.0", {**_KEPT, "name": "highest_priority"})
#: Other policies, and a field more; values of it were fragments before.
CHANGED = version("2.0.0", {**_KEPT, "phone": "highest_priority"}, "colour")
OTHER = version("3.0.0", {**_KEPT, "score": "highest_priority"}, "colour")

_READERS, _TIMED_GETS, _FIRST_OBSERVATIONS = 16, 5_000, 1_000
LONGEST_WAIT, _EVERY, _QUIET_S = 900.0, 0.1, 4.0

Value = Callable[[str, str], float | None]


def imports(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Import, get, and make everything anew, on one directory."""
    count = scale.observations
    with fresh_directory(target, space) as directory:
        with serving(target, directory) as server:
            people = _People(server, count)
            samples = [people.imported(), *people.gets(scale)]
            kept = people.told()
        with serving(working(sealing(target)), directory) as server:
            people = _People(server, count)
            samples.append(people.made_anew(directory, kept))
    return samples


def promises(value: Value) -> Iterator[Promise]:
    """What a run can judge."""
    for row, least in ((IMPORT, LEAST_IMPORTED), (REBUILD, LEAST_REBUILT)):
        if rate := value(row, "headrace"):
            yield Promise(f"{row}, per second (at least {least:,.0f})", rate, rate >= least)
    if p99 := value(GET_TIME.format("p99"), "headrace"):
        yield Promise(f"p99 of a get of an entity in ms (at most {MOST_GET_MS:g})", p99, p99 <= MOST_GET_MS)


class _People:
    """A server that so many observations of people are for."""

    def __init__(self, server: Running, count: int) -> None:
        self._server, self._count, self._people = server, count, count // OBSERVATIONS_EACH
        self._caller = Caller(server.port)

    def imported(self) -> Sample:
        """Half of the observations, another schema, and the other half."""
        half = self._count // 2
        self._register(FIRST)
        taken = self._observe(0, half)
        began = time.perf_counter()
        self._register(CHANGED)
        taken += time.perf_counter() - began + self._observe(half, half)
        return Marked(IMPORT, self._count / taken, "/s", mark=STATED)

    def gets(self, scale: Scale) -> Iterator[Sample]:
        """Gets of random people once the server has come to rest: how many a second, and how long one takes."""
        began = time.perf_counter()
        self._wait(lambda: self._explained()["from"] == "states", "snapshots that are kept")
        yield Sample(CAUGHT_UP, time.perf_counter() - began, "s")
        self._await_quiet()
        times = scale.times
        result = self._drive("get-entity", connections=64, warm=times.warm, seconds=times.seconds)
        yield Sample(GETS, result["per_second"], "/s")
        result = self._drive("timed-get-entity", count=_TIMED_GETS)
        for quantile in ("p50", "p99"):
            yield Sample(GET_TIME.format(quantile), result[quantile] * 1e3, "ms")

    def told(self) -> dict[str, str]:
        """A digest of what is told of each person; all observations must be in there."""
        found = self._drive("read-entities", connections=_READERS)
        if trouble := difference(self._count, found["observations"]):
            raise DriverFailed(f"entities count other observations than were stored: {trouble}")
        digests: dict[str, str] = found["told"]
        return digests

    def made_anew(self, directory: Path, kept: dict[str, str]) -> Sample:
        """The rate of two changes of policies, forth and back, and whether all is then as it was."""
        self._start()
        await_published(self._server, f"entities/{TYPE}", self._count)
        self._await_states()
        self._rest()
        states = packed(directory, TYPE)
        taken = self._rebuilt("/v1/entity-types", OTHER)
        if packed(directory, TYPE) == states:
            raise DriverFailed("other policies made the same states")
        taken += self._rebuilt(f"/v1/entity-types/{TYPE}/activate", {"schema_version": CHANGED["schema_version"]})
        notes = [
            _differing("snapshots", kept, self.told()),
            _differing("states", states, packed(directory, TYPE)),
        ]
        equal = f"every one of {len(kept):,} snapshots and {len(states):,} states is, byte for byte, what was kept"
        note = " ".join(filter(None, notes))
        return Marked(REBUILD, 2 * self._count / taken, "/s", note=note, mark="" if note else equal)

    def _start(self) -> None:
        """Let Spark fold a little of another type, so that it has started."""
        self._register(version("1.0.0", _KEPT, entity_type=FIRST_TYPE))
        self._observe(0, _FIRST_OBSERVATIONS, FIRST_TYPE)
        self._await_states(FIRST_TYPE)

    def _rebuilt(self, path: str, change: dict[str, Any]) -> float:
        """How long it takes from a change until states have all of it; then everything comes to rest."""
        began = time.perf_counter()
        self._ask("POST", path, change)
        self._await_states()
        taken = time.perf_counter() - began
        self._rest()
        return taken

    def _register(self, payload: dict[str, Any]) -> None:
        self._ask("POST", "/v1/entity-types", payload)

    def _observe(self, first: int, count: int, entity_type: str = TYPE) -> float:
        """How long it takes to store some observations."""
        told = {"first": first, "batch": BATCH, "count": count // BATCH, "connections": CONNECTIONS}
        result = self._drive("observe", entity_type, **told)
        if result["acknowledged"] != count:
            raise DriverFailed(f"{result['acknowledged']:,} of {count:,} observations were taken")
        return float(count / result["per_second"])

    def _drive(self, kind: str, entity_type: str = TYPE, **settings: Any) -> dict[str, Any]:
        result = drive(job(self._server, kind, entity_type, keys=self._people, **settings))
        if result["errors"]:
            raise DriverFailed(f"{kind}: {result['first_error']}")
        return result

    def _await_states(self, entity_type: str = TYPE) -> None:
        """Wait until snapshots are of states that have all observations."""
        self._wait(lambda: self._is_in_states(entity_type), f"{entity_type} in states")

    def _is_in_states(self, entity_type: str) -> bool:
        told = self._explained(entity_type)
        return bool(told["from"] == "states" and told["states"] and told["tail_from"] == told["through"])

    def _explained(self, entity_type: str = TYPE) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", f"/v1/entities/{id_of(0, entity_type)}?explain=true")["explain"]
        return found

    def _await_quiet(self) -> None:
        """Wait until the server has made no states for a while; there is nobody else to make any."""
        seen = time.monotonic()

        def is_quiet() -> bool:
            nonlocal seen
            if self._ask("GET", "/v1/work")["leases"]:
                seen = time.monotonic()
            return time.monotonic() - seen > _QUIET_S

        self._wait(is_quiet, "rest")

    def _rest(self) -> None:
        """Wait until all work is done, such as that on the search index."""
        if left := await_rest(self._caller).missing:
            raise DriverFailed(f"work is left: {left}")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LONGEST_WAIT
        while not done():
            if time.monotonic() > deadline:
                raise DriverFailed(f"no {what} within {LONGEST_WAIT:g} seconds")
            time.sleep(_EVERY)

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = self._caller.ask(method, path, body)
        self._caller.hang_up()
        if answer.status != 200:
            raise DriverFailed(f"{method} {path}: {answer.status} {answer.body[:500]!r}")
        found: dict[str, Any] = answer.json()
        return found


def _differing(what: str, kept: dict[Any, str], made: dict[Any, str]) -> str:
    """What to say where something is not what it was."""
    others = sum(made.get(key) != digest for key, digest in kept.items()) + len(made.keys() - kept.keys())
    return f"{others:,} of {len(kept):,} {what} are not what was kept." if others else ""
