"""``POST /v1/get`` and ``/v1/batch_get``: rows of feature tables, answered on the hot path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.derive.generation import Behind
from headrace.engine.derive.serving import SLICE_S
from headrace.engine.features.registry import EVENTS
from headrace.engine.features.serving import Answer, Moment
from headrace.engine.runtime.computing import LONG_BYTES
from headrace.errors import BadRequest, BatchTooLarge, HeadraceError, RequestError, TimedOut, UnsupportedMedia
from headrace.schema.entries import checked_number
from headrace.server.aside import Aside
from headrace.server.auth import LOCAL, Principal
from headrace.server.exchange import Request
from headrace.types import JSON, json_fault, parse_timestamp_us, rfc3339

MOST_REQUESTS = 10_000
#: So few rows are looked for at once, and for so long; more are looked up in slices, one batch after the other.
_FEW, _BRIEFLY_S = 64, 0.003
#: Events that are folded before rows are looked up, for each of the rows: that takes less than folding row by row.
_WORTH = 5
#: Where more rows are not found in time, it is said what any row of their tables lacks, and not what each of them does.
_TOLD_OF = 100
_COMPLETE = "headrace-coverage: complete\r\n"
_BACKFILLING = "headrace-coverage: backfilling\r\n"
_PARTIAL = "headrace-coverage: partial\r\n"
_ENCODE = msgspec.json.Encoder().encode


class GetBody(msgspec.Struct, forbid_unknown_fields=True):
    """One row: of which table and key, which features, and whether to say how it came about."""

    table: str
    key: Any = None
    features: list[str] | None = None
    #: As it was at this moment; only for one row.
    as_of: str | None = None
    explain: bool = False


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Many rows, of any tables, all at one moment."""

    requests: list[GetBody]


class _Rows(msgspec.Struct):
    """What answers several requests, in their order, as JSON."""

    rows: list[bytes] = []
    complete: bool = True


_GET = decoding.make_decoder(GetBody, float_hook=checked_number)
_BATCH = decoding.make_decoder(BatchBody, float_hook=checked_number)


