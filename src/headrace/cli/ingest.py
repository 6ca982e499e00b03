"""Appending stdin to a stream: lines of JSON, or bytes, through an idempotent producer.

One batch is on its way at a time. So everything before a failure is appended and nothing after it, and errors say both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BufferedIOBase
from typing import TYPE_CHECKING, NamedTuple, Unpack, cast

import msgspec

from headrace.cli import output
from headrace.errors import BadRequest, HeadraceError, TooLarge
from headrace.types import JSON, media_type

if TYPE_CHECKING:
    from headrace.client import Delivery, Producer, Stream
    from headrace.client.requests import AppendOptions


_CHUNK_BYTES = 1024 * 1024
_BATCH_EVENTS = 2000
#: Longer than any batch takes: the producer sends one when it is told to, and no part of it before.
_LINGER_MS = 60_000
#: How long an interrupted command waits for the answer to what is on its way.
_GRACE_S = 0.5
_LINE, _EVENT, _BYTE = "line", "event", "byte"


class _Event(NamedTuple):
    """An event or chunk to append, and its position in the input: the number of a line, of an argument or of a byte."""

    position: int
    body: bytes


def append_at_once(stream: Stream, values: Sequence[str], **options: Unpack[AppendOptions]) -> tuple[int, str]:
    """Append all events in one request, so that they are appended together or not at all."""
    what = _EVENT if values else _LINE
    events = list(
        _check_events([value.encode() for value in values], what, 0) if values else _check_events(_stdin(), what, 1)
    )
    try:
        return len(events), stream.append([msgspec.Raw(event.body) for event in events], **options).next_offset
    except BadRequest as refusal:
        _locate(refusal, events, what)
        raise


def append_lines(stream: Stream, routing_key: str) -> tuple[int, str]:
    """Append each non-blank line of stdin as an event; available lines are sent together."""
    return _produce(stream, _batches(_arrivals(_stdin())), routing_key, _LINE)


def append_bytes(stream: Stream, content_type: str, **options: Unpack[AppendOptions]) -> tuple[int, str]:
    """Append stdin as bytes: as one body if the options require it, otherwise in chunks."""
    is_json = media_type(content_type) == JSON
    if not is_json and len(options) == 1:
        return _produce(stream, _chunks(_stdin()), options.get("key", ""), _BYTE)
    body = _stdin().read()
    offset = stream.append(body, **options).next_offset
    return _count(body) if is_json else 1, offset


def _produce(stream: Stream, batches: Iterable[list[_Event]], routing_key: str, what: str) -> tuple[int, str]:
    with (
        output.running_count("events") as advance,
        stream.producer(linger_ms=_LINGER_MS, max_batch_events=_BATCH_EVENTS, max_batch_bytes=_CHUNK_BYTES) as producer,
    ):
        sending = _BatchSender(producer, routing_key, what)
        try:
            for batch in batches:
                sending.append(batch)
                advance(len(batch))
        except HeadraceError as failure:
            sending.explain(failure)
            raise
        except KeyboardInterrupt:
            sending.give_up()
            raise
    return sending.appended, sending.offset or stream.info().next_offset


class _BatchSender:
    """Appends batches one after the other, and counts what was appended."""

    def __init__(self, producer: Producer, routing_key: str, what: str) -> None:
        self._producer = producer
        self._routing_key = routing_key
        self._what = what
        self._bytes = 0
        self._position = 0
        self._on_their_way: list[tuple[_Event, Delivery]] = []
        self.appended = 0
        self.offset = ""

    def append(self, events: Sequence[_Event]) -> None:
        """All events; where one of them is refused, those before it."""
        try:
            self._deliver(events)
        except TooLarge as refusal:
            self._append_halves(events, refusal)
        except BadRequest as refusal:
            _locate(refusal, events, self._what)
            first_bad = refusal.facts.get(self._what, 0)
            if before := [event for event in events if event.position < first_bad]:
                self.append(before)
            raise

    def explain(self, failure: HeadraceError) -> None:
        """Add to a failure where in the input it happened, and how much was appended before."""
        position = failure.facts.setdefault(self._what, self._position)
        failure.facts["appended"] = self.appended
        failure.add_note(
            self._describe_progress() + (f"; the next is line {position}." if self._what == _LINE else ".")
        )

    def give_up(self) -> None:
        """Stop sending, and print how much was appended."""
        from headrace.client import OutcomeUnknown

        with suppress(HeadraceError):
            self._producer.close(_GRACE_S)
        ends = [(event, handle.exception()) for event, handle in self._on_their_way if handle.done()]
        self._note([event for event, failure in ends if failure is None])
        doubtful = any(isinstance(failure, OutcomeUnknown) for _, failure in ends)
        perhaps = "; what was on its way may be, too" if doubtful else ""
        print(f"headrace: Interrupted. {self._describe_progress()}{perhaps}.", file=sys.stderr)

    def _deliver(self, events: Sequence[_Event]) -> None:
        self._position, self._on_their_way = events[0].position, []
        for event in events:
            self._on_their_way.append((event, self._producer.send(event.body, key=self._routing_key)))
        with suppress(HeadraceError):
            self._producer.flush()
        # Each handle is looked at, so that no later flush complains of this batch.
        failures = [failure for _, handle in self._on_their_way if (failure := handle.exception()) is not None]
        if failures:
            raise failures[0]
        self.offset = self._on_their_way[-1][1].result()
        self._on_their_way = []
        self._note(events)

    def _note(self, appended: Sequence[_Event]) -> None:
        self.appended += len(appended)
        self._bytes += sum(len(event.body) for event in appended)

    def _append_halves(self, events: Sequence[_Event], refusal: TooLarge) -> None:
        """Append the halves of a batch that is too large; a single event that is too large is named."""
        if len(events) == 1:
            if self._what == _LINE:
                refusal.message = f"line {events[0].position} is too large: {refusal.message}"
            raise refusal
        middle = len(events) // 2
        self.append(events[:middle])
        self.append(events[middle:])

    def _describe_progress(self) -> str:
        return f"Bytes appended: {self._bytes}" if self._what == _BYTE else f"Events appended: {self.appended}"


def _locate(refusal: BadRequest, events: Sequence[_Event], what: str) -> None:
    """Replace the indexes of events in a refusal by their positions in the input."""
    failures = refusal.facts.get("failures", [])
    if not failures or not all(failure["index"] < len(events) for failure in failures):
        return
    located = [
        {what: events[failure["index"]].position, "pointer": failure["pointer"], "reason": failure["reason"]}
        for failure in failures
    ]
    first = min(failure[what] for failure in located)
    refusal.facts |= {what: first, "failures": located}
    refusal.message = re.sub(r"^\w+ \d+", f"{what} {first}", refusal.message)


def _stdin() -> BufferedIOBase:
    if sys.stdin.isatty():
        print("Reading from the terminal; end with Ctrl-D.", file=sys.stderr)
    return cast(BufferedIOBase, sys.stdin.buffer)


def _arrivals(source: BufferedIOBase) -> Iterator[list[bytes]]:
    """Lines as they arrive: each time all that are available, without waiting for more."""
    rest = b""
    while piece := source.read1(_CHUNK_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _batches(arrivals: Iterable[list[bytes]]) -> Iterator[list[_Event]]:
    number = 1
    for lines in arrivals:
        yield from _cut(_check_events(lines, _LINE, number))
        number += len(lines)


def _cut(events: Iterable[_Event]) -> Iterator[list[_Event]]:
    """Batches of limited size; events before a bad one are yielded before its error is raised."""
    batch, size = list[_Event](), 0
    try:
        for event in events:
            if len(batch) == _BATCH_EVENTS or (batch and size + len(event.body) > _CHUNK_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(event)
            size += len(event.body) + 1
    except BadRequest:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _chunks(source: BufferedIOBase) -> Iterator[list[_Event]]:
    position = 0
    while chunk := source.read(_CHUNK_BYTES):
        yield [_Event(position, chunk)]
        position += len(chunk)


def _check_events(texts: Iterable[bytes], what: str, first: int) -> Iterator[_Event]:
    """The non-blank texts, each checked, so that a bad one is named and not its batch."""
    for number, text in enumerate(texts, first):
        event = text.strip()
        if not event:
            continue
        try:
            msgspec.json.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
            raise BadRequest(f"{what} {number} is not JSON: {reason}", **{what: number}) from reason
        yield _Event(number, event)


def _count(body: bytes) -> int:
    """How many events a body of JSON is: an array is as many as it has elements."""
    return len(msgspec.json.decode(body, type=list[msgspec.Raw])) if body.lstrip().startswith(b"[") else 1
