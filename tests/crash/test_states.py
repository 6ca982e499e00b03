"""SIGKILL of the server and loss of workers while states are made: every event counts once in every feature."""

from __future__ import annotations

import random
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest

from headrace.reduce.work_units import Unit
from support.feature_rig import perform

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

ROUNDS, USERS = 8, 6
#: For a round in which nothing is committed: a machine may be busy.
PATIENCE_S = 10.0
SETTINGS = {
    "storage__seal_rows": "20",
    "storage__seal_age_s": "0.2",
    "pipeline__min_rows": "10",
    "pipeline__unit_bytes": "600",
    "pipeline__fan_out": "3",
    "pipeline__lease_s": "0.5",
    "features__fold_rows": "200",
}


def descriptors(features: int) -> list[dict[str, Any]]:
    counts = {f"n{number}": {"op": "count", "params": {}} for number in range(features)}
    return [
        {"kind": "event", "name": "Order", "schema": {"user": "str", "id": "i64"}},
        {"kind": "table", "name": "Users", "key": ["user"], "upstreams": ["Order"], "agg": counts},
    ]


class World:
    """One server that dies again and again, who pushes to it, and workers that get lost."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.chance, self.fate = random.Random(3), random.Random(4)
        self.features = 1
        self.number = 0
        self.committed = 0
        self.over = threading.Event()

    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.server.url, timeout=20, trust_env=False)

    def round(self) -> None:
        """Push, work and kill at some moment."""
        self.over.clear()
        tasks = [threading.Thread(target=self._until_it_dies, args=(one,)) for one in (self._push, self._work)]
        for task in tasks:
            task.start()
        self._await_commits(self.chance.randrange(1, 4))
        self.over.wait(self.chance.uniform(0, 0.3))
        self.server.kill()
        self.over.set()
        for task in tasks:
            task.join()
        self.server.start()

    def _await_commits(self, more: int) -> None:
        enough, deadline = self.committed + more, monotonic() + PATIENCE_S
        while self.committed < enough and monotonic() < deadline:
            self.over.wait(0.02)

    def _until_it_dies(self, act: Any) -> None:
        with self.http() as http:
            try:
                while not self.over.is_set():
                    act(http)
            except httpx2.TransportError:
                pass

    def _push(self, http: httpx2.Client) -> None:
        self.number += 1
        events = [{"user": f"u{self.chance.randrange(USERS)}", "id": self.number} for _ in range(4)]
        assert http.post("/v1/push/Order", json=events).status_code == 200

    def _work(self, http: httpx2.Client) -> None:
        """Perform what is due; now and then a worker is lost, or repeats itself."""
        body = {"worker": "tests", "limit": self.fate.randrange(1, 5), "jobs": ["features"]}
        leased = http.post("/v1/work/lease", json=body).json()
        if leased["lease"] is None or self.fate.random() < 0.2:
            self.over.wait(0.02)
            return
        results = [perform(msgspec.convert(unit, Unit), leased["store"]) for unit in leased["units"]]
        body = {"token": leased["lease"]["token"], "results": msgspec.to_builtins(results)}
        for _ in range(self.fate.randrange(1, 3)):
            answer = http.post(f"/v1/work/leases/{leased['lease']['id']}/commit", json=body)
            assert answer.status_code in (200, 409), answer.text
            if answer.status_code == 200:
                self.committed += sum(one["outcome"] == "committed" for one in answer.json()["results"])

    def register(self) -> None:
        with self.http() as http:
            assert http.post("/v1/register", json={"descriptors": descriptors(self.features)}).status_code == 200

    def check(self) -> None:
        """Every feature that is complete counts every event that is stored, once."""
        with self.http() as http:
            stored: dict[str, int] = {}
            offset = "-1"
            while True:
                answer = http.get("/v1/stream/events/Order", params={"offset": offset})
                for event in answer.json():
                    stored[event["user"]] = stored.get(event["user"], 0) + 1
                offset = answer.headers["stream-next-offset"]
                if "stream-up-to-date" in answer.headers:
                    break
            for user, count in stored.items():
                answer = http.post("/v1/get", json={"table": "Users", "key": user})
                row, complete = answer.json(), answer.headers["headrace-coverage"] == "complete"
                assert set(row.values()) <= ({count} if complete else {count, None}), (user, row, count)


def test_no_event_is_missing_or_counted_twice_after_every_kill(start_server: StartServer) -> None:
    world = World(start_server(**SETTINGS))
    for round_ in range(ROUNDS):
        if round_ % 2 == 0:
            world.features += 1
            world.register()
        world.round()
        world.check()
    assert world.committed > 5 and world.number > 50
