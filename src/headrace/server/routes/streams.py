"""The stream resource: create, append, describe, delete. Reads live in ``reads``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.features.registry import EVENTS
from headrace.engine.log.append import PLAIN, Append, Terms
from headrace.engine.log.lifecycle import Create, Delete, SetRetention
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import LONG_BYTES
from headrace.errors import (
    AppendTimedOut,
    BadRequest,
    Conflict,
    HeadraceError,
    ManagedStream,
    NotFound,
    PreconditionFailed,
    ReservedStream,
    StreamClosed,
    TimedOut,
    TooLarge,
)
from headrace.schema.entries import check_text, split_json
from headrace.server.http import parameters, target
from headrace.server.http.auth import ENTITY_STREAM_PREFIX, LOCAL
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Exchange, Reply
from headrace.server.http.request import Request, RequestHead
from headrace.server.http.route import READ, WRITE, Answer, Body, in_header, route
from headrace.server.http.wire import DURATION_PATTERN, Age, Counter, Digits, Moment
from headrace.server.routes import stream_creation
from headrace.server.routes.stream_headers import (
    BAD_BODY,
    CLOSED,
    CLOSING,
    END,
    ENTRIES,
    EXPIRES,
    KEYING,
    LOCATION,
    NAME,
    NEXT,
    NOT_THERE,
    PRODUCED,
    RETENTION,
    TTL,
    WRITTEN_AT,
    Name,
    describe,
)
from headrace.types import json_fault

_STREAM = "/v1/stream/{name}"
_CREATED = (NEXT, CLOSED, EXPIRES, LOCATION)
_AFTER_CREATION = (
    "append_stream", "read_stream", "head_stream", "delete_stream", "retain_stream", "read_key_of_stream",
    "show_schema", "change_schema", "detail_stream",
)  # fmt: skip
_Lifetime = Annotated[
    str, Meta(extra_json_schema={"pattern": f"^(0|[1-9][0-9]*|{DURATION_PATTERN})$"}, examples=["1h"])
]

#: Joined entries, how many there are, and the registry that has seen that they fit.
Entries = tuple[bytes, int, StreamRegistry | None]

APPEND_TIMEOUT = "append timed out; append outcome is unknown, check Stream-Next-Offset before retrying"


def is_awaited(log: Log, append: Append, exchange: Exchange) -> bool:
    """Count the outcome of an append, and say whether its caller still waits; answers 408 where that took too long."""
    if append.settled:
        log.settled(append)
        return not append.expired
    exchange.reply(Reply.failure(AppendTimedOut(APPEND_TIMEOUT)))
    return False


_Bytes = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 2**63 - 1})]


class RetentionRule(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``_retention``."""

    age: Age | None = None
    bytes: _Bytes | None = None


