"""Server-sent events: bytes in any chunks become events.

A chunk may end anywhere, inside a line, a character or a CRLF pair; the events are the same however the bytes
were cut.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.client.errors import BadAnswer

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
        found = [event for line in self._lines(chunk) if (event := self._line(line)) is not None]
        if self._partial_bytes + self._data_bytes > self._max_event_bytes:
            raise BadAnswer(f"an event is larger than {self._max_event_bytes} bytes")
        return found

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
