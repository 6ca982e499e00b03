"""The nouns that every layer speaks of."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import msgspec

from headrace.errors import BadRequest

JSON = "application/json"
OCTETS = "application/octet-stream"

#: What names begin with that only the server gives.
RESERVED = "__"

#: An integer that is never negative, as documents say it; it is not checked where a document is decoded.
NonNegativeInt = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0})]

#: Bytes, or a view of them where they were decoded, which is copied only into the answer.
Piece = bytes | memoryview

#: A setting that changes on the way: the event from which on a value holds, and the value; the first begins at 0.
Steps = tuple[tuple[int, int | None], ...]

#: The types of the fields of events and rows, which descriptors declare and expressions compute with.
FieldType: TypeAlias = Literal["str", "f64", "i64", "bool", "bytes", "datetime"]

#: The append time before the first entry: history of any age can follow it.
NEVER_US = -(2**62)
#: How much a time may be ahead of the clock.
MAX_AHEAD_US = 60_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_DURATION = re.compile(r"(?:(?:0|[1-9]\d{0,11})(?:ms|s|m|h|d))+", re.ASCII)
#: A hundred years; more than any event will be kept.
MAX_DURATION_MS = 100 * 366 * 86_400_000
_ONE_DURATION = re.compile(r"[1-9][0-9]{0,14}(?:ms|s|m|h|d)", re.ASCII)
_PART = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)

#: A text of so many digits is a date of ISO 8601 and no number: 2024, 2024122, 20240501, 20240501123000.
DATE_DIGITS = frozenset({4, 7, 8, 14})

_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class Clock(Protocol):
    """Where the time comes from."""

    def now_us(self) -> int:
        """Microseconds since 1970."""


class SystemClock:
    """The machine's own time."""

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000


@lru_cache(maxsize=64)
def media_type(content_type: str) -> str:
    """The part of a content type that counts: before the parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def json_fault(reason: Exception, text: bytes | str) -> str:
    """Why a text is not JSON; half of a surrogate pair is named, which decoders report in other words."""
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    lone = _lone_surrogate(body)
    if lone is None:
        return str(reason)
    return f"{lone[0].decode()} at byte {lone.start()} is half of a surrogate pair: write both halves, or \\ufffd"


def _lone_surrogate(body: bytes) -> re.Match[bytes] | None:
    high: re.Match[bytes] | None = None
    for escape in _ESCAPE.finditer(body):
        unit = 0 if escape[1] is None else int(escape[1], 16)
        is_low = 0xDC00 <= unit < 0xE000
        if high is not None and not (is_low and escape.start() == high.end()):
            return high
        if high is None and is_low:
            return escape
        high = escape if 0xD800 <= unit < 0xDC00 else None
    return high


def parse_duration_us(text: str, field: str) -> int:
    """``90s``, ``24h`` or ``1h30m`` in microseconds."""
    if not _DURATION.fullmatch(text):
        raise BadRequest(f"{field}: {text!r} is not a duration such as 15s, 30m or 24h", field=field)
    return sum(int(number) * _UNITS_US[unit] for number, unit in _PART.findall(text))


def parse_duration_ms(text: Any) -> int | None:
    """The milliseconds of a duration such as ``30m``; None for anything else."""
    if not isinstance(text, str) or _ONE_DURATION.fullmatch(text) is None or len(text) > 14:
        return None
    duration_ms = parse_duration_us(text, "duration") // 1000
    return duration_ms if duration_ms <= MAX_DURATION_MS else None


def format_duration(micros: int) -> str:
    """A duration in its largest whole unit; whole milliseconds in, the same duration out."""
    unit = next(unit for unit, size in reversed(_UNITS_US.items()) if micros % size == 0 or unit == "ms")
    return f"{micros // _UNITS_US[unit]}{unit}"


def parse_timestamp_us(text: str, field: str) -> int:
    """An RFC 3339 time (up to nine fraction digits) or Unix nanoseconds, in microseconds."""
    if text.isascii() and text.isdigit() and len(text) <= 20:
        if len(text) in DATE_DIGITS:
            message = "is a date without a zone, and no number of nanoseconds: write it as 2024-05-01T12:30:00Z"
            raise BadRequest(f"{field}: {text!r} {message}", field=field)
        return int(text) // 1000
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise BadRequest(f"{field}: {text!r} is neither RFC 3339 nor Unix nanoseconds", field=field)
    *calendar, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime(*(int(part) for part in calendar), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError as reason:
        raise BadRequest(f"{field}: {text!r}: {reason}", field=field) from reason
    micros = (moment - _EPOCH) // timedelta(microseconds=1) + int((fraction or "").ljust(6, "0")[:6])
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            raise BadRequest(f"{field}: {text!r} has no such time zone", field=field)
        shift = (int(hours) * 60 + int(minutes)) * 60_000_000
        micros += -shift if sign == "+" else shift
    return micros


def rfc3339(micros: int) -> str:
    """A moment as UTC text with microseconds, or without a fraction where it is zero."""
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return "9999-12-31T23:59:59.999999Z" if micros > 0 else "0001-01-01T00:00:00Z"
    return moment.isoformat().replace("+00:00", "Z")
