"""Copying the events of a stream into observations of entities: each event once, however often that is begun.

Without any IO: the owner sends what `next_request` returns, and passes on the answer or the error. The server stores an
observation once for the event that it is made from, so a copy that was stopped is begun anew from the first event.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import msgspec

from headrace.client import answers, entity_requests, requests
from headrace.client.answers import Answer
from headrace.client.entity_requests import ObservationCounts, Stored, StoreOptions, list_refused_items
from headrace.client.errors import BadAnswer
from headrace.client.event_fields import EventMapping, TimeUnit
from headrace.client.json_values import moment
from headrace.client.requests import START, Moment, Request, check_options
from headrace.errors import BadRequest, HeadraceError, NotRepresentable, OffsetGone, TooLarge
from headrace.format import offset as offsets
from headrace.types import JSON, RESERVED, media_type, rfc3339

#: A request has at most so many events and about so many bytes.
BATCH_EVENTS, BATCH_BYTES = 1_000, 2 * 1024 * 1024
#: How many events that were not stored a result lists.
MAX_LISTED = 100
_ENTITIES = "entities/"


class StreamOptions(TypedDict, total=False):
    """Options of observing the events of a stream."""

    #: The name of the source; the name of the stream where it is left out.
    source: str | None
    #: Where an event says when it was so: the name of a member, or a JSON Pointer.
    observed_at_field: str | None
    #: The unit of the numbers there, which are Unix time.
    observed_at_unit: TimeUnit | None
    #: When all of it was so; the moment of the copy where neither this nor a field is named.
    observed_at: Moment | None
    #: Read events in this version of the stream's schema; the newest where it is left out.
    schema_version: int | None
    #: Only events after this offset.
    offset: str
    source_priority: int | None
    #: sensor, workflow_state, llm_summary, human, import or sync.
    observation_source: str | None
    #: False stores nothing, and says what would become of each event.
    commit: bool | None
    #: For whom an admin asks.
    user_id: str | None


class RejectedEvent(NamedTuple):
    """An event that is no observation: the offset after it, its text, and why."""

    stream: str
    offset: str
    text: str
    reason: str

    @property
    def where(self) -> str:
        """Which event it is, for messages."""
        return f"the event at {self.offset} of {self.stream}"


class ObservedStream(msgspec.Struct, frozen=True, kw_only=True):
    """How many events of a stream were stored as observations, were before, and could not be."""

    stream: str
    source: str
    #: How many events were read.
    events: int
    #: By what was done: ``created``, ``updated`` or ``unchanged``, which was stored before.
    actions: dict[str, int]
    rejected: int
    #: The first events that could not be stored.
    rejects: list[RejectedEvent]
    #: How many events were no longer retained when they would have been read.
    not_retained: int
    #: Up to where events were read.
    next_offset: str
    warnings: dict[str, int]
    #: What each code of a warning means.
    reasons: dict[str, str]


class _Epoch(msgspec.Struct):
    epoch: int
    after: str


class _Summary(msgspec.Struct):
    content_type: str
    next_offset: str
    epochs: list[_Epoch]


class _Details(msgspec.Struct):
    stream: _Summary


class _Event(NamedTuple):
    """An event, and the entity that it is."""

    offset: str
    text: bytes
    entity: dict[str, Any]


class StreamCopy:
    """The requests that copy a stream, one after the other, and how many events were stored."""

    def __init__(
        self,
        stream: str,
        entity_type: str,
        fields: Mapping[str, str] | None = None,
        *,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        on_rejected: Callable[[RejectedEvent], None] = lambda event: None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        **options: Unpack[StreamOptions],
    ) -> None:
        """``on_progress`` is called with the events done and all events, ``on_rejected`` with each not stored."""
        check_options(StreamOptions, options)
        if stream.startswith((_ENTITIES, RESERVED)):
            message = f"{stream} is a stream of the server itself: name a stream of your own events"
            raise BadRequest(message, field="stream")
        field, fixed = options.get("observed_at_field"), moment(options.get("observed_at"))
        if field is not None and fixed:
            raise BadRequest("give observed_at or observed_at_field, not both", field="observed_at")
        self._stream, self._entity_type = stream, entity_type
        self._mapping = EventMapping(fields, observed_at_field=field, observed_at_unit=options.get("observed_at_unit"))
        self._schema_version, self._fixed = options.get("schema_version"), fixed
        self._store_options: StoreOptions = {
            "source": options.get("source") or stream,
            "source_priority": options.get("source_priority"),
            "observation_source": options.get("observation_source"),
            "commit": options.get("commit"),
            "user_id": options.get("user_id"),
        }
        shaping = self._schema_version, fixed, options.get("source_priority"), options.get("observation_source")
        self._digest = self._mapping.digest(*shaping)
        self._on_progress, self._on_rejected, self._now_us = on_progress, on_rejected, now_us
        self._counts, self._rejects = ObservationCounts(), list[RejectedEvent]()
        self._sent: Literal["details", "read", "store"] = "details"
        self._summary: _Summary | None = None
        #: Up to where events were read, in the text of an offset and as a number, and where the copy ends.
        self._offset, self._position, self._stop = options.get("offset", START), 0, 0
        self._not_retained = 0
        self._last_us = 0
        self._queue: deque[list[_Event]] = deque()

    def next_request(self) -> Request | None:
        """The request to send now; None when all events are done."""
        if self._summary is None:
            self._sent = "details"
            return requests.details(self._stream)
        if self._queue:
            self._sent = "store"
            return entity_requests.store([event.entity for event in self._queue[0]], self._store_options)
        if self._position >= self._stop:
            return None
        self._sent = "read"
        return requests.read(self._stream, self._offset, schema_version=self._schema_version)

    def accept(self, answer: Answer) -> None:
        """Take the successful answer to the request."""
        if self._sent == "details":
            self._accept_details(answer.decode(_Details).stream)
        elif self._sent == "read":
            self._accept_events(answers.read_batch(answer))
        else:
            self._counts.add(answer.decode(Stored))
            self._queue.popleft()
            self._report()

    def refuse(self, error: HeadraceError) -> None:
        """Leave out the events that the server refuses or does not have any more; raises the error otherwise."""
        if self._sent == "store" and isinstance(error, TooLarge):
            self._split_batch(error)
        elif self._sent == "store" and isinstance(error, BadRequest) and (reasons := list_refused_items(error)):
            events = self._queue.popleft()
            for number, why in reasons.items():
                self._reject(events[number].offset, events[number].text, "; ".join(why))
            left = [event for number, event in enumerate(events) if number not in reasons]
            if left:
                self._queue.appendleft(left)
        elif self._sent == "read" and isinstance(error, OffsetGone):
            self._offset = START
        elif self._sent == "read" and isinstance(error, NotRepresentable) and "offset" in error.facts:
            self._offset = str(error.facts["offset"])
            self._position = offsets.decode(self._offset).position
            self._reject(self._offset, b"", f"no form in version {self._schema_version} of the schema")
        else:
            raise error

    def result(self) -> ObservedStream:
        """How many events were stored, and which were not."""
        counts = self._counts
        return ObservedStream(
            stream=self._stream,
            source=str(self._store_options["source"]),
            events=counts.rows,
            actions=dict(counts.actions),
            rejected=counts.rejected,
            rejects=self._rejects,
            not_retained=self._not_retained,
            next_offset=self._offset,
            warnings=dict(counts.warnings),
            reasons=counts.reasons,
        )

    def _accept_details(self, summary: _Summary) -> None:
        if media_type(summary.content_type) != JSON:
            message = f"{self._stream} holds {summary.content_type}: observations are made from events in JSON"
            raise BadRequest(message, field="stream")
        if self._offset != START:
            try:
                self._position = offsets.decode(self._offset).position
            except ValueError as reason:
                raise BadRequest(f"offset: {reason}", field="offset") from reason
        self._summary, self._stop = summary, int(summary.next_offset)

    def _accept_events(self, batch: answers.Batch) -> None:
        """Queue the events of a read, up to where the stream ended when the copy began."""
        items, end = batch.raw_items, offsets.decode(batch.next_offset)
        first = end.position - len(items)
        assert self._summary is not None, "events are read after the details"
        if end.position and end.epoch not in {part.epoch for part in self._summary.epochs}:
            raise BadAnswer(f"{self._stream} was created anew or recovered during the copy: begin the copy again")
        if first < self._position or end.position == self._position:
            raise BadAnswer(f"{self._stream} has fewer events than it had: begin the copy again")
        self._not_retained += min(first, self._stop) - self._position
        events, size = list[_Event](), 0
        for position, text in enumerate(items[: max(0, self._stop - first)], first + 1):
            event = self._read_event(self._offset_at(position), text)
            if event is None:
                continue
            if events and (len(events) >= BATCH_EVENTS or size + len(text) > BATCH_BYTES):
                self._queue.append(events)
                events, size = [], 0
            events.append(event)
            size += len(text)
        if events:
            self._queue.append(events)
        is_beyond = end.position > self._stop
        self._offset = self._offset_at(self._stop) if is_beyond else batch.next_offset
        self._position = min(end.position, self._stop)

    def _read_event(self, offset: str, text: bytes) -> _Event | None:
        """An event as the entity of a request; None where it is none, which is reported."""
        try:
            fields, observed_at = self._mapping.map(text)
        except ValueError as reason:
            self._reject(offset, text, str(reason))
            return None
        origin = {"stream": self._stream, "offset": offset, "mapping": self._digest}
        meta = {"origin": origin, "observed_at": observed_at or self._fixed or self._next_moment()}
        return _Event(offset, text, {"entity_type": self._entity_type, **fields, "_meta": meta})

    def _next_moment(self) -> str:
        """A moment after that of the event before, so that the later event of an entity counts."""
        self._last_us = max(self._last_us + 1, self._now_us())
        return rfc3339(self._last_us)

    def _offset_at(self, position: int) -> str:
        assert self._summary is not None, "events are read after the details"
        epoch = next((part.epoch for part in reversed(self._summary.epochs) if int(part.after) < position), 0)
        return offsets.encode(epoch, position)

    def _split_batch(self, error: TooLarge) -> None:
        events = self._queue.popleft()
        if len(events) == 1:
            self._reject(events[0].offset, events[0].text, error.message)
            return
        middle = len(events) // 2
        self._queue.extendleft((events[middle:], events[:middle]))

    def _reject(self, offset: str, text: bytes, reason: str) -> None:
        event = RejectedEvent(self._stream, offset, text.decode(), reason)
        self._counts.rejected += 1
        if len(self._rejects) < MAX_LISTED:
            self._rejects.append(event)
        self._on_rejected(event)

    def _report(self) -> None:
        queued = sum(map(len, self._queue))
        self._on_progress(self._position - queued, self._stop)
