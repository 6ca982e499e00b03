"""The blocking client against a real server process."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

import msgspec
import numpy as np
import pandas as pd
import pytest

import headrace as hr
from headrace.client.answers import SealResult
from headrace.errors import (
    BadRequest,
    Conflict,
    Gone,
    NotFound,
    PreconditionFailed,
    StreamClosed,
    Unauthorized,
)
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from tests.client.conftest import Line
    from tests.conftest import ServerProcess, StartServer

LIVE = pytest.mark.parametrize("live", ["sse", "long-poll"])


def everything(stream: hr.Stream, *arguments: Any, **options: Any) -> list[Any]:
    return [item for batch in stream.read(*arguments, **options) for item in batch.items]


@pytest.fixture
def stream(client: hr.Client, name: str) -> hr.Stream:
    stream = client.stream(name)
    stream.create()
    return stream


def test_stream_is_new_only_when_first_created(client: hr.Client, name: str) -> None:
    assert client.stream(name).create().created
    again = client.stream(name).create()
    assert not again.created
    assert again.content_type == "application/json"


def test_stream_in_another_form_is_refused_when_the_name_is_taken(stream: hr.Stream) -> None:
    with pytest.raises(Conflict):
        stream.create(content_type="text/plain")


def test_what_is_appended_is_read_in_order(stream: hr.Stream) -> None:
    first = stream.append({"n": 1})
    last = stream.append([{"n": 2}, {"n": 3}, [4]])
    assert everything(stream) == [{"n": 1}, {"n": 2}, {"n": 3}, [4]]
    assert everything(stream, first.next_offset) == [{"n": 2}, {"n": 3}, [4]]
    assert stream.info().next_offset == last.next_offset


def test_large_stream_is_read_in_batches_that_end_at_the_tail(stream: hr.Stream) -> None:
    for part in range(5):
        stream.append(["x" * 1000 + str(part * 500 + place) for place in range(500)])
    batches = list(stream.read())
    assert len(batches) > 1
    assert [batch.up_to_date for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert sum(len(batch.items) for batch in batches) == 2500
    assert everything(stream, batches[0].next_offset) == [item for batch in batches[1:] for item in batch.items]


def test_newest_entries_are_read_alone_and_backward(stream: hr.Stream) -> None:
    stream.append([1, 2, 3])
    stream.append([4, 5])
    (newest,) = stream.read(last=2)
    assert (newest.items, newest.up_to_date) == ([4, 5], True)
    assert newest.start_offset is not None
    assert everything(stream, newest.start_offset) == [4, 5]
    (older,) = stream.read(last=2, before=newest.start_offset)
    assert (older.items, older.up_to_date, older.next_offset) == ([2, 3], False, newest.start_offset)
    assert everything(stream, before=older.start_offset) == [1]
    with pytest.raises(BadRequest, match="last"):
        list(stream.read("now", last=2))
    with pytest.raises(BadRequest, match="last"):
        list(stream.read(last=0))


def test_newest_entries_in_several_pages_are_no_more_than_were_asked_for(stream: hr.Stream) -> None:
    stream.append(["x" * 1000 + str(place) for place in range(3000)])
    read: list[Any] = []
    for batch in stream.read(last=2500):
        read += batch.items
        stream.append("came later")
    assert read == ["x" * 1000 + str(place) for place in range(500, 3000)]


def test_raw_items_are_the_bytes_that_were_appended(stream: hr.Stream) -> None:
    stream.append(b'[{"a" : 1.50}, 12345678901234567890]')
    (batch,) = stream.read()
    assert batch.raw_items == [b'{"a" : 1.50}', b"12345678901234567890"]


def test_bytes_and_text_go_as_they_are_when_the_stream_is_not_json(client: hr.Client, name: str) -> None:
    client.stream(name).create(content_type="text/plain")
    other = client.stream(name)
    other.append(b"one ")
    other.append("zwölf")
    assert everything(other) == ["one zwölf".encode()]
    with pytest.raises(TypeError):
        other.append({"n": 1})


def test_first_content_and_the_end_come_with_create(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create(body=[1, 2], closed=True)
    (batch,) = stream.read()
    assert batch.items == [1, 2]
    assert batch.closed is True


def test_events_are_found_by_key_and_time(stream: hr.Stream) -> None:
    start = datetime.now(UTC) - timedelta(hours=2)
    stream.append([1, 2], key="a", timestamp=start)
    stream.append([3], key="b", timestamp=start + timedelta(hours=1))
    assert everything(stream, key="a") == [1, 2]
    assert everything(stream, since=start + timedelta(minutes=1)) == [3]


def test_append_is_refused_when_the_tail_has_moved(stream: hr.Stream) -> None:
    tail = stream.append(1).next_offset
    stream.append(2, if_match=tail)
    with pytest.raises(PreconditionFailed) as caught:
        stream.append(3, if_match=tail)
    assert caught.value.facts["next_offset"] == stream.info().next_offset
    assert everything(stream) == [1, 2]


def test_append_is_refused_when_its_sequence_does_not_increase(stream: hr.Stream) -> None:
    stream.append(1, seq="b")
    with pytest.raises(Conflict):
        stream.append(2, seq="a")


def test_closed_stream_takes_nothing_more(stream: hr.Stream) -> None:
    stream.append(1, close=True)
    assert stream.info().closed
    with pytest.raises(StreamClosed):
        stream.append(2)
    assert stream.close().closed


def test_missing_stream_is_not_found_by_any_verb(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    for verb in (stream.info, stream.delete, stream.close, lambda: stream.append(1), lambda: list(stream.read())):
        with pytest.raises(NotFound):
            verb()


def test_deleted_stream_is_gone_from_the_list(client: hr.Client, stream: hr.Stream) -> None:
    assert [found["name"] for found in client.streams(prefix=stream.name)] == [stream.name]
    stream.delete()
    assert list(client.streams(prefix=stream.name)) == []
    with pytest.raises((NotFound, Gone)):
        stream.info()


def test_list_goes_through_all_pages(client: hr.Client, name: str) -> None:
    wanted = [f"{name}/ä &{number:02}" for number in range(7)]
    for each in wanted:
        client.stream(each).create()
    assert [found["name"] for found in client.streams(prefix=f"{name}/", limit=3)] == wanted
    after = client.streams(prefix=f"{name}/", after=wanted[4], limit=1)
    assert [found["name"] for found in after] == wanted[5:]


def test_fork_shares_the_past_and_lives_alone(client: hr.Client, stream: hr.Stream, name: str) -> None:
    middle = stream.append([1, 2]).next_offset
    stream.append(3)
    fork = stream.fork(f"{name}/fork", fork_offset=middle)
    fork.append("own")
    assert everything(fork) == [1, 2, "own"]
    assert everything(stream) == [1, 2, 3]


def test_time_to_live_is_told_back(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create(ttl=timedelta(hours=1), retention_age=timedelta(days=1), retention_bytes=10_000)
    assert stream.info().ttl_s == 3600


def test_name_with_steps_in_it_leads_to_no_other_stream(client: hr.Client, stream: hr.Stream) -> None:
    first, last = stream.name.split("/")
    for name in (
        f"{first}/x/../{last}",
        f"{first}/./{last}",
        f"{first}//{last}",
        f"{stream.name}/",
        f"/{stream.name}",
        "",
    ):
        for verb in (client.stream(name).delete, client.stream(name).info, client.stream(name).close):
            with pytest.raises(BadRequest, match=r"no empty, '\.' or '\.\.' segments"):
                verb()
    with pytest.raises(BadRequest, match="segments"):
        stream.fork("../x")
    assert not stream.info().closed


def test_name_of_a_resource_is_no_way_to_it(client: hr.Client, stream: hr.Stream) -> None:
    resource = client.stream(f"{stream.name}/_retention")
    with pytest.raises(NotFound):
        resource.append({"age": "1d"})
    with pytest.raises(BadRequest, match="reserved"):
        resource.create()
    close = client.stream(f"{stream.name}/_own")
    close.create(body=[1])
    assert everything(close) == [1]
    assert everything(close.fork(f"{stream.name}/_fork")) == [1]


def test_bad_offset_is_a_bad_request(stream: hr.Stream) -> None:
    with pytest.raises(BadRequest) as caught:
        list(stream.read("nonsense"))
    assert caught.value.facts["field"] == "offset"


@pytest.mark.parametrize("odd", ["a b", "ü/é", "100%", "q?x=1", "#h", "semi;colon+plus"])
def test_odd_names_and_keys_travel_whole(client: hr.Client, name: str, odd: str) -> None:
    stream = client.stream(f"{name}/{odd}")
    stream.create()
    stream.append("it", key=odd)
    assert everything(stream, key=odd) == ["it"]
    assert [found["name"] for found in client.streams(prefix=name)] == [stream.name]


def test_wrong_key_is_unauthorized(start_server: StartServer, tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    with closing(KeyStore(tmp_path / "data" / "keys.db")) as keys:
        keys.create(user_id="ada", scopes=["read"])
    url = start_server().url
    with hr.Client(url, key="hr_no_such") as stranger, pytest.raises(Unauthorized):
        stranger.stream(name).create()


def test_absent_server_is_unreachable() -> None:
    with hr.Client("http://127.0.0.1:1", retry_for=0) as client, pytest.raises(hr.Unreachable) as caught:
        client.stream("x").info()
    assert not caught.value.sent


@pytest.mark.parametrize("url", ["", "127.0.0.1:4437", "ftp://x", "http://"])
def test_address_without_a_server_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError):
        hr.Client(url)


@LIVE
def test_tail_sees_the_past_the_present_and_the_end(stream: hr.Stream, live: Any) -> None:
    stream.append([1, 2])
    tail = stream.tail("-1", live=live)
    assert next(tail).items == [1, 2]
    stream.append(3)
    assert next(tail).items == [3]
    stream.append([4], close=True)
    rest = list(tail)
    assert [item for batch in rest for item in batch.items] == [4]
    assert rest[-1].closed


@LIVE
def test_tail_begins_with_the_newest_entries(stream: hr.Stream, live: Any) -> None:
    offset = stream.append([1, 2, 3]).next_offset
    tail = stream.tail(live=live, last=2)
    assert next(tail).items == [2, 3]
    stream.append([4], close=True)
    assert [item for batch in tail for item in batch.items] == [4]
    with pytest.raises(BadRequest, match="last"):
        next(stream.tail(offset, live=live, last=2))


@LIVE
def test_tail_from_now_tells_first_where_it_stands(stream: hr.Stream, live: Any) -> None:
    offset = stream.append([1, 2]).next_offset
    tail = stream.tail(live=live)
    first = next(tail)
    assert first.items == []
    assert first.next_offset == offset
    assert first.up_to_date is True
    stream.append(3)
    assert next(tail).items == [3]


@LIVE
@pytest.mark.parametrize("data", [b"\x00\xff\r\n", b" text\n\n\xc3\xa4 "])
def test_tail_brings_bytes_unharmed(client: hr.Client, name: str, live: Any, data: bytes) -> None:
    stream = client.stream(name)
    stream.create(content_type="application/octet-stream")
    stream.append(data, close=True)
    batches = list(client.stream(name).tail("-1", live=live))
    assert b"".join(batch.data for batch in batches) == data


@LIVE
def test_tail_goes_on_where_it_was_when_the_line_is_cut(client: hr.Client, line: Line, name: str, live: Any) -> None:
    stream = client.stream(name)
    stream.create(body=[0, 1])
    seen: list[int] = []
    with hr.Client(line.url) as follower:
        for batch in follower.stream(name).tail("-1", live=live):
            seen += batch.items
            if len(seen) < 30:
                stream.append([len(seen), len(seen) + 1])
                line.cut()
            elif not batch.closed:
                stream.close()
    assert seen == list(range(30))


@LIVE
def test_tail_from_now_misses_nothing_when_its_first_line_is_cut(
    client: hr.Client, line: Line, stream: hr.Stream, live: Any
) -> None:
    with hr.Client(line.url) as follower, closing(follower.stream(stream.name).tail(live=live)) as tail:
        next(tail)
        line.cut()
        stream.append(1)
        assert next(tail).items == [1]


def test_closed_client_says_so(client: hr.Client, stream: hr.Stream) -> None:
    tail = stream.tail()
    next(tail)
    client.close()
    for use in (stream.info, lambda: stream.append(1), lambda: next(tail), lambda: list(stream.read())):
        with pytest.raises(hr.ClientError, match="closed"):
            use()


@LIVE
def test_closing_a_client_ends_its_tails_at_once(server: ServerProcess, stream: hr.Stream, live: Any) -> None:
    caught: list[BaseException] = []

    def follow(tail: Iterator[hr.Batch]) -> None:
        try:
            next(tail)
        except hr.ClientError as error:
            caught.append(error)

    with hr.Client(server.url) as follower:
        tail = follower.stream(stream.name).tail(live=live)
        next(tail)
        waiting = threading.Thread(target=follow, args=(tail,))
        waiting.start()
    waiting.join(10)
    assert [str(error) for error in caught] == ["the client is closed: make another"]


def test_tails_can_be_closed_by_their_type() -> None:
    assert get_origin(get_type_hints(hr.Stream.tail)["return"]) is Generator
    assert get_origin(get_type_hints(hr.AsyncStream.tail)["return"]) is AsyncGenerator


@pytest.mark.parametrize("data", [b"one\r\ntwo\rthree\n", b" led\n\n", b"\xff\r", b"\xef\xbb\xbfmark"])
def test_tail_keeps_every_byte_of_text(client: hr.Client, name: str, data: bytes) -> None:
    stream = client.stream(name)
    stream.create(content_type="text/plain")
    stream.append(data)
    assert next(iter(stream.tail("-1"))).data == data


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_is_refused_and_not_made_null(stream: hr.Stream, number: float) -> None:
    for value in (number, {"a": [None, number]}, [{"b": (1, number)}]):
        with pytest.raises(ValueError, match="JSON does not have"):
            stream.append(value)
    with stream.producer() as producer, pytest.raises(ValueError, match="JSON does not have"):
        producer.send({"a": number})
    stream.append([None, {"a": None}, msgspec.Raw(b"null"), "nan"])
    assert [batch.items for batch in stream.read()] == [[None, {"a": None}, None, "nan"]]


def test_tail_gives_up_when_the_server_stays_away(start_server: StartServer) -> None:
    server = start_server()
    with hr.Client(server.url, retry_for=0.3) as client:
        stream = client.stream("x")
        stream.create()
        tail = stream.tail()
        next(tail)
        server.kill()
        with pytest.raises(hr.Unreachable):
            next(tail)


def test_request_waits_for_a_server_that_comes_back(start_server: StartServer) -> None:
    server = start_server()
    port = server.url.rpartition(":")[2]
    with hr.Client(server.url, retry_for=20) as client:
        client.stream("x").create(body=[1])
        server.stop()
        back = threading.Thread(target=start_server, kwargs={"server__port": port})
        back.start()
        assert everything(client.stream("x")) == [1]
        back.join()


def test_plain_append_is_not_repeated_when_its_answer_is_lost(line: Line, client: hr.Client, name: str) -> None:
    client.stream(name).create()
    with hr.Client(line.url) as unlucky:
        line.lose_answers(1)
        with pytest.raises(hr.Unreachable) as caught:
            unlucky.stream(name).append(1)
    assert caught.value.sent
    assert everything(client.stream(name)) == [1]


def test_deletion_succeeds_when_its_answer_is_lost_and_the_next_one_fails(
    line: Line, client: hr.Client, name: str
) -> None:
    client.stream(name).create(body=[1])
    with hr.Client(line.url) as unlucky:
        line.lose_answers(1)
        unlucky.stream(name).delete()
        assert line.lost == 1
        with pytest.raises(NotFound):
            unlucky.stream(name).delete()
        client.stream(name).create(body=[1])
        client.stream(name).fork(f"{name}/fork")
        line.lose_answers(1)
        unlucky.stream(name).delete()
        assert line.lost == 2
    with pytest.raises(Gone):
        client.stream(name).info()


def test_read_is_repeated_when_its_answer_is_lost(line: Line, client: hr.Client, name: str) -> None:
    client.stream(name).create(body=[1, 2])
    with hr.Client(line.url) as unlucky:
        line.lose_answers(2)
        assert everything(unlucky.stream(name)) == [1, 2]
    assert line.lost == 2


def test_sealed_stream_is_published_up_to_its_end(stream: hr.Stream) -> None:
    end = stream.append([1, 2, 3]).next_offset
    result = stream.seal()
    assert (result.state, result.sealed_entries) == ("sealed", 3)
    assert result.published_offset == result.end_offset == end
    assert stream.seal(wait=False).state == "nothing_to_seal"
    assert everything(stream) == [1, 2, 3]


def test_waiting_for_a_seal_ends_where_the_stream_ended_at_first() -> None:
    first = SealResult("s", "sealing", 2, published_offset="2", end_offset="5", trouble="away")
    later = SealResult("s", "sealing", 1, published_offset="3", end_offset="9", trouble="away")
    assert later.after(first) == SealResult("s", "sealing", 3, published_offset="3", end_offset="5", trouble="away")
    last = SealResult("s", "sealing", 4, published_offset="7", end_offset="9", trouble="away")
    assert last.after(later.after(first)) == SealResult("s", "sealed", 7, published_offset="5", end_offset="5")


def test_values_of_numpy_and_pandas_are_taken_wherever_values_are(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create(ttl=np.int64(3600), retention_bytes=np.int64(10**6))
    event = {"n": np.int64(1), "at": pd.Timestamp("2026-11-15T10:00:00.123456789Z"), "x": np.array([1.5])}
    stream.append(event, key=np.str_("a"), timestamp=np.datetime64("2026-11-15T10:00:00"))
    stream.append([event, {"d": Decimal("1.10")}], timestamp=pd.Timestamp("2026-11-16", tz="UTC"))
    with stream.producer() as producer:
        producer.send(event)
        with pytest.raises(TypeError, match="field 'n': object cannot be JSON"):
            producer.send({"n": object()})
    with pytest.raises(TypeError, match="row 1, field 'n': object cannot be JSON"):
        stream.append([{}, {"n": object()}])
    plain = {"n": 1, "at": "2026-11-15T10:00:00.123456789Z", "x": [1.5]}
    assert stream.read().rows() == [plain, plain, {"d": 1.1}, plain]
    assert len(stream.read(since=np.datetime64("2026-11-16")).rows()) == 3
    assert len(stream.read(since=date(2026, 11, 16), key=np.str_("a")).rows()) == 0
    assert stream.info().ttl_s == 3600
