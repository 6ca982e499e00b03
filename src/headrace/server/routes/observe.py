"""``POST /v1/observe/request``: the events and the spans of one request, joined."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.deadline import Cancelled, Deadline
from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.engine.request_lookup import Seeker, look_up
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, TimedOut
from headrace.profiles import table
from headrace.profiles.request_story import IDS, RequestQuestion, Trace, primary, read_question, summary, timeline
from headrace.server.http.background import in_thread
from headrace.server.http.route import READ, Answer, Body, route
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import When, fill
from headrace.server.routes.stream_headers import BAD_BODY, NOT_THERE
from headrace.types import rfc3339

if TYPE_CHECKING:
    from headrace.server.http.auth import Principal

_MAX_BYTES = 64 * 1024
#: What the log says where nobody waited for an answer.
_CLIENT_GONE = 499
#: What is left of a request's time for what comes after the searches.
_REST_S = 0.5


_Letters = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 512})]


class ObservedStreams(Struct, forbid_unknown_fields=True):
    """The streams that are looked at."""

    events: str | UnsetType = UNSET
    traces: str | UnsetType = UNSET


class RequestKey(Struct, forbid_unknown_fields=True, rename="camel"):
    """One of the ids of a request."""

    request_id: _Letters | UnsetType = UNSET
    trace_id: _Letters | UnsetType = UNSET
    span_id: _Letters | UnsetType = UNSET


class ObservedTime(Struct, forbid_unknown_fields=True, rename="camel"):
    """When the request was, and how much before and after it is looked at."""

    start: When | UnsetType = msgspec.field(name="from", default=UNSET)
    to: When | UnsetType = UNSET
    padding_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | UnsetType = UNSET


class ObservedParts(Struct, forbid_unknown_fields=True):
    """Which parts of the answer are wanted."""

    events: bool | UnsetType = UNSET
    trace: bool | UnsetType = UNSET
    timeline: bool | UnsetType = UNSET
    raw: bool | UnsetType = UNSET


class ObservedLimits(Struct, forbid_unknown_fields=True):
    """How much is looked at."""

    events: Annotated[int, Meta(ge=1, le=500)] | UnsetType = UNSET
    spans: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET


class ObserveBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A question about a request; ``profiles.request_story`` reads it, and names everything that is wrong with it."""

    streams: ObservedStreams
    lookup: Annotated[RequestKey, Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})]
    time: ObservedTime | UnsetType = UNSET
    include: ObservedParts | UnsetType = UNSET
    limits: ObservedLimits | UnsetType = UNSET


class RequestIds(Struct, rename="camel"):
    """The ids of a request, as far as they are found."""

    request_id: Any
    trace_id: Any
    span_id: Any


class ObservedEvents(Struct):
    """The events of a request, and the one that represents it."""

    stream: str | None
    primary: Any
    matches: list[Any]


class ObservedTrace(Struct, kw_only=True, rename="camel"):
    """The spans of a request as a tree."""

    stream: str | None
    trace_id: Any
    root_span_id: Any
    spans: list[Any]
    tree: list[Any]
    service_map: Any
    critical_path: list[Any]
    errors: Any
    partial: bool
    missing_parents: Any
    duplicate_spans: Any


class ObserveCoverage(Struct):
    """What was looked at, and what may be missing."""

    events: Any
    traces: Any
    warnings: list[str]


class ObserveAnswer(Struct, kw_only=True):
    """The events and the spans of one request, joined."""

    lookup: RequestIds
    summary: Any
    evlog: ObservedEvents | None
    trace: ObservedTrace | None
    timeline: list[Any] | None
    coverage: ObserveCoverage


