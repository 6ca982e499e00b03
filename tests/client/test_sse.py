"""The event-stream parser: the same events however the bytes were cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.errors import BadAnswer
from headrace.client.tail import SseEvent, SseParser

NAMES = st.sampled_from(["data", "control", "message"])
LINES = st.binary(max_size=20).map(lambda line: line.replace(b"\r", b"").replace(b"\n", b""))
EVENTS = st.lists(st.builds(SseEvent, NAMES, st.lists(LINES, min_size=1, max_size=4).map(b"\n".join)), max_size=6)
BREAKS = st.sampled_from([b"\n", b"\r", b"\r\n"])


def encoded(events: list[SseEvent], line_break: bytes, spaced: bool) -> bytes:
    """The server's side: a space before the data only where it is needed or wanted."""
    lines = []
    for event in events:
        lines += [b": a comment", b"event: " + event.name.encode()]
        for line in event.data.split(b"\n"):
            lines.append(b"data:" + (b" " if spaced or line.startswith(b" ") else b"") + line)
        lines += [b"id: 7", b"retry", b""]
    return b"".join(line + line_break for line in lines)


def parsed(data: bytes, cuts: list[int]) -> list[SseEvent]:
    parser, places = SseParser(), [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [event for start, end in itertools.pairwise(places) for event in parser.feed(data[start:end])]


@given(EVENTS, BREAKS, st.booleans(), st.lists(st.integers(0, 5000), max_size=12))
def test_events_are_the_same_wherever_the_chunks_end(
    events: list[SseEvent], line_break: bytes, spaced: bool, cuts: list[int]
) -> None:
    assert parsed(encoded(events, line_break, spaced), cuts) == events


@given(EVENTS, BREAKS)
def test_events_are_the_same_byte_by_byte(events: list[SseEvent], line_break: bytes) -> None:
    data = encoded(events, line_break, spaced=False)
    assert parsed(data, list(range(len(data)))) == events


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_noise_is_read_alike_wherever_the_chunks_end(noise: bytes, cuts: list[int]) -> None:
    assert parsed(noise, cuts) == parsed(noise, [])


def test_event_ends_with_a_bare_carriage_return_without_waiting_for_more() -> None:
    assert SseParser().feed(b"data:x\r\r") == [SseEvent("message", b"x")]


def test_event_that_is_incomplete_at_the_end_is_no_event() -> None:
    assert SseParser().feed(b"event: data\ndata:half\n") == []


def test_event_without_a_data_line_is_dropped_and_its_name_forgotten() -> None:
    assert SseParser().feed(b"event: control\n\ndata:x\n\n") == [SseEvent("message", b"x")]


def test_byte_order_mark_is_skipped_at_the_start() -> None:
    assert SseParser().feed(b"\xef\xbb\xbfdata:x\n\n") == [SseEvent("message", b"x")]


@pytest.mark.parametrize("line", [b"data:" + b"x" * 200, b"data:x\n" * 60])
def test_event_over_the_limit_is_refused_before_it_is_held(line: bytes) -> None:
    with pytest.raises(BadAnswer):
        SseParser(max_event_bytes=100).feed(line)
