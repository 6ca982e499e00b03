"""``GET /v1/stream/{name}/_routing_keys``: the keys that the events of a stream have, each once and in order."""

from __future__ import annotations

import asyncio
import re
from time import monotonic
from typing import Annotated, Literal

from msgspec import Meta, Struct

from headrace.deadline import Deadline
from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.engine.runtime.gates import Gate
from headrace.engine.search.routing_keys import KeyPage, KeyQuery, RoutingKeyReader
from headrace.errors import BadRequest, TimedOut
from headrace.server.http.background import PARTIAL_ANSWER_SHARE, BackgroundRequests, in_thread
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import READ, Answer, in_query, route
from headrace.server.http.wire import NonNegative
from headrace.server.routes.stream_headers import NAME, NOT_THERE

LIMIT, MAX_LIMIT = 100, 500
_LIMIT = re.compile(r"[1-9]\d{0,2}", re.ASCII)


class KeySource(Struct):
    """Which key of a stream is listed."""

    kind: Literal["routing_key"]
    name: str


class KeyCoverage(Struct, kw_only=True):
    """What was looked at for a page of keys, and what may be missing."""

    complete: bool
    indexed_segments: NonNegative
    scanned_uploaded_segments: NonNegative
    scanned_local_segments: NonNegative
    scanned_wal_rows: NonNegative
    possible_missing_uploaded_segments: NonNegative
    possible_missing_local_segments: NonNegative


class KeyTiming(Struct, kw_only=True):
    """What a page of keys took."""

    lexicon_run_get_ms: NonNegative
    lexicon_decode_ms: NonNegative
    lexicon_enumerate_ms: NonNegative
    lexicon_merge_ms: NonNegative
    fallback_scan_ms: NonNegative
    fallback_segment_get_ms: NonNegative
    fallback_wal_scan_ms: NonNegative
    lexicon_runs_loaded: NonNegative


class RoutingKeysAnswer(Struct, kw_only=True):
    """A page of keys."""

    stream: str
    source: KeySource
    took_ms: NonNegative
    coverage: KeyCoverage
    timing: KeyTiming
    keys: Annotated[list[str], Meta(max_length=MAX_LIMIT, extra_json_schema={"uniqueItems": True})]
    next_after: str | None


class RoutingKeysRoute:
    """Lists keys, each page in a thread; the gate says how many at once."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        reader = RoutingKeyReader(config=engine.config, open_archive=engine.caches.archive, connect=engine.connect)
        engine.account.add("routing_keys", lambda: reader.cache.bytes)
        self._reader = reader
        self._background = BackgroundRequests(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s

    @route(
        "GET",
        "/v1/stream/{name}/_routing_keys",
        "list_keys",
        "The [routing keys](#routing-keys) of a stream in the order of code points, the newest events included",
        READ,
        {200: Answer("a page of keys", RoutingKeysAnswer)},
        fails=NOT_THERE,
        parameters=(
            NAME,
            in_query("limit", Annotated[int, Meta(ge=1, le=MAX_LIMIT)], "keys of a page; 100 if left out"),
            in_query("after", str, "next_after of the page before"),
        ),
        is_hot=True,
    )
    def get(self, request: Request) -> None:
        """One page of keys."""
        stream = self._engine.log.find(request.target.name)
        request.principal.require("read", stream.name)
        limit = _limit(request.query.get("limit", str(LIMIT)))
        registry = stream.head.registry
        if registry is None or not registry.has_routing_key:
            raise BadRequest("routing key not configured: the schema of this stream names none", field="routingKey")
        if stream.ttl_s is not None:
            self._engine.log.catalog.note_access(stream)
        deadline = Deadline(self._time_s * PARTIAL_ANSWER_SHARE)
        listing = self._answer(request, stream, request.query.get("after", ""), limit, deadline)
        self._background.answer_partially(request, listing, self._time_s, deadline)

    async def _answer(self, request: Request, stream: Stream, after: str, limit: int, deadline: Deadline) -> None:
        began_s = monotonic()
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._gate.__aenter__()
        except TimeoutError as reason:
            raise TimedOut("too many searches are under way; this one did not begin in time") from reason
        try:
            # The newest head: what was appended while others were answered is listed too.
            head = await self._engine.log.fetch_readable_head(stream)
            query = KeyQuery(stream, head, after, limit, deadline)
            page = await in_thread(lambda: self._reader.page(query))
        finally:
            await self._gate.__aexit__()
        took_ms = round((monotonic() - began_s) * 1000)
        request.exchange.reply(Reply.json(200, _rendered(stream, page, took_ms)))


def _limit(text: str) -> int:
    if not _LIMIT.fullmatch(text) or int(text) > MAX_LIMIT:
        raise BadRequest(f"invalid limit: {text!r} is none of 1 to {MAX_LIMIT}", field="limit")
    return int(text)


def _rendered(stream: Stream, page: KeyPage, took_ms: int) -> RoutingKeysAnswer:
    goes_on = page.has_more or not page.is_complete
    return RoutingKeysAnswer(
        stream=stream.name,
        source=KeySource("routing_key", ""),
        took_ms=took_ms,
        coverage=KeyCoverage(
            complete=page.is_complete,
            indexed_segments=page.indexed_segments,
            scanned_uploaded_segments=page.scanned_segments,
            # A segment counts once it is in the store: none is local only.
            scanned_local_segments=0,
            scanned_wal_rows=page.scanned_rows,
            possible_missing_uploaded_segments=page.missing_segments,
            possible_missing_local_segments=0,
        ),
        timing=KeyTiming(
            lexicon_run_get_ms=round(page.companion_get_ms),
            # Terms are decoded while they are enumerated.
            lexicon_decode_ms=0,
            lexicon_enumerate_ms=round(page.enumerate_ms),
            lexicon_merge_ms=round(page.merge_ms),
            fallback_scan_ms=round(page.scan_ms),
            fallback_segment_get_ms=round(page.segment_get_ms),
            fallback_wal_scan_ms=round(page.row_scan_ms),
            lexicon_runs_loaded=page.companions,
        ),
        keys=page.keys,
        next_after=page.keys[-1] if page.keys and goes_on else None,
    )
