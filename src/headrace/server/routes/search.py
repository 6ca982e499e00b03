"""``/v1/stream/{name}/_search``: from a request to hits, and what is said about how they were found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.errors import TimedOut
from headrace.query import request as requests
from headrace.query.deadline import Deadline
from headrace.query.request import MAX_TIMEOUT_MS, SearchRequest
from headrace.query.search import Search
from headrace.query.snippet import snippets
from headrace.server.http.background import BackgroundRequests, in_thread
from headrace.server.http.exchange import Headers, Reply, Request
from headrace.server.routes import event_query

if TYPE_CHECKING:
    from headrace.engine.search.hits import Found, Hit

Reading = Callable[[Search], SearchRequest]

_TIMES = (
    "indexed_segment_time_ms", "fts_section_get_ms", "fts_decode_ms", "scanned_segment_time_ms",
    "scanned_tail_time_ms", "exact_candidate_time_ms", "json_parse_time_ms", "sort_time_ms",
)  # fmt: skip
#: Facts of the coverage that stand in headers too.
_HEADERS = (
    "indexed_segments", "indexed_segment_time_ms", "fts_section_get_ms", "fts_decode_ms", "fts_clause_estimate_ms",
    "scanned_segments", "scanned_segment_time_ms", "scanned_tail_docs", "scanned_tail_time_ms",
    "exact_candidate_time_ms", "candidate_doc_ids", "decoded_records", "json_parse_time_ms",
    "segment_payload_bytes_fetched", "sort_time_ms", "peak_hits_held",
)  # fmt: skip


class SearchRoutes:
    """Answers searches, each in a thread; the gate says how many at once."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._background = BackgroundRequests(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s

    def get(self, request: Request) -> None:
        """GET ``_search``: the request stands in the query parameters."""
        parameters = request.query
        self._begin(request, lambda search: requests.read_parameters(parameters, search))

    def post(self, request: Request) -> None:
        """POST ``_search``: the request is the body."""
        given = event_query.read_document(request, "a search")
        self._begin(request, lambda search: requests.read(given, search))

    def _begin(self, request: Request, reading: Reading) -> None:
        stream = event_query.find_readable_stream(self._engine, request)
        deadline = Deadline(self._time_s)
        self._background.answer_within(
            request, self._answer(request, stream, reading, deadline), self._time_s, deadline=deadline
        )

    async def _answer(self, request: Request, stream: Stream, reading: Reading, deadline: Deadline) -> None:
        arrived_s = monotonic()
        try:
            async with asyncio.timeout(MAX_TIMEOUT_MS / 1000):
                await self._gate.__aenter__()
        except TimeoutError as reason:
            raise TimedOut("too many searches are under way; this one did not begin in time") from reason
        try:
            # The newest head: what was appended while others were answered is found too.
            head = await self._engine.log.fetch_readable_head(stream)
            reply = await in_thread(lambda: self._search(stream, head, reading, arrived_s, deadline))
        finally:
            await self._gate.__aexit__()
        request.exchange.reply(reply)

    def _search(self, stream: Stream, head: Head, reading: Reading, arrived_s: float, deadline: Deadline) -> Reply:
        waited_s = monotonic() - arrived_s
        # The first search loads what computes answers, which is not its fault.
        from headrace.engine.search.search import search

        archive = self._engine.open_archive()
        defined = archive.defined(stream, head)
        asked = reading(defined.definition.search)
        within = deadline.within(asked.timeout_ms / 1000 - waited_s)
        found = search(archive, stream, head, defined, asked, within)
        took_ms = round((monotonic() - arrived_s) * 1000)
        return _rendered(stream, defined.definition.search, asked, found, took_ms)


def _rendered(stream: Stream, search: Search, asked: SearchRequest, found: Found, took_ms: int) -> Reply:
    coverage = _coverage(stream, found)
    total = _total(asked, found)
    timeout_ms = round(asked.timeout_ms)
    body = {
        "stream": stream.name,
        "snapshot_end_offset": stream.offset_at(found.stop),
        "took_ms": took_ms,
        "timed_out": found.timed_out,
        "timeout_ms": timeout_ms,
        "coverage": coverage,
        "total": total,
        "hits": [_hit(stream, search, asked, hit) for hit in found.hits],
        "next_search_after": found.last,
    }
    headers: Headers = {
        "search-timed-out": _word(found.timed_out),
        "search-timeout-ms": str(timeout_ms),
        "search-took-ms": str(took_ms),
        "search-total-relation": total["relation"],
        "search-coverage-complete": _word(coverage["complete"]),
        **{f"search-{name.replace('_', '-')}": str(coverage[name]) for name in _HEADERS},
        "search-index-families-used": ",".join(found.families),
    }
    return Reply.json(408 if found.timed_out else 200, body, headers)


def _total(asked: SearchRequest, found: Found) -> dict[str, Any]:
    """All matches where they were counted; else those of the page, which are all where it begins and ends the list."""
    if found.total is not None and not found.missing.events:
        return {"value": found.total, "relation": "eq"}
    count = len(found.hits) if found.total is None else found.total
    is_all = asked.after is None and asked.size > 0 and found.last is None
    exact = is_all and not found.timed_out and not found.missing.events
    return {"value": count, "relation": "eq" if exact else "gte"}


def _hit(stream: Stream, search: Search, asked: SearchRequest, hit: Hit) -> dict[str, Any]:
    rendered = {
        "offset": stream.offset_at(hit.seq + 1),
        "score": hit.score,
        "sort": hit.sort,
        "fields": hit.event.fields(search),
        "source": msgspec.Raw(hit.event.payload),
    }
    if asked.snippets:
        rendered["snippets"] = snippets(asked.tree, search, hit.event.document())
    return rendered


def _coverage(stream: Stream, found: Found) -> dict[str, Any]:
    tally = found.tally
    complete = not found.missing.events and not found.timed_out
    return {
        **event_query.coverage(stream, found, visible=found.visible, complete=complete),
        "indexed_segments": tally.indexed_segments,
        **{name: round(getattr(tally, name)) for name in _TIMES},
        # Nothing is estimated here: postings are simply looked up.
        "fts_clause_estimate_ms": 0,
        "scanned_segments": tally.scanned_segments,
        "scanned_tail_docs": tally.scanned_tail_docs,
        "candidate_doc_ids": tally.candidate_doc_ids,
        "decoded_records": tally.decoded_records,
        "segment_payload_bytes_fetched": found.fetched_bytes,
        "peak_hits_held": found.peak_hits_held,
        "index_families_used": list(found.families),
    }


def _word(value: bool) -> str:
    return "true" if value else "false"
