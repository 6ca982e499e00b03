"""Read plans: one snapshot of a stream for readers outside the server, its rows, and leases of what they read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple, TypeVar

from msgspec import Meta, Struct
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.history import read_plan
from headrace.engine.history.read_leases import LONGEST_US, ReadLease, ReadLeaseEnded, TooManyReadLeases
from headrace.engine.history.read_plan import PlannedRange
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, Conflict
from headrace.server.http import parameters
from headrace.server.http.auth import ENTITY_STREAM_PREFIX
from headrace.server.http.background import BackgroundRequests, in_thread
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import ANY_KEY, READ, Answer, Header, in_path, in_query, route
from headrace.server.http.starlette_json import json_response
from headrace.server.http.wire import DURATION_PATTERN, AnyOffset, Binary, Moment, NonEmpty, NonNegative, Object, When
from headrace.server.routes.reads import From, Version, requested_version
from headrace.server.routes.stream_headers import NAME, NOT_THERE, StreamName
from headrace.server.routes.work import store_url
from headrace.storage.database import Connection
from headrace.types import parse_duration_us, parse_timestamp_us, rfc3339

#: Ranges of one answer; the next answer has those that follow.
MAX_RANGES = 2_000
ARROW = "application/vnd.apache.arrow.stream"
_Made = TypeVar("_Made")

_Lease = Annotated[str, Meta(extra_json_schema={"pattern": f"^{DURATION_PATTERN}$"}, examples=["10m"])]


class PlannedObject(Struct, frozen=True):
    """A segment in the object store; ``first_seq`` and ``count`` are of all its events."""

    key: str
    bytes: NonNegative
    sha256: str
    first_seq: NonNegative
    count: NonNegative


class RangeOfPlan(Struct, frozen=True, rename={"from_offset": "from", "to_offset": "to"}):
    """Consecutive events; without an object they are fetched as rows."""

    first_seq: NonNegative
    count: NonNegative
    bytes: NonNegative
    from_offset: AnyOffset
    to_offset: AnyOffset
    object: PlannedObject | None


class PlannedLease(Struct, frozen=True):
    """A read lease, and when it ends."""

    id: str
    expires_at: When
    ttl_ms: NonNegative


class PlanAnswer(Struct, frozen=True, kw_only=True, rename={"from_offset": "from", "to_offset": "to"}):
    """Where the events of a stream are at one moment, and what is needed to read them."""

    stream: StreamName
    incarnation: str
    content_type: str
    revision: NonNegative
    #: Schemas, lenses and breaks as ``_schema`` answers them; null where there is no schema.
    registry: Object | None
    schema_version: NonNegative | None
    #: Each epoch of offsets, and the first event in it.
    epochs: list[tuple[int, int]]
    from_offset: AnyOffset
    to_offset: AnyOffset
    first_seq: NonNegative
    end_seq: NonNegative
    store: str
    ranges: list[RangeOfPlan]
    #: Where the next answer begins, if this one does not reach the end.
    next: AnyOffset | None
    lease: PlannedLease | None


class _Question(NamedTuple):
    """What a plan or rows are of."""

    stream: Stream
    head: Head
    start: int
    stop: int


class ReadPlanRoutes:
    """Answers requests for plans, rows and read leases."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine, self._gate = engine, gate
        self._log, self._leases = engine.log, engine.sealer.read_leases
        self._background = BackgroundRequests(engine.writer.damage)
        self._store = store_url(engine.objects, engine.config.storage.object_store)

    @route(
        "GET",
        "/v1/stream/{name}/_plan",
        "plan_read",
        "A [plan](#plan): where the events are, for readers that open segments themselves",
        READ,
        {200: Answer("one snapshot", PlanAnswer)},
        fails=(*NOT_THERE, Conflict, TooManyReadLeases),
        parameters=(
            NAME,
            in_query("from", From, "events after it; all that are retained if left out"),
            in_query("to", From, "up to and with the event of this offset; the end if left out"),
            in_query("since", Moment, "instead of from: events appended from this moment on"),
            in_query("until", Moment, "instead of to: events appended before this moment"),
            in_query("schema_version", Version, "refused where the stream has no such version"),
            in_query("lease", _Lease, "keep replaced segments for so long, at most 1h; none if left out"),
        ),
        is_hot=True,
    )
    def plan(self, request: Request) -> None:
        """GET ``_plan``."""
        question = self._question(request)
        version = requested_version(question.head, request.query)
        ttl_us = _lease_us(request.query["lease"]) if "lease" in request.query else 0
        self._background.begin(request.exchange, self._plan(request, question, version, ttl_us))

    @route(
        "GET",
        "/v1/stream/{name}/_plan/rows",
        "read_rows",
        "Stored events of a range with their times, keys and versions, as an [Arrow stream](#rows)",
        READ,
        {
            200: Answer(
                "the first rows of the range",
                headers=(Header("Stream-Next-Offset", AnyOffset, "where the next rows begin"),),
                media={ARROW: Binary},
            )
        },
        fails=(*NOT_THERE, Conflict),
        parameters=(
            NAME,
            in_query("from", From, "events after it; all that are retained if left out"),
            in_query("to", From, "up to and with the event of this offset; the end if left out"),
        ),
        is_hot=True,
    )
    def rows(self, request: Request) -> None:
        """GET ``_plan/rows``."""
        self._background.begin(request.exchange, self._rows(request, self._question(request)))

    @route(
        "POST",
        "/v1/read-leases/{id}/renew",
        "renew_read_lease",
        "Let a read lease last longer, up to an hour after it was granted",
        ANY_KEY,
        {200: Answer("when it ends", PlannedLease)},
        fails=(ReadLeaseEnded,),
        parameters=(
            in_path("id", NonEmpty, "the lease"),
            in_query("lease", _Lease, "how long it lasts from now on; 10m if left out"),
        ),
    )
    async def renew(self, request: StarletteRequest) -> Response:
        """POST: renew a lease."""
        ttl_us = _lease_us(request.query_params.get("lease", "10m"))
        user = request.state.principal.user_id
        return json_response(self._describe(await self._leases.renew(request.path_params["id"], user, ttl_us)))

    @route(
        "DELETE",
        "/v1/read-leases/{id}",
        "release_read_lease",
        "End a read lease",
        ANY_KEY,
        {204: Answer("it has ended")},
        fails=(ReadLeaseEnded,),
        parameters=(in_path("id", NonEmpty, "the lease"),),
    )
    async def release(self, request: StarletteRequest) -> Response:
        """DELETE: release a lease."""
        self._leases.release(request.path_params["id"], request.state.principal.user_id)
        return Response(status_code=204)

    def _question(self, request: Request) -> _Question:
        name, query = request.target.name, request.query
        request.principal.require("read", name)
        derived = self._engine.features.current.derived(name)
        if derived is not None:
            raise Conflict(f"a derived event has no entries of its own: plan events/{derived.root}", stream=name)
        stream = self._log.find(name)
        if stream.ttl_s is not None:
            self._log.catalog.note_access(stream)
        head = self._log.readable_head(stream)
        start = self._position(stream, head, query, "from", "since", head.first_seq)
        stop = self._position(stream, head, query, "to", "until", head.next_seq)
        if stop < start:
            field = "to" if "to" in query else "until" if "until" in query else "from"
            raise BadRequest(f"{field}: the range ends before it begins", field=field)
        return _Question(stream, head, start, stop)

    def _position(
        self, stream: Stream, head: Head, query: dict[str, str], by_offset: str, by_time: str, default: int
    ) -> int:
        if by_offset in query and by_time in query:
            raise BadRequest(f"{by_time} cannot be combined with {by_offset}", field=by_time)
        if by_time in query:
            return self._log.seek(stream, parse_timestamp_us(query[by_time], by_time))
        if by_offset not in query:
            return default
        if query[by_offset] == "now":
            return head.next_seq
        return stream.locate(parameters.offset(query[by_offset], by_offset), head)

    async def _plan(self, request: Request, question: _Question, version: int | None, ttl_us: int) -> None:
        stream, head, start, stop = question
        lease = await self._leases.grant(stream, request.principal.user_id, ttl_us) if ttl_us else None
        ranges: list[PlannedRange] = await self._in_thread(
            lambda connection: read_plan.plan_ranges(connection, stream, head, start, stop, MAX_RANGES)
        )
        end = ranges[-1].end_seq if ranges else stop
        registry = None if head.registry is None else head.registry.registry
        # The rows of all users are shown by the server alone, so that an erasure holds from its answer on.
        shows_objects = not stream.name.startswith(ENTITY_STREAM_PREFIX)
        answer = PlanAnswer(
            stream=stream.name,
            incarnation=stream.incarnation,
            content_type=stream.content_type,
            revision=0 if head.registry is None else head.registry.revision,
            registry=None if registry is None or not registry.current_version else registry.dump(),
            schema_version=version,
            epochs=list(stream.epochs),
            from_offset=stream.offset_at(start),
            to_offset=stream.offset_at(stop),
            first_seq=start,
            end_seq=stop,
            store=self._store,
            ranges=[_describe_range(stream, planned, shows_objects) for planned in ranges],
            next=stream.offset_at(end) if end < stop else None,
            lease=None if lease is None else self._describe(lease),
        )
        request.principal.key_status.require()
        request.exchange.reply(Reply.json(200, answer))

    async def _rows(self, request: Request, question: _Question) -> None:
        stream, head, start, stop = question
        segments = self._engine.caches.segments
        rows = await self._in_thread(
            lambda connection: read_plan.fetch_rows(connection, segments, stream, head, start, stop)
        )
        request.principal.key_status.require()
        headers = {
            "content-type": ARROW,
            "cache-control": "no-store",
            "stream-next-offset": stream.offset_at(rows.end_seq),
        }
        request.exchange.reply(Reply(200, headers, rows.body))

    async def _in_thread(self, work: Callable[[Connection], _Made]) -> _Made:
        async with self._gate:
            return await in_thread(partial(self._with_connection, work))

    def _with_connection(self, work: Callable[[Connection], _Made]) -> _Made:
        connection = self._engine.connect()
        try:
            return work(connection)
        finally:
            connection.close()

    def _describe(self, lease: ReadLease) -> PlannedLease:
        left_us = max(0, lease.expires_us - self._engine.clock.now_us())
        return PlannedLease(lease.id, rfc3339(lease.expires_us), left_us // 1000)


def _describe_range(stream: Stream, planned: PlannedRange, shows_objects: bool) -> RangeOfPlan:
    described = None
    if planned.placed is not None and shows_objects:
        segment = planned.placed.segment
        described = PlannedObject(planned.placed.key, segment.bytes, segment.sha256, segment.first_seq, segment.count)
    offsets = stream.offset_at(planned.first_seq), stream.offset_at(planned.end_seq)
    count = planned.end_seq - planned.first_seq
    return RangeOfPlan(planned.first_seq, count, planned.bytes, *offsets, described)


def _lease_us(text: str) -> int:
    ttl_us = parse_duration_us(text, "lease")
    if not 1_000_000 <= ttl_us <= LONGEST_US:
        raise BadRequest(f"lease: {text!r} is not from 1s to 1h", field="lease")
    return ttl_us
