"""``/v1/tables/{table}/history``: rows of feature tables as they were, for many keys and moments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.derive.generation import NotReady
from headrace.engine.features.definitions import start_of
from headrace.engine.features.feature_reader import UnfitEvents
from headrace.engine.features.past_reader import RowMoment
from headrace.engine.features.training_sets import HistoryAnswer
from headrace.engine.log.stream import Stream
from headrace.errors import BatchTooLarge, Gone, NotFound, TimedOut, UnknownEvent
from headrace.reduce.features.definition import UNFIT_TABLE
from headrace.reduce.features.moments import Question
from headrace.schema import pointer as pointers
from headrace.schema.descriptor.bound_fields import FieldPath, follow_fields
from headrace.schema.registry import Registry
from headrace.server.http.route import Answer, Body, Header, Scope, in_path, route
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import Counter, Moment, Object, Offset, RunState, When
from headrace.server.routes.features import REGISTRY_VERSION
from headrace.server.routes.push import NodeName
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.storage.background_requests import HistoryRow
from headrace.types import parse_timestamp_us, rfc3339

_HISTORY = "/v1/tables/{table}/history"
MAX_ROWS = 10_000


class HistoryKeyBody(Struct, forbid_unknown_fields=True):
    """A key at a moment; ``as_known_at`` is that of all rows where it is left out."""

    at: Moment
    key: Any = ""
    as_known_at: Moment | None = None


class HistoryBody(Struct, forbid_unknown_fields=True):
    """Which rows, and which of their features."""

    rows: Annotated[list[HistoryKeyBody], Meta(extra_json_schema={"maxItems": MAX_ROWS})]
    features: list[str] | None = None
    #: Only events that were appended until then count; without it all that are there.
    as_known_at: Moment | None = None


class HistoryStatus(Struct, kw_only=True):
    """The status of a history request, with its rows once they are computed."""

    id: str
    table: str
    state: RunState
    begun: When
    ended: When | None
    rows: Counter
    total: Counter
    reason: str | None
    complete: bool | UnsetType = UNSET
    since: Offset | UnsetType = UNSET
    results: list[Object] | UnsetType = UNSET
    #: How many events of each row came too late to count; left out where none did.
    late_events: list[Counter] | UnsetType = UNSET


class HistoryRowsAnswer(Struct, kw_only=True):
    """Rows as they were, and from where on they know everything."""

    results: list[Object]
    complete: bool
    since: Offset
    events_from: When | None
    #: How many events of each row came too late to count; left out where none did.
    late_events: list[Counter] | UnsetType = UNSET


class BegunHistoryAnswer(Struct):
    """A question that takes longer."""

    history: HistoryStatus


class BoundField(Struct):
    """Where a field is in the newest events of the stream; the first event without it where it is lost."""

    pointer: str | None
    lost_at: Offset | None


class UnfitEvent(Struct):
    """An event that does not fit, and why."""

    offset: Offset
    reason: str


class UnfitEventsAnswer(Struct):
    """How many events of the stream do not fit, and the first of them; not `complete` while they are being counted."""

    count: Counter
    complete: bool
    first: list[UnfitEvent]


class BoundSourceAnswer(Struct):
    """An event source that is bound to a stream."""

    event: str
    stream: str
    fields: dict[str, BoundField]
    unfit: UnfitEventsAnswer


_SCOPE = Scope("read", "read on the event source")
_TABLE = in_path("table", NodeName, "the table")
_COVERAGE = Header(
    "Headrace-Coverage",
    Literal["complete", "partial"],
    "whether rows speak of all events since the births of their features",
)


class FeatureTableRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @route(
        "POST",
        _HISTORY,
        "ask_history",
        "Rows of a table [as they were](#the-past), for many keys and moments",
        _SCOPE,
        {
            200: Answer(
                "rows in order; empty for a key that was not seen", HistoryRowsAnswer, (_COVERAGE, REGISTRY_VERSION)
            ),
            202: Answer("there is much to fold: ask again at the address that is told", BegunHistoryAnswer),
        },
        fails=(NotFound, *BAD_BODY),
        parameters=(_TABLE,),
        body=Body(HistoryBody),
    )
    async def ask(self, request: Request) -> Response:
        """POST: the rows where few events are to be folded, else where they will be found."""
        table = self._admitted(request)
        body = await read_json(request, HistoryBody)
        if len(body.rows) > MAX_ROWS:
            raise BatchTooLarge(f"a question is about {MAX_ROWS} rows at most", limit=MAX_ROWS)
        moments = await self._engine.computing.run(0, _moments, body)
        past = await self._engine.training.request(table, moments, body.features)
        if isinstance(past, HistoryRow):
            where = request.url.path + f"/{past.id}"
            return json_response(BegunHistoryAnswer(self._row_document(past)), status=202, headers={"location": where})
        reaches = None if past.reaches_us is None else rfc3339(past.reaches_us)
        answer = HistoryRowsAnswer(
            results=past.rows,
            complete=past.complete,
            since=past.since,
            events_from=reaches,
            late_events=_late_events(past.late_events),
        )
        return await self._engine.computing.run(0, json_response, answer, headers=self._headers(complete=past.complete))

    @route(
        "GET",
        _HISTORY + "/{id}",
        "get_history",
        "How a question about the past stands, and its rows once they are found",
        _SCOPE,
        {200: Answer("the question", HistoryStatus, (_COVERAGE, REGISTRY_VERSION))},
        fails=(NotFound,),
        parameters=(_TABLE, in_path("id", str, "the question")),
    )
    async def find(self, request: Request) -> Response:
        """GET: the status of a history request, with its rows once they are computed."""
        row = self._engine.training.find(self._admitted(request), request.path_params["id"])
        if row.answer is None:
            return json_response(self._row_document(row))
        answer = decoding.decode(row.answer, HistoryAnswer)
        status = self._row_document(row)
        status.results, status.late_events = answer.rows, _late_events(answer.late_events)
        return json_response(status, headers=self._headers(complete=answer.complete))

    @route(
        "GET",
        "/v1/registry/events/{event}",
        "get_bound_source",
        "A source [over an existing stream](#features): where its fields are, and which events do not fit",
        Scope("read", "read on the stream"),
        {200: Answer("the source", BoundSourceAnswer)},
        fails=(NotFound, Gone, TimedOut),
        parameters=(in_path("event", NodeName, "the event source"),),
    )
    async def source(self, request: Request) -> Response:
        """GET: how a source is bound to its stream."""
        event = request.path_params["event"]
        features = self._engine.features.current
        if event not in features.document.sources:
            raise UnknownEvent("there is no event source of this name over an existing stream", event=event)
        request.state.principal.require("read", features.source_stream(event))
        reader = self._engine.feature_reader
        defined = reader.defined(event + UNFIT_TABLE)
        stream = reader.find_stream(defined)
        registry = self._engine.schemas.registry(stream)
        try:
            async with asyncio.timeout(self._engine.config.server.resolver_timeout_s):
                unfit = await self._unfit(event)
        except TimeoutError as reason:
            raise TimedOut("the events that do not fit are being counted; ask again") from reason
        assert defined.binding is not None
        paths = follow_fields(registry, defined.event, defined.binding.versions)
        first = [UnfitEvent(stream.offset_at(seq), reason) for seq, reason in unfit.first]
        answer = UnfitEventsAnswer(unfit.events, unfit.complete, first)
        fields = {name: _bound_field(stream, registry, path) for name, path in paths.items()}
        return json_response(BoundSourceAnswer(event, stream.name, fields, answer))

    async def _unfit(self, event: str) -> UnfitEvents:
        reader = self._engine.feature_reader
        while True:
            try:
                return reader.unfit(event)
            except NotReady:
                await reader.ready(event + UNFIT_TABLE)

    def _row_document(self, row: HistoryRow) -> HistoryStatus:
        total = len(decoding.decode(row.question, Question).requests)
        status = HistoryStatus(
            id=row.id,
            table=row.table,
            state=row.state,
            begun=rfc3339(row.begun_us),
            ended=None if row.ended_us is None else rfc3339(row.ended_us),
            rows=total if row.answer is not None else 0,
            total=total,
            reason=row.reason,
        )
        if row.answer is not None:
            answer = decoding.decode(row.answer, HistoryAnswer)
            stream = self._engine.log.find(self._engine.feature_reader.defined(row.table).stream)
            status.complete, status.since = answer.complete, stream.offset_at(answer.since)
        return status

    def _headers(self, *, complete: bool) -> dict[str, str]:
        version = str(self._engine.features.current.version)
        return {"headrace-coverage": "complete" if complete else "partial", "headrace-registry-version": version}

    def _admitted(self, request: Request) -> str:
        """The table; the caller must be allowed to read the events that it is computed from."""
        table: str = request.path_params["table"]
        current = self._engine.features.current
        current.table(table)
        request.state.principal.require("read", current.stream_behind(table))
        return table


def _late_events(late_events: Sequence[int]) -> list[int] | UnsetType:
    return list(late_events) if late_events else UNSET


def _bound_field(stream: Stream, registry: Registry, path: FieldPath) -> BoundField:
    if path.lost_in is not None:
        return BoundField(None, stream.offset_at(start_of(registry, path.lost_in)))
    pointer = path.at(max(registry.current_version, 1))
    return BoundField(None if pointer is None else pointers.text(pointer), None)


def _moments(body: HistoryBody) -> list[RowMoment]:
    common_us = None if body.as_known_at is None else parse_timestamp_us(body.as_known_at, "as_known_at")
    moments = []
    for index, row in enumerate(body.rows):
        appended_us = common_us
        if row.as_known_at is not None:
            appended_us = parse_timestamp_us(row.as_known_at, f"rows[{index}].as_known_at")
        moments.append(RowMoment(row.key, parse_timestamp_us(row.at, f"rows[{index}].at"), appended_us))
    return moments
