from __future__ import annotations

import asyncio

import pytest

from headrace.engine.log.stream import Stream
from headrace.engine.log.tail import Tail
from headrace.engine.runtime.event_loop import FEW, Slices
from headrace.errors import Overloaded
from headrace.storage.streams import StreamRow


class _Reader:
    def __init__(self) -> None:
        self.woken = 0
        self.ended = False

    def wake(self) -> None:
        self.woken += 1

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def stream() -> Stream:
    return Stream(StreamRow(name="s", content_type="text/plain", created_us=0, epochs="[[0,0]]"), ())


def test_who_watches_is_woken_until_it_leaves(stream: Stream) -> None:
    tail, reader, other = Tail(10), _Reader(), _Reader()
    tail.watch(stream, reader)
    tail.watch(stream, other)
    tail.wake(stream)
    tail.leave(stream, reader)
    tail.wake(stream)
    assert (reader.woken, other.woken) == (1, 2)


def test_a_watched_stream_is_pinned(stream: Stream) -> None:
    tail, reader = Tail(10), _Reader()
    tail.watch(stream, reader)
    assert (stream.pins, tail.watchers) == (1, 1)
    tail.leave(stream, reader)
    tail.leave(stream, reader)
    assert (stream.pins, tail.watchers, stream.watchers) == (0, 0, None)


def test_a_watcher_may_leave_while_all_are_woken(stream: Stream) -> None:
    tail, second = Tail(10), _Reader()

    class _Leaving(_Reader):
        def wake(self) -> None:
            super().wake()
            tail.leave(stream, self)
            tail.leave(stream, second)

    first = _Leaving()
    tail.watch(stream, first)
    tail.watch(stream, second)
    tail.wake(stream)
    assert (first.woken, tail.watchers) == (1, 0)


def test_many_watchers_are_woken_in_slices_and_once_however_often_the_stream_moves(stream: Stream) -> None:
    async def scenario() -> None:
        slices = Slices()
        tail, readers = Tail(1_000, slices), [_Reader() for _ in range(FEW + 10)]
        for reader in readers:
            tail.watch(stream, reader)
        tail.wake(stream)
        tail.wake(stream)
        tail.leave(stream, readers[0])
        assert not any(reader.woken for reader in readers)
        while slices.queued:
            await asyncio.sleep(0)
        assert [reader.woken for reader in readers] == [0, *[1] * (FEW + 9)]
        tail.wake(stream)
        while slices.queued:
            await asyncio.sleep(0)
        assert [reader.woken for reader in readers] == [0, *[2] * (FEW + 9)]

    asyncio.run(scenario())


def test_the_number_of_watchers_is_bounded(stream: Stream) -> None:
    tail = Tail(1)
    tail.watch(stream, _Reader())
    with pytest.raises(Overloaded):
        tail.watch(stream, _Reader())
    assert stream.pins == 1


def test_all_watchers_are_let_go_when_the_server_stops(stream: Stream) -> None:
    tail, reader = Tail(10), _Reader()
    tail.watch(stream, reader)
    tail.end()
    assert reader.ended
