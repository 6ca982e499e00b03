"""One append request: the checks of the commit, in the order the protocol gives them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.engine.stream import Head, Producer, Stream
from headrace.engine.writer import Batch, Operation
from headrace.errors import (
    BadRequest,
    NotFound,
    PreconditionFailed,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
)
from headrace.storage.streams import LIVE

MAX_AHEAD_US = 60_000_000


class Append(Operation):
    """Entries for one stream, and what the request says about them; the outcome is filled in by the commit."""

    appends = True
    duplicate = False
    position = 0
    producer_last = 0

    def __init__(
        self,
        stream: Stream,
        body: bytes,
        count: int,
        done: Callable[[Append], None],
        *,
        key: str | None = None,
        timestamp_us: int | None = None,
        stream_seq: str | None = None,
        producer: Producer | None = None,
        close: bool = False,
        if_match: int | None = None,
    ) -> None:
        self.size = len(body) + 200
        self.stream = stream
        self.body = body
        self.count = count
        self.done = done
        self.key = key
        self.timestamp_us = timestamp_us
        self.stream_seq = stream_seq
        self.producer = producer
        self.close = close
        self.if_match = if_match

    def perform(self, batch: Batch) -> None:
        """Accept the entries into the stream's draft, or refuse the whole request."""
        stream = self.stream
        head = batch.draft(stream)
        if head.state != LIVE:
            raise NotFound("the stream was deleted", stream=stream.name)
        if head.closed:
            self._repeat_close(head)
            return
        if self.producer is not None and self._is_duplicate(batch, self.producer):
            self.duplicate = True
            self.position = head.next_seq
            return
        if self.if_match is not None or self.stream_seq is not None:
            self._check_preconditions(head)
        append_us = self._append_time(head, batch.now_us)
        if self.producer is not None:
            batch.producers[stream, self.producer[0]] = self.producer[1:]
        if self.stream_seq is not None:
            head.stream_seq = self.stream_seq
        if self.count:
            self._write(batch, head, append_us)
        if self.close:
            self._close(batch, head)
        self.position = head.next_seq

    def answer(self) -> None:
        """Let go of the stream once settled, and answer the caller."""
        if self.settled:
            self.stream.pins -= 1
        self.done(self)

    def _check_preconditions(self, head: Head) -> None:
        if self.if_match is not None and self.if_match != head.next_seq:
            raise PreconditionFailed(
                "If-Match names another tail than the stream has",
                next_offset=self.stream.offset_at(head.next_seq),
            )
        last = head.stream_seq
        if self.stream_seq is not None and last is not None and self.stream_seq.encode() <= last.encode():
            raise SequenceConflict(
                f"Stream-Seq {self.stream_seq!r} does not come after {last!r}",
                expected_seq=last,
                received_seq=self.stream_seq,
            )

    def _write(self, batch: Batch, head: Head, append_us: int) -> None:
        seq, body = head.next_seq, self.body
        head.next_seq = seq + self.count
        head.last_us = append_us
        head.bytes += len(body)
        batch.rows.append((self.stream.id, seq, self.count, append_us, 0, self.key, head.stream_seq, head.bytes, body))

    def _append_time(self, head: Head, now_us: int) -> int:
        hint = self.timestamp_us
        if hint is None:
            return now_us if now_us > head.last_us else head.last_us
        check_ahead(hint, now_us)
        return max(hint, head.last_us)

    def _close(self, batch: Batch, head: Head) -> None:
        head.closed, head.closed_by = True, self.producer
        closed_by = msgspec.json.encode(self.producer).decode() if self.producer else None
        batch.streams.update(self.stream.id, closed=1, closed_by=closed_by)

    def _repeat_close(self, head: Head) -> None:
        self.position = head.next_seq
        self.duplicate = True
        if self.producer is not None:
            self.producer_last = self.producer[2]
            if self.close and self.producer == head.closed_by:
                return
        elif self.close and not self.count:
            return
        raise StreamClosed("the stream is closed", next_offset=self.stream.offset_at(head.next_seq))

    def _is_duplicate(self, batch: Batch, producer: Producer) -> bool:
        name, epoch, seq = producer
        known = batch.producer(self.stream, name)
        self.producer_last = seq
        if known is None:
            if seq:
                raise ProducerGap("a new producer starts at 0", expected_seq=0, received_seq=seq)
            return False
        last_epoch, last_seq = known
        if epoch < last_epoch:
            raise ProducerFenced("a newer epoch of this producer has taken over", producer_epoch=last_epoch)
        if epoch > last_epoch:
            if seq:
                raise BadRequest("a new producer epoch starts at Producer-Seq 0", field="Producer-Seq")
            return False
        if seq <= last_seq:
            self.producer_last = last_seq
            return True
        if seq > last_seq + 1:
            raise ProducerGap("producer sequence numbers are missing", expected_seq=last_seq + 1, received_seq=seq)
        return False


def check_ahead(timestamp_us: int | None, now_us: int) -> None:
    """Refuse a time that would drag all later ones into the future."""
    if timestamp_us is not None and timestamp_us > now_us + MAX_AHEAD_US:
        raise BadRequest("Stream-Timestamp lies more than 60 s ahead", field="Stream-Timestamp")
