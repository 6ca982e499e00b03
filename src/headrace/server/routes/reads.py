"""Reading a stream: catch-up slices, and the start of the live modes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

from msgspec import Meta

from headrace.engine.assembly import Engine
from headrace.engine.entities.entity_type import EntityType
from headrace.engine.features.registry import EVENTS
from headrace.engine.log.expiry import expires
from headrace.engine.log.read import ReadSlice
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, Conflict
from headrace.format import offset as offsets
from headrace.format.offset import OFFSET_PATTERN
from headrace.query.filter import Filtered
from headrace.reduce.features.events import DerivedEvents
from headrace.server.http import parameters
from headrace.server.http.auth import ENTITY_STREAM_PREFIX, LOCAL
from headrace.server.http.compression import ReplyCompressor, accepted_encoding
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import READ, Answer, Header, in_header, in_path, in_query, route
from headrace.server.http.wire import Moment, NonEmpty, Offset, Wait
from headrace.server.routes.live_reads import LongPoll, SseRenderer, SseSubscriber
from headrace.server.routes.stream_headers import (
    CLOSED,
    CURSOR,
    END,
    ETAG,
    EXPIRES,
    FIRST,
    NAME,
    NEXT,
    NOT_THERE,
    UP_TO_DATE,
)
from headrace.server.routes.stream_reader import ReadRequest, StreamReader
from headrace.types import parse_timestamp_us

CATCH_UP, LONG_POLL, SSE = "", "long-poll", "sse"
_LIVE = {"": CATCH_UP, "false": CATCH_UP, "0": CATCH_UP, "true": LONG_POLL, "1": LONG_POLL, "long-poll": LONG_POLL}
_LIVE["sse"] = SSE
_FOREVER = "immutable, max-age=31536000"
#: The newest entries that can be asked for at once.
MAX_LAST = 10_000
_COUNT = re.compile(r"[1-9]\d{0,4}", re.ASCII)
#: What ``last`` cannot be combined with, and what to do instead.
_NOT_WITH_LAST = {
    "offset": "last says where the read begins: leave out offset; to read backward, give before",
    "since": "last says where the read begins: leave out since",
    "key": "the newest entries of one key cannot be asked for: read the key from an offset, or search",
    "filter": "the newest events that match are found by _search, which sorts by offset:desc",
}

From = Annotated[str, Meta(extra_json_schema={"pattern": f"^(-1|now|{OFFSET_PATTERN})$"}, examples=["-1", "now"])]
Version = Annotated[str, Meta(extra_json_schema={"pattern": "^[1-9][0-9]{0,8}$"}, examples=["1"])]
_Last = Annotated[int, Meta(ge=1, le=MAX_LAST)]
_SLICE = (NEXT, END, FIRST, UP_TO_DATE, CLOSED, EXPIRES)
_SCANNED = (
    Header("Stream-Filter-Scan-Limit-Reached", str, "true: a filtered read ended since it had looked at enough"),
    Header("Stream-Filter-Scan-Limit-Bytes", str, "how much that is"),
    Header("Stream-Filter-Scanned-Bytes", str, "what was looked at"),
    Header("Stream-Filter-Timed-Out", str, "true: a filtered read ended since its time was over"),
)
_ANSWERS = {
    200: Answer(
        "entries as the stream's own type, or events with live=sse",
        headers=(*_SLICE, CURSOR, ETAG, *_SCANNED),
        media={"*/*": Any},
    ),
    204: Answer("no entries came in time, or the stream is closed", headers=(*_SLICE, CURSOR)),
    304: Answer("the caller has this slice", headers=(*_SLICE, ETAG)),
}
_PARAMETERS = (
    in_query("offset", From, "read after it; live reads need one"),
    in_query("since", Moment, "without an offset: read from this moment on"),
    in_query("last", _Last, "the newest so many entries; not with offset, since, key or filter"),
    in_query("before", Offset, "only entries before this offset; not with live"),
    in_query("format", Literal["raw", "json"], "json: an array; raw: entries joined"),
    in_query("live", Literal["", "false", "0", "true", "1", "long-poll", "sse"], "wait for new entries"),
    in_query("timeout", Wait, "longest wait of a long-poll"),
    in_query("schema_version", Version, "the shape of events; the newest"),
    in_query("filter", str, "only events that match; for streams with search fields, and not with live=sse"),
    in_query("cursor", str, "Stream-Cursor of the last live answer"),
    in_header("If-None-Match", str, "ETag of a slice the caller has"),
)


class ReadRoute:
    """Answers GET on ``/v1/stream/{name}``."""

    def __init__(self, engine: Engine, compressor: ReplyCompressor, gate: Gate) -> None:
        self.reader = StreamReader(engine, compressor, gate)
        self._sse = SseRenderer(self.reader)
        self._features = engine.features
        self._log = engine.log
        self._config = engine.config.server

    @route(
        "GET",
        "/v1/stream/{name}",
        "read_stream",
        "[Read](#read) entries: once, when they come, or as they come",
        READ,
        _ANSWERS,
        fails=(*NOT_THERE, Conflict),
        parameters=(NAME, *_PARAMETERS, in_query("key", str, "only entries of this key")),
        is_hot=True,
        takes_any_query=True,
    )
    @route(
        "GET",
        "/v1/stream/{name}/pk/{key}",
        "read_key_of_stream",
        "Read the entries of one key",
        READ,
        _ANSWERS,
        fails=(*NOT_THERE, Conflict),
        parameters=(NAME, in_path("key", NonEmpty, "the key"), *_PARAMETERS),
        is_hot=True,
        takes_any_query=True,
    )
    def get(self, request: Request) -> None:
        """Read once, or stay at the tail."""
        name = request.target.name
        derived = self._features.current.derived(name)
        stream = self._log.find(name if derived is None else EVENTS + derived.root)
        request.principal.require("read", name)
        if stream.ttl_s is not None:
            self._log.catalog.note_access(stream)
        live = _mode(request.query)
        wait_s = parameters.wait_s(request.query, self._config.long_poll_s, self._config.max_long_poll_s)
        head = self._log.readable_head(stream)
        question = self._question(stream, request, live, head)
        if derived is not None:
            question = _derived(question, derived)
        if live == SSE:
            SseSubscriber(self.reader, self._sse, question, request, self._config.sse_lifetime_s).start()
        elif live == LONG_POLL:
            LongPoll(self.reader, question, request, wait_s).start()
        else:
            self._catch_up(question, request, head)

    def _catch_up(self, question: ReadRequest, request: Request, head: Head) -> None:
        entries: ReadSlice | Filtered = ReadSlice([], head.next_seq)
        if not question.is_now:
            entries = self.reader.find(question, question.position, question.bounded(head))
        headers = self.reader.headers(question, head, entries.position)
        if question.version is None and head.registry is not None and question.position < head.registry.readable_from:
            headers["stream-earliest-offset"] = question.stream.offset_at(head.registry.readable_from)
        if isinstance(entries, Filtered):
            headers |= self.reader.filters.headers(entries)
        if question.is_now:
            headers["cache-control"] = "no-store"
        else:
            scope = "" if request.principal is LOCAL else "private, "
            headers.setdefault("cache-control", scope + _lifetime(question, entries.position, head))
            headers["etag"] = etag(question, entries.position, head)
            if matches(request.headers.get(b"if-none-match"), headers["etag"]):
                del headers["content-type"]
                request.exchange.reply(Reply(304, headers))
                return
        reply = Reply(200, headers, self.reader.render(question, entries.parts))
        self.reader.compressor.send(request, reply, accepted_encoding(request.headers))

    def _question(self, stream: Stream, request: Request, live: str, head: Head) -> ReadRequest:
        query = request.query
        key = request.target.key if request.target.key is not None else query.get("key")
        filter = None
        if "filter" in query:
            if live == SSE:
                raise BadRequest("a filter cannot be followed with live=sse; use live=long-poll", field="filter")
            # What a thread has found by another revision's fields is no answer to this one.
            filter = self.reader.filters.read(stream, query["filter"], (request.exchange, _revision(head)))
        before = _before(stream, head, query, live)
        wanted, version = _format(stream, query), requested_version(head, query)
        if "last" in query:
            position, is_real = _last(query, key, head, version, before), before is not None and before < head.next_seq
        else:
            position, is_real = self._start(stream, head, query, live)
        if before is not None and before < position:
            raise BadRequest("before lies before the offset at which the read begins", field="before")
        is_now, is_last = query.get("offset") == "now", "last" in query
        return ReadRequest(
            stream, position, key or None, wanted, is_now, is_real, version, filter, before=before, is_last=is_last
        )

    def _start(self, stream: Stream, head: Head, query: dict[str, str], live: str) -> tuple[int, bool]:
        """Where a read begins, and whether a minted offset says so."""
        since_us = parse_timestamp_us(query["since"], "since") if "since" in query else None
        offset_text = query.get("offset")
        if offset_text == "now":
            return head.next_seq, False
        if offset_text is not None:
            offset = parameters.offset(offset_text)
            return stream.locate(offset, head), offset.position > 0
        if since_us is not None:
            return self._log.seek(stream, since_us), False
        if live:
            raise BadRequest("a live read needs an offset", field="offset")
        return head.first_seq, False


def _last(query: dict[str, str], key: str | None, head: Head, version: int | None, before: int | None) -> int:
    """Where the newest entries begin that are asked for; refuses what cannot be combined with that."""
    for field, advice in _NOT_WITH_LAST.items():
        if key if field == "key" else field in query:
            raise BadRequest(f"last cannot be combined with {field}: {advice}", field="last")
    text = query["last"]
    count = int(text) if _COUNT.fullmatch(text) else 0
    if not 1 <= count <= MAX_LAST:
        raise BadRequest(f"last: {text!r} is not a whole number from 1 to {MAX_LAST}", field="last")
    end = head.next_seq if before is None else before
    first = head.first_seq
    if version is None and head.registry is not None:
        first = max(first, head.registry.readable_from)
    return min(end, max(first, end - count))


def _before(stream: Stream, head: Head, query: dict[str, str], live: str) -> int | None:
    """The position from which on entries are left out."""
    if "before" not in query:
        return None
    if live:
        raise BadRequest("before cannot be combined with live: a live read has no end", field="before")
    offset = parameters.offset(query["before"], "before")
    if not offset.position:
        raise BadRequest("before: nothing lies before the start", field="before")
    return stream.locate(offset, head)


def _derived(question: ReadRequest, derived: DerivedEvents) -> ReadRequest:
    """The read of a derived event, from its source; refuses what only its source can answer."""
    unanswered = (
        ("filter", question.filter is not None),
        ("schema_version", question.version is not None),
        ("last", question.is_last),
    )
    for field, is_set in unanswered:
        if is_set:
            raise BadRequest(f"{field} cannot be asked of a derived event; ask its source", field=field)
    return question._replace(derived=derived)


def _mode(query: dict[str, str]) -> str:
    mode = _LIVE.get(query.get("live", ""))
    if mode is None:
        raise BadRequest(f"live: {query['live']!r} is none of false, true, long-poll, sse", field="live")
    return mode


def _format(stream: Stream, query: dict[str, str]) -> str:
    wanted = query.get("format", "json" if stream.is_json else "raw")
    if wanted not in ("json", "raw"):
        raise BadRequest(f"format: {wanted!r} is neither raw nor json", field="format")
    if wanted == "json" and not stream.is_json:
        raise BadRequest(f"format=json needs a JSON stream; this one holds {stream.content_type}", field="format")
    return wanted


def requested_version(head: Head, query: dict[str, str]) -> int | None:
    """The requested schema version."""
    wanted = query.get("schema_version")
    if wanted is None:
        return None
    newest = 0 if head.registry is None else head.registry.version
    if not newest:
        raise BadRequest("this stream has no schema, and so no versions of it", field="schema_version")
    version = parameters.non_negative_integer(wanted, "schema_version")
    if not 1 <= version <= newest:
        raise BadRequest(f"schema_version {version} is none of 1 to {newest}", field="schema_version")
    return version


def _revision(head: Head) -> int:
    return 0 if head.registry is None else head.registry.revision


def _lifetime(question: ReadRequest, position: int, head: Head) -> str:
    """The cache control of a slice: immutable only where no entry, expiry, erasure or declaration can change it."""
    may_grow = not question.is_real or (position >= head.next_seq and not head.closed)
    if may_grow or expires(question.stream, head) or question.stream.name.startswith(ENTITY_STREAM_PREFIX):
        return "no-cache"
    follows_schema = head.registry is not None and head.registry.version and question.version is None
    if follows_schema or question.filter is not None:
        return "max-age=60"
    return _FOREVER


def etag(question: ReadRequest, position: int, head: Head) -> str:
    """A weak tag that changes with data, erasures, its shape, what a filter means, closing, and another life."""
    stream = question.stream
    start = stream.offset_at(question.position) if question.is_real else offsets.START
    closed = ":c" if head.closed and position >= head.next_seq else ""
    key = quote(question.key or "", safe="")
    filter_text = "" if question.filter is None else f"{quote(question.filter.text, safe='')}@{_revision(head)}"
    at = f"{start}:{stream.offset_at(position)}"
    version = question.version or (0 if head.registry is None else head.registry.version)
    view = "" if question.derived is None else f":of={question.derived.name}.{question.derived.version}"
    seen = f"life={stream.id}.{question.position}:v={version}{view}{_changes(head)}{closed}"
    return f'W/"slice:{at}:key={key}:fmt={question.format}:filter={filter_text}:{seen}"'


def _changes(head: Head) -> str:
    """The part of a tag that changes with every erasure in a stream of entities, which may replace stored entries."""
    kind = None if head.registry is None else head.registry.hook
    return f":change={kind.number}" if isinstance(kind, EntityType) else ""


def matches(if_none_match: bytes | None, tag: str) -> bool:
    """Whether the caller already has the version with this tag."""
    if if_none_match is None:
        return False
    candidates = [part.strip() for part in if_none_match.decode("latin-1").split(",")]
    return "*" in candidates or tag.removeprefix("W/") in (part.removeprefix("W/") for part in candidates)
