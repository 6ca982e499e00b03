from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from support.http_caller import Caller
from support.log_stream import Logs
from support.plain_worker import Worker
from support.polling import wait_until

if TYPE_CHECKING:
    from tests.conftest import StartServer

QUESTION = {"q": "has:status", "sort": ["status"], "size": 0, "track_total_hits": True}


def test_a_fork_that_leaves_its_source_within_a_segment_has_each_entry_once(start_server: StartServer) -> None:
    """Its unit has a segment of the source, of which only the beginning counts, and segments of its own."""
    server = start_server(storage__seal_rows="20", pipeline__min_rows="0")
    logs, worker = Logs(server.url), Worker(server.url)
    logs.create("source")
    for start in range(0, 50, 5):
        logs.append("source", start, start + 5)
    at = {"Stream-Forked-From": "/v1/stream/source", "Stream-Fork-Offset": "0000000000000000000M000000"}
    with closing(Caller(server.url)) as caller:
        caller.done("PUT", "fork", headers=at)
    logs.append("fork", 5, 45)
    wait_until(lambda: min(logs.published("source"), logs.published("fork")) >= 40)
    assert worker.work() >= 2
    for stream, count in (("source", 50), ("fork", 45)):
        answer = logs.ask("POST", f"/v1/stream/{stream}/_search", QUESTION)
        assert answer["total"] == {"value": count, "relation": "eq"}
        assert answer["coverage"]["indexed_segments"] > 0
