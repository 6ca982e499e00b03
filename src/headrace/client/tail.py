"""Following a stream: the state that survives a lost connection.

A tail is a loop of requests. This class holds what the loop must remember (the offset, the cursor, the half-read
body) and says what to ask next; a shell moves the bytes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from headrace import decoding
from headrace.client import answers, requests
from headrace.client.answers import Answer, Batch
from headrace.client.errors import BadAnswer, Unreachable
from headrace.client.requests import NOW, Live, Request
from headrace.client.retry import Patience, is_passing
from headrace.client.sse import SseEvent, SseParser
from headrace.errors import HeadraceError

_SSE = "text/event-stream"


class Control(msgspec.Struct, frozen=True, rename="camel"):
    """The control event that follows every data event."""

    stream_next_offset: str
    stream_cursor: str = ""
    up_to_date: bool = False
    stream_closed: bool = False


class _Shown(TypedDict):
    key: str | None
    schema_version: int | None
    filter: str | None


class Tail:
    """Where a follower stands; every batch that brings data, a new offset or the end is handed out once."""

    def __init__(
        self,
        name: str,
        offset: str,
        live: Live | None,
        *,
        content_type: str,
        key: str | None,
        patience: Patience,
        schema_version: int | None = None,
        filter: str | None = None,
    ) -> None:
        self.offset = offset
        self.ended = False
        self._name = name
        self._live = live or requests.way_to_wait(content_type, filter)
        self._content_type = content_type
        self._key = key
        self._schema_version = schema_version
        self._filter = filter
        self._patience = patience
        self._cursor = ""
        self._head = Answer(0, {})
        self._body: list[bytes] = []
        self._parser = SseParser()
        self._heard = False

    def request(self) -> Request:
        """What to ask now; a long-poll waits at a known offset only, so that now stays where it was if it is lost."""
        shown: _Shown = {"key": self._key, "schema_version": self._schema_version, "filter": self._filter}
        if self.offset == NOW and self._live == "long-poll":
            return requests.read(self._name, NOW, **shown)
        return requests.tail(self._name, self.offset, self._live, cursor=self._cursor, **shown)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """An answer starts."""
        self._head = Answer(status, headers)
        self._body = []
        self._parser = SseParser()
        self._heard = False

    def feed(self, chunk: bytes) -> list[Batch]:
        """Bytes of the answer arrived; the batches they complete."""
        if not self._speaks_events():
            self._body.append(chunk)
            return []
        return [batch for event in self._parser.feed(chunk) if (batch := self._event(event)) is not None]

    def finish(self) -> list[Batch]:
        """The answer is over; raises what it stands for if it was an error."""
        if self._speaks_events():
            if not self._heard:
                raise Unreachable("the server ended the event stream before its first event")
            return []
        answer = Answer(self._head.status, self._head.headers, b"".join(self._body))
        self._cursor = answer.headers.get("stream-cursor", "")
        return self._moved(answers.batch(answer))

    def pause_s(self, error: HeadraceError) -> float:
        """How long to wait before asking again; raises the error if asking again cannot help."""
        if not is_passing(error):
            raise error
        return self._patience.pause_s(error)

    def _speaks_events(self) -> bool:
        return self._head.status == 200 and self._head.headers.get("content-type", "").startswith(_SSE)

    def _event(self, event: SseEvent) -> Batch | None:
        if event.name == "data":
            self._body.append(self._payload(event.data))
            return None
        if event.name != "control":
            return None
        self._heard = True
        control = _control(event.data)
        self._cursor = control.stream_cursor
        data, self._body = b"".join(self._body), []
        batch = Batch(data, self._content_type, control.stream_next_offset, control.up_to_date, control.stream_closed)
        return next(iter(self._moved(batch)), None)

    def _payload(self, data: bytes) -> bytes:
        if self._head.headers.get("stream-sse-data-encoding", "").lower() != "base64":
            return data
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as reason:
            raise BadAnswer(f"a data event is not base64: {reason}") from reason

    def _moved(self, batch: Batch) -> list[Batch]:
        self._patience.renew()
        tells = bool(batch) or batch.closed or batch.next_offset != self.offset
        self.offset = batch.next_offset
        self.ended = batch.closed
        return [batch] if tells else []


def _control(data: bytes) -> Control:
    try:
        return decoding.decode(data, Control)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise BadAnswer(f"a control event is not what the protocol promises: {reason}") from reason


class Reading:
    """A catch-up read: request after request until the tail is reached."""

    def __init__(self, name: str, offset: str, **place: Any) -> None:
        self.ended = False
        self._name = name
        self._offset = offset
        self._place = place

    def request(self) -> Request:
        """What to ask now."""
        return requests.read(self._name, self._offset, **self._place)

    def accept(self, answer: Answer) -> Batch:
        """The batch that the answer brought."""
        batch = answers.batch(answer)
        self.ended = batch.up_to_date or batch.closed
        self._offset = batch.next_offset
        self._place.pop("since", None)
        return batch
