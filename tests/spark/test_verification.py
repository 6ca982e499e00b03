"""The proof on data with history looked at by Spark: its verdict is that of a look at every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conftest import ServerProcess
from headrace.config import PipelineConfig
from headrace.pipeline import jobs
from headrace.pipeline.work import Work
from headrace.schema.lens.document import fill_defaults, parse
from headrace.schema.lens.ops import Lens
from schema.lens.evolutions import evolution
from schema.lens.trying import brute_force, events, lens_document
from support.log_stream import Logs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

STREAMS, EVENTS = 12, 60


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {
        "storage__seal_age_s": "0",
        "storage__seal_rows": "20",
        "pipeline__min_rows": "0",
        "pipeline__unit_bytes": "2000",
    }
    running = ServerProcess(tmp_path_factory.mktemp("verification") / "data", settings).start()
    yield running
    running.kill()


class Case:
    """A stream with events of its first version, and a second version to try."""

    def __init__(self, number: int) -> None:
        self.name, self.random = f"s{number}", Random(number)
        self.old, self.new, ops = evolution(self.random)
        self.lens = lens_document(ops, self.name)
        self.events: list[Any] = []

    def create(self, logs: Logs) -> None:
        """History: events that the first version allows, some again and again."""
        logs.ask("PUT", f"/v1/stream/{self.name}")
        logs.ask("POST", f"/v1/stream/{self.name}/_schema", {"schema": self.old})
        known = list(events(self.random, self.old))
        self.append(logs, self.random.choices(known, k=EVENTS) if known else [])

    def append(self, logs: Logs, new: list[Any]) -> None:
        for start in range(0, len(new), 20):
            logs.ask("POST", f"/v1/stream/{self.name}", new[start : start + 20])
        self.events += new

    def begin(self, logs: Logs) -> str:
        body = {"schema": self.new, "lens": self.lens}
        told = logs.ask("POST", f"/v1/stream/{self.name}/_schema?dry_run=true&on_data=true", body)
        return str(told["verification"]["id"])

    def expected(self) -> list[str]:
        lens = parse(self.lens)
        assert isinstance(lens, Lens)
        return [brute_force([fill_defaults(lens, self.new)], self.new, event) for event in self.events]


def until(holds: Callable[[], bool]) -> None:
    gives_up = monotonic() + 60
    while not holds():
        assert monotonic() < gives_up
        sleep(0.05)


def test_a_verdict_equals_a_look_at_every_event(spark: SparkSession, server: ServerProcess) -> None:
    logs = Logs(server.url)
    cases = [Case(number) for number in range(STREAMS)]
    for case in cases:
        case.create(logs)
    until(lambda: all(logs.published(case.name) == len(case.events) for case in cases))
    begun = [case.begin(logs) for case in cases]
    outcomes = Counter[str]()
    with closing(Work(server.url)) as work:
        while (lease := work.lease("test", 256)) is not None:
            results = jobs.run(spark, lease, PipelineConfig(tasks=4))
            for case in cases:
                case.append(logs, case.events[:2])
            outcomes.update(one["outcome"] for one in work.commit(lease, results)["results"])
    assert set(outcomes) == {"committed"} and outcomes["committed"] >= STREAMS
    seen = Counter[str]()
    for case, id in zip(cases, begun, strict=True):
        address = f"/v1/stream/{case.name}/_schema/verifications/{id}"
        until(lambda address=address: logs.ask("GET", address)["state"] != "running")  # type: ignore[misc]
        found = logs.ask("GET", address)
        assert found["state"] == "done"
        assert found["events"] == len(case.events)
        expected = case.expected()
        assert [(one["seq"], one["cause"]) for one in found["failures"]] == [
            (seq, cause) for seq, cause in enumerate(expected) if cause != "fits"
        ]
        assert found["failing"] == {cause: expected.count(cause) for cause in ("lens", "schema", "key")}
        seen.update(expected)
    assert seen["fits"] > 100 and seen["lens"] + seen["schema"] > 10
