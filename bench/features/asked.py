"""A server with a pipeline: registered, asked, counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.driver import DriverFailed, drive, job
from bench.features.pipelines import Pipeline, Table, user_name
from bench.features.rows import ARRAY, CONNECTIONS
from bench.searching.asking import Answer, Caller
from bench.serving import Running, running
from bench.targets import Target

#: Rows that one question is asked for while counting.
_COUNTED_AT_ONCE = 1_000
LONGEST_WAIT = 900.0
_EVERY = 0.1
_TIMED_OUT = 408


class Asked:
    """A running server that has a pipeline."""

    def __init__(self, server: Running, pipeline: Pipeline, users: int) -> None:
        self.server = server
        self.pipeline = pipeline
        self._users = users
        self._caller = Caller(server.port)

    @property
    def takes_arrays(self) -> bool:
        """Whether many events can be pushed at once."""
        return self.server.target.name == "headrace"

    def register(self, nodes: list[dict[str, Any]], **more: str) -> None:
        """Register nodes."""
        self.ask("/register", {"nodes": nodes, **more})

    def look(self) -> None:
        """Push an event and get a row: from then on every event is folded into the tables as it comes."""
        self.load("push", count=1)
        self.get(0)
        self._caller.hang_up()

    def load(self, kind: str, **settings: Any) -> dict[str, Any]:
        """Send the driver off; what it could not do is an error."""
        target, pipeline = self.server.target, self.pipeline
        told = {"keys": self._users, "pipeline": pipeline.name, "prefix": target.features, **settings}
        result = drive(job(self.server, kind, pipeline.event, **told))
        if result["errors"]:
            raise DriverFailed(f"{target.title}, {kind}, {pipeline.title}: {result['first_error']}")
        return result

    def get(self, user: int) -> Answer:
        """The row of a user, once everything that was pushed before is in it: a server may say that it needs longer."""
        return self._ask_until_found("/get", {"table": self.pipeline.table, "key": user_name(user)})

    def fill(self, events: int) -> None:
        """Push so many events, as quickly as it goes."""
        batch = ARRAY if self.takes_arrays else 1
        filled = self.load("push", connections=CONNECTIONS, batch=batch, count=events // batch)
        if filled["acknowledged"] != events:
            raise DriverFailed(f"{self.server.target.title} took {filled['acknowledged']:,} of {events:,} events")

    def counted(self) -> int:
        """How many events the rows of all users have counted."""
        table, wanted = self.pipeline.table, [self.pipeline.counter]
        events = 0
        for first in range(0, self._users, _COUNTED_AT_ONCE):
            users = range(first, min(first + _COUNTED_AT_ONCE, self._users))
            asked = [{"table": table, "key": user_name(user), "features": wanted} for user in users]
            rows = self._ask_until_found("/batch_get", {"requests": asked}).json()["results"]
            events += sum(row.get(self.pipeline.counter) or 0 for row in rows)
        self._caller.hang_up()
        return events

    def await_states(self) -> None:
        """Wait until Headrace answers for every table from states that hold all that is sealed."""
        deadline = time.monotonic() + LONGEST_WAIT
        while missing := [table.name for table in self.pipeline.tables if not self._is_folded(table)]:
            if time.monotonic() > deadline:
                raise DriverFailed(f"{', '.join(missing)}: not folded within {LONGEST_WAIT:g} seconds")
            time.sleep(_EVERY)
        self._caller.hang_up()

    def _is_folded(self, table: Table) -> bool:
        if table.event != self.pipeline.event:
            return True
        answer = self.ask("/get", {"table": table.name, "key": user_name(0), "explain": True})
        features = answer.json()["explain"]["features"].values()
        return all(feature["complete"] and not feature["tail_events"] for feature in features)

    def _ask_until_found(self, path: str, body: Any) -> Answer:
        began = time.monotonic()
        while time.monotonic() - began < LONGEST_WAIT:
            answer = self._caller.ask("POST", self.server.target.features + path, body)
            if answer.status != _TIMED_OUT:
                break
        return _taken(self.server, path, answer)._replace(seconds=time.monotonic() - began)

    def ask(self, path: str, body: Any) -> Answer:
        """The answer to one question, which must be success."""
        return _taken(self.server, path, self._caller.ask("POST", self.server.target.features + path, body))


def _taken(server: Running, path: str, answer: Answer) -> Answer:
    if answer.status != 200:
        raise DriverFailed(f"{server.target.title}, {path}: {answer.status} {answer.body[:500]!r}")
    return answer


@contextmanager
def asked(target: Target, space: Path, pipeline: Pipeline, users: int) -> Iterator[Asked]:
    """A fresh server with the whole pipeline."""
    with running(target, space) as server:
        made = Asked(server, pipeline, users)
        made.register(pipeline.nodes())
        yield made
