"""``/v1/stream/{name}/_search``: hits and their coverage. ``_aggregate``: buckets of a rollup, and theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.deadline import Deadline
from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, TimedOut
from headrace.query import request as requests
from headrace.query.request import MAX_SIZE, MAX_TIMEOUT_MS, SearchRequest
from headrace.query.search import Search
from headrace.query.snippet import snippets
from headrace.schema.entries import decode_exact
from headrace.server.http.background import PARTIAL_ANSWER_SHARE, BackgroundRequests, in_thread, partial_answer_s
from headrace.server.http.exchange import Headers, Reply
from headrace.server.http.openapi import Error
from headrace.server.http.request import Request
from headrace.server.http.route import READ, Answer, Body, Header, in_query, one_of, route
from headrace.server.http.wire import AnyOffset, Flag, NonNegative, Object, Offset, When, fill
from headrace.server.routes.stream_headers import BAD_BODY, NAME, NOT_THERE
from headrace.types import json_fault, rfc3339

if TYPE_CHECKING:
    from headrace.engine.search.aggregate import Aggregated
    from headrace.engine.search.search import Hit, SearchHits
    from headrace.reduce.request import AggregateRequest


_MAX_BODY_BYTES = 1024 * 1024

_Mode = Literal["complete", "partial"]
_Size = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_SIZE})]
_Milliseconds = Annotated[float, Meta(extra_json_schema={"minimum": 0})]
_Moment = Annotated[Any, Meta(extra_json_schema={"anyOf": [{"type": "string"}, {"type": "number"}]})]


class SearchCoverage(Struct, kw_only=True):
    """What the answer to a search covers, how much it may have left out, and what it took."""

    mode: _Mode
    complete: bool
    stream_head_offset: AnyOffset
    visible_from_offset: AnyOffset
    visible_through_offset: AnyOffset
    visible_through_primary_timestamp_max: When | None
    oldest_omitted_append_at: When | None
    possible_missing_events_upper_bound: NonNegative
    possible_missing_uploaded_segments: NonNegative
    possible_missing_sealed_rows: NonNegative
    possible_missing_wal_rows: NonNegative
    indexed_segments: NonNegative
    indexed_segment_time_ms: NonNegative
    fts_section_get_ms: NonNegative
    fts_decode_ms: NonNegative
    scanned_segment_time_ms: NonNegative
    scanned_tail_time_ms: NonNegative
    exact_candidate_time_ms: NonNegative
    json_parse_time_ms: NonNegative
    sort_time_ms: NonNegative
    fts_clause_estimate_ms: NonNegative
    scanned_segments: NonNegative
    scanned_tail_docs: NonNegative
    candidate_doc_ids: NonNegative
    decoded_records: NonNegative
    segment_payload_bytes_fetched: NonNegative
    peak_hits_held: NonNegative
    index_families_used: list[str]


class AggregateCoverage(Struct, kw_only=True):
    """What the answer to an aggregate covers, and how much it may have left out."""

    mode: _Mode
    complete: bool
    stream_head_offset: AnyOffset
    visible_from_offset: AnyOffset
    visible_through_offset: AnyOffset
    visible_through_primary_timestamp_max: When | None
    oldest_omitted_append_at: When | None
    possible_missing_events_upper_bound: NonNegative
    possible_missing_uploaded_segments: NonNegative
    possible_missing_sealed_rows: NonNegative
    possible_missing_wal_rows: NonNegative
    used_rollups: bool
    indexed_segments: NonNegative
    scanned_segments: NonNegative
    scanned_tail_docs: NonNegative
    index_families_used: list[str]


class SearchTotal(Struct):
    """How many events match: so many, or at least so many."""

    value: NonNegative
    relation: Literal["eq", "gte"]


class SearchHit(Struct, kw_only=True):
    """An event that matches."""

    offset: Offset
    score: float | None
    sort: list[Any]
    fields: Object
    source: Any
    snippets: dict[str, str] | UnsetType = UNSET


class SearchAnswer(Struct, kw_only=True):
    """A page of hits."""

    stream: str
    snapshot_end_offset: AnyOffset
    took_ms: NonNegative
    timed_out: bool
    timeout_ms: NonNegative
    coverage: SearchCoverage
    total: SearchTotal
    hits: list[SearchHit]
    next_search_after: list[Any] | None


class SearchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A search; ``query.request`` reads it, and names everything that is wrong with it."""

    q: str
    size: _Size | UnsetType = UNSET
    sort: list[str] | UnsetType = UNSET
    search_after: list[Any] | None = None
    timeout_ms: _Milliseconds | UnsetType = UNSET
    track_total_hits: bool | UnsetType = UNSET
    snippets: bool | UnsetType = UNSET


