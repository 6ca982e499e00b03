"""Producers against a real server process, over a line that loses answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import as_completed, wait
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.errors import BadRequest, NotFound, ProducerFenced, StreamClosed

if TYPE_CHECKING:
    from tests.client.conftest import Line
    from tests.conftest import StartServer


@pytest.fixture
def stream(client: hr.Client, name: str) -> hr.Stream:
    stream = client.stream(name)
    stream.create()
    return stream


def everything(stream: hr.Stream) -> list[Any]:
    return [item for batch in stream.read() for item in batch.items]


def test_events_are_appended_in_order_and_know_their_offsets(stream: hr.Stream) -> None:
    with stream.producer(max_batch_events=10) as producer:
        handles = [producer.send(number) for number in range(95)]
    assert everything(stream) == list(range(95))
    offsets = [handle.result() for handle in handles]
    assert len(set(offsets)) == 10
    assert offsets == sorted(offsets)
    assert offsets[-1] == stream.info().next_offset
    assert [item for batch in stream.read(offsets[9]) for item in batch.items] == list(range(10, 95))


def test_events_are_batched_while_they_linger(stream: hr.Stream) -> None:
    with stream.producer(linger_ms=60_000) as producer:
        handles = [producer.send(number) for number in range(50)]
        assert not any(handle.done() for handle in handles)
        producer.flush()
        assert all(handle.done() for handle in handles)
    assert len({handle.result() for handle in handles}) == 1


def test_nothing_is_lost_or_doubled_when_answers_are_lost(client: hr.Client, line: Line, name: str) -> None:
    client.stream(name).create()
    with hr.Client(line.url) as unlucky, unlucky.stream(name).producer(max_batch_events=5) as producer:
        for number in range(200):
            if number % 40 == 10:
                line.lose_answers(3, after=2)
            producer.send(number)
        producer.flush()
        line.lose_answers(1)
        producer.send(200)
    assert line.lost > 0
    assert everything(client.stream(name)) == list(range(201))


def test_nothing_is_lost_or_doubled_when_lines_are_cut(client: hr.Client, line: Line, name: str) -> None:
    client.stream(name).create()
    with hr.Client(line.url) as unlucky, unlucky.stream(name).producer(max_batch_events=3) as producer:
        for number in range(300):
            producer.send(number)
            if number % 30 == 0:
                line.cut()
    assert everything(client.stream(name)) == list(range(300))


def test_nothing_is_lost_or_doubled_when_the_server_is_killed(start_server: StartServer) -> None:
    server = start_server()
    port = server.url.rpartition(":")[2]
    with hr.Client(server.url) as client:
        stream = client.stream("x")
        stream.create()
        with stream.producer(max_batch_events=7) as producer:
            handles = [producer.send(number) for number in range(1000)]
            handles[300].result(30)
            server.kill()
            handles += [producer.send(number) for number in range(1000, 2000)]
            start_server(server__port=port)
        assert everything(stream) == list(range(2000))
        assert all(handle.result() for handle in handles)


def test_several_threads_share_a_producer(stream: hr.Stream) -> None:
    with stream.producer() as producer:
        threads = [
            threading.Thread(target=lambda part=part: [producer.send([part, place]) for place in range(200)])
            for part in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = everything(stream)
    assert sorted(found) == [[part, place] for part in range(4) for place in range(200)]
    for part in range(4):
        assert [place for owner, place in found if owner == part] == list(range(200))


def test_sender_waits_for_room_when_too_much_is_pending(stream: hr.Stream) -> None:
    with stream.producer(max_pending_bytes=2000, linger_ms=1) as producer:
        for number in range(100):
            producer.send(number)
    assert everything(stream) == list(range(100))


def test_events_carry_their_keys(stream: hr.Stream) -> None:
    with stream.producer() as producer:
        for number in range(9):
            producer.send(number, key="odd" if number % 2 else "even")
    odd = [item for batch in stream.read(key="odd") for item in batch.items]
    assert odd == [1, 3, 5, 7]


def test_each_event_is_an_entry_of_its_own_when_the_stream_holds_bytes(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create(content_type="text/plain")
    with stream.producer() as producer:
        offsets = [producer.send(text) for text in ("a", "b", "c")]
    assert everything(stream) == [b"abc"]
    assert len({handle.result() for handle in offsets}) == 3


def test_second_run_under_the_same_id_is_told_that_it_is_taken(stream: hr.Stream) -> None:
    with stream.producer(id="writer") as producer:
        producer.send("first")
    with pytest.raises(hr.ProducerInUse), stream.producer(id="writer") as producer:
        producer.send("second")
    assert everything(stream) == ["first"]


def test_second_run_under_the_same_id_goes_on_when_it_may_claim(stream: hr.Stream) -> None:
    for run in range(3):
        with stream.producer(id="writer", auto_claim=True) as producer:
            producer.send(run)
        assert producer.epoch == run
    assert everything(stream) == [0, 1, 2]


def test_older_run_is_fenced_when_a_newer_epoch_has_begun(stream: hr.Stream) -> None:
    with stream.producer(id="writer") as old:
        old.send("old").result(10)
        with stream.producer(id="writer", epoch=1) as new:
            new.send("new")
        with pytest.raises(ProducerFenced):
            old.send("too late").result(10)
    assert everything(stream) == ["old", "new"]


def test_refused_event_fails_and_the_next_goes_on(stream: hr.Stream) -> None:
    with stream.producer(max_batch_events=1) as producer:
        handles = [producer.send(event) for event in (b"1", b"{broken", b"2")]
        assert isinstance(handles[1].exception(10), BadRequest)
    assert everything(stream) == [1, 2]
    assert handles[2].result() == stream.info().next_offset


def test_failure_nobody_looked_at_is_raised_by_close(client: hr.Client, name: str) -> None:
    with pytest.raises(NotFound), client.stream(name).producer() as producer:
        producer.send(1)


def test_failure_that_a_callback_looked_at_is_not_raised(client: hr.Client, name: str) -> None:
    seen: list[BaseException | None] = []
    with client.stream(name).producer(linger_ms=60_000) as producer:
        producer.send(1).add_done_callback(lambda handle: seen.append(handle.exception()))
    assert isinstance(seen[0], NotFound)


def test_failure_is_raised_by_flush_only_once(stream: hr.Stream) -> None:
    stream.close()
    with stream.producer() as producer:
        producer.send(1)
        with pytest.raises(StreamClosed):
            producer.flush()
        producer.flush()


def test_error_of_the_block_is_not_hidden_by_the_producer(client: hr.Client, name: str) -> None:
    with pytest.raises(ZeroDivisionError), client.stream(name).producer() as producer:
        producer.send(1)
        raise ZeroDivisionError


def test_closed_producer_takes_nothing_more(stream: hr.Stream) -> None:
    producer = stream.producer()
    producer.close()
    producer.close()
    with pytest.raises(hr.ProducerClosed):
        producer.send(1)
    with pytest.raises(hr.ProducerClosed):
        producer.flush()


def test_event_that_cannot_be_delivered_in_time_fails() -> None:
    with hr.Client("http://127.0.0.1:1") as client, client.stream("x").producer(delivery_timeout=0.2) as producer:
        assert isinstance(producer.send(1).exception(10), hr.Unreachable)


def test_look_that_timed_out_is_no_look(stream: hr.Stream) -> None:
    stream.close()
    producer = stream.producer(linger_ms=60_000)
    handle = producer.send(1)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    with pytest.raises(TimeoutError):
        handle.exception(timeout=0)
    with pytest.raises(StreamClosed):
        producer.close()


def test_interrupted_block_gives_up_what_is_left() -> None:
    with (
        hr.Client("http://127.0.0.1:1") as client,
        pytest.raises(KeyboardInterrupt),
        client.stream("x").producer(linger_ms=60_000) as producer,
    ):
        handle = producer.send(1)
        raise KeyboardInterrupt
    assert isinstance(handle.exception(0), hr.ProducerClosed)
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-producer-x"]


def test_interrupted_close_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(work: Coroutine[Any, Any, None], timeout: float | None = None) -> None:
        work.close()
        raise KeyboardInterrupt

    with hr.Client("http://127.0.0.1:1") as client:
        producer = client.stream("x").producer(linger_ms=60_000)
        handle = producer.send(1)
        monkeypatch.setattr(producer, "_await", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    assert isinstance(handle.exception(0), hr.ProducerClosed)
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-producer-x"]


def test_handles_are_futures_like_any_other(stream: hr.Stream) -> None:
    with stream.producer() as producer:
        handles = [producer.send(number) for number in range(20)]
        assert {handle.result() for handle in as_completed(handles, 30)} == {handle.result() for handle in handles}
        assert wait([*handles, producer.send(20)], 30).not_done == set()


def test_offered_event_is_taken_only_where_there_is_room(stream: hr.Stream) -> None:
    with stream.producer(max_pending_bytes=1000, linger_ms=10_000) as producer:
        handles = [producer.offer({"n": n}) for n in range(5)]
        taken = [handle for handle in handles if handle is not None]
        assert 0 < len(taken) < 5
        producer.flush()
        assert producer.offer({"n": 5}) is not None
    assert len(everything(stream)) == len(taken) + 1
    with pytest.raises(hr.ProducerClosed):
        producer.offer({"n": 6})


def test_closing_for_a_while_fails_what_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with hr.Client(url) as client:
            producer = client.stream("never").producer(linger_ms=0)
            handle = producer.send({"n": 1})
            with pytest.raises(hr.OutcomeUnknown):
                producer.close(timeout=0.2)
            with pytest.raises(hr.OutcomeUnknown):
                handle.result(0)
