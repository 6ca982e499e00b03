"""``/v1/stream/{name}/touch/…``: a client names the keys of rows, and waits until one of them changes.

A wait that is parked holds no task and no timer of its own: it is an entry in the index of its keys, and one in the
list of those that give up at the same time.
"""

from __future__ import annotations

import re
from time import time
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.engine.touch.active_templates import Activation
from headrace.engine.touch.report import report
from headrace.engine.touch.stream_touches import StreamTouches, WaitRequest
from headrace.engine.touch.timer import TouchTimer
from headrace.engine.touch.touches import settings_of
from headrace.engine.touch.waiters import Waiter
from headrace.errors import BadRequest, HeadraceError, NotFound
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.keys import Template
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import READ, Answer, Body, in_query, one_of, route
from headrace.server.http.wire import AlwaysTrue, NonNegative, fill
from headrace.server.routes.stream_headers import BAD_BODY, NAME, NOT_THERE
from headrace.types import json_fault

MAX_WAIT_MS = 120_000
_WAIT_MS = 30_000
_MAX_KEYS = 1024
_PATH = "/v1/stream/{name}/touch"
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")

_Ttl = Annotated[float, Meta(ge=0)]
_Word = Annotated[str, Meta(pattern=r"\S")]
_Words = Annotated[list[_Word], Meta(max_length=_MAX_KEYS)]
_Ids = Annotated[list[Annotated[int, Meta(ge=0, le=2**32 - 1)]], Meta(max_length=_MAX_KEYS)]
_Milliseconds = Annotated[float, Meta(ge=0)]
_HEX = {"pattern": "^[0-9a-f]{16}$"}
_Hex = Annotated[str, Meta(extra_json_schema=_HEX)]
_TemplateIds = Annotated[list[_Hex], Meta(max_length=_MAX_KEYS)]
_CURSOR = {"pattern": "^[0-9a-f]{16}:[0-9]{1,19}$"}
_Cursor = Annotated[str, Meta(extra_json_schema=_CURSOR)]
_Since = Annotated[_Word, Meta(extra_json_schema={"anyOf": [{"type": "string", **_CURSOR}, {"const": "now"}]})]
_Seq = Annotated[str, Meta(extra_json_schema={"pattern": "^-?[0-9]+$"})]
_NAME = {"type": "string", "pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"}
#: Templates as ``profiles.state_protocol.templates`` reads them.
_TEMPLATES = {
    "type": "array",
    "minItems": 1,
    "maxItems": keys.MAX_DECLARED,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["entity", "fields"],
        "properties": {
            "entity": _NAME,
            "fields": {
                "type": "array",
                "minItems": 1,
                "maxItems": keys.MAX_FIELDS,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["name"],
                    "properties": {
                        "name": _NAME,
                        "encoding": {"description": "string, int64, …; others are denied"},
                    },
                },
            },
        },
    },
}
_Templates = Annotated[Any, Meta(extra_json_schema=_TEMPLATES)]