class AggregateGroup(Struct):
    """The measures of a group in a bucket."""

    key: Object
    measures: Object


class AggregateBucket(Struct):
    """A time, and what was measured in it."""

    start: str
    end: str
    groups: list[AggregateGroup]


class AggregateAnswer(Struct, kw_only=True):
    """The buckets that hold events."""

    stream: str
    rollup: str
    start: str = msgspec.field(name="from")
    to: str
    interval: str
    coverage: AggregateCoverage
    buckets: list[AggregateBucket]


class AggregateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """An aggregate; ``reduce.request`` reads it, and names everything that is wrong with it."""

    rollup: str
    start: _Moment = msgspec.field(name="from")
    to: _Moment
    interval: str
    q: str | None = None
    group_by: list[str] | UnsetType = UNSET
    measures: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET


def read_document(request: Request, what: str) -> Any:
    """The JSON document that a question is."""
    if len(request.body) > _MAX_BODY_BYTES:
        raise BadRequest(f"{what} has at most 1 MiB", field="body")
    try:
        return decode_exact(request.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, request.body)}", field="body") from reason


def find_readable_stream(engine: Engine, request: Request) -> Stream:
    """The stream of a query, which the caller may read; counts as an access."""
    stream = engine.log.find(request.target.name)
    request.principal.require("read", stream.name)
    if stream.ttl_s is not None:
        engine.log.catalog.note_access(stream)
    return stream


def coverage(stream: Stream, answer: SearchHits | Aggregated, *, visible: int, complete: bool) -> dict[str, Any]:
    """What an answer covers, and how much it may have left out; ``visible`` is where the events end that were seen."""
    missing, tally = answer.missing, answer.tally
    return {
        "mode": "complete" if complete else "partial",
        "complete": complete,
        "stream_head_offset": stream.offset_at(answer.stop),
        "visible_from_offset": stream.offset_at(answer.start),
        "visible_through_offset": stream.offset_at(visible),
        "visible_through_primary_timestamp_max": None if tally.latest_ms is None else rfc3339(tally.latest_ms * 1000),
        "oldest_omitted_append_at": None if missing.since_us is None else rfc3339(missing.since_us),
        "possible_missing_events_upper_bound": missing.events,
        "possible_missing_uploaded_segments": missing.segments,
        "possible_missing_sealed_rows": missing.events - missing.log_rows,
        "possible_missing_wal_rows": missing.log_rows,
    }


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
_FACTS = tuple(
    Header(f"search-{name.replace('_', '-')}", str, "the same as in the body")
    for name in (
        "timed_out", "timeout_ms", "took_ms", "total_relation", "coverage_complete", *_HEADERS, "index_families_used",
    )
)  # fmt: skip
_ANSWERS = {
    200: Answer("everything was looked at", SearchAnswer, _FACTS),
    408: Answer("what was found until the time was over", one_of(SearchAnswer, Error), _FACTS),
}
_SEARCH = "/v1/stream/{name}/_search"
_FAILS = (*NOT_THERE, *BAD_BODY)


