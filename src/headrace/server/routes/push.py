"""``POST /v1/push/{event}``: events for an event source, one or many, each with its own outcome."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.engine.assembly import Engine
from headrace.engine.features.registry import EVENTS
from headrace.engine.features.source import NotPushedTo, source_of
from headrace.engine.log.append import PLAIN, Append
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.runtime.gates import LONG_BYTES
from headrace.errors import BadRequest, HeadraceError, NotFound, UnknownEvent, UnsupportedMedia
from headrace.schema.entries import check_text, entries_of, split_json
from headrace.server.http.auth import LOCAL
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Exchange, Reply
from headrace.server.http.request import Request
from headrace.server.http.route import Answer, Body, Scope, in_path, one_of, route
from headrace.server.http.wire import Counter, Object, Offset
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.server.routes.streams import is_awaited
from headrace.types import JSON

#: The outcomes of more events are put together in a thread.
_MANY = 1_000
#: How often a push is tried again whose source has changed between its check and its commit.
_TRIES = 5
_ONE_MEMBER = msgspec.json.Decoder(dict[str, msgspec.Raw])


NodeName = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"})]


class PushedEvent(Struct, kw_only=True):
    """An event that is on disk; ``registry_version`` where it is the only one of its request."""

    ack: bool
    offset: Offset
    idempotent_replay: bool
    registry_version: Counter | UnsetType = UNSET


class PushAnswer(Struct):
    """The outcome of each event of an array: its offset on disk, or an error."""

    results: list[
        Annotated[
            Any,
            Meta(
                extra_json_schema={
                    "anyOf": [{"$ref": "#/components/schemas/PushedEvent"}, {"$ref": "#/components/schemas/Error"}]
                }
            ),
        ]
    ]
    registry_version: Counter


class _CheckedEvents(msgspec.Struct):
    """Events of one push: the valid ones, joined, and the problems of each of the others."""

    registry: StreamRegistry
    joined: bytes
    count: int
    outcomes: list[HeadraceError | None]
    is_one: bool


class _Pushed(msgspec.Struct):
    """A push in progress, which may be retried."""

    request: Request
    sorted: _CheckedEvents
    tries: int


class PushRoute:
    """Answers requests on ``/v1/push``."""

    def __init__(self, engine: Engine) -> None:
        self._features = engine.features
        self._log = engine.log
        self._background, self._computing = BackgroundRequests(engine.writer.damage), engine.computing
        self._when_pushed = self._pushed
        self._when_settled = self._settled

    @route(
        "POST",
        "/v1/push/{event}",
        "push_event",
        "[Store events](#push) of a source",
        Scope("write", "write on `events/{event}`"),
        {200: Answer("each event is on disk, or was refused", one_of(PushedEvent, PushAnswer))},
        fails=(NotFound, *BAD_BODY),
        parameters=(in_path("event", NodeName, "the event source"),),
        body=Body(one_of(Object, list[Object])),
        is_hot=True,
    )
    def post(self, request: Request) -> None:
        """POST: store events, and acknowledge each once it is on disk."""
        head, route, body = request.head, request.route, request.body
        stream = self._find(route.target.name)
        if route.principal is not LOCAL:
            route.principal.require("write", stream.name)
        if head.media_type != JSON:
            raise UnsupportedMedia("events are pushed as application/json", field="Content-Type")
        registry = stream.head.registry
        assert registry is not None
        if body[:1] == b"{" and len(body) <= LONG_BYTES:
            check_text(body)
            kind = registry.hook
            filled = body if kind is None or not kind.normalises else kind.normalise(body, PLAIN)
            if registry.fitting(filled) == 1:
                append = Append(stream, filled, 1, self._when_pushed, PLAIN, request.exchange)
                append.validated_by, append.original = registry, body
                self._log.append(append)
                return
        self._check_and_append(request, stream, 0)

    def _find(self, event: str) -> Stream:
        try:
            stream = self._log.find(EVENTS + event)
        except NotFound as reason:
            if event in self._features.current.document.sources:
                stream_name = self._features.current.source_stream(event)
                message = f"the events of {event} are those of the stream {stream_name}: append to it"
                raise NotPushedTo(message, event=event, stream=stream_name) from reason
            raise UnknownEvent("there is no event source of this name", event=event) from reason
        if not stream.managed:
            raise UnknownEvent("there is no event source of this name", event=event)
        return stream

    # -- one event that is seen to fit

    def _pushed(self, append: Append) -> None:
        exchange: Exchange = append.caller
        if not is_awaited(self._log, append, exchange):
            return
        if append.error is not None:
            exchange.reply(Reply.failure(append.error))
            return
        position = append.position if append.seqs is None else append.acknowledged
        offset, version = append.stream.offset_at(position), self._features.current.version
        replayed = "true" if append.deduplicated else "false"
        exchange.reply_json(
            f'{{"ack":true,"offset":"{offset}","registry_version":{version},"idempotent_replay":{replayed}}}'.encode()
        )

    # -- anything else

    def _check_and_append(self, request: Request, stream: Stream, tries: int) -> None:
        registry = stream.head.registry
        assert registry is not None
        if len(request.body) > LONG_BYTES:
            self._background.begin(request.exchange, self._check_in_background(request, stream, registry, tries))
        else:
            events = _check_events(registry, request.body)
            if events.count:
                self._append(self._append_of(request, stream, events, tries))
            else:
                request.exchange.reply(self._all_refused(events))

    async def _check_in_background(
        self, request: Request, stream: Stream, registry: StreamRegistry, tries: int
    ) -> None:
        """Check a long body in a thread of its own, while others are served."""
        with stream.held():
            made = await self._computing.run(len(request.body), self._make_append, request, stream, registry, tries)
            if isinstance(made, Append):
                self._append(made)
            else:
                request.exchange.reply(made)

    def _make_append(self, request: Request, stream: Stream, registry: StreamRegistry, tries: int) -> Append | Reply:
        """Turn a long body into an admitted append, or into the answer where no event of it is valid."""
        events = _check_events(registry, request.body)
        if not events.count:
            return self._all_refused(events)
        append = self._append_of(request, stream, events, tries)
        with contextlib.suppress(BadRequest):  # which is judged again on the way to the writer
            registry.admit(append)
        return append

    def _append_of(self, request: Request, stream: Stream, events: _CheckedEvents, tries: int) -> Append:
        append = Append(stream, events.joined, events.count, self._when_settled, PLAIN, _Pushed(request, events, tries))
        append.validated_by = events.registry
        return append

    def _append(self, append: Append) -> None:
        try:
            self._log.append(append)
        except BadRequest as refusal:
            self._refused(append.caller, append.stream, refusal)

    def _settled(self, append: Append) -> None:
        pushed: _Pushed = append.caller
        exchange = pushed.request.exchange
        if not is_awaited(self._log, append, exchange):
            return
        if append.error is not None:
            self._refused(pushed, append.stream, append.error)
        elif len(pushed.sorted.outcomes) > _MANY:
            self._background.begin(exchange, self._reply_in_background(append, pushed))
        else:
            exchange.reply_json(self._accepted_document(append, pushed.sorted))

    async def _reply_in_background(self, append: Append, pushed: _Pushed) -> None:
        """Encode many outcomes in a thread, while other requests are served."""
        with append.stream.held():
            pushed.request.exchange.reply_json(
                await self._computing.run(0, self._accepted_document, append, pushed.sorted)
            )

    def _refused(self, pushed: _Pushed, stream: Stream, refusal: HeadraceError) -> None:
        """Check the events again after the source changed and valid events became invalid."""
        if isinstance(refusal, BadRequest) and pushed.tries < _TRIES:
            try:
                self._check_and_append(pushed.request, stream, pushed.tries + 1)
            except HeadraceError as reason:
                pushed.request.exchange.reply(Reply.failure(reason))
        else:
            pushed.request.exchange.reply(Reply.failure(refusal))

    def _all_refused(self, events: _CheckedEvents) -> Reply:
        first = next(outcome for outcome in events.outcomes if outcome is not None)
        if events.is_one:
            return Reply.failure(first)
        results = [outcome.body() for outcome in events.outcomes if outcome is not None]
        version = self._features.current.version
        return Reply.json(first.status, {"results": results, "registry_version": version, **first.body()})

    def _accepted_document(self, append: Append, events: _CheckedEvents) -> bytes:
        version, stream = self._features.current.version, append.stream
        seqs = append.seqs or list(range(append.position - append.count, append.position))
        new = {seq for seq in seqs if seq >= append.position - append.count}
        results: list[Any] = []
        waiting = iter(seqs)
        for outcome in events.outcomes:
            if outcome is not None:
                results.append(outcome.body())
                continue
            seq = next(waiting)
            replayed = seq not in new
            new.discard(seq)
            results.append(PushedEvent(ack=True, offset=stream.offset_at(seq + 1), idempotent_replay=replayed))
        if events.is_one:
            results[0].registry_version = version
            return msgspec.json.encode(results[0])
        return msgspec.json.encode(PushAnswer(results, version))


def _check_events(registry: StreamRegistry, body: bytes) -> _CheckedEvents:
    """The events of a body, and which of them fit."""
    if not body:
        raise BadRequest("the body is empty", field="body")
    check_text(body)
    is_one = body.lstrip(b" \t\r\n")[:1] != b"["
    count = None if is_one else registry.count(body)
    if count:
        return _CheckedEvents(registry, body[1:-1], count, [None] * count, is_one)
    joined, count = split_json(body)
    if not count:
        raise BadRequest("the array is empty: there is nothing to push", field="body")
    kept: list[bytes] = []
    outcomes: list[HeadraceError | None] = []
    for number, entry in enumerate(entries_of(joined)):
        event = _to_stored_event(registry, bytes(entry))
        outcome = _refusal(registry, event, number)
        outcomes.append(outcome)
        if outcome is None:
            kept.append(event)
    return _CheckedEvents(registry, b",".join(kept), len(kept), outcomes, is_one)


def _to_stored_event(registry: StreamRegistry, entry: bytes) -> bytes:
    """Return an event as it would be stored: unwrapped from ``fields``, and with its defaults."""
    source = source_of(registry)
    if b'"fields"' in entry and "fields" not in source.rules.event.schema:
        try:
            members = _ONE_MEMBER.decode(entry)
        except (msgspec.DecodeError, RecursionError):
            members = {}
        if list(members) == ["fields"]:
            entry = bytes(members["fields"])
    return source.normalise(entry)


def _refusal(registry: StreamRegistry, event: bytes, number: int) -> HeadraceError | None:
    failures = registry.failures(event)
    return source_of(registry).refusal(event, failures, number) if failures else None