class WaitBody(Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of ``touch/wait``."""

    cursor: _Since
    keys: _Words = []
    key_ids: _Ids = []
    timeout_ms: float = _WAIT_MS
    interest_mode: Literal["fine", "coarse"] = "fine"
    exact: bool = False
    template_ids_used: _TemplateIds = []
    declare_templates: _Templates = UNSET
    inactivity_ttl_ms: _Ttl | UnsetType = UNSET


class ActivationBody(Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of ``touch/templates/activate``."""

    templates: _Templates
    inactivity_ttl_ms: _Ttl | UnsetType = UNSET


class ActivatedTemplate(Struct, rename="camel"):
    """A template that is active from a touch offset on."""

    template_id: _Hex
    state: Literal["active"]
    active_from_touch_offset: _Cursor


class DeniedTemplate(Struct, rename="camel"):
    """A template that was not activated, and the reason."""

    template_id: _Hex
    reason: Annotated[str, Meta(extra_json_schema={"enum": ["rate_limited", "invalid"]})]


class TemplateLimits(Struct, rename="camel"):
    """How many templates are active at most."""

    max_active_templates_per_stream: NonNegative
    max_active_templates_per_entity: NonNegative


class ActivationAnswer(Struct):
    """The templates that were activated, and those that were denied."""

    activated: list[ActivatedTemplate]
    denied: list[DeniedTemplate]
    limits: TemplateLimits


class TouchMeta(Struct, kw_only=True, rename="camel"):
    """The cursor of the touches of a stream, and their counters."""

    mode: Literal["memory"]
    cursor: _Cursor
    epoch: _Hex
    generation: NonNegative
    bucket_ms: NonNegative
    coalesce_ms: _Milliseconds
    filter_size: NonNegative
    k: NonNegative
    pending_keys: NonNegative
    journal_keys: NonNegative
    overflow_buckets: NonNegative
    active_waiters: NonNegative
    bucket_max_source_offset_seq: _Seq
    last_flush_at_ms: NonNegative
    flush_interval_ms_max_last10s: _Milliseconds = msgspec.field(name="flushIntervalMsMaxLast10s")
    flush_interval_ms_p95_last10s: _Milliseconds = msgspec.field(name="flushIntervalMsP95Last10s")
    settled: bool
    coarse_interval_ms: _Milliseconds
    touch_coalesce_window_ms: _Milliseconds
    active_templates: NonNegative
    lag_source_offsets: NonNegative
    touch_mode: Literal["idle", "fine", "restricted", "coarseOnly"]
    wal_scanned_through: str | None
    hot_fine_keys: NonNegative
    hot_templates: NonNegative
    hot_fine_keys_active: NonNegative
    hot_fine_keys_grace: NonNegative
    hot_templates_active: NonNegative
    hot_templates_grace: NonNegative
    fine_waiters_active: NonNegative
    coarse_waiters_active: NonNegative
    broad_fine_waiters_active: NonNegative
    hot_key_filtering_enabled: bool
    hot_template_filtering_enabled: bool
    scan_rows_total: NonNegative
    scan_batches_total: NonNegative
    scanned_but_emitted0_batches_total: NonNegative
    processed_through_delta_total: NonNegative
    touches_emitted_total: NonNegative
    touches_table_total: NonNegative
    touches_template_total: NonNegative
    fine_touches_dropped_due_to_budget_total: NonNegative
    fine_touches_skipped_cold_template_total: NonNegative
    fine_touches_skipped_cold_key_total: NonNegative
    fine_touches_skipped_template_bucket_total: NonNegative
    wait_touched_total: NonNegative
    wait_timeout_total: NonNegative
    wait_stale_total: NonNegative
    journal_flushes_total: NonNegative
    journal_notify_wakeups_total: NonNegative
    journal_notify_wake_ms_total: _Milliseconds
    journal_notify_wake_ms_max: _Milliseconds
    journal_timeouts_fired_total: NonNegative
    journal_timeout_sweep_ms_total: _Milliseconds


_WaitKind = Literal["fineKey", "templateKey", "tableKey"]


class TouchedAnswer(Struct, kw_only=True, rename="camel"):
    """Whether one of some keys was touched."""

    touched: bool
    cursor: _Cursor
    effective_wait_kind: _WaitKind
    bucket_max_source_offset_seq: _Seq
    flush_at_ms: NonNegative
    bucket_start_ms: NonNegative


class StaleError(Struct):
    """Why a cursor is too old."""

    code: Literal["stale"]
    message: str


class StaleAnswer(Struct, kw_only=True, rename="camel"):
    """A cursor that is too old to know which keys were touched since, and the cursor to restart from."""

    stale: AlwaysTrue
    cursor: _Cursor
    epoch: _Hex
    generation: NonNegative
    effective_wait_kind: _WaitKind
    bucket_max_source_offset_seq: _Seq
    flush_at_ms: NonNegative
    bucket_start_ms: NonNegative
    error: StaleError


_WAIT = decoding.make_decoder(WaitBody)
_ACTIVATION = decoding.make_decoder(ActivationBody)
_Body = TypeVar("_Body")


class TouchRoutes:
    """Answers requests on the touches of a stream."""

    def __init__(self, engine: Engine) -> None:
        self._log = engine.log
        self._tail = engine.tail
        self._touches = engine.touches
        self._background = BackgroundRequests(engine.writer.damage)

    @route(
        "GET",
        f"{_PATH}/meta",
        "get_touch",
        "The cursor of a stream's [touches](#touch), and how they stand",
        READ,
        {200: Answer("how things stand", TouchMeta)},
        fails=NOT_THERE,
        parameters=(
            NAME,
            in_query("settle", Literal["flush"], "wait until everything that was appended is told"),
            in_query("timeoutMs", float, "how long to wait for that; 30 s if left out, two minutes at most"),
        ),
        is_hot=True,
    )
    def meta(self, request: Request) -> None:
        """GET ``touch/meta``: the cursor and counters; ``settle=flush`` waits until all changes are processed."""
        stream = self._find(request)
        settle = request.query.get("settle")
        if settle not in (None, "flush"):
            raise BadRequest(f"settle: {settle!r} is not flush", field="settle")
        wait_s = _milliseconds(request.query.get("timeoutMs", str(_WAIT_MS))) / 1000
        self._background.begin(request.exchange, self._report(request, stream, wait_s if settle else 0.0))

    async def _report(self, request: Request, stream: Stream, wait_s: float) -> None:
        timer = await self._touches.open(stream)
        if wait_s:
            request.exchange.parked = True
            await timer.settle(wait_s)
            request.principal.key_status.require()
        request.exchange.reply(Reply.json(200, fill(TouchMeta, report(timer.stream_touches, time() * 1000))))

    @route(
        "POST",
        f"{_PATH}/templates/activate",
        "activate_templates",
        "Tell rows apart by some of their fields from now on",
        READ,
        {200: Answer("what is active now, and what is not", ActivationAnswer)},
        fails=(*NOT_THERE, *BAD_BODY),
        parameters=(NAME,),
        body=Body(ActivationBody),
        is_hot=True,
    )
    def activate(self, request: Request) -> None:
        """POST ``touch/templates/activate``: activate templates, so that later touches have keys of their rows."""
        stream = self._find(request)
        body = _decoded(_ACTIVATION, request.body)
        declared = keys.parse_templates(body.templates, "templates")
        self._background.begin(request.exchange, self._activate(request, stream, declared, body.inactivity_ttl_ms))

    async def _activate(self, request: Request, stream: Stream, declared: list[Any], ttl: float | UnsetType) -> None:
        stream_touches = (await self._touches.open(stream)).stream_touches
        activation = await self._touches.activate(stream_touches, declared, None if ttl is UNSET else ttl)
        request.exchange.reply(Reply.json(200, _activated(stream_touches, activation)))

    @route(
        "POST",
        f"{_PATH}/wait",
        "wait_touch",
        "Wait until one of some keys is touched",
        READ,
        {200: Answer("whether one was, or that this cannot be told any more", one_of(TouchedAnswer, StaleAnswer))},
        fails=(*NOT_THERE, *BAD_BODY),
        parameters=(NAME,),
        body=Body(WaitBody),
        is_hot=True,
    )
    def wait(self, request: Request) -> None:
        """POST ``touch/wait``: answer when one of some keys is touched, or when the time is up."""
        stream = self._find(request)
        body = _decoded(_WAIT, request.body)
        if not body.keys and not body.key_ids:
            raise BadRequest("a wait names keys or keyIds", field="keys")
        timer = self._touches.find(stream)
        if timer is None or body.declare_templates is not UNSET:
            self._background.begin(request.exchange, self._open_and_wait(request, stream, body))
        else:
            self._wait(request, timer, body, ())

    async def _open_and_wait(self, request: Request, stream: Stream, body: WaitBody) -> None:
        declarations, ttl = body.declare_templates, body.inactivity_ttl_ms
        declared = [] if declarations is UNSET else keys.parse_templates(declarations, "declareTemplates")
        timer, refused = await self._touches.open(stream), list[Template]()
        if declared:
            activation = await self._touches.activate(timer.stream_touches, declared, None if ttl is UNSET else ttl)
            denied = {template for template, _ in activation.denied}
            refused = [template for template in declared if isinstance(template, Template) and template.id in denied]
        request.principal.key_status.require()
        self._wait(request, timer, body, tuple(refused))

    def _wait(self, request: Request, timer: TouchTimer, body: WaitBody, refused: tuple[Template, ...]) -> None:
        stream_touches, used = timer.stream_touches, _template_ids(body.template_ids_used)
        if body.interest_mode == "fine" and used:
            stream_touches.templates.see(used, time() * 1000)
        coarse = body.interest_mode == "coarse"
        wait_request = WaitRequest(body.cursor.strip(), body.keys, body.key_ids, coarse, body.exact, used, refused)
        waiter, outcome = stream_touches.begin_wait(wait_request)
        wait_s = min(max(body.timeout_ms, 0), MAX_WAIT_MS) / 1000
        if outcome is None and wait_s:
            ParkedWait(self, stream_touches, waiter, request).start(wait_s)
            return
        outcome = False if outcome is None else outcome
        stream_touches.counts.count_wait(outcome)
        request.exchange.reply_json(_wait_document(stream_touches, waiter, outcome))

    def park(self, parked: ParkedWait, wait_s: float) -> None:
        """Park a wait."""
        self._tail.park(parked)
        try:
            self._touches.park(parked.stream_touches, parked.waiter, wait_s)
        except HeadraceError:
            self._tail.unpark(parked)
            raise

    def leave(self, parked: ParkedWait) -> None:
        """Remove a parked wait."""
        self._tail.unpark(parked)
        self._touches.leave(parked.waiter)

    def end(self, parked: ParkedWait) -> None:
        """Answer a wait before its time is up."""
        self._touches.time_out(parked.waiter)

    def lost(self, request: Request) -> HeadraceError:
        """Why touches of a stream are not served any more."""
        try:
            stream = self._log.find(request.target.name)
        except HeadraceError as reason:
            return reason
        return NotFound("touch not enabled", stream=stream.name)

    def _find(self, request: Request) -> Stream:
        stream = self._log.find(request.target.name)
        request.principal.require("read", stream.name)
        if settings_of(stream) is None:
            raise NotFound("touch not enabled", stream=stream.name)
        return stream


class ParkedWait:
    """A wait whose request is open."""

    __slots__ = ("_request", "_touches", "stream_touches", "waiter")

    def __init__(self, touches: TouchRoutes, stream_touches: StreamTouches, waiter: Waiter, request: Request) -> None:
        self._touches = touches
        self.stream_touches = stream_touches
        self.waiter = waiter
        self._request = request

    def start(self, wait_s: float) -> None:
        """Wait, unless too many do."""
        self.waiter.answer = self._answer
        self._touches.park(self, wait_s)
        self._request.principal.key_status.watch(self)
        self._request.exchange.parked = True
        self._request.exchange.on_gone = self._leave

    def wake(self) -> None:
        """End the wait: the API key was revoked."""
        self.end()

    def end(self) -> None:
        """Answer as after the timeout."""
        self._touches.end(self)

    def _answer(self, outcome: bool | str) -> None:
        self._leave()
        exchange = self._request.exchange
        try:
            self._request.principal.key_status.require()
            if outcome == "":
                raise self._touches.lost(self._request)
        except HeadraceError as refusal:
            exchange.reply(Reply.failure(refusal))
        else:
            exchange.reply_json(_wait_document(self.stream_touches, self.waiter, outcome))

    def _leave(self) -> None:
        self._touches.leave(self)
        self._request.principal.key_status.unwatch(self)
        self._request.exchange.on_gone = None


def _wait_document(stream_touches: StreamTouches, waiter: Waiter, outcome: bool | str) -> bytes:
    """The JSON answer of a wait."""
    journal, flushes = stream_touches.journal, stream_touches.flushes
    common: dict[str, Any] = {
        "effective_wait_kind": waiter.kind,
        "bucket_max_source_offset_seq": str(journal.through - 1),
        "flush_at_ms": int(flushes.last_ms),
        "bucket_start_ms": int(flushes.began_ms),
    }
    answer: TouchedAnswer | StaleAnswer
    if isinstance(outcome, str):
        error = StaleError("stale", outcome)
        answer = StaleAnswer(
            stale=True, cursor=journal.cursor, epoch=journal.epoch, generation=journal.through, error=error, **common
        )
    else:
        # Who waited from now on knows everything up to then, though not all of it may be processed.
        cursor = journal.at(max(waiter.since, journal.through))
        answer = TouchedAnswer(touched=outcome, cursor=cursor, **common)
    return msgspec.json.encode(answer)


def _activated(stream_touches: StreamTouches, activation: Activation) -> ActivationAnswer:
    settings, at = stream_touches.settings.templates, stream_touches.journal.at
    return ActivationAnswer(
        activated=[
            ActivatedTemplate(keys.format_key(template.template.id), "active", at(template.active_from))
            for template in activation.accepted
        ],
        denied=[DeniedTemplate(keys.format_key(template), reason) for template, reason in activation.denied],
        limits=TemplateLimits(settings.max_active_templates_per_stream, settings.max_active_templates_per_entity),
    )


def _decoded(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        _, _, path = str(reason).partition("`$.")
        field = path.rstrip("`") or "body"
        raise BadRequest(f"the body cannot be read: {json_fault(reason, body)}", field=field) from reason


def _template_ids(texts: list[str]) -> tuple[int, ...]:
    ids = {keys.parse_key(text) for text in texts}
    if None in ids:
        raise BadRequest("the id of a template is 16 hex digits", field="templateIdsUsed")
    return tuple(template for template in ids if template is not None)


def _milliseconds(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise BadRequest("timeoutMs is not a number of milliseconds", field="timeoutMs")
    return min(max(float(text), 0.0), MAX_WAIT_MS)
