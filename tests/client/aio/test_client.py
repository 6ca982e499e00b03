"""The awaiting client against a real server process; it shares all but its shell with the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.errors import NotFound, ProducerFenced, StreamClosed

if TYPE_CHECKING:
    from tests.client.conftest import Line
    from tests.conftest import ServerProcess

Scene = Callable[[hr.AsyncClient, hr.AsyncStream], Awaitable[None]]


@pytest.fixture
def play(server: ServerProcess, name: str) -> Callable[[Scene], None]:
    """Run a scene with a client and a new stream."""

    async def run(scene: Scene) -> None:
        async with hr.AsyncClient(server.url) as client:
            stream = client.stream(name)
            await stream.create()
            await scene(client, stream)

    return lambda scene: asyncio.run(run(scene))


async def everything(stream: hr.AsyncStream, *arguments: Any, **options: Any) -> list[Any]:
    return [item async for batch in stream.read(*arguments, **options) for item in batch.items]


def test_every_verb_answers(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        first = await stream.append([1, 2], key="a")
        await client.stream(stream.name).append(b"3")
        assert await everything(stream, first.next_offset) == [3]
        assert await everything(stream, key="a") == [1, 2]
        assert await everything(stream, last=2) == [2, 3]
        assert (await stream.seal()).state == "sealed"
        fork = await stream.fork(f"{stream.name}/fork")
        await fork.append(4)
        assert await everything(fork) == [1, 2, 3, 4]
        assert (await fork.close()).closed
        names = [found["name"] async for found in client.streams(prefix=stream.name, limit=1)]
        assert names == [stream.name, fork.name]
        await fork.delete()
        with pytest.raises(NotFound):
            await fork.info()

    play(scene)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_tail_sees_the_past_the_present_and_the_end(play: Callable[[Scene], None], live: Any) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        await stream.append([1, 2])
        seen: list[int] = []
        async for batch in client.stream(stream.name).tail("-1", live=live):
            seen += batch.items
            if len(seen) < 6:
                await stream.append([len(seen) + 1, len(seen) + 2])
            elif not batch.closed:
                await stream.close()
        assert seen == [1, 2, 3, 4, 5, 6]

    play(scene)


def test_tail_can_be_left_early(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        async with aclosing(stream.tail()) as tail:
            await anext(tail)
            await stream.append(1)
            assert (await anext(tail)).items == [1]

    play(scene)


def test_producer_appends_in_order_and_gives_offsets(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        async with stream.producer(max_batch_events=10, max_pending_bytes=10_000) as producer:
            handles = [await producer.send(number) for number in range(200)]
            await producer.flush()
            offsets = await asyncio.gather(*handles)
        assert await everything(stream) == list(range(200))
        assert offsets == sorted(offsets)
        assert offsets[-1] == (await stream.info()).next_offset

    play(scene)


def test_nothing_is_lost_or_doubled_when_answers_are_lost(play: Callable[[Scene], None], line: Line) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        async with (
            hr.AsyncClient(line.url) as unlucky,
            unlucky.stream(stream.name).producer(max_batch_events=5, linger_ms=0) as producer,
        ):
            for number in range(200):
                handle = await producer.send(number)
                if number % 40 == 10:
                    line.lose_answers(2, after=1)
                    await handle
        assert await everything(stream) == list(range(200))

    play(scene)
    assert line.lost > 0


def test_deletion_succeeds_when_its_answer_is_lost(play: Callable[[Scene], None], line: Line) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        async with hr.AsyncClient(line.url) as unlucky:
            line.lose_answers(1)
            await unlucky.stream(stream.name).delete()
            with pytest.raises(NotFound):
                await unlucky.stream(stream.name).delete()

    play(scene)
    assert line.lost == 1


def test_failure_nobody_looked_at_is_raised_by_close(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        await stream.close()
        with pytest.raises(StreamClosed):
            async with stream.producer() as producer:
                await producer.send(1)

    play(scene)


def test_failure_somebody_awaited_is_not_raised_again(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        async with stream.producer(id="a", epoch=1) as new:
            await (await new.send(1))
        async with stream.producer(id="a", epoch=0) as old:
            with pytest.raises(ProducerFenced):
                await (await old.send(2))

    play(scene)


def test_producer_outside_its_block_takes_nothing(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        producer = stream.producer()
        with pytest.raises(hr.ProducerClosed):
            await producer.send(1)
        async with producer:
            await producer.send(1)
        with pytest.raises(hr.ProducerClosed):
            await producer.flush()

    play(scene)


def test_many_streams_are_followed_at_once(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        async with AsyncExitStack() as following:
            for _ in range(105):
                tail = await following.enter_async_context(aclosing(stream.tail()))
                await anext(tail)
            assert (await stream.info()).name == stream.name

    play(scene)


def test_look_that_timed_out_is_no_look(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        await stream.close()
        producer = await stream.producer(linger_ms=60_000).__aenter__()
        handle, other = await producer.send(1), await producer.send(2)
        with pytest.raises(asyncio.InvalidStateError):
            handle.result()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await other
        with pytest.raises(StreamClosed):
            await producer.close()

    play(scene)


def test_offered_event_is_taken_only_where_there_is_room(play: Callable[[Scene], None]) -> None:
    async def scene(client: hr.AsyncClient, stream: hr.AsyncStream) -> None:
        async with stream.producer(max_pending_bytes=1000, linger_ms=10_000) as producer:
            handles = [producer.offer({"n": n}) for n in range(5)]
            taken = [handle for handle in handles if handle is not None]
            assert 0 < len(taken) < 5
            await producer.flush()
            assert producer.offer({"n": 5}) is not None
        assert len(await everything(stream)) == len(taken) + 1
        with pytest.raises(hr.ProducerClosed):
            producer.offer({"n": 6})

    play(scene)


async def nothing_else_runs() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


def test_closing_for_a_while_fails_what_is_left() -> None:
    async def scene() -> None:
        async with hr.AsyncClient("http://127.0.0.1:1") as client:
            producer = await client.stream("x").producer().__aenter__()
            handle = await producer.send(1)
            with pytest.raises(hr.ClientError):
                await producer.close(timeout=0.01)
            assert handle.done()
            assert await nothing_else_runs()

    asyncio.run(scene())


@pytest.mark.parametrize("place", ["in the block", "at its end"])
def test_cancelled_producer_gives_up_at_once(place: str) -> None:
    handles: list[hr.AsyncDelivery] = []

    async def produce(client: hr.AsyncClient, sent: asyncio.Event) -> None:
        async with client.stream("x").producer(linger_ms=60_000) as producer:
            handles.append(await producer.send(1))
            sent.set()
            if place == "in the block":
                await asyncio.Event().wait()

    async def scene() -> None:
        async with hr.AsyncClient("http://127.0.0.1:1") as client:
            sent = asyncio.Event()
            task = asyncio.create_task(produce(client, sent))
            await sent.wait()
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            done, _ = await asyncio.wait({task}, timeout=5)
            assert done == {task} and task.cancelled()
            assert await nothing_else_runs()

    asyncio.run(scene())
    kinds = hr.ProducerClosed if place == "in the block" else (hr.ProducerClosed, hr.OutcomeUnknown)
    assert isinstance(handles[0].exception(), kinds)
