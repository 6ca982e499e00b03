"""A small story for any Spark: streams of logs, what is asked of them, and the pipeline as a process."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from engine.search.oracle import Oracle
from headrace.format.companion.layout import Companion
from headrace.query import request as requests
from headrace.query import search_document
from headrace.query.search import Search
from reduce import oracle as reduced
from support.log_stream import SEARCH, Logs, event
from support.polling import wait_until

HEADRACE = str(Path(sys.executable).with_name("headrace"))
QUERIES = (
    "status:>=500 service:service-1*",
    'message:"payment order" OR tags:red',
    "slow green -status:200",
    "request:r00001*",
    "has:tags duration:<100",
)
#: Small segments, small units, and levels soon, so that little data is a lot of work.
SETTINGS = {
    "storage__seal_rows": "50",
    "pipeline__min_rows": "0",
    "pipeline__unit_bytes": "20000",
    "pipeline__fan_out": "3",
}
_HOUR = 3_600_000
_TOGETHER = 25


def _declared() -> Search:
    search = search_document.parse_search_document(SEARCH, current_version=1)
    assert isinstance(search, Search), search
    return search


DECLARED = _declared()


class Story:
    """Streams of logs on a server, each a number of events long."""

    def __init__(self, url: str) -> None:
        self.logs = Logs(url)
        self.lengths: dict[str, int] = {}

    def append(self, stream: str, count: int) -> None:
        """More events; the first ones create the stream."""
        if stream not in self.lengths:
            self.logs.create(stream)
            self.lengths[stream] = 0
        start = self.lengths[stream]
        self.lengths[stream] = start + count
        for first in range(start, start + count, _TOGETHER):
            self.logs.append(stream, first, min(start + count, first + _TOGETHER))

    def published(self) -> None:
        """Wait until what is to be sealed lies in segments."""
        rows = int(SETTINGS["storage__seal_rows"])
        wait_until(
            lambda: all(length - self.logs.published(stream) < rows for stream, length in self.lengths.items()),
            reason=lambda: "nothing is sealed",
        )

    def check_counts(self) -> None:
        """Every event is found once, and counted once."""
        for stream, length in self.lengths.items():
            found = self._ask(stream, "_search", {"q": "has:request", "size": 0, "track_total_hits": True})
            assert found["total"] == {"value": length, "relation": "eq"}, stream
            asked = {"rollup": "requests", "interval": "1h", "measures": ["requests"]}
            buckets = self._ask(stream, "_aggregate", {**asked, "from": 0, "to": 10**15})["buckets"]
            assert sum(bucket["groups"][0]["measures"]["requests"]["count"] for bucket in buckets) == length, stream

    def check(self) -> None:
        """Every answer is that of a brute force over the events."""
        for stream, length in self.lengths.items():
            documents = {number: event(number) for number in range(length)}
            oracle = Oracle(DECLARED, documents)
            for query in QUERIES:
                self._check_search(stream, oracle, {"q": query, "size": 500, "track_total_hits": True})
            self._check_search(stream, oracle, {"q": "has:ts", "sort": ["duration:asc"], "size": 100})
            self._check_aggregate(stream, list(documents.values()))

    def check_covered(self) -> None:
        """All segments are described by companions."""
        for stream in self.lengths:
            coverage = self._ask(stream, "_search", {"q": "has:ts", "sort": ["status"]})["coverage"]
            details = self.logs.ask("GET", f"/v1/stream/{stream}/_details")["stream"]
            assert coverage["scanned_segments"] == 0, stream
            # A small segment may have become part of the next since it was described.
            assert coverage["indexed_segments"] >= details["segment_count"] > 2, stream

    def _check_search(self, stream: str, oracle: Oracle, body: dict[str, Any]) -> None:
        wanted = oracle.expected(requests.read(body, DECLARED))
        answer = self._ask(stream, "_search", body)
        assert answer["coverage"]["complete"] and not answer["timed_out"], body
        found = [hit["source"]["request"] for hit in answer["hits"]]
        assert found == [event(number)["request"] for number, _ in wanted][: body["size"]], (stream, body)
        if "track_total_hits" in body:
            assert answer["total"] == {"value": len(wanted), "relation": "eq"}, (stream, body)

    def _check_aggregate(self, stream: str, documents: list[Any]) -> None:
        start = documents[0]["ts"] - _HOUR
        span = {"start": start, "end": start + 24 * _HOUR}
        for more in ({"group_by": ["service"]}, {"q": "status:>=500"}):
            asked = {"rollup": "requests", "interval": "1h", "from": span["start"], "to": span["end"], **more}
            answer = self._ask(stream, "_aggregate", asked)
            wanted = reduced.buckets(
                DECLARED.rollups["requests"],
                DECLARED,
                documents,
                interval=_HOUR,
                group_by=tuple(more.get("group_by", ())),
                where=requests.query(str(more["q"]), DECLARED) if "q" in more else None,
                **span,
            )
            assert _counts(answer["buckets"]) == _counts(wanted), (stream, asked)

    def _ask(self, stream: str, verb: str, body: dict[str, Any]) -> Any:
        return self.logs.ask("POST", f"/v1/stream/{stream}/{verb}", body)


def _counts(buckets: list[dict[str, Any]]) -> list[Any]:
    """What has no error of its own: times, keys, counts and the greatest values; sums almost."""
    return [
        (
            bucket["start"],
            group["key"],
            group["measures"]["requests"],
            group["measures"]["failed"],
            group["measures"]["services"],
            {name: group["measures"]["duration"][name] for name in ("count", "min", "max", "p50", "histogram")},
            round(group["measures"]["duration"]["sum"], 6),
        )
        for bucket in buckets
        for group in bucket["groups"]
    ]


def pipeline(url: str, *flags: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """``headrace pipeline --once`` in a process of its own, and a session of its own."""
    command = [HEADRACE, "pipeline", "--once", "--url", url, *flags]
    given = os.environ if environ is None else environ
    return subprocess.Popen(
        command, env=dict(given), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def companions(data_dir: Path) -> dict[str, list[Companion]]:
    """The companions that count, by the name of their stream, as the database of a server lists them."""
    with closing(sqlite3.connect(f"file:{data_dir}/headrace.db?mode=ro", uri=True)) as database:
        found = database.execute(
            "SELECT streams.name, document FROM companions JOIN streams ON streams.id = stream"
            " WHERE retired = 0 ORDER BY companions.first_seq"
        ).fetchall()
    listed: dict[str, list[Companion]] = {}
    for name, document in found:
        listed.setdefault(name, []).append(msgspec.json.decode(document, type=Companion))
    return listed
