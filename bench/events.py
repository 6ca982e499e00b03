"""The events that servers are given, each with a number in it.

A small one for everyone, one as small with a key and a trace, a large one for schemas, one of changing size for ingest,
one that tells of a request.
"""

from __future__ import annotations

import random
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
_KEYED = MARK + b'%010d","type":"viewed","user":"u-%06d","trace":"%016x","ref":"search","ms":12.5,"ok":true}'
_SCATTER, _TRACE_MASK = 0x9E3779B97F4A7C15, 2**64 - 1
_REQUEST = MARK + (
    b'%010d","timestamp":"2026-05-04T10:11:%02d.123Z","service":"checkout","environment":"production",'
    b'"requestId":"req-%010d","traceId":"%032x","method":"POST","path":"/api/orders/%03d","status":%d,'
    b'"duration":%d.5,"message":"order taken","user":{"plan":"pro","orders":17},"cart":{"items":3,"total":99.5}%s}'
)
_STATUSES = (200, 200, 200, 201, 200, 404, 200, 200, 200, 503)
_SECRET = b',"headers":{"authorization":"Bearer 0123456789abcdef"}'
_VARIED = MARK + b'%010d","type":"report","user":"u-%06d","ok":true,"text":"%s"}'
_LONGEST_TEXT = 1500
_TEXT = random.Random(5).randbytes(32_768).hex().encode()


def event(number: int) -> bytes:
    """The small event carrying this number, always the same size."""
    return b"{" + _SMALL % number


def large_event(number: int) -> bytes:
    """The event of 12 properties carrying this number; one in four leaves an optional one out."""
    referrer = b',"ref":"search"' if number % 4 else b""
    return b"{" + _LARGE % (number, number % 60, number % 100, _LEVELS[number % 3], referrer)


def keyed_event(number: int, key: int) -> bytes:
    """An event as large as the small one, with the user as its key and a trace that no other has."""
    return b"{" + _KEYED % (number, key, number * _SCATTER & _TRACE_MASK)


def traced_event(number: int) -> bytes:
    """The same with one of 100,000 users: it does not shrink to nothing when it is compressed."""
    return keyed_event(number, number * 48_271 % 100_000)


def request_log(number: int) -> bytes:
    """What an application logs of a request; one in ten holds a secret."""
    trace, secret = number * _SCATTER & _TRACE_MASK, b"" if number % 10 else _SECRET
    status = _STATUSES[number % len(_STATUSES)]
    facts = (number, number % 60, number, trace, number % 1000, status, number % 400, secret)
    return b"{" + _REQUEST % facts


def varied_event(number: int) -> bytes:
    """An event with a text in it that is new each time and up to 1,500 bytes long."""
    start = number * 7919 % (len(_TEXT) - _LONGEST_TEXT)
    return b"{" + _VARIED % (number, number % 1_000_000, _TEXT[start : start + number * 271 % _LONGEST_TEXT])


def key_name(key: int) -> str:
    """The key of events that were made with this number."""
    return f"u-{key:06d}"


EVENTS: dict[str, Callable[[int], bytes]] = {
    "small": event,
    "large": large_event,
    "traced": traced_event,
    "request": request_log,
}


def mark_of(number: int) -> bytes:
    """The bytes by which exactly this event is recognised."""
    return MARK + b"%010d" % number


def array(first: int, count: int, make: Callable[[int], bytes]) -> bytes:
    """A JSON array of `count` events numbered from `first`."""
    return b"[" + b",".join(make(first + n) for n in range(count)) + b"]"
