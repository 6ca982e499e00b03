"""OTLP over HTTP: spans that exporters send, to one stream or to the one that is configured."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.engine.assembly import Engine
from headrace.engine.log.append import PLAIN, Append
from headrace.engine.log.lifecycle import Create, make_done_callback
from headrace.engine.log.stream import Stream
from headrace.engine.runtime.gates import LONG_BYTES
from headrace.errors import AppendTimedOut, BadRequest, Conflict, TooLarge, UnsupportedMedia
from headrace.profiles import table
from headrace.profiles.otel_traces import otlp
from headrace.profiles.otel_traces.profile import EXPORT, OTEL_TRACES, TracesHook
from headrace.profiles.otel_traces.protobuf import partial_success
from headrace.server.http import target
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import WRITE, Answer, Body, Header, route
from headrace.server.http.wire import Binary, NonNegative, Offset
from headrace.server.routes.profiles import profile_with_route
from headrace.server.routes.stream_headers import BAD_BODY, NAME, NOT_THERE
from headrace.server.routes.streams import APPEND_TIMEOUT, refuse_owned
from headrace.storage.streams import StreamRow
from headrace.types import JSON

PROTOBUF = "application/x-protobuf"
_NO_EXPORTS = "this stream takes no OTLP exports; they need the profile otel-traces"


class PartialSuccess(Struct, rename="camel"):
    """How many spans were not stored, and why."""

    rejected_spans: NonNegative
    error_message: str


class ExportAnswer(Struct, rename="camel"):
    """The outcome of an export; empty where all of it is stored."""

    partial_success: PartialSuccess | UnsetType = UNSET


_Spans = Annotated[Any, Meta(extra_json_schema={"type": "object", "properties": {"resourceSpans": {"type": "array"}}})]
_EXPORT = Body(_Spans, media={PROTOBUF: Binary})
_ANSWERS = {
    200: Answer(
        "the spans are stored; those that were not are counted",
        ExportAnswer,
        (Header("Stream-Next-Offset", Offset, "the tail"),),
        {PROTOBUF: Binary},
    )
}
_FAILS = (*NOT_THERE, Conflict, *BAD_BODY)


class _Taken(NamedTuple):
    """The spans of an export: their entries, their number, and the number and the reason of rejected ones."""

    joined: bytes
    spans: int
    rejected: int = 0
    reason: str = ""


class OtlpRoutes:
    """Answers exports of spans."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._background = BackgroundRequests(engine.writer.damage)

    @route(
        "POST",
        "/v1/stream/{name}/_otlp/v1/traces",
        "export_spans",
        "Spans as [OTLP exporters](profiles.md#otel-traces) send them, for this stream",
        WRITE,
        _ANSWERS,
        fails=_FAILS,
        parameters=(NAME,),
        body=_EXPORT,
        is_hot=True,
        takes_any_query=True,
    )
    def post(self, request: Request) -> None:
        """POST ``_otlp/v1/traces``: spans for this stream."""
        stream = self._engine.log.find(request.target.name)
        request.principal.require("write", stream.name)
        refuse_owned(stream)
        self._background.begin(request.exchange, self._take(request, stream))

    @route(
        "POST",
        "/v1/traces",
        "export_traces",
        "The same, for the stream that the server is configured with",
        WRITE,
        _ANSWERS,
        fails=_FAILS,
        body=_EXPORT,
        is_hot=True,
        takes_any_query=True,
    )
    def traces(self, request: Request) -> None:
        """POST ``/v1/traces``: spans for the stream that is configured."""
        name = self._engine.config.system.traces_stream
        if not name:
            raise BadRequest("no stream takes traces here: set system.traces_stream", field="system.traces_stream")
        request.principal.require("write", name)
        self._background.begin(request.exchange, self._take_configured(request, name))

    async def _take_configured(self, request: Request, name: str) -> None:
        if self._engine.config.system.traces_auto_create and self._engine.log.catalog.find(name) is None:
            await self._create(name, request.principal.user_id)
        await self._take(request, self._engine.log.find(name))

    async def _take(self, request: Request, stream: Stream) -> None:
        with stream.held():  # there must be no second one of it meanwhile
            await self._take_into(stream, request)

    async def _take_into(self, stream: Stream, request: Request) -> None:
        profile = profile_with_route(stream, EXPORT, _NO_EXPORTS)
        assert isinstance(profile.hook, TracesHook)
        _check(request, profile.hook)
        kind, body = request.head.media_type, request.body
        if len(body) > LONG_BYTES:
            taken = await self._engine.computing.run(len(body), _read, profile.hook, body, kind)
        else:
            taken = _read(profile.hook, body, kind)
        if taken.spans:
            await self._append(stream, taken, profile.hook)
        request.exchange.reply(_answer(kind, taken, stream.tail_offset()))

    async def _append(self, stream: Stream, taken: _Taken, hook: TracesHook) -> None:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(append: Append) -> None:
            if append.settled:
                self._engine.log.settled(append)
            if not settled.done():
                settled.set_result(None)

        append = Append(stream, taken.joined, taken.spans, done, PLAIN)
        registry = stream.head.registry
        if registry is not None and registry.skips_validation and registry.hook is hook:
            append.validated_by = registry
        if registry is not None and len(taken.joined) > LONG_BYTES:
            await self._engine.computing.run(append.size, registry.admit, append)
        self._engine.log.append(append)
        await settled
        if append.error is not None:
            raise append.error
        if not append.settled:
            raise AppendTimedOut(APPEND_TIMEOUT)

    async def _create(self, name: str, who: str) -> None:
        """Create the configured stream, unless another request did so meanwhile."""
        target.check_name(name, self._engine.config.limits.name_bytes)
        settled: asyncio.Future[Create] = asyncio.get_running_loop().create_future()
        row = StreamRow(name=name, content_type=JSON, created_us=self._engine.clock.now_us(), epochs="[]")
        self._engine.log.create(row, make_done_callback(settled), who=who)
        create = await settled
        if create.error is not None:
            raise create.error
        await self._engine.profiles.apply(self._engine.log.find(name), table.load(OTEL_TRACES.name), who)


