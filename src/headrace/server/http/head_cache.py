"""Request heads that were parsed before.

A client that appends in a loop sends the same head again and again. The parser has judged those bytes once; the
memo spares it, and seven callbacks, every further time. One that appends to many streams repeats all but the address,
so what was found in the other lines serves every plain address of a stream.
"""

from __future__ import annotations

import re

from headrace.server.http.request import RequestHead

_HEADS = 4096
_HEAD_BYTES = 2048
#: Longer bodies may be nested so deep that it counts how many calls lie between them and their decoder.
_FLAT_BYTES = 1024
END = b"\r\n\r\n"
#: Up to the end of an address that any parser takes as it is: nothing in it is escaped, and no query follows.
_PLAIN = re.compile(rb"([A-Z]+ )(/v1/stream/[0-9A-Za-z][\w.~/-]*)(?= )")


class RequestHeadCache:
    """A bounded cache of parsed request heads, by their bytes."""

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}
        #: One head for each spelling of everything but a plain address, and the longest such that the parser took.
        self._elsewhere: dict[bytes, RequestHead] = {}
        self._longest = 0

    def find(self, received: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and the body, where the bytes received are exactly one request whose head is known."""
        end = received.find(END) + 4
        spelled = received[:end]
        head = self._heads.get(spelled) or self._find_elsewhere(spelled)
        if head is None or len(received) - end != head.body_bytes:
            return None
        return head, received[end:]

    def learn(self, received: bytes, head: RequestHead) -> None:
        """Remember the head of a request that arrived alone and whole."""
        end = received.find(END) + 4
        if end <= _HEAD_BYTES and len(received) - end == head.body_bytes:
            self._keep(received[:end], head)
            plain = _PLAIN.match(head.spelled)
            if plain is not None and head.body_bytes <= _FLAT_BYTES:
                if len(self._elsewhere) >= _HEADS:
                    self._elsewhere.clear()
                self._elsewhere[plain[1] + head.spelled[plain.end() :]] = head
                self._longest = max(self._longest, len(head.url))

    def _find_elsewhere(self, spelled: bytes) -> RequestHead | None:
        """The head that differs from a known one only in its address."""
        plain = _PLAIN.match(spelled)
        if plain is None or len(plain[2]) > self._longest:
            return None
        similar_head = self._elsewhere.get(plain[1] + spelled[plain.end() :])
        return None if similar_head is None else self._keep(spelled, similar_head.at(plain[2]))

    def _keep(self, spelled: bytes, head: RequestHead) -> RequestHead:
        if len(self._heads) >= _HEADS:
            self._heads.clear()
        head.spelled = spelled
        self._heads[spelled] = head
        return head
