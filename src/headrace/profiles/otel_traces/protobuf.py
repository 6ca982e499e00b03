"""OTLP exports in protobuf: as much of the wire format as they need, read and written by hand.

No dependency of the server reads protobuf, and what is needed is small: fields, varints, and the values of attributes,
which are bounded while they are read.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

from headrace.profiles.otel_traces.rules import OtlpLimits

Element = TypeVar("Element")

#: Replaces a value that is nested too deeply.
NESTED = "[NESTED]"


class ValueLimits:
    """How deep and how long values may be; counts what was cut."""

    def __init__(self, limits: OtlpLimits) -> None:
        self.depth = limits.max_any_value_depth
        self.elements = limits.max_array_values_per_any_value
        self.members = limits.max_kv_list_values_per_any_value
        self.cuts = 0

    def cut(self, mark: str) -> str:
        """Count a value that is left out; the mark replaces it."""
        self.cuts += 1
        return mark

    def truncate(self, elements: list[Element], limit: int) -> list[Element]:
        """The first elements, up to a limit; the others are counted."""
        if len(elements) > limit:
            self.cuts += len(elements) - limit
            return elements[:limit]
        return elements


def finite(number: float) -> Any:
    """A number, or the text of one that JSON cannot represent."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


#: The value of a field: a number, or the bytes of whatever has a length.
Value = Any

_DOUBLE, _FIXED64, _FIXED32 = struct.Struct("<d"), struct.Struct("<Q"), struct.Struct("<I")
_SIGN, _WRAP = 1 << 63, 1 << 64
_MAX_VARINT_BYTES = 10


class Malformed(ValueError):
    """These bytes are no such message."""


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message, in their order: number and value."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: Value
        if kind == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind == 0:
            value, at = _varint(data, at)
        elif kind == 1:
            value, at = data[at : at + 8], at + 8
        elif kind == 5:
            value, at = data[at : at + 4], at + 4
        else:
            raise Malformed(f"wire type {kind} is not spoken")
        if at > end or not number:
            raise Malformed("the message ends early, or has a field without a number")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value = shift = 0
        for position in range(at, at + _MAX_VARINT_BYTES):
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (_WRAP - 1), position + 1
            shift += 7
    except IndexError as reason:
        raise Malformed("the message ends within a number") from reason
    raise Malformed("a number is too long")


def text(value: Value) -> str:
    """A string."""
    try:
        return str(value, "utf-8")
    except (UnicodeDecodeError, TypeError) as reason:
        raise Malformed("a string is not UTF-8") from reason


def message(value: Value) -> bytes:
    """What has a length."""
    if type(value) is not bytes:
        raise Malformed("a message is expected, not a number")
    return value


def number(value: Value) -> int:
    """A whole number, however wide."""
    if type(value) is int:
        return value
    if len(value) == 8:
        return int(_FIXED64.unpack(value)[0])
    if len(value) == 4:
        return int(_FIXED32.unpack(value)[0])
    raise Malformed("a number is expected")


def pair(data: bytes, limits: ValueLimits) -> tuple[str, Any]:
    """An attribute."""
    key, value = "", None
    for field, field_value in fields(data):
        if field == 1:
            key = text(field_value)
        elif field == 2:
            value = any_value(message(field_value), limits, 1)
    return key, value


def any_value(data: bytes, limits: ValueLimits, depth: int) -> Any:
    """The value of an attribute as JSON has it."""
    decoded: Any = None
    for field, field_value in fields(data):
        if field == 1:
            decoded = text(field_value)
        elif field == 2:
            decoded = bool(number(field_value))
        elif field == 3:
            unsigned = number(field_value)
            decoded = unsigned - _WRAP if unsigned & _SIGN else unsigned
        elif field == 4:
            if len(field_value) != 8:
                raise Malformed("a double has eight bytes")
            decoded = finite(_DOUBLE.unpack(field_value)[0])
        elif field == 5:
            decoded = _array_value(message(field_value), limits, depth)
        elif field == 6:
            decoded = _object_value(message(field_value), limits, depth)
        elif field == 7:
            decoded = base64.b64encode(message(field_value)).decode()
    return decoded


def _array_value(data: bytes, limits: ValueLimits, depth: int) -> Any:
    if depth >= limits.depth:
        return limits.cut(NESTED)
    messages = [message(value) for field, value in fields(data) if field == 1]
    return [any_value(element, limits, depth + 1) for element in limits.truncate(messages, limits.elements)]


def _object_value(data: bytes, limits: ValueLimits, depth: int) -> Any:
    if depth >= limits.depth:
        return limits.cut(NESTED)
    members: dict[str, Any] = {}
    messages = [message(value) for field, value in fields(data) if field == 1]
    for entry in limits.truncate(messages, limits.members):
        key, value = "", None
        for field, inner in fields(entry):
            if field == 1:
                key = text(inner)
            elif field == 2:
                value = any_value(message(inner), limits, depth + 1)
        members[key] = value
    return members


def partial_success(rejected: int, reason: str) -> bytes:
    """The answer to an export some of whose spans were not taken."""
    words = reason.encode()
    inner = b"\x08" + _varint_bytes(rejected) + b"\x12" + _varint_bytes(len(words)) + words
    return b"\x0a" + _varint_bytes(len(inner)) + inner


def _varint_bytes(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