class Observer:
    """Answers what happened in a request."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate

    @route(
        "POST",
        "/v1/observe/request",
        "observe_request",
        "The events and the spans of [one request](profiles.md#one-request-from-both-sides), joined",
        READ,
        {200: Answer("what was found, and what it covers", ObserveAnswer)},
        fails=(*NOT_THERE, *BAD_BODY),
        body=Body(ObserveBody, _MAX_BYTES),
        takes_any_query=True,
    )
    async def request(self, request: Request) -> Response:
        """POST: one request, by its id, its trace or one of its spans."""
        question = read_question(await read_json(request, Any))
        principal = request.state.principal
        events = self._stream(question.events, principal, "events")
        traces = self._stream(question.traces, principal, "traces")
        deadline = Deadline(self._engine.config.server.resolver_timeout_s - _REST_S)
        work = asyncio.create_task(self._work(question, events, traces, deadline))
        watch = asyncio.create_task(_watch(request, deadline, work))
        try:
            return await work
        except (Cancelled, asyncio.CancelledError):
            if deadline.is_cancelled:
                return Response(status_code=_CLIENT_GONE)
            raise
        finally:
            watch.cancel()

    async def _work(
        self, question: RequestQuestion, events: Stream | None, traces: Stream | None, deadline: Deadline
    ) -> Response:
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._gate.__aenter__()
        except TimeoutError as reason:
            raise TimedOut("too many searches are under way; this one did not begin in time") from reason
        try:
            return json_response(await in_thread(lambda: self._answer(question, events, traces, deadline)))
        finally:
            await self._gate.__aexit__()

    def _stream(self, name: str | None, principal: Principal, signal: str) -> Stream | None:
        """The stream that holds this kind of events of requests."""
        if name is None:
            return None
        principal.require("read", name)
        stream = self._engine.log.find(name)
        profile = table.load(stream.profile)
        if profile.definition.signal != signal:
            wanted = next(profile.name for profile in table.PROFILES.values() if profile.signal == signal)
            message = f"streams.{signal} must be a stream with the profile {wanted}; {name} has {profile.name}"
            raise BadRequest(message, field=f"streams.{signal}")
        if stream.ttl_s is not None:
            self._engine.log.catalog.note_access(stream)
        return stream

    def _answer(
        self, question: RequestQuestion, events: Stream | None, traces: Stream | None, deadline: Deadline
    ) -> ObserveAnswer:
        window = tuple(None if ms is None else rfc3339(ms * 1000) for ms in (question.from_ms, question.to_ms))
        seekers = [
            None
            if stream is None
            else Seeker(self._engine.caches.archive, stream, limit, (window[0], window[1]), deadline)
            for stream, limit in ((events, question.max_events), (traces, question.max_spans))
        ]
        seqs = look_up(seekers[0], seekers[1], question.by, question.id)
        return _document(question, seekers[0], seekers[1], seqs)


async def _watch(request: Request, deadline: Deadline, work: asyncio.Task[Response]) -> None:
    """Cancel the work once the client has hung up; the body of the request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    deadline.cancel()
    work.cancel()


def _document(
    question: RequestQuestion, events: Seeker | None, traces: Seeker | None, request_ids: list[str]
) -> ObserveAnswer:
    logged = [] if events is None else events.events()
    trace = Trace([] if traces is None else list(traces.events_by_seq.values()))
    first = next(iter(request_ids), None)
    chosen = primary([event for _, event in logged], first)
    root = None if trace.root is None else trace.spans[trace.root]
    streams = question.events, question.traces
    lookup = dict.fromkeys(IDS) | {"traceId": first} | {question.by: question.id}
    if lookup["requestId"] is None and (request_id := summary(chosen, root)["requestId"]):
        lookup["requestId"] = request_id
    return ObserveAnswer(
        lookup=fill(RequestIds, lookup),
        summary=summary(chosen, root),
        evlog=None if events is None else _logged(question, chosen, logged),
        trace=None if traces is None else _traced(question, first, trace, traces),
        timeline=timeline(logged, trace, streams, raw=question.raw) if question.timeline else None,
        coverage=ObserveCoverage(
            None if events is None else events.coverage(),
            None if traces is None else traces.coverage(),
            _warnings(events, traces, trace),
        ),
    )


def _logged(question: RequestQuestion, chosen: Any, logged: list[tuple[str, Any]]) -> ObservedEvents:
    matches = [{"offset": offset, "event": event} for offset, event in logged]
    return ObservedEvents(question.events, chosen, matches)


def _traced(question: RequestQuestion, first: str | None, trace: Trace, seeker: Seeker) -> ObservedTrace:
    covered = seeker.coverage()
    return ObservedTrace(
        stream=question.traces,
        trace_id=first,
        root_span_id=None if trace.root is None else trace.spans[trace.root]["spanId"],
        spans=list(trace.spans.values()),
        tree=trace.tree(),
        service_map=trace.services(),
        critical_path=trace.path(),
        errors=trace.errors(),
        partial=bool(trace.missing) or covered["limit_reached"] or not covered["complete"],
        missing_parents=trace.missing,
        duplicate_spans=trace.duplicates,
    )


def _warnings(events: Seeker | None, traces: Seeker | None, trace: Trace) -> list[str]:
    warnings = []
    for seeker, what in ((events, "events"), (traces, "spans")):
        if seeker is None:
            continue
        covered = seeker.coverage()
        if not seeker.events_by_seq:
            warnings.append(f"no {what} were found in {seeker.stream.name}")
        if covered["limit_reached"]:
            warnings.append(f"there are more {what} than were asked for")
        if not covered["complete"]:
            warnings.append(f"not all {what} were looked at")
    if trace.missing:
        warnings.append(f"{len(trace.missing)} parents of spans were not found")
    return warnings
