"""Looking a request up: searches for its events and its spans, page by page, within one time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.engine.log.stream import Stream
from headrace.query import request as requests
from headrace.query.definition import decode_rounded
from headrace.query.request import MAX_SIZE
from headrace.query.syntax import quote

if TYPE_CHECKING:
    from headrace.deadline import Deadline
    from headrace.engine.assembly import Engine

#: Traces of one request that are looked at.
MOST_TRACES = 20


class Seeker:
    """Searches one stream again and again, and knows what all of it covered."""

    def __init__(
        self, engine: Engine, stream: Stream, limit: int, window: tuple[str | None, str | None], deadline: Deadline
    ) -> None:
        self._engine = engine
        self.stream = stream
        self._limit = limit
        self._window = window
        self._deadline = deadline
        #: What was found, by sequence number.
        self.found: dict[int, dict[str, Any]] = {}
        self._families: dict[str, None] = {}
        self._hits = self._batches = self._queries = self._tail = self._segments = self._missing = 0
        self._timed_out = self._is_full = False

    def seek(self, field: str, value: str) -> None:
        """Find every event whose field has a value, as far as limit and time go."""
        self._queries += 1
        after: list[Any] | None = None
        while not self._is_full:
            found = self._page(field, value, after)
            after = found.last
            if after is None or found.timed_out:
                return

    def _page(self, field: str, value: str, after: list[Any] | None) -> Any:
        from headrace.engine.search.search import search

        archive, head = self._engine.open_archive(), self.stream.head
        defined = archive.defined(self.stream, head)
        known = defined.definition.search
        size = min(MAX_SIZE, self._limit - len(self.found) + 1)
        document = {"q": self._query(field, value, known.primary_timestamp), "size": size, "sort": ["offset:asc"]}
        if after is not None:
            document["search_after"] = after
        found = search(archive, self.stream, head, defined, requests.read(document, known), self._deadline)
        self._batches += 1
        self._hits += len(found.hits)
        for hit in found.hits:
            if len(self.found) >= self._limit and hit.seq not in self.found:
                self._is_full = True
            else:
                self.found[hit.seq] = hit.event.document(decode_rounded)
        self._timed_out |= found.timed_out
        self._missing = max(self._missing, found.missing.events)
        self._tail += found.tally.scanned_tail_docs
        self._segments += found.tally.scanned_segments
        self._families |= dict.fromkeys(found.families)
        return found

    def _query(self, field: str, value: str, timestamp: str) -> str:
        parts = [f"{field}:{quote(value)}"]
        for operator, moment in zip((">=", "<="), self._window, strict=True):
            if moment is not None:
                parts.append(f"{timestamp}:{operator}{quote(moment)}")
        return " ".join(parts)

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """What was found, with offsets, in the order of the stream."""
        return [(self.stream.offset_at(seq + 1), self.found[seq]) for seq in sorted(self.found)]

    def coverage(self) -> dict[str, Any]:
        """What the searches covered."""
        complete = not (self._timed_out or self._missing)
        exact = complete and not self._is_full
        return {
            "searched": bool(self._queries),
            "complete": complete,
            "timed_out": self._timed_out,
            "limit_reached": self._is_full,
            "hits": self._hits,
            "unique_hits": len(self.found),
            "query_count": self._queries,
            "batch_count": self._batches,
            "total": {"value": len(self.found), "relation": "eq" if exact else "gte"},
            "index_families_used": list(self._families),
            "scanned_tail_docs": self._tail,
            "scanned_segments": self._segments,
            "possible_missing_events_upper_bound": self._missing,
        }


def look_up(events: Seeker | None, traces: Seeker | None, by: str, wanted: str) -> list[str]:
    """Find the events and the spans of a request; answers its traces, the one that was asked for first."""
    known = [wanted] if by == "traceId" else []
    if events is not None and by == "requestId":
        events.seek("requestId", wanted)
        known = _traces(events)
    if traces is not None and by != "traceId" and not known:
        traces.seek(by, wanted)
        known = _traces(traces)
    known = known[:MOST_TRACES]
    for trace in known:
        if traces is not None:
            traces.seek("traceId", trace)
        if events is not None and by != "requestId":
            events.seek("traceId", trace)
    if events is not None and by == "spanId" and not known:
        events.seek("spanId", wanted)
        known = _traces(events)
    return known


def _traces(seeker: Seeker) -> list[str]:
    return list(dict.fromkeys(event["traceId"] for _, event in seeker.events() if event.get("traceId")))
