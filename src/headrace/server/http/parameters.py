"""Reading headers and query parameters of the stream protocol; every refusal names the field."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from headrace.engine.log.stream import Head, Producer, Stream
from headrace.errors import BadRequest
from headrace.format import offset as offsets
from headrace.format.offset import Offset
from headrace.types import parse_duration_us, parse_timestamp_us

MAX_PRODUCER = 2**53 - 1
MAX_SECONDS = 100 * 366 * 86_400
_SECONDS = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)
_INTEGER = re.compile(r"\d{1,16}", re.ASCII)
_ALIAS = re.compile(r"\d{16}_\d{16}", re.ASCII)
_MAX_TEXT = 1024


def text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    """A header's value as text, or None where it is absent."""
    raw = headers.get(name)
    if raw is None:
        return None
    try:
        value = raw.decode()
    except UnicodeDecodeError as reason:
        raise BadRequest(f"{header_title(name)} is not UTF-8", field=header_title(name)) from reason
    if len(value) > _MAX_TEXT:
        raise BadRequest(f"{header_title(name)} is longer than {_MAX_TEXT} characters", field=header_title(name))
    return value


def closes(headers: dict[bytes, bytes]) -> bool:
    """Whether ``Stream-Closed`` is true, in any letter case."""
    raw = headers.get(b"stream-closed")
    return raw is not None and raw.strip().lower() == b"true"


def ttl_s(headers: dict[bytes, bytes]) -> int | None:
    """``Stream-TTL``: whole seconds, or a duration of whole seconds."""
    value = text(headers, b"stream-ttl")
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        seconds = int(value)
    else:
        micros = parse_duration_us(value, "Stream-TTL")
        if micros % 1_000_000:
            raise BadRequest("Stream-TTL is not a whole number of seconds", field="Stream-TTL")
        seconds = micros // 1_000_000
    if seconds > MAX_SECONDS:
        raise BadRequest("Stream-TTL is longer than a century", field="Stream-TTL")
    return seconds


def timestamp_us(headers: dict[bytes, bytes], name: bytes) -> int | None:
    """A header that holds a timestamp."""
    value = text(headers, name)
    return None if value is None else parse_timestamp_us(value.strip(), header_title(name))


def retention(headers: dict[bytes, bytes]) -> tuple[int | None, int | None]:
    """``Stream-Retention-Age`` in microseconds and ``Stream-Retention-Bytes``."""
    age, size = text(headers, b"stream-retention-age"), text(headers, b"stream-retention-bytes")
    return (
        None if age is None else retention_age_us(age, "Stream-Retention-Age"),
        None if size is None else non_negative_integer(size, "Stream-Retention-Bytes"),
    )


def retention_age_us(value: str, field: str) -> int:
    """A retention age: a positive duration of at most a century."""
    micros = parse_duration_us(value, field)
    if not 0 < micros <= MAX_SECONDS * 1_000_000:
        raise BadRequest(f"{field} lies between 1ms and a century", field=field)
    return micros


def non_negative_integer(value: str, field: str) -> int:
    """A non-negative decimal number."""
    if not _SECONDS.fullmatch(value):
        raise BadRequest(f"{field}: {value!r} is not a whole number", field=field)
    return int(value)


def producer(headers: dict[bytes, bytes]) -> Producer | None:
    """The producer triple: all three headers or none."""
    name = text(headers, b"producer-id")
    epoch, seq = text(headers, b"producer-epoch"), text(headers, b"producer-seq")
    if name is None and epoch is None and seq is None:
        return None
    if name is None or epoch is None or seq is None:
        raise BadRequest("Producer-Id, Producer-Epoch and Producer-Seq go together", field="Producer-Id")
    if not name.strip():
        raise BadRequest("Producer-Id is empty", field="Producer-Id")
    return name, _counter(epoch, "Producer-Epoch"), _counter(seq, "Producer-Seq")


def stream_seq(headers: dict[bytes, bytes]) -> str | None:
    """``Stream-Seq``: any non-empty text."""
    value = text(headers, b"stream-seq")
    if value is not None and not value.strip():
        raise BadRequest("Stream-Seq is empty", field="Stream-Seq")
    return value


def offset(value: str, field: str = "offset") -> Offset:
    """An offset as it stands in a request; ``-1`` is the start."""
    if value == "-1":
        return Offset(0, 0)
    try:
        return offsets.decode(value)
    except ValueError as reason:
        raise BadRequest(f"{field}: {reason}", field=field) from reason


def fork_offset(value: str, stream: Stream, head: Head) -> int:
    """The position of ``Stream-Fork-Offset``, which must lie within its source as readers may see it."""
    if _ALIAS.fullmatch(value):
        # The public protocol tests write positions in this older form; only the start can be told apart.
        if value.strip("0_"):
            raise BadRequest("Stream-Fork-Offset lies beyond the source's tail", field="Stream-Fork-Offset")
        return head.first_seq
    parsed = offset(value, "Stream-Fork-Offset")
    position = stream.locate(parsed, head)
    if parsed.position > head.next_seq:
        raise BadRequest("Stream-Fork-Offset lies beyond the source's tail", field="Stream-Fork-Offset")
    return position


def query(raw: bytes, lists: Collection[str] = ()) -> dict[str, str]:
    """Query parameters; one that is given twice is refused, but for lists, which are joined by commas."""
    if not raw:
        return {}
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except (UnicodeDecodeError, ValueError) as reason:
        raise BadRequest(f"the query string cannot be read: {reason}", field="query") from reason
    for name in lists:
        values = [value for key, value in pairs if key == name]
        pairs = [pair for pair in pairs if pair[0] != name] + ([(name, ",".join(values))] if values else [])
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRequest(f"{twice} is given more than once", field=twice)
    return parameters


def wait_s(parameters: dict[str, str], default: float, max_s: float) -> float:
    """How long a long-poll waits: ``timeout`` (milliseconds or a duration) or ``timeout_ms``."""
    value = parameters.get("timeout", parameters.get("timeout_ms"))
    if value is None:
        return default
    if _SECONDS.fullmatch(value):
        return min(int(value) / 1000, max_s)
    return min(parse_duration_us(value, "timeout") / 1_000_000, max_s)


def _counter(value: str, field: str) -> int:
    if not _INTEGER.fullmatch(value) or int(value) > MAX_PRODUCER:
        raise BadRequest(f"{field}: {value!r} is not an integer from 0 to 2^53-1", field=field)
    return int(value)


def header_title(name: bytes) -> str:
    """The name of a header in its usual capitals."""
    return "-".join("TTL" if part == "ttl" else part.capitalize() for part in name.decode().split("-"))
