"""One append request: the checks of the commit, in the order the protocol gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.engine.log.batch import Batch, Operation
from headrace.engine.log.stream import Head, Producer, Stream, deleted
from headrace.engine.log.stream_registry import StreamRegistry, stored_keys
from headrace.errors import (
    BadRequest,
    PreconditionFailed,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
)
from headrace.schema.entries import entries_of
from headrace.storage.dedupe import Dedupe, FirstEvent
from headrace.storage.streams import LIVE
from headrace.storage.wal import Stored, pack_body
from headrace.types import MAX_AHEAD_US

if TYPE_CHECKING:
    from headrace.engine.log.batch import Batch
    from headrace.engine.log.stream import Head, Stream
    from headrace.profiles.hook import AppendHook


class Terms(NamedTuple):
    """What a request says about its entries, apart from the entries."""

    key: str | None = None
    timestamp_us: int | None = None
    stream_seq: str | None = None
    producer: Producer | None = None
    close: bool = False
    if_match: int | None = None
    #: The user who appends.
    user: str = "local"


#: The terms of most appends.
PLAIN = Terms()


class Append(Operation):
    """Entries for one stream on the request's terms; the outcome is filled in by the commit."""

    appends = True
    duplicate = False
    terms = PLAIN
    key: str | None = None
    #: The registry the entries were admitted under, the version it gave them, and their keys where they differ.
    registry: StreamRegistry | None = None
    validated_by: StreamRegistry | None = None
    #: The registry that refused what may be a repetition; the commit decides.
    refused_by: StreamRegistry | None = None
    version = 0
    keys: str | None = None
    #: The body as the log keeps it, where that was made ready on the way to the writer.
    stored: Stored | None = None
    position = 0
    producer_last = 0
    #: Keys of entries that are to be stored once; then the sequence number of each, and how many were there before.
    dedupe_keys: list[str | None] | None = None
    seqs: list[int] | None = None
    original: bytes | None = None
    deduplicated = 0
    #: How many entries came too late by their event time.
    late = 0

    def __init__(
        self,
        stream: Stream,
        body: bytes,
        count: int,
        done: Callable[[Append], None],
        terms: Terms = PLAIN,
        caller: Any = None,
    ) -> None:
        """``done`` gets the settled operation; ``caller`` is kept for it and not used here."""
        self.size = len(body) + 200
        self.stream = stream
        self.body = body
        self.count = count
        self.done = done
        self.caller = caller
        if terms is not PLAIN:
            self.terms = terms
            self.key = terms.key

    @property
    def only(self) -> Stream | None:  # type: ignore[override]
        """The stream, unless there are keys to be looked up and noted too."""
        return self.stream if self.dedupe_keys is None else None

    @property
    def appends_to(self) -> Stream | None:  # type: ignore[override]
        """The stream."""
        return self.stream

    def perform(self, batch: Batch) -> None:
        """Accept the entries into the stream's draft, or refuse the whole request."""
        head = batch.heads.get(self.stream) or batch.draft(self.stream)
        if head.state != LIVE:
            raise deleted(self.stream, head.state)
        if head.closed:
            self._repeat_close(head, self.terms)
            return
        if self.terms is PLAIN:
            if head.registry is not self.registry:
                self._admit_again(head)
            if self.dedupe_keys is not None:
                self._check(batch, head, self.dedupe_keys)
            self.write(batch, head, batch.now_us)
        else:
            self._perform_on(self.terms, batch, head)
        self.position = head.next_seq

    def _perform_on(self, terms: Terms, batch: Batch, head: Head) -> None:
        if terms.producer is not None and self._check_producer(batch, terms.producer):
            self.duplicate = True
            return
        if self.count and head.registry is not self.registry:
            self._admit_again(head)
        self._check_preconditions(terms, head)
        check_ahead(terms.timestamp_us, batch.now_us)
        if self.dedupe_keys is not None:
            self._check(batch, head, self.dedupe_keys)
        if terms.producer is not None:
            batch.producers[self.stream, terms.producer[0]] = terms.producer[1:]
        if terms.stream_seq is not None:
            head.stream_seq = terms.stream_seq
        if self.count:
            self.write(batch, head, batch.now_us if terms.timestamp_us is None else terms.timestamp_us)
        if terms.close:
            self._close(batch, head, terms.producer)

    def answer(self) -> None:
        """Unpin the stream once settled, and answer the caller."""
        if self.settled:
            self.stream.pins -= 1
        self.done(self)

    def _admit_again(self, head: Head) -> None:
        """The registry has changed since the entries were queued, or refused what might have been a repetition."""
        if head.registry is not None:
            self.stored = None
            head.registry.admit(self)

    def _check(self, batch: Batch, head: Head, dedupe_keys: list[str | None]) -> None:
        """Call the hook of the stream, which may refuse the outcome for entries that are stored once."""
        if head.registry is not None and head.registry.hook is not None:
            hook = head.registry.hook
            if hook.extends_commit:
                hook.check_commit(batch, self.stream, self.body, dedupe_keys)

    def _check_preconditions(self, terms: Terms, head: Head) -> None:
        if terms.if_match is not None and terms.if_match != head.next_seq:
            raise PreconditionFailed(
                "If-Match names another tail than the stream has",
                next_offset=self.stream.offset_at(head.next_seq),
            )
        last_stream_seq, stream_seq = head.stream_seq, terms.stream_seq
        if stream_seq is not None and last_stream_seq is not None and stream_seq.encode() <= last_stream_seq.encode():
            raise SequenceConflict(
                f"Stream-Seq {stream_seq!r} does not come after {last_stream_seq!r}",
                expected_seq=last_stream_seq,
                received_seq=stream_seq,
            )

    @property
    def acknowledged(self) -> int:
        """The position after the last of the entries, which may have been there before."""
        return self.position if self.count or not self.seqs else max(self.seqs) + 1

    def write(self, batch: Batch, head: Head, at_us: int) -> None:
        """Append the entries at a time that is not before that of earlier ones."""
        at_us = at_us if at_us > head.last_us else head.last_us
        if self.dedupe_keys is not None:
            self._leave_out_repeated(batch, head, at_us, self.dedupe_keys)
            if not self.count:
                return
            assert head.registry is not None and head.registry.hook is not None
            if head.registry.hook.extends_commit:
                head.registry.hook.extend_commit(batch, self.stream, head.next_seq, self.body, at_us)
        if head.registry is not None and head.registry.hook is not None and head.registry.hook.can_be_late:
            self.late = head.registry.hook.count_late(self.body, at_us)
        seq, count, body = head.next_seq, self.count, self.body
        head.next_seq = self.position = seq + count
        head.last_us = at_us
        head.bytes = total = head.bytes + len(body)
        held, packed = self.stored or pack_body(body)
        row = self.stream.id, seq, count, at_us, self.version, self.key, self.keys, head.stream_seq, total, held, packed
        batch.write(self.stream.name, row)

    def route(self, keys: list[str | None], head: Head) -> None:
        """Take the entries as admitted, with these routing keys, by the registry that the stream has now."""
        assert head.registry is not None
        self.registry, self.version = head.registry, head.registry.version
        self.key, self.keys = stored_keys(keys)

    def _leave_out_repeated(self, batch: Batch, head: Head, at_us: int, keys: list[str | None]) -> None:
        """Keep the entries whose keys are new; the others are the ones that had their keys first."""
        self.seqs = assign_seqs(batch, self.stream, head, keys, at_us)
        due, kept = head.next_seq, []
        if len(set(self.seqs)) == self.count and min(self.seqs) >= due:
            return
        for entry, seq in zip(entries_of(self.body), self.seqs, strict=True):
            if seq == due:
                kept.append(entry)
                due += 1
        self.deduplicated = self.count - len(kept)
        if self.keys is not None and kept:
            keyed = zip(msgspec.json.decode(self.keys, type=list[str | None]), self.seqs, strict=True)
            first = {seq: key for key, seq in reversed(list(keyed)) if seq >= head.next_seq}
            self.key, self.keys = stored_keys([first[seq] for seq in sorted(first)])
        self.body, self.count, self.stored = b",".join(kept), len(kept), None

    def _close(self, batch: Batch, head: Head, producer: Producer | None) -> None:
        head.closed, head.closed_by = True, producer
        closed_by = msgspec.json.encode(producer).decode() if producer else None
        batch.streams.update(self.stream.id, closed=1, closed_by=closed_by)
        batch.published.mark(self.stream.id, batch.now_us)
        batch.note("stream_closed", self.terms.user, stream=self.stream.name)

    def _repeat_close(self, head: Head, terms: Terms) -> None:
        self.position = head.next_seq
        self.duplicate = True
        if terms.producer is not None:
            self.producer_last = terms.producer[2]
            if terms.close and terms.producer == head.closed_by:
                return
        elif terms.close and not self.count:
            return
        raise StreamClosed("the stream is closed", next_offset=self.stream.offset_at(head.next_seq))

    def _check_producer(self, batch: Batch, producer: Producer) -> bool:
        """Return whether the request was taken before; raise an error if its numbers are out of turn."""
        name, epoch, seq = producer
        last_state = batch.producer(self.stream, name)
        self.producer_last = seq
        if last_state is None:
            if seq:
                raise ProducerGap("a new producer starts at 0", expected_seq=0, received_seq=seq)
            return False
        last_epoch, last_seq = last_state
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