class SearchRoutes:
    """Answers searches, each in a thread; the gate says how many at once."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._background = BackgroundRequests(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s

    @route(
        "GET",
        _SEARCH,
        "show_search",
        "[Search](#search) the events of a stream, in query parameters",
        READ,
        _ANSWERS,
        fails=_FAILS,
        parameters=(
            NAME,
            in_query("q", str, "the query", required=True),
            in_query("size", _Size, "hits of a page; 50 if left out"),
            in_query("sort", str, "keys such as status:asc, with commas between them", repeats=True),
            in_query("search_after", str, "next_search_after of the page before, as JSON"),
            in_query("timeout_ms", _Milliseconds, f"time to search, {MAX_TIMEOUT_MS} at most"),
            in_query("track_total_hits", Flag, "count all matches"),
            in_query("snippets", Flag, "show where the text of a hit answers"),
        ),
        is_hot=True,
        takes_any_query=True,
    )
    def get(self, request: Request) -> None:
        """GET ``_search``: the search is in the query parameters."""
        parameters = request.query
        self._begin(request, lambda search: requests.read_parameters(parameters, search))

    @route(
        "POST",
        _SEARCH,
        "query_search",
        "[Search](#search) the events of a stream, the newest included",
        READ,
        _ANSWERS,
        fails=_FAILS,
        parameters=(NAME,),
        body=Body(SearchBody, _MAX_BODY_BYTES),
        is_hot=True,
    )
    def post(self, request: Request) -> None:
        """POST ``_search``: the request is the body."""
        document = read_document(request, "a search")
        self._begin(request, lambda search: requests.read(document, search))

    def _begin(self, request: Request, reading: Reading) -> None:
        stream = find_readable_stream(self._engine, request)
        deadline = Deadline(self._time_s)
        self._background.answer_with_timeout(
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

        archive = self._engine.caches.archive()
        defined = archive.defined(stream, head)
        search_request = reading(defined.definition.search)
        search_deadline = deadline.with_timeout(search_request.timeout_ms / 1000 - waited_s)
        outcome = search(archive, stream, head, defined, search_request, search_deadline)
        took_ms = round((monotonic() - arrived_s) * 1000)
        return _rendered(stream, defined.definition.search, search_request, outcome, took_ms)


def _rendered(
    stream: Stream, search: Search, search_request: SearchRequest, outcome: SearchHits, took_ms: int
) -> Reply:
    coverage = _coverage(stream, outcome)
    total = _total(search_request, outcome)
    timeout_ms = round(search_request.timeout_ms)
    answer = SearchAnswer(
        stream=stream.name,
        snapshot_end_offset=stream.offset_at(outcome.stop),
        took_ms=took_ms,
        timed_out=outcome.timed_out,
        timeout_ms=timeout_ms,
        coverage=coverage,
        total=total,
        hits=[_hit(stream, search, search_request, hit) for hit in outcome.hits],
        next_search_after=outcome.last,
    )
    headers: Headers = {
        "search-timed-out": _word(outcome.timed_out),
        "search-timeout-ms": str(timeout_ms),
        "search-took-ms": str(took_ms),
        "search-total-relation": total.relation,
        "search-coverage-complete": _word(coverage.complete),
        **{f"search-{name.replace('_', '-')}": str(getattr(coverage, name)) for name in _HEADERS},
        "search-index-families-used": ",".join(outcome.families),
    }
    return Reply.json(408 if outcome.timed_out else 200, answer, headers)


def _total(search_request: SearchRequest, outcome: SearchHits) -> SearchTotal:
    """All matches where they were counted; else those of the page, which are all where it begins and ends the list."""
    if outcome.total is not None and not outcome.missing.events:
        return SearchTotal(outcome.total, "eq")
    count = len(outcome.hits) if outcome.total is None else outcome.total
    is_all = search_request.after is None and search_request.size > 0 and outcome.last is None
    exact = is_all and not outcome.timed_out and not outcome.missing.events
    return SearchTotal(count, "eq" if exact else "gte")


def _hit(stream: Stream, search: Search, search_request: SearchRequest, hit: Hit) -> SearchHit:
    return SearchHit(
        offset=stream.offset_at(hit.seq + 1),
        score=hit.score,
        sort=hit.sort,
        fields=hit.event.fields(search),
        source=msgspec.Raw(hit.event.payload),
        snippets=snippets(search_request.tree, search, hit.event.document()) if search_request.snippets else UNSET,
    )


def _coverage(stream: Stream, outcome: SearchHits) -> SearchCoverage:
    tally = outcome.tally
    complete = not outcome.missing.events and not outcome.timed_out
    return SearchCoverage(
        **coverage(stream, outcome, visible=outcome.visible, complete=complete),
        indexed_segments=tally.indexed_segments,
        **{name: round(getattr(tally, name)) for name in _TIMES},
        # Nothing is estimated here: postings are simply looked up.
        fts_clause_estimate_ms=0,
        scanned_segments=tally.scanned_segments,
        scanned_tail_docs=tally.scanned_tail_docs,
        candidate_doc_ids=tally.candidate_doc_ids,
        decoded_records=tally.decoded_records,
        segment_payload_bytes_fetched=outcome.fetched_bytes,
        peak_hits_held=outcome.peak_hits_held,
        index_families_used=list(outcome.families),
    )


def _word(value: bool) -> str:
    return "true" if value else "false"


class AggregateRoute:
    """Answers aggregates, each in a thread; the gate says how many at once."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._background = BackgroundRequests(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s

    @route(
        "POST",
        "/v1/stream/{name}/_aggregate",
        "query_aggregate",
        "[Measure](#aggregate) the events of a stream over time, the newest included",
        READ,
        {200: Answer("the buckets that hold events", AggregateAnswer)},
        fails=_FAILS,
        parameters=(NAME,),
        body=Body(AggregateBody, _MAX_BODY_BYTES),
        is_hot=True,
    )
    def post(self, request: Request) -> None:
        """The request is the body."""
        document = read_document(request, "an aggregate")
        stream = find_readable_stream(self._engine, request)
        deadline = Deadline(self._time_s * PARTIAL_ANSWER_SHARE)
        answer_by = deadline.with_timeout(partial_answer_s(self._time_s) * PARTIAL_ANSWER_SHARE)
        answer = self._answer(
            request, stream, lambda head: self._aggregate(stream, head, document, deadline, answer_by)
        )
        self._background.answer_partially(request, answer, self._time_s, deadline)

    async def _answer(self, request: Request, stream: Stream, aggregate: Callable[[Head], Reply]) -> None:
        async with self._gate:
            head = await self._engine.log.fetch_readable_head(stream)
            reply = await in_thread(lambda: aggregate(head))
        request.exchange.reply(reply)

    def _aggregate(self, stream: Stream, head: Head, document: Any, deadline: Deadline, answer_by: Deadline) -> Reply:
        from headrace.engine.search.aggregate import aggregate  # loads DuckDB, which takes long
        from headrace.reduce.request import read  # loads DuckDB, which takes long

        archive = self._engine.caches.archive()
        defined = archive.defined(stream, head)
        aggregate_request = read(document, defined.definition.search)
        aggregated = aggregate(archive, stream, head, defined, aggregate_request, deadline, answer_by)
        return Reply.json(200, _aggregate_rendered(stream, aggregate_request, aggregated))


def _aggregate_rendered(stream: Stream, request: AggregateRequest, aggregated: Aggregated) -> AggregateAnswer:
    from headrace.reduce.answer import iso  # loads DuckDB, which takes long

    return AggregateAnswer(
        stream=stream.name,
        rollup=request.aggregate.rollup.name,
        start=iso(request.aggregate.start),
        to=iso(request.aggregate.end),
        interval=request.interval,
        coverage=_aggregate_coverage(stream, aggregated),
        buckets=[fill(AggregateBucket, bucket) for bucket in aggregated.buckets],
    )


def _aggregate_coverage(stream: Stream, aggregated: Aggregated) -> AggregateCoverage:
    tally = aggregated.tally
    return AggregateCoverage(
        **coverage(stream, aggregated, visible=aggregated.stop, complete=not aggregated.missing.events),
        used_rollups=aggregated.used_rollups,
        indexed_segments=tally.indexed_segments,
        scanned_segments=tally.scanned_segments,
        scanned_tail_docs=tally.scanned_tail_docs,
        index_families_used=["agg"] if aggregated.used_rollups else [],
    )