class Gets:
    """Answers requests for rows."""

    def __init__(self, engine: Engine) -> None:
        self._features = engine.features
        self._serving = engine.serving
        self._pasts = engine.pasts
        self._aside = Aside(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s
        self._computing, self._gate = engine.computing, engine.gates.rows

    def get(self, request: Request) -> None:
        """POST ``/v1/get``: the row of one key, ``{}`` for a key that no event has had."""
        asked = _read(request, _GET)
        self._admit(request.principal, asked.table)
        if asked.as_of is not None:
            at_us = parse_timestamp_us(asked.as_of, "as_of")
            self._aside.begin(request.exchange, self._get_past(request, asked, at_us))
            return
        try:
            _tell(request, asked, self._ask(asked))
        except Behind:
            later = self._get_later(request, asked)
            self._aside.ask(request, later, self._time_s, lambda: self._late([asked]))

    async def _get_later(self, request: Request, asked: GetBody) -> None:
        while request.exchange.writable:
            await self._serving.ready(asked.table)
            try:
                answer = self._ask(asked)
            except Behind:
                continue
            _tell(request, asked, answer)
            return

    async def _get_past(self, request: Request, asked: GetBody, at_us: int) -> None:
        past = await self._pasts.rows(asked.table, [(asked.key, at_us)], asked.features)
        reaches = None if past.reaches_us is None else rfc3339(past.reaches_us)
        told = {"as_of": rfc3339(at_us), "complete": past.complete, "since": past.since, "events_from": reaches}
        lines = _COMPLETE if past.complete else _PARTIAL
        lines += "" if reaches is None else f"headrace-events-from: {reaches}\r\n"
        request.exchange.told(_ENCODE(_row(asked, Answer(past.rows[0], past.complete, told))), lines)

    def _ask(self, asked: GetBody, moment: Moment | None = None) -> Answer:
        return self._serving.get(asked.table, asked.key, asked.features, moment, explain=asked.explain)

    def batch_get(self, request: Request) -> None:
        """POST ``/v1/batch_get``: rows in the order of the requests, or what is wrong with the first bad one."""
        if len(request.body) > LONG_BYTES:
            self._aside.begin(request.exchange, self._read_aside(request))
            return
        asked = self._checked(request.principal, _read(request, _BATCH).requests)
        if len(asked) <= _FEW and (found := self._ask_few(asked)) is not None:
            _tell_all(request, found)
        else:
            self._ask_later(request, asked)

    async def _read_aside(self, request: Request) -> None:
        """Read a long body in a thread, while others are served."""
        body = await self._computing.run(len(request.body), _read, request, _BATCH)
        self._ask_later(request, self._checked(request.principal, body.requests))

    def _checked(self, principal: Principal, asked: list[GetBody]) -> list[GetBody]:
        """Requests of a batch, none of which is refused before its row is looked for."""
        if len(asked) > MOST_REQUESTS:
            raise BatchTooLarge(f"a batch has at most {MOST_REQUESTS} requests", limit=MOST_REQUESTS)
        if any(one.as_of is not None for one in asked):
            raise BadRequest("as_of is for one row; POST /v1/tables/{table}/history has many", field="as_of")
        admitted = set[str]()
        for number, one in enumerate(asked):
            if one.table not in admitted:
                _placed(number, lambda one=one: self._admit(principal, one.table))  # type: ignore[misc]
                admitted.add(one.table)
        return asked

    def _ask_few(self, asked: list[GetBody]) -> _Rows | None:
        """The rows, at once; None where that takes longer."""
        found = _Rows()
        try:
            moment = self._serving.moment((one.table for one in asked), monotonic() + _BRIEFLY_S)
            return found if self._rows(asked, moment, found) else None
        except Behind:
            return None

    def _ask_later(self, request: Request, asked: list[GetBody]) -> None:
        self._aside.ask(request, self._batch_later(request, asked), self._time_s, lambda: self._late(asked))

    async def _batch_later(self, request: Request, asked: list[GetBody]) -> None:
        tables = list(dict.fromkeys(one.table for one in asked))
        async with self._gate:
            while request.exchange.writable:
                try:
                    for table in tables:
                        await self._serving.approach(table, _WORTH * len(asked))
                    found = await self._rows_in_slices(request, asked, tables)
                except Behind:
                    for table in tables:
                        await self._serving.ready(table)
                else:
                    _tell_all(request, found)
                    return

    async def _rows_in_slices(self, request: Request, asked: list[GetBody], tables: list[str]) -> _Rows:
        """The rows of one moment, looked up while others have their turns; Behind where they cannot be."""
        found, moment = _Rows(), self._serving.moment(tables)
        with self._serving.hold(tables, moment.heads) as hold:
            while request.exchange.writable:
                with contextlib.suppress(Behind):  # what was folded of a row by the end of a slice is kept
                    if self._rows(asked, moment._replace(ends=monotonic() + SLICE_S), found):
                        break
                await asyncio.sleep(0)
                if not hold.is_intact:
                    raise Behind
        return found

    def _late(self, asked: list[GetBody]) -> HeadraceError:
        """What rows lack that are not found in time."""
        try:
            if len(asked) > _TOLD_OF:
                lacking = [self._serving.lag(table) for table in dict.fromkeys(one.table for one in asked)]
            else:
                lacking = [self._lacking(one) for one in asked]
        except HeadraceError as reason:
            return reason
        events, offset = max(lacking)
        message = f"a row lacks up to {events} events that were pushed before; ask again" if events else "timed out"
        return TimedOut(message, events=events, offset=offset)

    def _lacking(self, asked: GetBody) -> tuple[int, str]:
        return self._serving.lacking(asked.table, self._serving.defined(asked.table).reducer.key(asked.key))

    def _rows(self, asked: list[GetBody], moment: Moment, found: _Rows) -> bool:
        """Add rows to those that were found, until a moment ends; whether all are there."""
        assert moment.ends is not None
        for number in range(len(found.rows), len(asked)):
            one = asked[number]
            answer: Answer = _placed(number, lambda one=one: self._ask(one, moment))  # type: ignore[misc]
            found.rows.append(_ENCODE(_row(one, answer)))
            found.complete = found.complete and answer.complete
            if monotonic() > moment.ends:
                break
        return len(found.rows) == len(asked)

    def _admit(self, principal: Principal, table: str) -> None:
        """Whoever reads a table may read the events that it is made from."""
        current = self._features.current
        current.table(table)
        if principal is not LOCAL:
            principal.require("read", EVENTS + current.root_of(table))


def _read(request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
    if request.head.media_type != JSON:
        raise UnsupportedMedia("questions are asked as application/json", field="Content-Type")
    for name in request.query:
        raise BadRequest(f"there is no parameter {name} here", field=name)
    try:
        return decoder.decode(request.body)
    except (ValueError, RecursionError) as reason:
        raise BadRequest(f"the body cannot be read: {json_fault(reason, request.body)}", field="body") from reason


def _row(asked: GetBody, answer: Answer) -> dict[str, Any]:
    return {"row": answer.row, "explain": answer.explain} if asked.explain else answer.row


def _tell(request: Request, asked: GetBody, answer: Answer) -> None:
    request.exchange.told(_ENCODE(_row(asked, answer)), _COMPLETE if answer.complete else _BACKFILLING)


def _tell_all(request: Request, found: _Rows) -> None:
    request.exchange.told(
        b'{"results":[' + b",".join(found.rows) + b"]}", _COMPLETE if found.complete else _BACKFILLING
    )


def _placed(number: int, work: Callable[[], Any]) -> Any:
    """What work finds for one of many requests; what it refuses is refused with its place."""
    try:
        return work()
    except RequestError as refusal:
        raise _at(refusal, f"requests[{number}]") from refusal


def _at(refusal: HeadraceError, path: str) -> HeadraceError:
    return type(refusal)(f"{path}: {refusal.message}", **{**refusal.facts, "path": path})
