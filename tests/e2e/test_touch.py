"""Touches of a real server under load: everyone who waits is told of every change, in time."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import pytest
from bench.job import Job
from bench.waiting import ENTITY, FIELD, measure_touch

pytestmark = pytest.mark.e2e

WAITERS, KEYS, CHANGES_PER_SECOND, SECONDS = 500, 50, 100, 3.0
#: A bucket, and room for a machine that does other things.
MOST_S = 0.1 + 0.4


def post(url: str, body: Any) -> None:
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("wait_ms", [30_000, 300], ids=["patient", "impatient"])
def test_nobody_who_waits_misses_a_change(start_server: Any, wait_ms: int) -> None:
    server = start_server()
    stream = f"{server.url}/v1/stream/db"
    kind = {"content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(stream, headers=kind, method="PUT")).close()
    post(f"{stream}/_profile", {"profile": {"kind": "state-protocol", "touch": {"enabled": True}}})
    template = {"entity": ENTITY, "fields": [{"name": FIELD, "encoding": "string"}]}
    post(f"{stream}/touch/templates/activate", {"templates": [template]})
    port = urlsplit(server.url).port
    assert port is not None
    load = {"connections": WAITERS, "keys": KEYS, "batch": CHANGES_PER_SECOND, "count": wait_ms}
    found = asyncio.run(measure_touch(Job("touch", port, stream="db", seconds=SECONDS, **load)))
    assert (found["errors"], found["missed"], found["for_nothing"]) == (0, 0, 0), found["first_error"]
    assert found["wakes"] > WAITERS
    assert found["p95"] < MOST_S
    assert (found["timeouts"] > 0) == (wait_ms < 1000)
