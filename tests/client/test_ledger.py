"""What a producer holds: its bound, and the failures that nobody has looked at."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable

import pytest

from headrace.client.ledger import AsyncDelivery, Delivery, Ledger, tell
from headrace.client.outbox import Batching, Outbox, Settled
from headrace.errors import BadRequest, HeadraceError

BOUND = 4 * 1024 * 1024


def fail(ledger: Ledger, handles: list[Delivery], error: HeadraceError) -> None:
    settled = [Settled(handle, "", error, 1) for handle in handles]
    ledger.leave(settled)
    tell(settled)


def sent(ledger: Ledger, count: int) -> list[Delivery]:
    handles = [Delivery() for _ in range(count)]
    for handle in handles:
        ledger.enter(b"1", handle)
    return handles


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(BOUND, Delivery.overhead_bytes)


@pytest.mark.parametrize("errors", [1, 3000])
def test_first_failure_is_raised_however_many_others_were_seen(ledger: Ledger, errors: int) -> None:
    handles = sent(ledger, 3000)
    for place in range(errors):
        share = len(handles) // errors
        fail(ledger, handles[place * share : (place + 1) * share], BadRequest(str(place)))
    for handle in handles[1:]:
        assert handle.exception(0) is not None
    with pytest.raises(BadRequest, match=r"^0$"):
        ledger.complain()
    ledger.complain()


@pytest.mark.parametrize("errors", [1, 3000])
def test_last_failure_is_raised_when_all_before_were_seen(ledger: Ledger, errors: int) -> None:
    handles = sent(ledger, 3000)
    for place in range(errors):
        share = len(handles) // errors
        fail(ledger, handles[place * share : (place + 1) * share], BadRequest(str(place)))
    for handle in handles[:-1]:
        assert handle.exception(0) is not None
    with pytest.raises(BadRequest):
        ledger.complain()


def test_nothing_is_raised_when_all_were_seen_by_several(ledger: Ledger) -> None:
    handles = sent(ledger, 2000)
    for handle in handles:
        fail(ledger, [handle], BadRequest("refused"))
    threads = [threading.Thread(target=lambda: [handle.exception(0) for handle in handles]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.complain()


def test_what_was_sent_first_is_raised_first(ledger: Ledger) -> None:
    first, second = sent(ledger, 2)
    fail(ledger, [second], BadRequest("second"))
    fail(ledger, [first], BadRequest("first"))
    with pytest.raises(BadRequest, match="first"):
        ledger.complain()


def test_failure_that_was_told_already_does_not_hide_the_next(ledger: Ledger) -> None:
    first, second = sent(ledger, 2)
    error = BadRequest("refused")
    fail(ledger, [first], error)
    with pytest.raises(BadRequest):
        ledger.complain()
    fail(ledger, [second], error)
    assert first.exception(0) is error
    with pytest.raises(BadRequest):
        ledger.complain()


def test_failed_events_are_not_kept(ledger: Ledger) -> None:
    handles = sent(ledger, 5000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        while handles:
            fail(ledger, [handles.pop()], BadRequest("refused"))
        assert tracemalloc.get_traced_memory()[0] - before < 2_000_000
    finally:
        tracemalloc.stop()


def held(overhead_bytes: int, handle: Callable[[], Delivery | AsyncDelivery]) -> int:
    """How many bytes a full producer takes, with events as small as they come."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ledger, outbox = Ledger(BOUND, overhead_bytes), Outbox(Batching())
        while ledger.has_room(event := b"1"):
            one = handle()
            ledger.enter(event, one)
            outbox.add(bytes(bytearray(event)), "", one, 0.0)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_bound_holds_for_small_events() -> None:
    async def awaited() -> int:
        loop = asyncio.get_running_loop()
        return held(AsyncDelivery.overhead_bytes, lambda: AsyncDelivery(loop=loop))

    assert held(Delivery.overhead_bytes, Delivery) < 1.1 * BOUND
    assert asyncio.run(awaited()) < 1.1 * BOUND
