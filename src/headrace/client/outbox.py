"""The outbox of a producer: its unsent batches, their sequence numbers, and the handling of answers.

Pure: time comes in as numbers, requests go out as batches, answers come back as calls. The promise is that every
event is appended once and in order, or its handle says why not. It rests on five rules.

1. A batch keeps its (epoch, seq) however often it is sent, so the server can tell a repeat from a new one.
2. An epoch starts with one batch alone; only after its success may several be in flight.
3. A batch whose fate was never answered is *in doubt*. It may be repeated under its own number, never under
   another: if the epoch changes while it is in doubt, its handles learn that the outcome is unknown.
4. A refused batch leaves a hole in the numbers, so what follows it moves to a new epoch. The server cannot have
   taken what lay behind a hole, and the new epoch shuts out copies still on their way.
5. "Already there" to a batch that was not in doubt means that someone else uses our number. Until a first success
   has proven an epoch to be ours, even a batch in doubt may collide so, unless our id was never used before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from headrace.client.errors import OutcomeUnknown, ProducerInUse, Unreachable
from headrace.client.retry import is_transient, pause_s
from headrace.errors import HeadraceError, Overloaded, ProducerFenced, ProducerGap


class Batching(msgspec.Struct, frozen=True):
    """When a batch is full, how many may be on their way, and how long one is tried."""

    linger_s: float = 0.005
    max_batch_events: int = 1000
    max_batch_bytes: int = 1024 * 1024
    max_in_flight: int = 4
    delivery_timeout_s: float = 120.0


class Settled(NamedTuple):
    """The outcome of an event: the offset after its batch, or the error."""

    handle: Any
    offset: str
    error: HeadraceError | None
    event_bytes: int


class OutBatch:
    """Events that travel in one request."""

    __slots__ = ("attempts", "behind_hole", "bytes", "deadline", "epoch", "events", "first", "floor", "handles",
                 "in_doubt", "key", "not_before", "opened_at", "sending", "seq", "waits_its_turn")  # fmt: skip

    def __init__(self, first: int, key: str, now: float) -> None:
        self.first = first
        self.key = key
        self.events: list[bytes] = []
        self.handles: list[Any] = []
        self.bytes = 0
        self.opened_at = now
        self.deadline = 0.0
        self.behind_hole = False
        self.renumber(0, -1)

    def renumber(self, epoch: int, seq: int) -> None:
        """Take an unused number."""
        self.epoch, self.seq = epoch, seq
        self.attempts = 0
        self.floor = seq
        self.not_before = 0.0
        self.in_doubt = self.sending = self.waits_its_turn = self.behind_hole = False


class Outbox:
    """The state of one producer."""

    def __init__(
        self, batching: Batching, *, epoch: int = 0, auto_claim: bool = False, id_is_new: bool = False
    ) -> None:
        self.epoch = epoch
        self.broken: HeadraceError | None = None
        self._batching = batching
        self._auto_claim = auto_claim
        self._id_is_new = id_is_new
        self._open: OutBatch | None = None
        self._ready: deque[OutBatch] = deque()
        self._sent: list[OutBatch] = []
        self._next_seq = 0
        self._proven = False
        self._claim: int | None = None
        self._hole: int | None = None
        self._settled: list[Settled] = []
        self.taken = 0

    @property
    def settled_below(self) -> int:
        """All events numbered below this, in the order taken, are settled."""
        oldest = next(chain(self._sent, self._ready, [self._open]))
        return self.taken if oldest is None else oldest.first

    def add(self, event: bytes, key: str, handle: Any, now: float) -> None:
        """Take an event into the open batch; a full one, or one of another key, is closed first."""
        self.taken += 1
        if self.broken:
            self._settled.append(Settled(handle, "", self.broken, len(event)))
            return
        batch = self._open
        if batch is not None and (batch.key != key or batch.bytes + len(event) > self._batching.max_batch_bytes):
            self.flush(now)
            batch = None
        if batch is None:
            batch = self._open = OutBatch(self.taken - 1, key, now)
        batch.events.append(event)
        batch.handles.append(handle)
        batch.bytes += len(event) + 1
        if len(batch.events) >= self._batching.max_batch_events:
            self.flush(now)

    def flush(self, now: float) -> None:
        """Close the open batch, so that it lingers no more."""
        if self._open is not None:
            self._open.deadline = now + self._batching.delivery_timeout_s
            self._ready.append(self._open)
            self._open = None

    def take(self, now: float) -> OutBatch | None:
        """The batch to send now, if there is one; the caller reports ``delivered`` or ``failed``."""
        self._linger(now)
        self._restart_if_due()
        batch = self._repeat(now) or self._fresh()
        if batch is not None:
            batch.sending = True
            batch.attempts += 1
            batch.floor = self._sent[0].seq
        return batch

    def wake_at(self) -> float | None:
        """When take may have something new without any other call; None if only a call can change that."""
        moments = [batch.not_before for batch in self._repeatable()]
        if self._open is not None:
            moments.append(self._open.opened_at + self._batching.linger_s)
        return min(moments, default=None)

    def delivered(self, batch: OutBatch, offset: str, *, duplicate: bool) -> None:
        """The server has the batch."""
        batch.sending = False
        if self.broken:
            return
        if duplicate and not batch.in_doubt:
            self._fail_foreign_epoch(batch)
        elif duplicate and not self._proven and not self._id_is_new:
            self._settle(batch, "", _unknown(None))
            self._claim_if_allowed(self.epoch + 1)
        else:
            self._proven = True
            self._settle(batch, offset, None)

    def failed(self, batch: OutBatch, error: HeadraceError, now: float) -> None:
        """The request brought no success."""
        batch.sending = False
        if self.broken:
            return
        if isinstance(error, ProducerFenced):
            self._handle_fence(error)
        elif isinstance(error, ProducerGap):
            self._handle_gap(batch, error)
        elif is_transient(error):
            batch.in_doubt |= _leaves_doubt(error)
            batch.not_before = now + pause_s(batch.attempts, error)
            if batch.not_before > batch.deadline:
                self._handle_refusal(batch, error)
        else:
            self._handle_refusal(batch, error)

    def collect(self) -> list[Settled]:
        """What has been settled since the last call."""
        settled, self._settled = self._settled, []
        return settled

    def fail_all(self, error: HeadraceError) -> None:
        """Give up: everything unsettled fails, and nothing more is taken."""
        self.broken = error
        if self._open is not None:
            self.flush(0.0)
        for batch in [*self._sent, *self._ready]:
            self._settle(batch, "", _unknown(error) if batch.in_doubt or batch.sending else error)
        self._ready.clear()

    def _linger(self, now: float) -> None:
        if self._open is not None and now >= self._open.opened_at + self._batching.linger_s:
            self.flush(now)

    def _repeatable(self) -> Iterator[OutBatch]:
        for index, batch in enumerate(self._sent):
            held = batch.sending or (batch.waits_its_turn and index > 0)
            beyond = self._claim is not None or (self._hole is not None and batch.seq > self._hole)
            if not held and not beyond:
                yield batch

    def _repeat(self, now: float) -> OutBatch | None:
        return next((batch for batch in self._repeatable() if batch.not_before <= now), None)

    def _fresh(self) -> OutBatch | None:
        window = self._batching.max_in_flight if self._proven else 1
        troubled = any(not batch.sending for batch in self._sent)
        held = self._claim is not None or self._hole is not None or troubled or self.broken is not None
        if not self._ready or held or len(self._sent) >= window:
            return None
        batch = self._ready.popleft()
        batch.renumber(self.epoch, self._next_seq)
        self._next_seq += 1
        self._sent.append(batch)
        return batch

    def _restart_if_due(self) -> None:
        """Move what is unsettled to a new epoch, once nothing of the old one can be answered any more."""
        if any(batch.sending for batch in self._sent):
            return
        if self._hole is not None and self._claim is None:
            if any(batch.seq < self._hole for batch in self._sent):
                return
            self._claim = self.epoch + 1
        if self._claim is None:
            return
        unsettled, self._sent = self._sent, []
        self.epoch, self._next_seq, self._proven = self._claim, 0, False
        self._claim = self._hole = None
        for batch in reversed(unsettled):
            if batch.in_doubt and not batch.behind_hole:
                self._settle(batch, "", _unknown(None))
            else:
                self._ready.appendleft(batch)

    def _handle_fence(self, error: ProducerFenced) -> None:
        current = error.facts.get("producer_epoch")
        if not isinstance(current, int) or not self._claim_if_allowed(current + 1):
            self.fail_all(error)

    def _claim_if_allowed(self, epoch: int) -> bool:
        if self._auto_claim:
            self._claim = max(self._claim or 0, epoch, self.epoch + 1)
        return self._auto_claim

    def _fail_foreign_epoch(self, batch: OutBatch) -> None:
        if batch.seq == 0 and self._claim_if_allowed(self.epoch + 1):
            return
        self.fail_all(
            ProducerInUse(
                f"the server already holds events under epoch {batch.epoch} of this producer id; "
                f"take a higher epoch, or auto_claim=True to take the next free one",
                epoch=batch.epoch,
                seq=batch.seq,
            )
        )

    def _handle_gap(self, batch: OutBatch, error: ProducerGap) -> None:
        expected = error.facts.get("expected_seq")
        if not isinstance(expected, int) or not batch.floor <= expected < batch.seq:
            # The server forgot what it had acknowledged: the stream was deleted and made anew.
            self.fail_all(error)
        else:
            batch.waits_its_turn = True

    def _handle_refusal(self, batch: OutBatch, error: HeadraceError) -> None:
        if not batch.in_doubt or batch.behind_hole:
            for later in self._sent:
                later.behind_hole |= later.seq > batch.seq
        unknown = batch.in_doubt and not batch.behind_hole
        self._hole = batch.seq if self._hole is None else min(self._hole, batch.seq)
        self._settle(batch, "", _unknown(error) if unknown else error)

    def _settle(self, batch: OutBatch, offset: str, error: HeadraceError | None) -> None:
        if batch in self._sent:
            self._sent.remove(batch)
        for event, handle in zip(batch.events, batch.handles, strict=True):
            self._settled.append(Settled(handle, offset, error, len(event)))


def _leaves_doubt(error: HeadraceError) -> bool:
    certain = isinstance(error, Overloaded) or (isinstance(error, Unreachable) and not error.sent)
    return not certain


def _unknown(cause: HeadraceError | None) -> OutcomeUnknown:
    why = f": {cause.message}" if cause is not None else ""
    error = OutcomeUnknown(f"the batch may or may not have been appended{why}")
    error.__cause__ = cause
    return error
