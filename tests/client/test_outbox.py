"""The promise of a producer, held against a server model, a hostile network and a rival."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.client.errors import OutcomeUnknown, ProducerInUse, Unreachable
from headrace.client.outbox import Batching, OutBatch, Outbox
from headrace.errors import BadRequest, HeadraceError, Overloaded, ProducerFenced, ProducerGap, Unavailable

LOST = Unreachable("the connection was lost")
UNSENT = Unreachable("no server", sent=False)


@dataclass
class ServerModel:
    """The protocol's rules for one producer id, over a plain list."""

    log: list[int] = field(default_factory=list)
    epoch: int | None = None
    last_seq: int = -1
    strict: bool = False

    def post(self, epoch: int, seq: int, events: list[int]) -> tuple[str, bool] | HeadraceError:
        if self.strict and any(event % 3 == 0 for event in events):
            return BadRequest("refused")
        if self.epoch is not None and epoch < self.epoch:
            return ProducerFenced("fenced", producer_epoch=self.epoch)
        if self.epoch is None or epoch > self.epoch:
            if seq != 0:
                wrong = BadRequest("a new epoch starts at 0")
                return ProducerGap("gap", expected_seq=0, received_seq=seq) if self.epoch is None else wrong
            self.epoch, self.last_seq = epoch, -1
        if seq <= self.last_seq:
            return str(len(self.log)), True
        if seq > self.last_seq + 1:
            return ProducerGap("gap", expected_seq=self.last_seq + 1, received_seq=seq)
        self.last_seq = seq
        self.log.extend(events)
        return str(len(self.log)), False

    def claim_for_a_rival(self) -> None:
        """Another process takes over with the next epoch, which our producer may be about to choose too."""
        self.epoch, self.last_seq = (self.epoch or 0) + 1, 0


@dataclass
class OnTheWire:
    """One request between producer and server; ``batch`` is None once the producer has given up on it."""

    batch: OutBatch | None
    epoch: int
    seq: int
    events: list[int]


