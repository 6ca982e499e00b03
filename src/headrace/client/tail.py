"""Following a stream: the state that survives a lost connection.

A tail is a loop of requests. This class holds what the loop must remember (the offset, the cursor, the half-read
body) and builds the next request; a client moves the bytes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import msgspec

from headrace import decoding
from headrace.client import answers, requests
from headrace.client.answers import Answer, Batch
from headrace.client.errors import BadAnswer, Unreachable
from headrace.client.requests import NOW, START, Live, Request
from headrace.client.retry import Backoff, is_transient
from headrace.errors import HeadraceError

MAX_EVENT_BYTES = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event: its name and its data, lines joined by LF."""

    name: str
    data: bytes


class SseParser:
    """Turns chunks of an event stream into events; what is incomplete at the end is no event."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._after_cr = False
        self._first_line = True
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        events = [event for line in self._lines(chunk) if (event := self._line(line)) is not None]
        if self._partial_bytes + self._data_bytes > self._max_event_bytes:
            raise BadAnswer(f"an event is larger than {self._max_event_bytes} bytes")
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        lines = []
        for piece in chunk.splitlines(keepends=True):
            self._partial.append(piece)
            self._partial_bytes += len(piece)
            if piece.endswith((b"\n", b"\r")):
                lines.append(b"".join(self._partial).rstrip(b"\r\n"))
                self._partial.clear()
                self._partial_bytes = 0
        return lines

    def _line(self, line: bytes) -> SseEvent | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
        elif field == b"event":
            self._name = value
        return None

    def _dispatch(self) -> SseEvent | None:
        name, data = self._name, self._data
        self._name, self._data, self._data_bytes = b"", [], 0
        return SseEvent(name.decode("utf-8", "replace") or "message", b"\n".join(data)) if data else None


_SSE = "text/event-stream"


class Control(msgspec.Struct, frozen=True, rename="camel"):
    """The control event that follows every data event."""

    stream_next_offset: str
    stream_cursor: str = ""
    up_to_date: bool = False
    stream_closed: bool = False


class _ReadOptions(TypedDict):
    key: str | None
    schema_version: int | None
    filter: str | None


class Tail:
    """The state of following a stream; returns each batch with data, a new offset or the end once."""

    def __init__(
        self,
        name: str,
        offset: str,
        live: Live | None,
        *,
        content_type: str,
        key: str | None,
        backoff: Backoff,
        last: int | None = None,
        schema_version: int | None = None,
        filter: str | None = None,
    ) -> None:
        self.offset = offset
        self.ended = False
        self._name = name
        self._live = live or requests.choose_live(content_type, filter)
        self._content_type = content_type
        self._key = key
        #: The newest entries that are read first; None once they were.
        self._last = last
        self._schema_version = schema_version
        self._filter = filter
        self._backoff = backoff
        self._cursor = ""
        self._head = Answer(0, {})
        self._body: list[bytes] = []
        self._parser = SseParser()
        self._has_events = False

    def request(self) -> Request:
        """The next request; the newest entries come first, and a long-poll has ``now`` resolved first."""
        options: _ReadOptions = {"key": self._key, "schema_version": self._schema_version, "filter": self._filter}
        if self._last is not None:
            start = START if self.offset == NOW else self.offset
            return requests.read(self._name, start, last=self._last, **options)
        if self.offset == NOW and self._live == "long-poll":
            return requests.read(self._name, NOW, **options)
        return requests.tail(self._name, self.offset, self._live, cursor=self._cursor, **options)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """An answer starts."""
        self._head = Answer(status, headers)
        self._body = []
        self._parser = SseParser()
        self._has_events = False

    def feed(self, chunk: bytes) -> list[Batch]:
        """Bytes of the answer arrived; the batches they complete."""
        if not self._is_event_stream():
            self._body.append(chunk)
            return []
        return [batch for event in self._parser.feed(chunk) if (batch := self._event(event)) is not None]

    def finish(self) -> list[Batch]:
        """The answer has ended; raises its error if it has one."""
        if self._is_event_stream():
            if not self._has_events:
                raise Unreachable("the server ended the event stream before its first event")
            return []
        answer = Answer(self._head.status, self._head.headers, b"".join(self._body))
        self._cursor = answer.headers.get("stream-cursor", "")
        if self._last is None:
            return self._advance(answers.read_batch(answer))
        batch, _ = answers.read_newest(answer)
        self._last = None
        return self._advance(batch)

    def pause_s(self, error: HeadraceError) -> float:
        """The pause before the next request; raises the error if a retry cannot help."""
        if not is_transient(error):
            raise error
        return self._backoff.pause_s(error)

    def _is_event_stream(self) -> bool:
        return self._head.status == 200 and self._head.headers.get("content-type", "").startswith(_SSE)

    def _event(self, event: SseEvent) -> Batch | None:
        if event.name == "data":
            self._body.append(self._payload(event.data))
            return None
        if event.name != "control":
            return None
        self._has_events = True
        control = _control(event.data)
        self._cursor = control.stream_cursor
        data, self._body = b"".join(self._body), []
        batch = Batch(data, self._content_type, control.stream_next_offset, control.up_to_date, control.stream_closed)
        return next(iter(self._advance(batch)), None)

    def _payload(self, data: bytes) -> bytes:
        if self._head.headers.get("stream-sse-data-encoding", "").lower() != "base64":
            return data
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as reason:
            raise BadAnswer(f"a data event is not base64: {reason}") from reason

    def _advance(self, batch: Batch) -> list[Batch]:
        self._backoff.reset()
        is_news = bool(batch) or batch.closed or batch.next_offset != self.offset
        self.offset = batch.next_offset
        self.ended = batch.closed
        return [batch] if is_news else []


def _control(data: bytes) -> Control:
    try:
        return decoding.decode(data, Control)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise BadAnswer(f"a control event is not what the protocol promises: {reason}") from reason


class Reading:
    """A catch-up read: request after request until the tail is reached, or the offset that it ends before."""

    def __init__(self, name: str, offset: str, *, before: str | None = None, **options: Any) -> None:
        self.ended = False
        self._name = name
        self._offset = offset
        self._options = {"before": before, **options}

    def request(self) -> Request:
        """The next request."""
        return requests.read(self._name, self._offset, **self._options)

    def accept(self, answer: Answer) -> Batch:
        """The batch of an answer."""
        if self._options.pop("last", None) is None:
            batch = answers.read_batch(answer)
        else:
            # What is appended while the newest entries are read, page by page, is not among them.
            batch, end = answers.read_newest(answer)
            self._options["before"] = self._options["before"] or end
        before = self._options["before"]
        reached = before is not None and batch.next_offset >= before.upper()
        self.ended = batch.up_to_date or batch.closed or reached
        self._offset = batch.next_offset
        self._options.pop("since", None)
        return batch
