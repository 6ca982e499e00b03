"""The event every server is given: 115 bytes of JSON with a number in it."""

from __future__ import annotations

EVENT_BYTES = 115
MARK = b'"id":"'

_TEMPLATE = MARK + (
    b'%010d","type":"page_view","user":"u-471","path":"/catalogue/rivers","ref":"search","ms":12.5,"ok":true}'
)


def event(number: int) -> bytes:
    """One event carrying this number, always the same size."""
    return b"{" + _TEMPLATE % number


def mark_of(number: int) -> bytes:
    """The bytes by which exactly this event is recognised."""
    return MARK + b"%010d" % number


def array(first: int, count: int) -> bytes:
    """A JSON array of `count` events numbered from `first`."""
    return b"[" + b",".join(event(first + n) for n in range(count)) + b"]"
