"""Servers that are killed on an S3 API where many requests go wrong: what was acknowledged and published stays."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.pipeline.work import is_open
from headrace.storage.objects import Objects
from support.log_stream import Logs, event
from support.plain_worker import Worker
from support.polling import wait_until
from support.s3 import S3
from support.spark_stories import Story, companions
from support.store_faults import Chance

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
SEEDS = range(1, 9 if _DEEP else 3)
LOAD_S = 20.0 if _DEEP else 5.0
RATE = 0.3
#: Each of these must have happened under load.
FAULTS = {"throttle", "cut", "lose", "reset", "delay", "truncate", "stale", "conflict", "exists"}
WRITERS = 3
#: How many events a stream may be ahead of the store: a publication has all of them, and many objects may fail.
LEAD = 5_000
SMALL = {
    "storage__seal_age_s": "0.3",
    "storage__seal_rows": "200",
    "storage__store_timeout_s": "4",
    "pipeline__min_rows": "0",
    "pipeline__unit_bytes": "20000",
    "pipeline__fan_out": "3",
}


class Writer(threading.Thread):
    """Appends numbered events to a stream of its own; what was on its way at the end may be there or not."""

    def __init__(self, url: str, name: str, first: int, stop: threading.Event) -> None:
        super().__init__(name=name)
        self._client = httpx2.Client(base_url=url, timeout=30)
        self._stopped = stop
        #: How much of the stream is known to be in the store.
        self.published = first
        self.acknowledged = self.sent = first
        self.refusals: Counter[int] = Counter()

    def run(self) -> None:
        with self._client as client:
            while not self._stopped.is_set():
                if self.acknowledged > self.published + LEAD:
                    self._stopped.wait(0.02)
                    continue
                events = [event(number) for number in range(self.acknowledged, self.acknowledged + 5)]
                self.sent = self.acknowledged + len(events)
                try:
                    status = client.post(f"/v1/stream/{self.name}", json=events).status_code
                except httpx2.TransportError:
                    return  # the server was killed
                if status == 204:
                    self.acknowledged = self.sent
                else:
                    self.refusals[status] += 1
                    self._stopped.wait(0.1)


class Load:
    """Writers on one server until it is killed, and how much of each stream was published and acknowledged by then."""

    def __init__(self, server: Any, names: dict[str, int]) -> None:
        self._stop = threading.Event()
        self._server = server
        self.writers = [Writer(server.url, name, first, self._stop) for name, first in names.items()]
        self.published: dict[str, int] = {}

    def run(self, seconds: float) -> None:
        """Write for a while, and kill the server meanwhile."""
        for writer in self.writers:
            writer.start()
        logs, until = Logs(self._server.url), time.monotonic() + seconds
        while time.monotonic() < until or not all(self.published.values()):
            assert time.monotonic() < until + 100, f"nothing is published: {self._server.log()[-3000:]}"
            for writer in self.writers:
                writer.published = self.published[writer.name] = logs.published(writer.name)
            time.sleep(0.05)
        self._server.kill()
        self._stop.set()
        for writer in self.writers:
            writer.join()

    @property
    def refusals(self) -> Counter[int]:
        """Everything but success, by status."""
        return sum((writer.refusals for writer in self.writers), Counter())


def _read_page(client: httpx2.Client, name: str, offset: str) -> httpx2.Response:
    """A page, asked for again as often as a reader would where the store failed too many times in a row."""
    for _ in range(10):
        answer = client.get(f"/v1/stream/{name}", params={"offset": offset})
        if answer.status_code != 503:
            break
        assert answer.json()["error"]["code"] == "store_unavailable", answer.text
        time.sleep(float(answer.headers["retry-after"]))
    assert answer.status_code == 200, answer.text
    return answer


def there(server: Any, name: str) -> list[int]:
    """The numbers of the events of a stream, each of which is as it was written."""
    found: list[int] = []
    offset = "-1"
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        while True:
            answer = _read_page(client, name, offset)
            numbers = [int(one["request"][1:], 16) for one in answer.json()]
            assert answer.json() == [event(number) for number in numbers]
            found += numbers
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return found


@pytest.fixture(params=SEEDS)
def faults(request: pytest.FixtureRequest, bucket: S3) -> Iterator[Chance]:
    """Faults of the bucket's service by chance."""
    chance = Chance(request.param, RATE)
    bucket.chance = chance.fault
    yield chance
    print(dict(chance.happened))


