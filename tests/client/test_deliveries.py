"""What a producer holds: its bound, and the failures that nobody has looked at."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import pytest

from headrace.client.deliveries import _MAX_FAILURES, AsyncDelivery, Delivery, Ledger, _Signal, notify_handles
from headrace.client.outbox import Batching, Outbox, Settled
from headrace.errors import BadRequest, HeadraceError

BOUND = 4 * 1024 * 1024


def fail(ledger: Ledger, handles: Sequence[Delivery | AsyncDelivery], error: HeadraceError) -> None:
    settled = [Settled(handle, "", error, 1) for handle in handles]
    ledger.leave(settled)
    notify_handles(settled)


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
        ledger.raise_unseen()
    ledger.raise_unseen()


@pytest.mark.parametrize("errors", [1, 3000])
def test_last_failure_is_raised_when_all_before_were_seen(ledger: Ledger, errors: int) -> None:
    handles = sent(ledger, 3000)
    for place in range(errors):
        share = len(handles) // errors
        fail(ledger, handles[place * share : (place + 1) * share], BadRequest(str(place)))
    for handle in handles[:-1]:
        assert handle.exception(0) is not None
    with pytest.raises(BadRequest):
        ledger.raise_unseen()


def test_nothing_is_raised_when_all_were_seen_by_several(ledger: Ledger) -> None:
    handles = sent(ledger, 2000)
    for handle in handles:
        fail(ledger, [handle], BadRequest("refused"))
    threads = [threading.Thread(target=lambda: [handle.exception(0) for handle in handles]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.raise_unseen()


def test_what_was_sent_first_is_raised_first(ledger: Ledger) -> None:
    first, second = sent(ledger, 2)
    fail(ledger, [second], BadRequest("second"))
    fail(ledger, [first], BadRequest("first"))
    with pytest.raises(BadRequest, match="first"):
        ledger.raise_unseen()


def test_what_was_sent_first_is_raised_first_where_several_share_a_failure(ledger: Ledger) -> None:
    first, second, third = sent(ledger, 3)
    fail(ledger, [third, first], BadRequest("first and third"))
    fail(ledger, [second], BadRequest("second"))
    with pytest.raises(BadRequest, match="first and third"):
        ledger.raise_unseen()


def test_two_who_look_at_one_handle_at_once_have_not_seen_another(ledger: Ledger) -> None:
    seen, unseen = sent(ledger, 2)
    fail(ledger, [seen, unseen], BadRequest("refused"))
    failure = seen.failure
    assert failure is not None
    for _ in range(2):  # both have found it before either counted
        failure.mark_seen(seen)
    with pytest.raises(BadRequest):
        ledger.raise_unseen()


def test_failures_that_were_seen_leave_room_for_others_to_be_told_apart(ledger: Ledger) -> None:
    *seen, first, second = sent(ledger, _MAX_FAILURES + 2)
    for handle in seen:
        fail(ledger, [handle], BadRequest("seen"))
        assert handle.exception(0) is not None
    fail(ledger, [first], BadRequest("first"))
    fail(ledger, [second], BadRequest("second"))
    assert first.exception(0) is not None
    with pytest.raises(BadRequest, match="second"):
        ledger.raise_unseen()


def test_failure_is_seen_whichever_way_its_handle_is_asked(ledger: Ledger) -> None:
    by_result, by_exception = sent(ledger, 2)
    fail(ledger, [by_result, by_exception], BadRequest("refused"))
    with pytest.raises(BadRequest):
        by_result.result(0)
    assert by_exception.exception(0) is not None
    ledger.raise_unseen()


@pytest.mark.parametrize("way", ["await", "exception", "result"])
def test_failure_is_seen_whichever_way_an_awaiting_caller_asks(ledger: Ledger, way: str) -> None:
    async def awaited(handle: AsyncDelivery) -> str:
        return await handle

    async def scenario() -> None:
        handle = AsyncDelivery()
        ledger.enter(b"1", handle)
        waiting = asyncio.create_task(awaited(handle)) if way == "await" else None
        await asyncio.sleep(0)
        fail(ledger, [handle], BadRequest("refused"))
        with pytest.raises(BadRequest):
            if waiting is not None:
                await waiting
            elif way == "result":
                handle.result()
            else:
                raise handle.exception() or AssertionError
        ledger.raise_unseen()

    asyncio.run(scenario())


def test_failure_that_nobody_awaits_is_left_to_the_ledger_and_not_logged(ledger: Ledger) -> None:
    async def scenario() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        handle = AsyncDelivery()
        ledger.enter(b"1", handle)
        fail(ledger, [handle], BadRequest("refused"))
        del handle
        gc.collect()
        assert told == []

    asyncio.run(scenario())
    with pytest.raises(BadRequest):
        ledger.raise_unseen()


def test_handle_that_was_cancelled_keeps_nothing_from_the_others(ledger: Ledger) -> None:
    async def scenario() -> None:
        cancelled, other = AsyncDelivery(), AsyncDelivery()
        cancelled.cancel()
        notify_handles([Settled(cancelled, "7", None, 1), Settled(other, "7", None, 1)])
        assert await other == "7"

    asyncio.run(scenario())


def test_everyone_who_waits_for_a_handle_is_woken(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    [handle], waits, wait = sent(ledger, 1), threading.Semaphore(0), _Signal.wait

    def noting(signal: _Signal, timeout: float | None = None) -> bool:
        waits.release()  # it has the lock, and lets go of it when it waits
        return wait(signal, timeout)

    monkeypatch.setattr(_Signal, "wait", noting)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(handle.result, 20) for _ in range(3)]
        for _ in waiting:
            assert waits.acquire(timeout=10)
        notify_handles([Settled(handle, "7", None, 1)])
        assert not wait_for(waiting, 10).not_done
        assert [one.result() for one in waiting] == ["7"] * 3


def test_what_has_left_makes_room_for_as_much() -> None:
    size = 1 + Delivery.overhead_bytes
    for bound, most in ((3 * size, 3), (3 * size - 1, 2), (1, 1)):
        ledger = Ledger(bound, Delivery.overhead_bytes)
        for _ in range(50):
            handles: list[Delivery] = []
            while ledger.has_room(b"1"):
                handles += sent(ledger, 1)
            assert len(handles) == most
            ledger.leave([Settled(handle, "", None, 1) for handle in handles])


def test_failure_that_was_told_already_does_not_hide_the_next(ledger: Ledger) -> None:
    first, second = sent(ledger, 2)
    error = BadRequest("refused")
    fail(ledger, [first], error)
    with pytest.raises(BadRequest):
        ledger.raise_unseen()
    fail(ledger, [second], error)
    assert first.exception(0) is error
    with pytest.raises(BadRequest):
        ledger.raise_unseen()


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
