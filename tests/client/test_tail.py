"""A tail's state: what it hands out, and where it would go on."""

from __future__ import annotations

import base64
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.answers import Answer, Batch, read_stream_page
from headrace.client.errors import BadAnswer, Unreachable
from headrace.client.retry import Backoff
from headrace.client.tail import Reading, Tail
from headrace.errors import NotFound, OffsetGone, Unavailable

SSE = {"content-type": "text/event-stream"}


def following(content_type: str = "application/json", live: str = "sse") -> Tail:
    return Tail("x", "now", live, content_type=content_type, key=None, backoff=Backoff(60.0))  # type: ignore[arg-type]


def control(offset: str, **facts: object) -> bytes:
    return b"event: control\ndata:" + msgspec.json.encode({"streamNextOffset": offset, **facts}) + b"\n\n"


def data(payload: bytes) -> bytes:
    return b"event: data\ndata:" + payload + b"\n\n"


def test_tail_goes_on_from_the_last_control_event_when_cut_in_between() -> None:
    tail = following()
    tail.begin(200, SSE)
    (batch,) = tail.feed(data(b"[1]") + control("7", streamCursor="3") + data(b"[2]"))
    assert batch.items == [1]
    assert batch.next_offset == "7"
    assert tail.request().target == "/v1/stream/x?cursor=3&live=sse&offset=7"
    tail.begin(200, SSE)
    (batch,) = tail.feed(data(b"[2]") + control("8", upToDate=True))
    assert batch.items == [2]
    assert batch.up_to_date is True


def test_control_event_that_tells_nothing_new_is_not_handed_out() -> None:
    tail = following()
    tail.begin(200, SSE)
    assert len(tail.feed(control("7", upToDate=True))) == 1
    assert tail.feed(control("7", upToDate=True)) == []
    assert tail.finish() == []
    assert not tail.ended


def test_end_is_handed_out_even_when_it_is_empty() -> None:
    tail = following()
    tail.begin(200, SSE)
    tail.feed(control("7"))
    (batch,) = tail.feed(control("7", upToDate=True, streamClosed=True))
    assert batch.closed is True
    assert batch.items == []
    assert tail.ended is True


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.lists(st.integers(0, 2000), max_size=6))
def test_bytes_arrive_unharmed_in_base64(payloads: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(data(base64.b64encode(payload)) + control(str(number)) for number, payload in enumerate(payloads))
    tail = following("application/octet-stream")
    tail.begin(200, {**SSE, "stream-sse-data-encoding": "base64"})
    places = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    batches = [batch for start, end in pairwise(places) for batch in tail.feed(wire[start:end])]
    assert [batch.data for batch in batches] == payloads


def test_long_poll_hands_out_data_and_skips_what_only_timed_out() -> None:
    tail = following(live="long-poll")
    headers = {"content-type": "application/json", "stream-next-offset": "7", "stream-cursor": "5"}
    tail.begin(200, headers)
    tail.feed(b"[1,")
    tail.feed(b"2]")
    (batch,) = tail.finish()
    assert batch.items == [1, 2]
    assert tail.request().target == "/v1/stream/x?cursor=5&live=long-poll&offset=7&timeout=20s"
    tail.begin(204, headers)
    assert tail.finish() == []
    tail.begin(204, {**headers, "stream-closed": "true"})
    assert [batch.closed for batch in tail.finish()] == [True]


def test_long_poll_from_now_learns_where_it_stands_before_it_waits() -> None:
    tail = following(live="long-poll")
    assert tail.request().target == "/v1/stream/x?offset=now"
    tail.begin(200, {"content-type": "application/json", "stream-next-offset": "7", "stream-up-to-date": "true"})
    tail.feed(b"[]")
    assert [(batch.items, batch.next_offset) for batch in tail.finish()] == [([], "7")]
    assert tail.request().target == "/v1/stream/x?live=long-poll&offset=7&timeout=20s"


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_tail_of_the_newest_entries_reads_them_before_it_waits(live: str) -> None:
    tail = Tail("x", "now", live, content_type="application/json", key="k", backoff=Backoff(60.0), last=3)  # type: ignore[arg-type]
    assert tail.request().target == "/v1/stream/x?key=k&last=3"
    ends = {"stream-start-offset": "5", "stream-end-offset": "7", "stream-next-offset": "7"}
    tail.begin(200, {"content-type": "application/json", **ends})
    tail.feed(b"[5,6]")
    assert [(batch.items, batch.start_offset) for batch in tail.finish()] == [([5, 6], "5")]
    assert "live=" in tail.request().target and "offset=7" in tail.request().target
    assert "last" not in tail.request().target


def test_answer_of_a_server_that_has_no_newest_entries_is_refused() -> None:
    headers = {"content-type": "application/json", "stream-next-offset": "7", "stream-up-to-date": "true"}
    with pytest.raises(BadAnswer, match="older than this client"):
        Reading("x", "-1", last=3).accept(Answer(200, headers, b"[1,2,3,4,5,6,7]"))


def test_number_too_large_for_a_float_leaves_the_others_readable() -> None:
    batch = Batch(b'[{"a":1e999},{"a":-1e999},{"b":"\xc3\xa4"}]', "application/json", "7", True, False)
    assert batch.items == [{"a": float("inf")}, {"a": -float("inf")}, {"b": "ä"}]
    assert batch.raw_items[0] == b'{"a":1e999}'


def test_event_stream_that_ends_before_its_first_event_counts_as_lost() -> None:
    tail = following()
    tail.begin(200, SSE)
    with pytest.raises(Unreachable) as caught:
        tail.finish()
    assert tail.pause_s(caught.value) > 0


def test_only_passing_failures_are_waited_out() -> None:
    tail = following()
    tail.begin(503, {"retry-after": "4"})
    with pytest.raises(Unavailable) as busy:
        tail.finish()
    assert tail.pause_s(busy.value) >= 4
    tail.begin(410, {"stream-earliest-offset": "0009"})
    tail.feed(b'{"error": {"code": "offset_gone", "message": "gone"}}')
    with pytest.raises(OffsetGone) as gone:
        tail.finish()
    with pytest.raises(OffsetGone):
        tail.pause_s(gone.value)
    assert gone.value.facts == {"earliest_offset": "0009"}


@pytest.mark.parametrize("event", [data(b"!!!"), b"event: control\ndata:{}\n\n", b"event: control\ndata:[\n\n"])
def test_event_that_breaks_the_protocol_is_named(event: bytes) -> None:
    tail = following()
    tail.begin(200, {**SSE, "stream-sse-data-encoding": "base64"})
    with pytest.raises(BadAnswer):
        tail.feed(event)


@pytest.mark.parametrize(
    ("link", "after"),
    [
        ("", None),
        ('</v1/streams?prefix=a&after=b%20c&limit=1>; rel="next"', "b c"),
        ('<https://h/p?after=x>; rel="prev", </v1/streams?after=y>; rel=next', "y"),
    ],
)
def test_next_page_is_where_the_link_says(link: str, after: str | None) -> None:
    assert read_stream_page(Answer(200, {"link": link}, b'[{"name": "a"}]')).next_after == after


def test_body_that_is_not_the_promised_json_is_named() -> None:
    with pytest.raises(BadAnswer):
        read_stream_page(Answer(200, {}, b"<html>"))
    for body in (b"{", b"{}", b"[1e999", b"[1e999]]", b"\xff"):
        with pytest.raises(BadAnswer):
            _ = Batch(body, "application/json", "7", True, False).items
    with pytest.raises(NotFound):
        read_stream_page(Answer(404, {}, b""))
