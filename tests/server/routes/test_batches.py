"""Batches of rows at their limit: of one moment, whatever comes meanwhile, and one after the other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import StartServer

MOST = 10_000
NODES = [
    {"kind": "event", "name": "Order", "schema": {"user": "str", "amount": "f64"}},
    *[
        {
            "kind": "table",
            "name": name,
            "key": key,
            "upstreams": ["Order"],
            "agg": {"n": {"op": "count", "params": {}}, "total": {"op": "sum", "params": {"field": "amount"}}},
        }
        for name, key in (("Users", ["user"]), ("All", []))
    ],
]
REQUESTS = [{"table": "Users", "key": "u1"}, {"table": "All", "key": []}] * (MOST // 2)


@pytest.fixture
def http(start_server: StartServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=start_server(server__resolver_timeout_s="30").url, timeout=60.0) as client:
        assert client.post("/v1/register", json={"descriptors": NODES}).status_code == 200
        push(client, 1)
        yield client


def push(http: httpx2.Client, count: int) -> None:
    answer = http.post("/v1/push/Order", json=[{"user": "u1", "amount": 1.0}] * count)
    assert answer.status_code == 200, answer.text


def rows_of(http: httpx2.Client) -> list[dict[str, Any]]:
    answer = http.post("/v1/batch_get", json={"requests": REQUESTS})
    assert answer.status_code == 200, answer.text
    assert answer.headers["headrace-coverage"] == "complete"
    rows: list[dict[str, Any]] = answer.json()["results"]
    return rows


@pytest.mark.parametrize(("size", "most"), [(1, 2_000), (1_000, 20_000)])
def test_all_rows_of_a_batch_are_of_one_moment_while_events_come(http: httpx2.Client, size: int, most: int) -> None:
    over = Event()

    def keep_pushing() -> int:
        pushed = 0
        with httpx2.Client(base_url=http.base_url, timeout=60.0) as pusher:
            while not over.is_set() and pushed < most:
                push(pusher, size)
                pushed += size
        return pushed

    seen: list[int] = []
    with ThreadPoolExecutor(1) as threads:
        pushing = threads.submit(keep_pushing)
        try:
            for _ in range(4):
                rows = rows_of(http)
                assert len(rows) == MOST
                assert len({json.dumps(row) for row in rows}) == 1, "rows of several moments"
                assert rows[0]["total"] == rows[0]["n"]
                seen.append(rows[0]["n"])
        finally:
            over.set()
        pushed = pushing.result()
    assert seen == sorted(seen)
    assert rows_of(http)[0]["n"] == pushed + 1


def test_a_get_is_answered_with_all_that_was_pushed_while_a_batch_is_looked_up(http: httpx2.Client) -> None:
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(rows_of, http)
        pushed = 1
        while not batch.done():
            push(http, 1)
            pushed += 1
            answer = http.post("/v1/get", json={"table": "Users", "key": "u1"})
            assert answer.json() == {"n": pushed, "total": pushed}
    assert len(batch.result()) == MOST


def test_what_is_wrong_with_a_long_batch_is_said_with_its_place(
    http: httpx2.Client, code_of: Callable[[httpx2.Response], str]
) -> None:
    wrong = [*REQUESTS[:-1], {"table": "Users", "key": "u1", "features": ["nothing"]}]
    refused = http.post("/v1/batch_get", json={"requests": wrong})
    assert refused.status_code == 400
    assert code_of(refused) == "feature_not_in_table"
    assert refused.json()["error"]["path"] == f"requests[{MOST - 1}]"
    unknown = http.post("/v1/batch_get", json={"requests": [*REQUESTS[:-1], {"table": "Nobody", "key": "u1"}]})
    assert unknown.json()["error"]["path"] == f"requests[{MOST - 1}]"
    long = http.post("/v1/batch_get", json={"requests": REQUESTS + REQUESTS[:1]})
    assert long.status_code == 400
    assert code_of(long) == "batch_too_large"


def test_batches_beyond_the_queue_are_refused_and_told_to_come_back(
    start_server: StartServer, code_of: Callable[[httpx2.Response], str]
) -> None:
    with httpx2.Client(base_url=start_server().url, timeout=60.0, limits=httpx2.Limits(max_connections=100)) as http:
        assert http.post("/v1/register", json={"descriptors": NODES}).status_code == 200
        push(http, 1)
        with ThreadPoolExecutor(90) as threads:
            body = json.dumps({"requests": REQUESTS}).encode()
            ask = {"content": body, "headers": {"content-type": "application/json"}}
            answers = list(threads.map(lambda _: http.post("/v1/batch_get", **ask), range(90)))  # type: ignore[arg-type]
    statuses = {answer.status_code for answer in answers}
    assert 200 in statuses and statuses <= {200, 408, 429}
    assert {code_of(answer) for answer in answers if answer.status_code == 429} <= {"overloaded"}
