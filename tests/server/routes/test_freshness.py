"""What was appended is found by the very next question, while others write and companions come and go."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.registries import change
from engine.search.searches import Searched, document
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate
from headrace.server.http.compression import ReplyCompressor
from headrace.server.routes.reads import ReadRoute
from headrace.server.routes.stream_reader import FilteredReads
from server.callers import Caller as Local
from support.engine_rig import Rig
from support.http_caller import Caller
from support.log_stream import Logs, event
from support.plain_worker import Worker

if TYPE_CHECKING:
    from tests.conftest import StartServer

WRITERS, SECONDS = 8, 3.0
EVER = {"from": 0, "to": 8_000_000_000_000_000}


class Writer:
    """Appends events of a service of its own, and asks for each of them at once."""

    def __init__(self, url: str, number: int, places: list[str]) -> None:
        self._caller = Caller(url)
        self._number = number
        self._places = places
        self.appended = 0

    def run(self, enough: threading.Event) -> int:
        """As long as it is not enough, and at least twice; answers how many events were appended and found."""
        with closing(self._caller):
            while not enough.is_set() or self.appended < 2:
                self._append_and_ask()
        return self.appended

    def _append_and_ask(self) -> None:
        name = f"w{self._number}-{self.appended}"
        before = self._places[0]
        made = event(self.appended) | {"service": f"writer-{self._number}", "request": name}
        answer = self._caller.done("POST", "logs", made)
        self.appended += 1
        if not self.appended % 5:
            self._places[0] = answer.headers["stream-next-offset"]
        found = searched(self._caller, q=f'request:"{name}"')
        assert [hit["source"]["request"] for hit in found["hits"]] == [name]
        mine = {"rollup": "requests", "interval": "1h", "measures": ["requests"], "q": f"service:writer-{self._number}"}
        found = self._caller.done("POST", "logs/_aggregate", {**mine, **EVER}).json()
        counted = [group["measures"]["requests"]["count"] for one in found["buckets"] for group in one["groups"]]
        assert sum(counted) == self.appended
        # All writers ask this at the same time, from the same place.
        read = self._caller.done("GET", "logs", filter="status:>0", offset=before).json()
        assert name in [one["request"] for one in read]


def searched(caller: Caller, **asked: Any) -> Any:
    """The answer to a search; a busy machine may have no time for it at first."""
    for _ in range(20):
        answer = caller.ask("POST", "logs/_search", asked)
        if answer.status != 408:
            break
    assert answer.status == 200, answer.content
    return answer.json()


def test_every_append_is_found_at_once_under_constant_ingest(start_server: StartServer) -> None:
    server = start_server(
        storage__seal_rows="40",
        pipeline__min_rows="0",
        pipeline__fan_out="3",
        pipeline__unit_bytes="20000",
        server__resolver_timeout_s="60",
        server__append_timeout_s="60",
    )
    logs = Logs(server.url)
    logs.create("logs")
    places = ["0" * 26]
    writers = [Writer(server.url, number, places) for number in range(WRITERS)]
    enough, committed = threading.Event(), threading.Event()

    def work() -> None:
        worker = Worker(server.url)
        while not enough.is_set():
            settled = worker.work_once()
            assert {one["outcome"] for one in settled} <= {"committed"}
            if settled:
                committed.set()
            enough.wait(0.05 if settled else 0.2)

    with ThreadPoolExecutor(WRITERS + 1) as threads:
        working = threads.submit(work)
        writing = [threads.submit(writer.run, enough) for writer in writers]
        try:
            ends = time.monotonic() + SECONDS
            assert committed.wait(60), "companions come meanwhile"
            wait([working, *writing], max(0.0, ends - time.monotonic()), FIRST_EXCEPTION)
        finally:
            enough.set()
        working.result()
        appended = sum(done.result() for done in writing)
    with closing(Caller(server.url)) as caller:
        answer = searched(caller, q="has:request", size=0, track_total_hits=True)
    assert answer["total"] == {"value": appended, "relation": "eq"}


def test_an_answer_is_given_to_who_asked_for_it(tmp_path: Path) -> None:
    """Another who asks the same may have appended since; what is newer than the answer would be missing in it."""
    with Rig(tmp_path) as rig:
        searched = Searched(rig)
        filters, stream = FilteredReads(rig.engine), searched.stream

        def find(asker: str) -> list[bytes]:
            asked = filters.read(stream, "has:time", asker)
            return filters.find(stream, stream.head, 0, asked, None, None).parts

        searched.append({"time": 1})
        with pytest.raises(NeedsFetch) as slow:
            find("first")
        slow.value.work()
        searched.append({"time": 2})
        with pytest.raises(NeedsFetch) as slow:
            find("second")
        assert len(find("first")) == 1
        slow.value.work()
        assert len(find("second")) == 2


def test_what_was_found_before_a_change_of_the_fields_is_no_answer_after_it(tmp_path: Path) -> None:
    """The tag of an answer names the revision that its filter was understood by."""
    with Rig(tmp_path) as rig:
        searched, gate = Searched(rig), Gate(1)
        searched.append({"time": 1, "service": "here", "path": "there"})
        reads = ReadRoute(rig.engine, ReplyCompressor(gate), gate)
        other = document(1)
        other["fields"]["service"]["bindings"][0]["jsonPointer"] = "/path"

        async def local() -> Local:
            return Local()

        asker = rig.run(local())
        with pytest.raises(NeedsFetch) as slow:
            asker.ask(reads, searched.stream, filter="service:here")
        slow.value.work()
        change(rig, searched.name, search=other)
        with pytest.raises(NeedsFetch) as slow:
            asker.ask(reads, searched.stream, filter="service:here")
        slow.value.work()
        asker.ask(reads, searched.stream, filter="service:here")
        assert asker.answered.result().body == b"[]"
