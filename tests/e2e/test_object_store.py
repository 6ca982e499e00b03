"""Servers on an S3 API that goes away under load, and that two of them want."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.storage.objects import Objects
from support.polling import wait_until
from support.s3 import S3

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MiB = 1024 * 1024
HEADERS = {"content-type": "application/json"}
WRITERS = 4
BACKLOG = 6 * MiB
#: What the server may take: the bare process with the libraries that read and write Parquet has about 165 MiB, and its
#: caches and queues are given 40. What waits for the store waits on the disk.
MOST_RSS = 256 * MiB
#: The streams of the server itself are published whenever there is something new in them.
NO_SYSTEM_STREAMS = {
    "system__metrics_interval_s": "0", "system__live_interval_s": "0", "system__registry_log": "false",
}  # fmt: skip
SMALL = {
    "storage__store_timeout_s": "1",
    "storage__cache_bytes": str(8 * MiB),
    "storage__decoded_bytes": str(4 * MiB),
    "storage__segment_cache_bytes": str(4 * MiB),
    "limits__queue_bytes": str(8 * MiB),
}


class Writing(threading.Thread):
    """Appends numbered events to a stream of its own, and remembers which of them were acknowledged."""

    def __init__(self, url: str, name: str, stop: threading.Event) -> None:
        super().__init__(name=name)
        self._client = httpx2.Client(base_url=url, timeout=30)
        self._stopped = stop
        self.path = f"/v1/stream/{name}"
        self.acknowledged: list[Any] = []
        self.refusals: list[tuple[int, str]] = []

    def run(self) -> None:
        with self._client as client:
            assert client.put(self.path, headers=HEADERS).status_code == 201
            number = 0
            while not self._stopped.is_set():
                event = {"writer": self.name, "number": number, "text": f"{number:08} " * 3_000}
                answer = client.post(self.path, json=event)
                if answer.status_code == 204:
                    self.acknowledged.append(event)
                    number += 1
                else:
                    self.refusals.append((answer.status_code, answer.json()["error"]["code"]))
                    self._stopped.wait(0.1)


class Memory(threading.Thread):
    """Looks how much memory a process has, and how much waits for the store, until it is told to stop."""

    def __init__(self, server: Any, stop: threading.Event) -> None:
        super().__init__(name="memory")
        self._server = server
        self._stopped = stop
        self.most_rss = self.most_backlog = 0

    def run(self) -> None:
        with httpx2.Client(base_url=self._server.url) as client:
            while not self._stopped.wait(0.2):
                status = Path(f"/proc/{self._server.process.pid}/status").read_text()
                found = re.search(r"VmRSS:\s+(\d+) kB", status)
                assert found is not None
                self.most_rss = max(self.most_rss, int(found[1]) * 1024)
                self.most_backlog = max(self.most_backlog, _backlog(client))


def _backlog(client: httpx2.Client) -> int:
    found = re.search(r"^headrace_backlog_bytes (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def _events(server: Any, path: str) -> list[Any]:
    """Every event of a stream."""
    found: list[Any] = []
    offset = "-1"
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        while True:
            answer = client.get(path, params={"offset": offset})
            assert answer.status_code == 200, answer.text
            found += answer.json()
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return found


def _is_published(server: Any, paths: list[str]) -> bool:
    with httpx2.Client(base_url=server.url) as client:
        details = [client.get(f"{path}/_details").json()["stream"] for path in paths]
    return all(int(one["uploaded_through"]) == int(one["next_offset"]) - 1 for one in details)


def test_an_outage_of_seconds_under_load_loses_nothing_and_takes_no_memory(
    bucket: S3, start_server: Callable[..., Any]
) -> None:
    settings = {"storage__object_store": bucket.url, "storage__seal_age_s": "0.5", **SMALL}
    server = start_server(storage__backlog_bytes=str(BACKLOG), **settings)
    stop = threading.Event()
    writers = [Writing(server.url, f"stream-{number}", stop) for number in range(WRITERS)]
    memory = Memory(server, stop)
    for thread in (*writers, memory):
        thread.start()
    try:
        time.sleep(2)
        bucket.answers = "throttle"
        bucket.outage.set()
        time.sleep(3)
        bucket.answers = "cut"
        time.sleep(2)
        wait_until(lambda: all(writer.refusals for writer in writers))
        before = [len(writer.acknowledged) for writer in writers]
        bucket.outage.clear()
        wait_until(lambda: all(len(w.acknowledged) > had for w, had in zip(writers, before, strict=True)))
    finally:
        stop.set()
        for thread in (*writers, memory):
            thread.join()
    assert {refusal for writer in writers for refusal in writer.refusals} == {(429, "overloaded")}
    assert memory.most_rss < MOST_RSS
    assert memory.most_backlog < BACKLOG + MiB
    written = {writer.path: writer.acknowledged for writer in writers}
    assert all(_events(server, path) == events for path, events in written.items())
    wait_until(lambda: _is_published(server, list(written)))
    server.kill()
    fresh = start_server(data="fresh", **settings)
    assert all(_events(fresh, path) == events for path, events in written.items())
    assert fresh.stop() == 0


def _objects(bucket: S3) -> dict[str, bytes]:
    store = Objects.open(bucket.url)
    return {info.key: store.get(info.key) for info in store.list("")}


def _append(server: Any, path: str, event: Any) -> tuple[int, str]:
    answer = httpx2.post(f"{server.url}{path}", json=event)
    return answer.status_code, "" if answer.status_code == 204 else json.loads(answer.text)["error"]["code"]


@pytest.mark.parametrize("seal_age_s", ["0.2", "3600"], ids=["busy", "idle"])
def test_a_node_that_was_replaced_stops_and_damages_nothing(
    bucket: S3, start_server: Callable[..., Any], seal_age_s: str
) -> None:
    path, settings = "/v1/stream/s", {"storage__object_store": bucket.url, **SMALL, **NO_SYSTEM_STREAMS}
    first = start_server(data="first", storage__seal_age_s="0.2", **settings)
    assert httpx2.put(f"{first.url}{path}", headers=HEADERS).status_code == 201
    assert _append(first, path, "published") == (204, "")
    wait_until(lambda: _is_published(first, [path]))
    first.stop()
    old = start_server(data="first", storage__seal_age_s=seal_age_s, **settings)
    new = start_server(data="second", storage__seal_age_s="0.2", **settings)
    late = []
    for number in range(3):
        if _append(old, path, f"late {number}") == (204, ""):
            late.append(f"late {number}")
        assert _append(new, path, f"new {number}") == (204, "")
    wait_until(lambda: _is_published(new, [path]))
    there = _objects(bucket)
    wait_until(lambda: _append(old, path, "refused?") == (503, "node_fenced"), timeout_s=30)
    assert httpx2.put(f"{old.url}/v1/stream/more", headers=HEADERS).status_code == 503
    assert httpx2.get(f"{old.url}/health/ready").status_code == 503
    assert _events(old, path)[: 1 + len(late)] == ["published", *late]  # it may still be read
    now = _objects(bucket)
    assert {key: now[key] for key in there if key in now} == {key: there[key] for key in there if key in now}
    assert {key for key in now.keys() - there.keys() if key.startswith("manifests")} == set()
    old.stop()
    expected = ["published", "new 0", "new 1", "new 2"]
    assert _events(new, path) == expected
    new.stop()
    reports = list(verify(Objects.open(bucket.url), JOURNALS))
    found = [(report.stream, report.entries, report.damage) for report in reports]
    assert [one for one in found if not one[0].startswith("__")] == [("s", len(expected), [])]
    assert [damage for _, _, damage in found if damage] == []
    third = start_server(data="third", **settings)
    assert _events(third, path) == expected