class ProducerMachine(RuleBasedStateMachine):
    """Any interleaving of sends, losses, repeats, refusals and takeovers."""

    @initialize(
        window=st.sampled_from([1, 4, 4]),
        size=st.sampled_from([1, 1, 3]),
        auto_claim=st.booleans(),
        id_is_new=st.booleans(),
        earlier=st.sampled_from([-1, -1, -1, 0, 2]),
    )
    def start(self, window: int, size: int, auto_claim: bool, id_is_new: bool, earlier: int) -> None:
        batching = Batching(0.5, max_batch_events=size, max_in_flight=window, delivery_timeout_s=30.0)
        earlier = -1 if id_is_new else earlier
        self.outbox = Outbox(batching, auto_claim=auto_claim, id_is_new=id_is_new)
        self.server = ServerModel(epoch=0 if earlier >= 0 else None, last_seq=earlier)
        self.id_is_new, self.alone = id_is_new, earlier < 0
        self.now = 0.0
        self.sent = 0
        self.wire: list[OnTheWire] = []
        self.outcomes: dict[int, HeadraceError | None] = {}

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        for _ in range(count):
            self.outbox.add(str(self.sent).encode(), "", self.sent, self.now)
            self.sent += 1
        self.pump()

    def pump(self) -> None:
        while (batch := self.outbox.take(self.now)) is not None:
            events = [int(event) for event in batch.events]
            self.wire.append(OnTheWire(batch, batch.epoch, batch.seq, events))
        wake_at = self.outbox.wake_at()
        assert wake_at is None or wake_at > self.now, "a producer must not spin"

    @rule(seconds=st.sampled_from([0.1, 0.6, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pump()

    @precondition(lambda self: self.wire)
    @rule(place=st.integers(0, 20))
    def answer_one(self, place: int) -> None:
        one = self.wire.pop(place % len(self.wire))
        answer = self.server.post(one.epoch, one.seq, one.events)
        if one.batch is not None:
            self.answer(one.batch, answer)
        self.pump()

    @precondition(lambda self: self.wire)
    @rule(place=st.integers(0, 20), fate=st.sampled_from(["answer lost", "lost", "timed out"]))
    def lose_one(self, place: int, fate: str) -> None:
        one = self.wire[place % len(self.wire)]
        if fate != "timed out":
            self.wire.remove(one)
        if fate == "answer lost":
            self.server.post(one.epoch, one.seq, one.events)
        self.hang_up(one, LOST)
        self.pump()

    @precondition(lambda self: any(one.batch for one in self.wire))
    @rule(error=st.sampled_from([UNSENT, Overloaded("busy"), Unavailable("stopping")]))
    def turn_away(self, error: HeadraceError) -> None:
        one = next(one for one in self.wire if one.batch)
        self.wire.remove(one)
        self.hang_up(one, error)
        self.pump()

    @precondition(lambda self: self.sent > 3)
    @rule()
    def change_what_is_refused(self) -> None:
        self.server.strict = not self.server.strict

    @precondition(lambda self: self.server.epoch is not None and self.sent > 3)
    @rule(go=st.sampled_from([False, False, True]))
    def rival(self, go: bool) -> None:
        if go and not self.id_is_new:
            self.alone = False
            self.server.claim_for_a_rival()

    def hang_up(self, one: OnTheWire, error: HeadraceError) -> None:
        if one.batch is not None:
            batch, one.batch = one.batch, None
            self.outbox.failed(batch, error, self.now)

    def answer(self, batch: OutBatch, answer: tuple[str, bool] | HeadraceError) -> None:
        if isinstance(answer, HeadraceError):
            self.outbox.failed(batch, answer, self.now)
        else:
            self.outbox.delivered(batch, answer[0], duplicate=answer[1])

    @invariant()
    def appended_once_and_in_order(self) -> None:
        if hasattr(self, "server"):
            assert self.server.log == sorted(set(self.server.log))

    @invariant()
    def settled_once(self) -> None:
        if not hasattr(self, "outbox"):
            return
        for handle, offset, error, _ in self.outbox.collect():
            assert handle not in self.outcomes
            assert (error is None) == bool(offset)
            self.outcomes[handle] = error

    def teardown(self) -> None:
        if not hasattr(self, "outbox"):
            return
        self.server.strict = False
        for _ in range(10 * self.sent + 20):
            self.now += 10.0
            self.pump()
            while self.wire:
                self.answer_one(0)
            self.settled_once()
        self.appended_once_and_in_order()
        assert self.outbox.settled_below == self.outbox.taken == self.sent
        self.check_outcomes()

    def check_outcomes(self) -> None:
        assert set(self.outcomes) == set(range(self.sent))
        for event, error in self.outcomes.items():
            if self.alone:
                assert not isinstance(error, ProducerGap | ProducerInUse | ProducerFenced)
            if error is None:
                assert event in self.server.log
            elif not isinstance(error, OutcomeUnknown):
                assert event not in self.server.log


TestProducer = ProducerMachine.TestCase
TestProducer.settings = settings(max_examples=max(400, settings().max_examples), stateful_step_count=50)


def deliver(outbox: Outbox, server: ServerModel, now: float = 100.0) -> None:
    while (batch := outbox.take(now)) is not None:
        answer = server.post(batch.epoch, batch.seq, [int(event) for event in batch.events])
        if isinstance(answer, HeadraceError):
            outbox.failed(batch, answer, now)
        else:
            outbox.delivered(batch, answer[0], duplicate=answer[1])


def filled(*events: int, **options: bool) -> Outbox:
    outbox = Outbox(Batching(0.0, max_batch_events=1), **options)
    for event in events:
        outbox.add(str(event).encode(), "", event, 0.0)
    return outbox


def test_restarted_producer_is_told_when_its_number_is_taken() -> None:
    server = ServerModel()
    deliver(filled(1, 2), server)
    again = filled(3)
    deliver(again, server)
    (settled,) = again.collect()
    assert isinstance(settled.error, ProducerInUse)
    assert server.log == [1, 2]


def test_restarted_producer_claims_the_next_epoch_when_allowed() -> None:
    server = ServerModel()
    deliver(filled(1, 2), server)
    again = filled(3, 4, auto_claim=True)
    deliver(again, server)
    assert server.log == [1, 2, 3, 4]
    assert again.epoch == 1
    assert [settled.error for settled in again.collect()] == [None, None]


def test_refused_batch_fails_alone_when_others_follow() -> None:
    server = ServerModel(strict=True)
    outbox = filled(1, 3, 4, 6, 7)
    deliver(outbox, server)
    assert server.log == [1, 4, 7]
    failed = [settled.handle for settled in outbox.collect() if settled.error]
    assert failed == [3, 6]


def opened(*events: int) -> tuple[Outbox, ServerModel, list[OutBatch]]:
    """A producer whose first event is appended and whose others are on their way."""
    outbox, server = filled(*events), ServerModel()
    first = outbox.take(0.0)
    assert first is not None
    server.post(0, 0, [events[0]])
    outbox.delivered(first, "1", duplicate=False)
    outbox.collect()
    return outbox, server, list(iter(lambda: outbox.take(0.0), None))


def test_what_follows_a_refused_batch_is_sent_again_when_its_own_answer_was_lost() -> None:
    outbox, server, (refused, behind) = opened(1, 3, 4)
    outbox.failed(refused, BadRequest("refused"), 0.0)
    outbox.failed(behind, LOST, 0.0)
    deliver(outbox, server)
    assert server.log == [1, 4]
    assert [settled.handle for settled in outbox.collect() if settled.error] == [3]


def test_what_may_have_been_appended_is_never_sent_under_another_number() -> None:
    outbox, server, (first, second) = opened(1, 3, 4)
    for batch in (first, second):
        server.post(batch.epoch, batch.seq, [int(event) for event in batch.events])
        outbox.failed(batch, LOST, 0.0)
    server.strict = True
    deliver(outbox, server)
    assert server.log == [1, 3, 4]
    outcomes = {settled.handle: settled.error for settled in outbox.collect()}
    assert isinstance(outcomes[3], OutcomeUnknown)
    assert isinstance(outcomes[4], OutcomeUnknown)


def test_what_precedes_a_refused_batch_is_asked_for_again_before_the_epoch_changes() -> None:
    outbox, server, (before, refused) = opened(1, 2, 3)
    server.post(before.epoch, before.seq, [2])
    outbox.failed(before, LOST, 0.0)
    outbox.failed(refused, BadRequest("refused"), 0.0)
    deliver(outbox, server)
    outcomes = {settled.handle: settled.error for settled in outbox.collect()}
    assert outcomes[2] is None
    assert isinstance(outcomes[3], BadRequest)


def test_everything_fails_when_the_server_forgot_the_producer() -> None:
    outbox = filled(1, 2)
    first = outbox.take(0.0)
    assert first is not None
    outbox.delivered(first, "1", duplicate=False)
    deliver(outbox, ServerModel())
    errors = [settled.error for settled in outbox.collect()]
    assert errors[0] is None
    assert isinstance(errors[1], ProducerGap)
    assert outbox.broken is errors[1]


def test_batch_is_closed_when_the_key_changes() -> None:
    outbox = Outbox(Batching(0.0))
    for key in ("a", "a", "b"):
        outbox.add(b"1", key, key, 0.0)
    batch = outbox.take(1.0)
    assert batch is not None
    assert batch.key == "a"
    assert len(batch.events) == 2


@pytest.mark.parametrize(("limit", "batches"), [(4, 3), (8, 2), (100, 1)])
def test_batch_is_closed_when_it_would_grow_too_large(limit: int, batches: int) -> None:
    outbox = Outbox(Batching(0.0, max_batch_bytes=limit, max_in_flight=1))
    for place in range(3):
        outbox.add(b"123", "", place, 0.0)
    count = 0
    while (batch := outbox.take(1.0)) is not None:
        outbox.delivered(batch, "x", duplicate=False)
        count += 1
    assert count == batches


def test_open_batch_waits_for_company_until_it_has_lingered() -> None:
    outbox = Outbox(Batching(linger_s=5.0))
    outbox.add(b"1", "", 1, now=10.0)
    assert outbox.take(14.9) is None
    assert outbox.wake_at() == 15.0
    assert outbox.take(15.0) is not None


def test_server_wish_for_a_pause_is_honoured() -> None:
    outbox = filled(1)
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.failed(batch, Overloaded("busy", retry_after=30), 0.0)
    assert outbox.take(29.9) is None
    assert outbox.take(30.1) is batch
