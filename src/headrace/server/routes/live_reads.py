"""Readers at the tail: long-polls that answer once, and SSE responses that go on.

A watcher is woken after each commit that moved its stream. A thousand subscribers at the same place share one
rendered chunk.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
import time

import msgspec

from headrace.deadline import Deadline
from headrace.engine.log.stream import Head, deleted
from headrace.engine.log.tiers import NeedsFetch
from headrace.errors import HeadraceError, OffsetFenced
from headrace.server.http.compression import accepted_encoding
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.routes.stream_reader import ReadRequest, StreamReader
from headrace.storage.streams import LIVE

_CURSOR_ORIGIN = 1_728_432_000  # 2024-10-09T00:00:00Z
_CURSOR_STEP_S = 20
_KEEP_ALIVE_S = 15.0
_LINE_END = re.compile(rb"\r\n|\r|\n")


def cursor(previous: str | None, now_s: float) -> str:
    """The interval number that lets caches collapse live reads; always ahead of what the caller had."""
    current = int(now_s - _CURSOR_ORIGIN) // _CURSOR_STEP_S
    if previous and previous.isascii() and previous.isdigit() and len(previous) < 20 and int(previous) >= current:
        return str(int(previous) + max(1, random.randint(1, 3600) // _CURSOR_STEP_S))
    return str(current)


class LongPoll:
    """One GET that waits for the next entries."""

    def __init__(self, reader: StreamReader, question: ReadRequest, request: Request, wait_s: float) -> None:
        self._reader = reader
        self._question = question
        self._request = request
        self._key_status = request.principal.key_status
        self._stream = question.stream
        self._position = question.position
        self._wait_s = wait_s
        self._timer: asyncio.TimerHandle | None = None
        #: Whether a thread looks for entries that are not at hand, and whether nobody waits for what it finds.
        self._is_waiting_for_thread = self._refused = False
        #: Until when the thread looks, where that has an end.
        self._deadline: Deadline | None = None
        #: Where the stream ended when the time ran out: whatever comes later is for the next poll.
        self._end: int | None = None

    def start(self) -> None:
        """Answer at once if there is something, else wait."""
        if self._answer_if_ready():
            return
        try:
            self._reader.engine.tail.watch(self._stream, self)
        except HeadraceError:
            self._refused = True
            raise
        self._key_status.watch(self)
        self._request.exchange.parked = True
        self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._time_out)
        self._request.exchange.on_gone = self._abandon

    def wake(self) -> None:
        """The stream moved, or the key does not hold any more."""
        if not self._is_waiting_for_thread and self._answer_if_ready():
            self._leave()

    def _give_up(self, reason: HeadraceError) -> None:
        if self._refused:
            return
        self._leave()
        if self._stream.head.state != LIVE:
            reason = deleted(self._stream, self._stream.head.state)
        self._request.exchange.reply(Reply.failure(reason))

    def _retry(self) -> None:
        self._is_waiting_for_thread = False
        if self._refused:
            return
        if self._end is not None:
            self._conclude(self._end)
        else:
            self.wake()

    def end(self) -> None:
        """Answer as if the time had run out."""
        self._time_out()

    def _answer_if_ready(self, end: int | None = None) -> bool:
        """Answer with what there is, up to an end; False where there is nothing yet."""
        try:
            return self._reply_if_ready(self._readable_head(end))
        except HeadraceError as refusal:
            self._request.exchange.reply(Reply.failure(refusal))
            return True
        except NeedsFetch as cold:
            if self._end is not None and cold.deadline is not None:
                return False  # the rest is for the next poll
            self._is_waiting_for_thread, self._deadline = True, cold.deadline
            self._reader.run_in_thread(self._request.exchange, cold.work, self._retry, self._give_up)
            return False

    def _readable_head(self, end: int | None) -> Head:
        head = self._reader.engine.log.readable_head(self._stream)
        if end is not None and head.next_seq > end:  # where entries lie is known by the newest head alone
            head = head.copy()
            head.next_seq, head.closed = end, False
        return head

    def _reply_if_ready(self, head: Head) -> bool:
        question = self._question
        self._key_status.require()
        if head.state != LIVE:
            return self._reply_gone()
        while self._position < head.next_seq:
            entries = self._reader.find(question, self._position, head)
            if entries.parts:
                self._reply_data(self._reader.render(question, entries.parts), entries.position)
                return True
            self._position = entries.position
        if head.closed:
            headers = self._reader.headers(question, head, head.next_seq)
            del headers["content-type"]
            self._request.exchange.reply(Reply(204, headers | {"cache-control": "no-store"}))
            return True
        return False

    def _reply_data(self, body: bytes, position: int) -> None:
        headers = self._reader.headers(self._question, self._stream.head, position)
        headers |= {"cache-control": "no-store", "stream-cursor": self._cursor()}
        self._reader.compressor.send(self._request, Reply(200, headers, body), accepted_encoding(self._request.headers))

    def _reply_gone(self) -> bool:
        if self._reader.engine.log.find(self._stream.name) is not self._stream:
            raise OffsetFenced("the stream was deleted and created anew", stream=self._stream.name)
        return False

    def _time_out(self) -> None:
        self._leave()
        # The writer may have published a head whose wake-up is still on its way.
        self._end = self._stream.head.next_seq
        if not self._is_waiting_for_thread:
            self._conclude(self._end)

    def _conclude(self, end: int) -> None:
        """Answer with what there is up to an end, or that there is nothing."""
        if self._answer_if_ready(end) or self._is_waiting_for_thread:
            return
        headers = self._reader.headers(self._question, self._stream.head, self._position)
        del headers["content-type"]
        headers |= {"cache-control": "no-store", "stream-cursor": self._cursor()}
        self._request.exchange.reply(Reply(204, headers))

    def _cursor(self) -> str:
        return cursor(self._request.query.get("cursor"), time.time())

    def _abandon(self) -> None:
        """The client is gone."""
        self._leave()
        if self._deadline is not None:
            self._deadline.cancel()

    def _leave(self) -> None:
        self._reader.engine.tail.leave(self._stream, self)
        self._key_status.unwatch(self)
        self._request.exchange.on_gone = None
        if self._timer is not None:
            self._timer.cancel()


class SseSubscriber:
    """One SSE response."""

    def __init__(
        self, reader: StreamReader, sse: SseRenderer, question: ReadRequest, request: Request, lifetime_s: float
    ) -> None:
        self._reader, self._sse = reader, sse
        self._question = question
        self._request = request
        self._exchange = request.exchange
        self._key_status = request.principal.key_status
        self._stream = question.stream
        self._position = question.position
        self._until = asyncio.get_running_loop().time() + lifetime_s
        self._timer: asyncio.TimerHandle | None = None
        self._is_waiting_for_thread = False
        self._is_base64 = not question.stream.is_text
        #: From then on the exchange belongs to the next request of the connection.
        self._ended = False

    def start(self) -> None:
        """Open the response and send what is there."""
        head = self._reader.engine.log.readable_head(self._stream)
        if self._position < head.next_seq:
            # What is missing, or has no form in the version asked for, is refused while there is a status to say so.
            try:
                self._chunk(head)
            except UnicodeDecodeError:
                self._is_base64 = True
        headers = self._reader.headers(self._question, head, self._position)
        headers |= {"content-type": "text/event-stream", "cache-control": "no-cache"}
        headers.pop("stream-up-to-date", None)
        if self._is_base64:
            headers["stream-sse-data-encoding"] = "base64"
        self._reader.engine.tail.watch(self._stream, self)
        self._key_status.watch(self)
        self._exchange.parked = True
        self._exchange.on_gone = self._leave
        self._exchange.on_drained = self.wake
        self._exchange.open(headers)
        self._send(always=True)
        self._arm()

    def wake(self) -> None:
        """The stream moved, the caller has caught up with what was written, or the key does not hold any more."""
        self._send(always=False)

    def end(self) -> None:
        """End the response; the client resumes elsewhere or later."""
        self._finish()

    def _retry(self) -> None:
        self._is_waiting_for_thread = False
        self._send(always=False)

    def _send(self, *, always: bool) -> None:
        while not self._ended and not self._is_waiting_for_thread and self._exchange.writable:
            try:
                head = self._reader.engine.log.readable_head(self._stream)
                if head.state != LIVE or self._position < head.first_seq or not self._key_status.is_valid:
                    self._finish()  # the client asks again, and is told why
                    return
                if not always and self._position >= head.next_seq and not head.closed:
                    return
                chunk, self._position = self._chunk(head)
            except (HeadraceError, UnicodeDecodeError):
                self._finish()  # likewise; what is no text comes as base64 then
                return
            except NeedsFetch as cold:
                self._is_waiting_for_thread = True
                self._reader.run_in_thread(self._exchange, cold.work, self._retry, lambda _: self._finish())  # likewise
                return
            self._exchange.write(chunk)
            always = False
            if head.closed and self._position >= head.next_seq:
                self._finish()
                return

    def _chunk(self, head: Head) -> tuple[bytes, int]:
        question = self._question
        return self._sse.chunk(question, self._position, head, self._request, is_base64=self._is_base64)

    def _arm(self) -> None:
        if self._ended:
            return
        loop = asyncio.get_running_loop()
        wait_s = min(_KEEP_ALIVE_S, max(0.0, self._until - loop.time()))
        self._timer = loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        if asyncio.get_running_loop().time() >= self._until:
            self._finish()
            return
        if self._exchange.writable:
            self._send(always=True)
        self._arm()

    def _finish(self) -> None:
        if not self._ended:
            self._leave()
            self._exchange.finish()

    def _leave(self) -> None:
        self._ended = True
        self._reader.engine.tail.leave(self._stream, self)
        self._key_status.unwatch(self)
        self._exchange.on_gone = self._exchange.on_drained = None
        if self._timer is not None:
            self._timer.cancel()


class SseRenderer:
    """Renders slices as SSE; within one turn of the loop, subscribers at one place share what was rendered."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self._memo: dict[tuple[object, ...], tuple[bytes, int]] = {}

    def chunk(
        self, question: ReadRequest, position: int, head: Head, request: Request, *, is_base64: bool
    ) -> tuple[bytes, int]:
        """The data and control events from a position on, and where they end.

        Raises UnicodeDecodeError where text is asked for and the entries are not UTF-8.
        """
        previous_cursor, now_s = request.query.get("cursor"), time.time()
        shape = question.version, question.derived, None if head.registry is None else head.registry.revision
        tail = question.stream.id, position, head.next_seq, head.closed
        mark = (*tail, question.key, question.format, previous_cursor, shape, is_base64)
        if (rendered_before := self._memo.get(mark)) is not None:
            return rendered_before
        rendered = self._render(
            question, position, head, None if head.closed else cursor(previous_cursor, now_s), is_base64
        )
        if rendered[1] > position:
            if not self._memo:
                asyncio.get_running_loop().call_soon(self._memo.clear)
            self._memo[mark] = rendered
        return rendered

    def _render(
        self, question: ReadRequest, position: int, head: Head, cursor: str | None, is_base64: bool
    ) -> tuple[bytes, int]:
        data = b""
        if position < head.next_seq:
            entries = self._reader.find(question, position, head)
            if entries.parts:
                body = self._reader.render(question, entries.parts)
                if not (is_base64 or question.stream.is_json or body.isascii()):
                    body.decode()
                data = _data_event(body, is_base64)
            position = entries.position
        control: dict[str, object] = {"streamNextOffset": question.stream.offset_at(position)}
        caught_up = position >= head.next_seq
        if caught_up and head.closed:
            control["streamClosed"] = True
        elif cursor is not None:
            control["streamCursor"] = cursor
        if caught_up:
            control["upToDate"] = True
        return b"%sevent: control\ndata:%s\n\n" % (data, msgspec.json.encode(control)), position


def _data_event(body: bytes, is_base64: bool) -> bytes:
    if is_base64:
        return b"event: data\ndata:%s\n\n" % base64.b64encode(body)
    if b"\n" not in body and b"\r" not in body:
        return b"event: data\n%s\n\n" % _line(body)
    return b"event: data\n%s\n\n" % b"\n".join(_line(line) for line in _LINE_END.split(body))


def _line(line: bytes) -> bytes:
    # A parser drops one space after the colon; a line that begins with a space needs a second one.
    return b"data: %s" % line if line[:1] == b" " else b"data:%s" % line