class StreamRoutes:
    """Answers requests on ``/v1/stream/{name}``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._log = engine.log
        self._limits = engine.config.limits
        self._background, self._computing = BackgroundRequests(engine.writer.damage), engine.computing
        self._when_appended = self._appended

    @route(
        "POST",
        _STREAM,
        "append_stream",
        "[Append](#append) entries, close the stream, or both at once",
        WRITE,
        {
            200: Answer("the producer's entries are on disk", headers=(NEXT, CLOSED, *PRODUCED)),
            204: Answer("the entries are on disk", headers=(NEXT, CLOSED, *PRODUCED)),
        },
        fails=(*NOT_THERE, Conflict, PreconditionFailed, *BAD_BODY),
        parameters=(
            NAME,
            WRITTEN_AT,
            in_header("Stream-Seq", Name, "must grow, byte by byte"),
            in_header("Producer-Id", Name, "goes with the next two"),
            in_header("Producer-Epoch", Counter, "a higher epoch takes over from a lower one"),
            in_header("Producer-Seq", Counter, "grows by one with each request"),
            in_header("If-Match", str, "append only while this offset is the tail; `*` always matches"),
            CLOSING,
            KEYING,
        ),
        body=ENTRIES,
        is_hot=True,
        takes_any_query=True,
    )
    def append(self, request: Request) -> None:
        """POST: entries, a closing mark, or both."""
        log, head, route = self._log, request.head, request.route
        try:
            stream = log.find(route.target.name)
        except NotFound:
            self._refuse_managed(route.target.name)
            raise
        if route.principal is not LOCAL:
            route.principal.require("write", stream.name)
        if stream.is_reserved:
            raise reserved(stream.name)
        terms = head.terms
        if terms is None:
            terms = head.terms = _terms(head.fields)
        if stream.managed and route.principal is not LOCAL:
            terms = terms._replace(user=route.principal.user_id)
        if terms.close and stream.managed:
            raise managed(stream.name)
        if terms is not PLAIN and b"if-match" in head.fields:
            terms = terms._replace(if_match=self._if_match(stream, head.fields))
        if not request.body and not terms.close:
            raise BadRequest("the body is empty", field="body")
        if len(request.body) > LONG_BYTES and stream.is_json:
            self._background.begin(request.exchange, self._append_in_background(request, stream, terms))
            return
        try:
            self._submit(self._make_append(request, stream, terms))
        except (BadRequest, Conflict) as refusal:
            self._refuse(stream, terms, request.exchange, refusal)

    def _make_append(self, request: Request, stream: Stream, terms: Terms) -> Append:
        body, count, validated_by = self._entries(stream, request.head, request.body)
        append = Append(stream, body, count, self._when_appended, terms, request.exchange)
        append.validated_by = validated_by
        return append

    def _submit(self, append: Append) -> None:
        if append.stream.ttl_s is not None:
            self._log.catalog.note_access(append.stream)
        self._log.append(append)

    def _refuse(self, stream: Stream, terms: Terms, exchange: Exchange, refusal: HeadraceError) -> None:
        """Refuse entries for what is wrong with them, but first of all because their stream is closed."""
        if not stream.head.closed:
            raise refusal
        if terms.producer is None:
            raise StreamClosed("the stream is closed", next_offset=stream.tail_offset()) from refusal
        # Whoever closed it may say so again, whatever the body: the commit knows.
        self._log.append(Append(stream, b"", 0, self._when_appended, terms, exchange))

    async def _append_in_background(self, request: Request, stream: Stream, terms: Terms) -> None:
        """Split and check a long body in a thread, while others are served."""
        with stream.held():
            try:
                registry, size = stream.head.registry, len(request.body)
                append = await self._computing.run(size, self._make_append, request, stream, terms)
                if registry is not None and append.count:
                    await self._computing.run(size, _admit, registry, append)
                self._submit(append)
            except (BadRequest, Conflict) as refusal:
                self._refuse(stream, terms, request.exchange, refusal)

    def _entries(self, stream: Stream, head: RequestHead, body: bytes) -> Entries:
        if not body:
            return b"", 0, None
        if head.media_type != stream.media_type:
            self._refuse_type(stream, head)
        if not stream.is_json:
            return body, 1, None
        registry = stream.head.registry
        if registry is not None and len(body) <= LONG_BYTES and (count := _count_entries(registry, body)):
            return body[1:-1], count, registry
        body, count = split_json(body)
        if not count:
            raise BadRequest("the array is empty: there is nothing to append", field="body")
        return body, count, None

    def _refuse_type(self, stream: Stream, head: RequestHead) -> None:
        if head.media_type is None:
            raise BadRequest("Content-Type is missing", field="Content-Type")
        raise Conflict(
            f"the stream holds {stream.content_type}, not {head.media_type}",
            field="Content-Type",
            content_type=stream.content_type,
        )

    def _if_match(self, stream: Stream, headers: dict[bytes, bytes]) -> int | None:
        """The position an append must find the tail at; -1 never matches."""
        wanted = (parameters.text(headers, b"if-match") or "").strip().strip('"')
        if wanted == "*":
            return None
        expected = parameters.offset(wanted, "If-Match")
        if not expected.position:
            return 0
        try:
            position = stream.locate(expected)
        except HeadraceError:
            return -1
        return position if position == expected.position else -1

    def _appended(self, append: Append) -> None:
        exchange: Exchange = append.caller
        if not is_awaited(self._log, append, exchange):
            return
        if append.error is not None:
            exchange.reply(Reply.failure(append.error))
            return
        terms = append.terms
        offset = append.stream.offset_at(append.position if append.seqs is None else append.acknowledged)
        if not append.deduplicated and (terms is PLAIN or (not terms.close and terms.producer is None)):
            exchange.reply_appended(offset)
            return
        headers = {"stream-next-offset": offset}
        if append.deduplicated:
            headers["stream-deduplicated"] = str(append.deduplicated)
        status = 204
        if terms.close:
            headers["stream-closed"] = "true"
        if terms.producer is not None:
            headers["producer-epoch"] = str(terms.producer[1])
            headers["producer-seq"] = str(append.producer_last)
            if append.count and not append.duplicate:
                status = 200
        exchange.reply(Reply(status, headers))

    @route(
        "PUT",
        _STREAM,
        "create_stream",
        "[Create](#create) a stream, or confirm that it exists as described",
        WRITE,
        {
            200: Answer("it exists just so", headers=_CREATED),
            201: Answer("it was created", headers=_CREATED, leads_to=_AFTER_CREATION),
        },
        fails=(*NOT_THERE, Conflict, *BAD_BODY),
        parameters=(
            NAME,
            in_header("Stream-TTL", _Lifetime, "sliding lifetime"),
            in_header("Stream-Expires-At", Moment, "fixed end of life, instead of a sliding one"),
            in_header("Stream-Retention-Age", Age, "how long entries are kept"),
            in_header("Stream-Retention-Bytes", Digits, "how much is kept"),
            in_header("Stream-Forked-From", str, "the path of the stream to fork"),
            in_header("Stream-Fork-Offset", str, "where the fork leaves its source; its tail by default"),
            in_header("Stream-Fork-Sub-Offset", Digits, "bytes or messages past the fork offset"),
            CLOSING,
            KEYING,
            WRITTEN_AT,
        ),
        body=ENTRIES,
        is_hot=True,
        takes_any_query=True,
        recorded_as="stream_created",
    )
    def put(self, request: Request) -> None:
        """PUT: a new stream, or the confirmation that it exists as described."""
        name = request.target.name
        request.principal.require("write", name)
        target.check_name(name, self._limits.name_bytes)
        self._refuse_managed(name)
        spec = stream_creation.read(self._log, request)
        existing = self._log.catalog.find(name)
        if existing is not None and not self._log.catalog.expired(existing):
            request.exchange.reply(stream_creation.confirm(existing, spec, request))
            return
        point = stream_creation.fork_point(spec)
        row, body, count = stream_creation.row(spec, point, name, self._engine.clock.now_us())
        self._log.create(
            row,
            partial(self._created, request),
            body=body,
            count=count,
            terms=spec.terms,
            fork=None if point is None else self._log.fork(*point),
            replaces=existing,
            who=request.principal.user_id,
        )

    def _created(self, request: Request, create: Create) -> None:
        if create.settled and create.expired:
            return
        if create.expired:
            late = AppendTimedOut(APPEND_TIMEOUT) if create.appends else TimedOut("request timed out")
            request.exchange.reply(Reply.failure(late))
        elif create.error is not None:
            request.exchange.reply(Reply.failure(create.error))
        elif create.exists:
            self._put_again(request)
        else:
            request.exchange.reply(stream_creation.created(create.row, request))

    def _put_again(self, request: Request) -> None:
        """Another request created the stream first: compare with it, unless it was deleted meanwhile."""
        timeout_s = self._engine.config.server.resolver_timeout_s
        self._background.answer_with_timeout(request, self._put_thawed(request), timeout_s)

    async def _put_thawed(self, request: Request) -> None:
        while True:
            try:
                self.put(request)
                return
            except NeedsFetch as cold:
                async with self._engine.gates.read:
                    await asyncio.to_thread(cold.work)

    @route(
        "HEAD",
        _STREAM,
        "head_stream",
        "[Where the stream stands](#describe); not an access",
        READ,
        {200: Answer("it exists", headers=(NEXT, END, CLOSED, TTL, EXPIRES, *RETENTION))},
        fails=NOT_THERE,
        parameters=(NAME,),
        is_hot=True,
        takes_any_query=True,
    )
    def head(self, request: Request) -> None:
        """HEAD: the state of the stream; does not count as an access."""
        name = request.target.name
        derived = self._engine.features.current.derived(name)
        stream = self._log.find(name if derived is None else EVENTS + derived.root)
        request.principal.require("read", name)
        headers = describe(stream)
        headers["cache-control"] = "no-store"
        request.exchange.reply(Reply(200, headers))

    @route(
        "DELETE",
        _STREAM,
        "delete_stream",
        "[Delete](#delete) the stream; its forks stay readable",
        WRITE,
        {204: Answer("it is gone")},
        fails=(*NOT_THERE, Conflict, TooLarge),
        parameters=(NAME,),
        is_hot=True,
        takes_any_query=True,
        recorded_as="stream_deleted",
    )
    def delete(self, request: Request) -> None:
        """DELETE: the end of a stream."""
        name = request.target.name
        request.principal.require("write", name)
        if b"if-match" in request.headers:
            raise BadRequest("If-Match belongs to an append: a stream is deleted wherever it ends", field="If-Match")
        self._refuse_managed(name)
        self._log.delete(self._log.find(name), partial(self._deleted, request), who=request.principal.user_id)

    def _refuse_managed(self, name: str) -> None:
        """Refuse to change by itself what belongs to a registry."""
        stream = self._log.catalog.find(name)
        if stream is not None:
            refuse_owned(stream)
        if self._engine.features.current.derived(name) is not None:
            raise managed(name)

    def _deleted(self, request: Request, delete: Delete | SetRetention) -> None:
        if delete.settled and delete.expired:
            return
        if delete.expired:
            request.exchange.reply(Reply.failure(TimedOut("request timed out")))
        elif delete.error is not None:
            request.exchange.reply(Reply.failure(delete.error))
        else:
            request.exchange.reply(Reply(204))

    @route(
        "POST",
        _STREAM + "/_retention",
        "retain_stream",
        "Change [how much the stream keeps](#retention); what is left out is no limit",
        WRITE,
        {204: Answer("the rule is set")},
        fails=(*NOT_THERE, Conflict, *BAD_BODY),
        parameters=(NAME,),
        body=Body(RetentionRule),
        is_hot=True,
        recorded_as="retention_changed",
    )
    def retention(self, request: Request) -> None:
        """POST ``_retention``: how long and how much the stream keeps."""
        stream = self._log.find(request.target.name)
        request.principal.require("write", stream.name)
        self._refuse_managed(stream.name)
        age_us, size = read_retention(request.body)
        who = request.principal.user_id
        self._log.set_retention(stream, partial(self._deleted, request), age_us=age_us, size=size, who=who)


def _admit(registry: StreamRegistry, append: Append) -> None:
    """Admit entries; what a producer repeats was admitted when the registry was another: the commit decides."""
    try:
        registry.admit(append)
    except HeadraceError:
        if append.terms.producer is None:
            raise
        append.refused_by = registry


def refuse_owned(stream: Stream) -> None:
    """Refuse to change what belongs to a registry, or to the server itself."""
    if stream.managed:
        raise managed(stream.name)
    if stream.is_reserved:
        raise reserved(stream.name)


def reserved(name: str) -> ReservedStream:
    """What is answered where only the server writes."""
    return ReservedStream("this stream belongs to the server: it can be read, and nothing else", stream=name)


def managed(name: str) -> ManagedStream:
    """What is answered where a stream changes only through its registry."""
    kind, path = (
        ("entity", "/v1/entity-types") if name.startswith(ENTITY_STREAM_PREFIX) else ("feature", "/v1/register")
    )
    return ManagedStream(f"this stream belongs to the {kind} registry: change it with {path}", stream=name)


def _count_entries(registry: StreamRegistry, body: bytes) -> int | None:
    """How many entries an array holds that need not be split, as its registry sees at a glance that they fit."""
    check_text(body)
    return registry.count(body)


def _terms(headers: dict[bytes, bytes]) -> Terms:
    """What the headers of an append say about its entries; If-Match is read where the stream is known."""
    terms = Terms(
        key=parameters.text(headers, b"stream-key") or None,
        timestamp_us=parameters.timestamp_us(headers, b"stream-timestamp"),
        stream_seq=parameters.stream_seq(headers),
        producer=parameters.producer(headers),
        close=parameters.closes(headers),
    )
    return PLAIN if terms == PLAIN and b"if-match" not in headers else terms


def read_retention(body: bytes) -> tuple[int | None, int | None]:
    """``{"age": "24h" | null, "bytes": n | null}``; what is left out is no limit."""
    try:
        rule = decoding.decode(body, RetentionRule)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not a retention rule: {json_fault(reason, body)}", field="body") from reason
    if rule.bytes is not None and not 0 <= rule.bytes < 2**63:
        raise BadRequest("bytes is not a whole number", field="bytes")
    return None if rule.age is None else parameters.retention_age_us(rule.age, "age"), rule.bytes
