"""Looking a request up: searches for its events and its spans, page by page, within one time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.engine.log.stream import Stream
from headrace.query import request as requests
from headrace.query.definition import decode_rounded
from headrace.query.request import MAX_SIZE
from headrace.query.syntax import quote

if TYPE_CHECKING:
    from headrace.deadline import Deadline
    from headrace.engine.search.archive import Archive

#: Traces of one request that are searched.
MAX_TRACES = 20


class Seeker:
    """Searches one stream several times, and counts what all searches covered."""

    def __init__(
        self,
        open_archive: Callable[[], Archive],
        stream: Stream,
        limit: int,
        window: tuple[str | None, str | None],
        deadline: Deadline,
    ) -> None:
        self._open_archive = open_archive
        self.stream = stream
        self._limit = limit
        self._window = window
        self._deadline = deadline
        #: What was found, by sequence number.
        self.events_by_seq: dict[int, dict[str, Any]] = {}
        self._families: dict[str, None] = {}
        self._hits = self._batches = self._queries = self._tail = self._segments = self._missing = 0
        self._timed_out = self._is_full = False

    def seek(self, field: str, value: str) -> None:
        """Find every event whose field has a value, as far as limit and time go."""
        self._queries += 1
        after: list[Any] | None = None
        while not self._is_full:
            page = self._page(field, value, after)
            after = page.last
            if after is None or page.timed_out:
                return

    def _page(self, field: str, value: str, after: list[Any] | None) -> Any:
        from headrace.engine.search.search import search  # loads DuckDB, which takes long

        archive, head = self._open_archive(), self.stream.head
        defined = archive.defined(self.stream, head)
        search_definition = defined.definition.search
        size = min(MAX_SIZE, self._limit - len(self.events_by_seq) + 1)
        document = {
            "q": self._query(field, value, search_definition.primary_timestamp),
            "size": size,
            "sort": ["offset:asc"],
        }
        if after is not None:
            document["search_after"] = after
        page = search(archive, self.stream, head, defined, requests.read(document, search_definition), self._deadline)
        self._batches += 1
        self._hits += len(page.hits)
        for hit in page.hits:
            if len(self.events_by_seq) >= self._limit and hit.seq not in self.events_by_seq:
                self._is_full = True
            else:
                self.events_by_seq[hit.seq] = hit.event.document(decode_rounded)
        self._timed_out |= page.timed_out
        self._missing = max(self._missing, page.missing.events)
        self._tail += page.tally.scanned_tail_docs
        self._segments += page.tally.scanned_segments
        self._families |= dict.fromkeys(page.families)
        return page

    def _query(self, field: str, value: str, timestamp: str) -> str:
        parts = [f"{field}:{quote(value)}"]
        for operator, moment in zip((">=", "<="), self._window, strict=True):
            if moment is not None:
                parts.append(f"{timestamp}:{operator}{quote(moment)}")
        return " ".join(parts)

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """The events with their offsets, in the order of the stream."""
        return [(self.stream.offset_at(seq + 1), self.events_by_seq[seq]) for seq in sorted(self.events_by_seq)]

    def coverage(self) -> dict[str, Any]:
        """Whether the searches have run, and whether their results are complete and exact."""
        complete = not (self._timed_out or self._missing)
        exact = complete and not self._is_full
        return {
            "searched": bool(self._queries),
            "complete": complete,
            "timed_out": self._timed_out,
            "limit_reached": self._is_full,
            "hits": self._hits,
            "unique_hits": len(self.events_by_seq),
            "query_count": self._queries,
            "batch_count": self._batches,
            "total": {"value": len(self.events_by_seq), "relation": "eq" if exact else "gte"},
            "index_families_used": list(self._families),
            "scanned_tail_docs": self._tail,
            "scanned_segments": self._segments,
            "possible_missing_events_upper_bound": self._missing,
        }


def look_up(events: Seeker | None, traces: Seeker | None, by: str, wanted: str) -> list[str]:
    """Find the events and the spans of a request; returns its traces, the requested one first."""
    trace_ids = [wanted] if by == "traceId" else []
    if events is not None and by == "requestId":
        events.seek("requestId", wanted)
        trace_ids = _traces(events)
    if traces is not None and by != "traceId" and not trace_ids:
        traces.seek(by, wanted)
        trace_ids = _traces(traces)
    trace_ids = trace_ids[:MAX_TRACES]
    for trace in trace_ids:
        if traces is not None:
            traces.seek("traceId", trace)
        if events is not None and by != "requestId":
            events.seek("traceId", trace)
    if events is not None and by == "spanId" and not trace_ids:
        events.seek("spanId", wanted)
        trace_ids = _traces(events)
    return trace_ids


def _traces(seeker: Seeker) -> list[str]:
    return list(dict.fromkeys(event["traceId"] for _, event in seeker.events() if event.get("traceId")))