def assign_seqs(batch: Batch, stream: Stream, head: Head, keys: list[str | None], at_us: int) -> list[int]:
    """The sequence number of each entry: the next ones in order, and for a key that is known that of its first."""
    assert head.registry is not None and head.registry.hook is not None
    seq_by_key = find_remembered(batch, stream.id, head, head.registry.hook, keys, at_us)
    seqs: list[int] = []
    due = head.next_seq
    for key in keys:
        first = due if key is None else seq_by_key.setdefault(key, due)
        if first == due:
            due += 1
            if key is not None:
                batch.firsts[stream.id, key] = FirstEvent(first, at_us)
        seqs.append(first)
    return seqs


def find_remembered(
    batch: Batch, stream: int, head: Head, hook: AppendHook, keys: list[str | None], at_us: int
) -> dict[str, int]:
    """The keys that are remembered at a moment, and the events that had them first."""
    distinct_keys = [key for key in dict.fromkeys(keys) if key is not None]
    firsts = {key: batch.firsts[stream, key] for key in distinct_keys if (stream, key) in batch.firsts}
    missing_keys = [key for key in distinct_keys if key not in firsts]
    if missing_keys:
        firsts |= Dedupe(batch.connection).find(stream, missing_keys)
    since, since_us = dedupe_horizon(hook, head.next_seq, at_us)
    return {key: first.seq for key, first in firsts.items() if first.seq >= since and first.at_us > since_us}


def dedupe_horizon(hook: AppendHook, next_seq: int, now_us: int) -> tuple[int, int]:
    """From which event, and after which moment, keys are remembered."""
    return max(hook.dedupe_since, next_seq - hook.max_dedupe_keys), now_us - hook.dedupe_window_us
