"""Searches while a stream is written, sealed, indexed and cut: every answer is whole as of its head."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.search.searches import Searched
from headrace.deadline import Deadline
from headrace.engine.search.search import search
from headrace.query import request as requests
from support.engine_rig import Rig

QUERIES = ("has:time", "red", "service:s1 OR -service:s1", '"red green" OR time:>=0')


def ask_on(stream: Searched, stop: threading.Event) -> int:
    """Count all events again and again, each time as of the newest head; answers how often."""
    found, archive, answers = stream.stream, stream.archive, 0
    while not stop.is_set() or answers < len(QUERIES):
        head = found.head
        defined = archive.defined(found, head)
        query = QUERIES[answers % len(QUERIES)]
        asked = requests.read({"q": query, "track_total_hits": True, "size": 20}, defined.definition.search)
        answer = search(archive, found, head, defined, asked, Deadline(30))
        assert not answer.timed_out and not answer.missing.events
        assert answer.total == answer.stop - answer.start, query
        assert answer.stop == head.next_seq
        answers += 1
    return answers


def test_every_answer_is_whole_whatever_happens_meanwhile(tmp_path: Path) -> None:
    stop = threading.Event()
    with Rig(tmp_path, storage={"seal_rows": 40}) as rig, ThreadPoolExecutor(2) as threads:
        stream = Searched(rig)
        asking = [threads.submit(ask_on, stream, stop) for _ in range(2)]
        try:
            for n in range(60):
                stream.append(*({"time": n, "service": f"s{n % 3}", "body": "red green"} for _ in range(10)))
                rig.clock.us += 1_000_000
                if n % 7 == 3:
                    rig.publish(stream.name)
                if n % 10 == 5:
                    stream.index(stream.stream.head.first_seq, stream.stream.head.next_seq)
                if n == 40:
                    rig.retain(stream.name, age_us=30_000_000)
                if n > 40:
                    rig.sweep()
        finally:
            stop.set()
        assert all(work.result() >= len(QUERIES) for work in asking)
        assert stream.stream.head.first_seq > 0
