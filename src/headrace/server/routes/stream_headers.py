"""Parameters of streams and headers of answers about them, as several routes declare them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from headrace import errors
from headrace.engine.log.stream import Stream
from headrace.server.http.exchange import Headers
from headrace.server.http.route import Body, Header, in_header, in_path
from headrace.server.http.wire import AnyOffset, Binary, Counter, Digits, IsTrue, Moment, NonNegative, Offset
from headrace.types import format_duration, rfc3339

StreamName = Annotated[
    str,
    Meta(
        extra_json_schema={"minLength": 1, "maxLength": 512, "pattern": r"^[^\x00-\x1f\x7f]+$"},
        examples=["orders"],
    ),
]
NAME = in_path("name", StreamName, "the stream's name; its slashes may be written as they are")

NEXT = Header("Stream-Next-Offset", Offset, "where to read on")
END = Header("Stream-End-Offset", Offset, "the end of the stream")
FIRST = Header("Stream-Start-Offset", AnyOffset, "with last: where the answer begins")
CLOSED = Header("Stream-Closed", IsTrue, "the stream is closed, and this is its end")
EXPIRES = Header("Stream-Expires-At", str, "when the stream is gone")
TTL = Header("Stream-TTL", NonNegative, "the sliding window in seconds")
RETENTION = (
    Header("Stream-Retention-Age", str, "how long entries are kept"),
    Header("Stream-Retention-Bytes", Digits, "how much is kept"),
)
UP_TO_DATE = Header("Stream-Up-To-Date", IsTrue, "the answer reaches the end")
CURSOR = Header("Stream-Cursor", str, "to be sent back with the next live read")
LOCATION = Header("Location", str, "the stream's address")
ETAG = Header("ETag", str, "names this slice")
PRODUCED = (
    Header("Producer-Epoch", Counter, "the producer's epoch"),
    Header("Producer-Seq", Counter, "the highest sequence number accepted"),
)

Name = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 1024})]
_Key = Annotated[str, Meta(extra_json_schema={"maxLength": 1024})]
CLOSING = in_header("Stream-Closed", str, "`true` closes the stream; anything else is as if absent")
KEYING = in_header("Stream-Key", _Key, "the key of the entries")
WRITTEN_AT = in_header("Stream-Timestamp", Moment, "append time; raised to that of the last entry")

#: What may be appended; empty where nothing but the stream is created or closed.
ENTRIES = Body(
    doc="entries; the body may be encoded as gzip or zstd",
    required=False,
    media={"application/json": Any, "application/octet-stream": Binary, "text/plain": str},
)
#: How a request about a stream that is not there fails.
NOT_THERE = (errors.NotFound, errors.Gone)
#: How a request with a body that cannot be taken fails.
BAD_BODY = (errors.TooLarge, errors.UnsupportedMedia)


def describe(stream: Stream) -> Headers:
    """The headers that describe the state of a stream."""
    head = stream.head
    offset = stream.offset_at(head.next_seq)
    headers = {"content-type": stream.content_type, "stream-next-offset": offset, "stream-end-offset": offset}
    if head.closed:
        headers["stream-closed"] = "true"
    if stream.ttl_s is not None:
        headers["stream-ttl"] = str(stream.ttl_s)
    if stream.deadline_us is not None:
        headers["stream-expires-at"] = rfc3339(stream.deadline_us)
    if stream.retention_age_us is not None:
        headers["stream-retention-age"] = format_duration(stream.retention_age_us)
    if stream.retention_bytes is not None:
        headers["stream-retention-bytes"] = str(stream.retention_bytes)
    return headers
