"""What aggregates of very many groups take: a server in a process of its own, whose memory is sampled."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.registries import append, installed
from server.routes.test_aggregate import field

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

USERS = 200_000
#: Two answers that held all groups took 1600 MB more.
MOST_MB = 700

SEARCH = {
    "primaryTimestampField": "at",
    "fields": {
        "at": field("date", "/at", column=True),
        "user": field("keyword", "/user", exact=True, aggregatable=True),
        "ms": field("float", "/ms", column=True, aggregatable=True),
    },
    "rollups": {
        "all": {
            "dimensions": ["user"],
            "intervals": ["1h"],
            "measures": {
                "n": {"kind": "count"},
                "ms": {"kind": "summary", "field": "ms", "histogram": "log2_v1"},
                "spread": {"kind": "quantiles", "field": "ms"},
                "users": {"kind": "distinct", "field": "user"},
            },
        }
    },
}


def resident_mb(server: ServerProcess) -> float:
    assert server.process is not None
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def sampled_mb(server: ServerProcess) -> Iterator[list[float]]:
    """How much memory a server takes, again and again."""
    samples, stop = [resident_mb(server)], threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            samples.append(resident_mb(server))

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield samples
    finally:
        stop.set()
        sampling.join()


def test_two_aggregates_of_very_many_groups_are_refused_within_bounded_memory(
    start_server: StartServer, api_of: Any, eventually: Any
) -> None:
    server = start_server(server__resolver_timeout_s="120")
    api = api_of(server)
    path = installed(api, {"type": "object"}, search=SEARCH)
    for start in range(0, USERS, 50_000):
        append(api, path, *({"at": at, "user": f"user-{at:09}", "ms": at % 999} for at in range(start, start + 50_000)))
    api.client.timeout = 120
    question = {"rollup": "all", "from": 0, "to": 10**7, "interval": "1h", "group_by": ["user"]}
    with sampled_mb(server) as samples, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: api.post(f"{path}/_aggregate", question), range(2)))
    for answer in answers:
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert error["code"] == "too_many_groups"
        assert error["limit"] == 50_000
    assert max(samples) - samples[0] < MOST_MB
    eventually(lambda: 'headrace_gate_active{gate="search"} 0.0' in api.get("/metrics").text)
    few = api.post(f"{path}/_aggregate", {**question, "group_by": []}).json()
    assert few["coverage"]["complete"] and few["buckets"][0]["groups"][0]["measures"]["n"] == {"count": USERS}