def _check(request: Request, hook: TracesHook) -> None:
    """Refuse a body that is not an export, or too large."""
    limits, headers = hook.rules.otlp_limits, request.headers
    if request.head.media_type not in (JSON, PROTOBUF):
        raise UnsupportedMedia(f"an export is {PROTOBUF} or {JSON}", field="Content-Type")
    sent = headers.get(b"content-length", b"")
    if b"content-encoding" in headers and sent.isdigit() and int(sent) > limits.max_compressed_bytes:
        limit = limits.max_compressed_bytes
        raise TooLarge(f"compressed OTLP body too large: at most {limit} bytes are taken", limit=limit)
    if len(request.body) > (limit := limits.max_decoded_bytes):
        raise TooLarge(f"decoded OTLP body too large: at most {limit} bytes are taken", limit=limit)


def _read(hook: TracesHook, body: bytes, kind: str | None) -> _Taken:
    read = otlp.from_protobuf if kind == PROTOBUF else otlp.from_json
    export = read(body, hook.rules.otlp_limits)
    joined, count, failures = hook.encode_records(export.spans)
    reasons = [f"span {failure.index + 1}: {failure.reason}" for failure in failures[:1]]
    if export.beyond:
        reasons.append(f"too many spans: {hook.rules.otlp_limits.max_spans_per_request} are taken at once")
    return _Taken(joined, count, len(failures) + export.beyond, "; ".join(reasons))


def _answer(kind: str | None, taken: _Taken, offset: str) -> Reply:
    headers = {"stream-next-offset": offset}
    if kind == PROTOBUF:
        body = partial_success(taken.rejected, taken.reason) if taken.rejected else b""
        return Reply(200, {"content-type": PROTOBUF, "cache-control": "no-store", **headers}, body)
    partial = PartialSuccess(taken.rejected, taken.reason) if taken.rejected else UNSET
    return Reply.json(200, ExportAnswer(partial), headers)