def is_clean(bucket: S3) -> None:
    """Every object is what its manifest says, once the service is well again."""
    bucket.chance = lambda _: None
    reports = list(verify(Objects.open(bucket.url), JOURNALS))
    assert [damage for report in reports for damage in report.damage] == []


def test_acknowledged_entries_survive_kills_and_published_ones_a_takeover_too(
    bucket: S3, faults: Chance, start_server: Callable[..., Any]
) -> None:
    settings = {"storage__object_store": bucket.url, **SMALL}
    names = {f"s{number}": 0 for number in range(WRITERS)}
    server = start_server(data="first", **settings)
    for name in names:
        Logs(server.url).create(name)
    for _ in range(2):
        load = Load(server, names)
        load.run(LOAD_S)
        assert not load.refusals
        server.start()
        for writer in load.writers:
            numbers = there(server, writer.name)
            assert numbers in (list(range(writer.acknowledged)), list(range(writer.sent)))
            names[writer.name] = len(numbers)
    last = Load(server, names)
    last.run(LOAD_S)
    fresh = start_server(data="second", **settings)
    for writer in last.writers:
        numbers = there(fresh, writer.name)
        assert last.published[writer.name] <= len(numbers) <= writer.sent
        assert numbers == list(range(len(numbers)))
        Logs(fresh.url).append(writer.name, len(numbers), len(numbers) + 10)
    assert fresh.stop() == 0
    is_clean(bucket)
    assert faults.happened.keys() >= FAULTS


def answers(check: Callable[[], None]) -> None:
    """Check, again while searches take too long: they keep what they have fetched."""
    until = time.monotonic() + 90
    while True:
        try:
            return check()
        except urllib.error.HTTPError as late:
            assert late.code == 408 and time.monotonic() < until, late


def names(server: Any) -> dict[str, list[str]]:
    """The companions of each stream, as a server lists them."""
    return {stream: [one.name for one in listed] for stream, listed in companions(server.data_dir).items()}


def published_companions(bucket: S3) -> dict[str | None, int]:
    """How many companions the newest manifest of each stream lists."""
    return {report.stream: report.companions for report in verify(Objects.open(bucket.url), JOURNALS)}


def test_indexes_that_were_made_on_such_a_store_answer_after_a_takeover(
    bucket: S3, start_server: Callable[..., Any]
) -> None:
    chance = Chance(7, RATE)
    bucket.chance = chance.fault
    settings = {"storage__object_store": bucket.url, **SMALL, "storage__seal_rows": "100"}
    server = start_server(data="first", **settings)
    story = Story(server.url)
    story.append("first", 300)
    story.append("second", 300)
    wait_until(
        lambda: all(story.logs.published(name) >= length for name, length in story.lengths.items()),
        90,
        lambda: server.log()[-3000:],
    )
    until = time.monotonic() + 90
    while is_open(story.logs.ask("GET", "/v1/work")):
        assert time.monotonic() < until, story.logs.ask("GET", "/v1/work")
        Worker(server.url).work_once(limit=2)
    bucket.chance = lambda _: None  # searches have little time
    answers(story.check_covered)
    answers(story.check)
    made = names(server)
    counts = {name: len(listed) for name, listed in made.items()}
    wait_until(
        lambda: {name: count for name, count in published_companions(bucket).items() if name in made} == counts,
        reason=lambda: "no manifest lists what was indexed",
    )
    server.kill()
    bucket.chance = chance.fault
    fresh = start_server(data="second", **settings)
    bucket.chance = lambda _: None
    story.logs = Logs(fresh.url)
    for check in (story.check_counts, story.check, story.check_covered):
        answers(check)
    assert names(fresh) == made
    assert fresh.stop() == 0
    is_clean(bucket)
    assert chance.happened.keys() >= FAULTS
