"""Request heads that were parsed before.

A client that appends in a loop sends the same head again and again. The parser has judged those bytes once; the
memo spares it, and seven callbacks, every further time.
"""

from __future__ import annotations

from typing import NamedTuple

_HEADS = 4096
_HEAD_BYTES = 2048
END = b"\r\n\r\n"


class RequestHead(NamedTuple):
    """What the parser found in a head; shared by every request that repeats it, so nobody changes it."""

    method: str
    url: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    fields: dict[bytes, bytes]
    keep_alive: bool
    chunked: bool
    body_bytes: int


class Heads:
    """A bounded memo from the bytes of a head to what they say."""

    def __init__(self) -> None:
        self._known: dict[bytes, RequestHead] = {}

    def find(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and the body, where data is exactly one request whose head is known."""
        end = data.find(END) + 4
        head = self._known.get(data[:end])
        if head is None or len(data) - end != head.body_bytes:
            return None
        return head, data[end:]

    def learn(self, data: bytes, head: RequestHead) -> None:
        """Remember the head of a request that arrived alone and whole."""
        end = data.find(END) + 4
        if end <= _HEAD_BYTES and len(data) - end == head.body_bytes:
            if len(self._known) >= _HEADS:
                self._known.clear()
            self._known[data[:end]] = head
