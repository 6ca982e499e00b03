"""The events that servers are given, each with a number in it: a small one for everyone, a large one for schemas."""

from __future__ import annotations

from collections.abc import Callable

EVENT_BYTES = 115
MARK = b'"id":"'

_SMALL = MARK + (
    b'%010d","type":"page_view","user":"u-471","path":"/catalogue/rivers","ref":"search","ms":12.5,"ok":true}'
)
_LARGE = MARK + (
    b'%010d","at":"2026-05-04T10:11:%02d.123Z","type":"page_view","user":"u-471","session":"s-90210",'
    b'"path":"/catalogue/rivers/%02d","status":200,"ms":12.5,"ok":true,"level":"%s",'
    b'"place":{"country":"NO","city":"Odda","altitude":3}%s}'
)
_LEVELS = (b"low", b"normal", b"high")


def event(number: int) -> bytes:
    """The small event carrying this number, always the same size."""
    return b"{" + _SMALL % number


def large_event(number: int) -> bytes:
    """The event of 12 properties carrying this number; one in four leaves an optional one out."""
    referrer = b',"ref":"search"' if number % 4 else b""
    return b"{" + _LARGE % (number, number % 60, number % 100, _LEVELS[number % 3], referrer)


EVENTS: dict[str, Callable[[int], bytes]] = {"small": event, "large": large_event}


def mark_of(number: int) -> bytes:
    """The bytes by which exactly this event is recognised."""
    return MARK + b"%010d" % number


def array(first: int, count: int, make: Callable[[int], bytes]) -> bytes:
    """A JSON array of `count` events numbered from `first`."""
    return b"[" + b",".join(make(first + n) for n in range(count)) + b"]"
