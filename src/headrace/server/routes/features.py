"""``POST /v1/get`` and ``/v1/batch_get``: rows of feature tables, answered on the hot path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.derive.generation import NotReady
from headrace.engine.derive.state_reader import SLICE_S
from headrace.engine.features.feature_reader import FeatureAnswer, Moment, coverage_of
from headrace.engine.features.past_reader import RowMoment
from headrace.engine.runtime.gates import LONG_BYTES
from headrace.errors import BadRequest, BatchTooLarge, HeadraceError, NotFound, RequestError, TimedOut, UnsupportedMedia
from headrace.schema.entries import checked_number
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.request import Request
from headrace.server.http.route import Answer, Body, Header, Scope, route
from headrace.server.http.wire import Counter, Object, When
from headrace.server.http.wire import Moment as MomentText
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.types import JSON, json_fault, parse_timestamp_us, rfc3339

MAX_REQUESTS = 10_000
#: So few rows are looked for at once, and for so long; more are looked up in slices, one batch after the other.
_FEW, _BRIEFLY_S = 64, 0.003
#: Events that are folded before rows are looked up, for each of the rows: that takes less than folding row by row.
_WORTH = 5
#: Where more rows are not found in time, it is said what any row of their tables lacks, and not what each of them does.
_MAX_ROWS_CHECKED = 100
_ENCODE = msgspec.json.Encoder().encode


class GetBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request for one row: its table and key, the features, and whether to explain them."""

    table: str
    key: Annotated[Any, Meta(description="one value, or an array of them; nothing for a global table")] = None
    features: list[str] | None = None
    #: As it was at this moment; only for one row.
    as_of: MomentText | None = None
    #: With ``as_of``: from the events that were appended until then.
    as_known_at: MomentText | None = None
    explain: bool = False


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request for many rows of any tables, all as of the same moment."""

    requests: Annotated[list[GetBody], Meta(extra_json_schema={"maxItems": MAX_REQUESTS})]


class BatchAnswer(msgspec.Struct):
    """Rows in the order of the requests.

    ``late_events`` is there where any of them has some: how many of each came too late to be counted.
    """

    results: list[Object]
    late_events: list[Counter] | UnsetType = UNSET


class _Rows(msgspec.Struct):
    """The encoded answers of several requests, in their order."""

    rows: list[bytes] = []
    complete: bool = True
    has_ended: bool = False
    is_partial: bool = False
    #: How many events of each came too late to be counted.
    late: list[int] = []

    def add(self, row: bytes, answer: FeatureAnswer) -> None:
        """Take the next answer."""
        self.rows.append(row)
        self.late.append(answer.late)
        self.complete = self.complete and answer.complete
        self.has_ended = self.has_ended or answer.has_ended
        self.is_partial = self.is_partial or answer.is_partial


_COVERAGE = Header(
    "Headrace-Coverage",
    Literal["complete", "backfilling", "partial", "ended"],
    "whether every feature speaks of all events since its birth; `ended` where its stream has lost a field of some; "
    "`partial` where events are gone that were in no state",
)
#: The registry that rows follow, whose ``types`` are theirs.
REGISTRY_VERSION = Header(
    "Headrace-Registry-Version", Counter, "the version of the registry whose `types` the values have"
)
_EVENTS_FROM = Header(
    "Headrace-Events-From", When, "with `as_of`: when the first event was appended that is still there"
)
_LATE_EVENTS = Header(
    "Headrace-Late-Events", Counter, "how many events of the key came too late by their event time, where any did"
)
_GET = decoding.make_decoder(GetBody, float_hook=checked_number)
_BATCH = decoding.make_decoder(BatchBody, float_hook=checked_number)


class FeatureRoutes:
    """Answers requests for rows."""

    def __init__(self, engine: Engine) -> None:
        self._features = engine.features
        self._serving = engine.feature_reader
        self._past_reader = engine.past_reader
        self._background = BackgroundRequests(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s
        self._computing, self._gate = engine.computing, engine.gates.rows

    @route(
        "POST",
        "/v1/get",
        "get_row",
        "The features of [one key](#rows)",
        Scope("read", "read on the event source"),
        {
            200: Answer(
                "the row; empty for an unseen key", Object, (_COVERAGE, REGISTRY_VERSION, _EVENTS_FROM, _LATE_EVENTS)
            )
        },
        fails=(NotFound, UnsupportedMedia),
        body=Body(GetBody),
        is_hot=True,
    )
    def get(self, request: Request) -> None:
        """POST ``/v1/get``: the row of one key, ``{}`` for a key that no event has had."""
        body = _read(request, _GET)
        self._admit(request.principal, body.table)
        moment = _past_moment(body)
        if moment is not None:
            self._background.begin(request.exchange, self._get_past(request, body, moment))
            return
        try:
            self._reply_row(request, body, self._get_row(body))
        except NotReady:
            later = self._get_later(request, body)
            self._background.answer_with_timeout(request, later, self._time_s, lambda: self._late([body]))

    async def _get_later(self, request: Request, body: GetBody) -> None:
        while request.exchange.writable:
            await self._serving.ready(body.table)
            try:
                answer = self._get_row(body)
            except NotReady:
                continue
            self._reply_row(request, body, answer)
            return

    async def _get_past(self, request: Request, body: GetBody, moment: RowMoment) -> None:
        past = await self._past_reader.rows(body.table, [moment], body.features)
        reaches = None if past.reaches_us is None else rfc3339(past.reaches_us)
        late_events = past.late_events[0] if past.late_events else 0
        explanation = {
            "as_of": rfc3339(moment.at_us),
            "as_known_at": None if moment.appended_us is None else rfc3339(moment.appended_us),
            "complete": past.complete,
            "since": past.since,
            "events_from": reaches,
            "late_events": late_events,
        }
        headers = self._headers("complete" if past.complete else "partial")
        if reaches is not None:
            headers = {**headers, "headrace-events-from": reaches}
        if late_events:
            headers = {**headers, "headrace-late-events": str(late_events)}
        request.exchange.reply_json(
            _ENCODE(_row(body, FeatureAnswer(past.rows[0], past.complete, explanation))), headers
        )

    def _get_row(self, body: GetBody, moment: Moment | None = None) -> FeatureAnswer:
        return self._serving.get(body.table, body.key, body.features, moment, explain=body.explain)

    @route(
        "POST",
        "/v1/batch_get",
        "get_rows",
        "The features of many keys at one moment",
        Scope("read", "read on the event sources"),
        {200: Answer("rows in order", BatchAnswer, (_COVERAGE, REGISTRY_VERSION))},
        fails=(NotFound, *BAD_BODY),
        body=Body(BatchBody),
        is_hot=True,
    )
    def batch_get(self, request: Request) -> None:
        """POST ``/v1/batch_get``: rows in the order of the requests, or what is wrong with the first bad one."""
        if len(request.body) > LONG_BYTES:
            self._background.begin(request.exchange, self._read_in_background(request))
            return
        bodies = self._checked(request.principal, _read(request, _BATCH).requests)
        if len(bodies) <= _FEW and (rows := self._get_few(bodies)) is not None:
            self._reply_rows(request, rows)
        else:
            self._get_later_all(request, bodies)

    async def _read_in_background(self, request: Request) -> None:
        """Read a long body in a thread, while others are served."""
        body = await self._computing.run(len(request.body), _read, request, _BATCH)
        self._get_later_all(request, self._checked(request.principal, body.requests))

    def _checked(self, principal: Principal, bodies: list[GetBody]) -> list[GetBody]:
        """The requests of a batch, all of which are checked before the first row is read."""
        if len(bodies) > MAX_REQUESTS:
            raise BatchTooLarge(f"a batch has at most {MAX_REQUESTS} requests", limit=MAX_REQUESTS)
        for number, body in enumerate(bodies):
            for field in ("as_of", "as_known_at"):
                if getattr(body, field) is not None:
                    message = f"{field} is for one row; POST /v1/tables/{{table}}/history has many"
                    raise _at(BadRequest(message, field=field), f"requests[{number}]")
        admitted = set[str]()
        for number, body in enumerate(bodies):
            if body.table not in admitted:
                _with_index(number, lambda body=body: self._admit(principal, body.table))  # type: ignore[misc]
                admitted.add(body.table)
        return bodies

    def _get_few(self, bodies: list[GetBody]) -> _Rows | None:
        """The rows, if they are available immediately; else None."""
        rows = _Rows()
        try:
            moment = self._serving.moment((body.table for body in bodies), monotonic() + _BRIEFLY_S)
            return rows if self._rows(bodies, moment, rows) else None
        except NotReady:
            return None

    def _get_later_all(self, request: Request, bodies: list[GetBody]) -> None:
        self._background.answer_with_timeout(
            request, self._batch_later(request, bodies), self._time_s, lambda: self._late(bodies)
        )

    async def _batch_later(self, request: Request, bodies: list[GetBody]) -> None:
        tables = list(dict.fromkeys(body.table for body in bodies))
        async with self._gate:
            while request.exchange.writable:
                try:
                    for table in tables:
                        await self._serving.fold_tail(table, _WORTH * len(bodies))
                    rows = await self._rows_in_slices(request, bodies, tables)
                except NotReady:
                    for table in tables:
                        await self._serving.ready(table)
                else:
                    self._reply_rows(request, rows)
                    return

    async def _rows_in_slices(self, request: Request, bodies: list[GetBody], tables: list[str]) -> _Rows:
        """The rows of one moment, read in slices between other requests; raises NotReady where tables lag."""
        rows, moment = _Rows(), self._serving.moment(tables)
        with self._serving.hold(tables, moment.heads) as hold:
            while request.exchange.writable:
                with contextlib.suppress(NotReady):  # what was folded of a row by the end of a slice is kept
                    if self._rows(bodies, moment._replace(ends=monotonic() + SLICE_S), rows):
                        break
                await asyncio.sleep(0)
                if not hold.is_intact:
                    raise NotReady
        return rows

    def _late(self, bodies: list[GetBody]) -> HeadraceError:
        """The error of rows that are late, with the number of events that they lack."""
        try:
            if len(bodies) > _MAX_ROWS_CHECKED:
                lacking = [self._serving.lag(table) for table in dict.fromkeys(body.table for body in bodies)]
            else:
                lacking = [self._lacking(body) for body in bodies]
        except HeadraceError as reason:
            return reason
        events, offset = max(lacking)
        message = f"a row lacks up to {events} events that were pushed before; ask again" if events else "timed out"
        return TimedOut(message, events=events, offset=offset)

    def _lacking(self, body: GetBody) -> tuple[int, str]:
        return self._serving.row_lag(body.table, self._serving.defined(body.table).reducer.key(body.key))

    def _rows(self, bodies: list[GetBody], moment: Moment, rows: _Rows) -> bool:
        """Append rows until the moment ends; returns whether all are there."""
        assert moment.ends is not None
        for number in range(len(rows.rows), len(bodies)):
            body = bodies[number]
            answer: FeatureAnswer = _with_index(number, lambda body=body: self._get_row(body, moment))  # type: ignore[misc]
            rows.add(_ENCODE(_row(body, answer)), answer)
            if monotonic() > moment.ends:
                break
        return len(rows.rows) == len(bodies)

    def _reply_row(self, request: Request, body: GetBody, answer: FeatureAnswer) -> None:
        headers = self._headers(answer.coverage)
        if answer.late:
            headers["headrace-late-events"] = str(answer.late)
        request.exchange.reply_json(_ENCODE(_row(body, answer)), headers)

    def _reply_rows(self, request: Request, rows: _Rows) -> None:
        headers = self._headers(
            coverage_of(complete=rows.complete, has_ended=rows.has_ended, is_partial=rows.is_partial)
        )
        late = b',"late_events":' + _ENCODE(rows.late) if any(rows.late) else b""
        request.exchange.reply_json(b'{"results":[' + b",".join(rows.rows) + b"]" + late + b"}", headers)

    def _headers(self, coverage: str) -> dict[str, str]:
        return {"headrace-coverage": coverage, "headrace-registry-version": str(self._features.current.version)}

    def _admit(self, principal: Principal, table: str) -> None:
        """Refuse callers who may not read the events that a table is computed from."""
        current = self._features.current
        current.table(table)
        if principal is not LOCAL:
            principal.require("read", current.stream_behind(table))


def _read(request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
    if request.head.media_type != JSON:
        raise UnsupportedMedia("questions are asked as application/json", field="Content-Type")
    try:
        return decoder.decode(request.body)
    except (ValueError, RecursionError) as reason:
        raise BadRequest(f"the body cannot be read: {json_fault(reason, request.body)}", field="body") from reason


def _past_moment(body: GetBody) -> RowMoment | None:
    """The moment of a request for a row of the past; None where it is about now."""
    if body.as_of is None:
        if body.as_known_at is not None:
            raise BadRequest("as_known_at needs as_of: the moment that the row is about", field="as_known_at")
        return None
    appended_us = None if body.as_known_at is None else parse_timestamp_us(body.as_known_at, "as_known_at")
    return RowMoment(body.key, parse_timestamp_us(body.as_of, "as_of"), appended_us)


def _row(body: GetBody, answer: FeatureAnswer) -> dict[str, Any]:
    return {"row": answer.row, "explain": answer.explain} if body.explain else answer.row


def _with_index(number: int, work: Callable[[], Any]) -> Any:
    """Run work for one of many requests; its errors get the index of the request."""
    try:
        return work()
    except RequestError as refusal:
        raise _at(refusal, f"requests[{number}]") from refusal


def _at(refusal: HeadraceError, path: str) -> HeadraceError:
    return type(refusal)(f"{path}: {refusal.message}", **{**refusal.facts, "path": path})
