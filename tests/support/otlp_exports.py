"""OTLP exports for tests: the same spans in JSON and, written field by field, in protobuf."""

from __future__ import annotations

import struct
from typing import Any

TRACE, ROOT, CHILD = "5b8efff798038103d269b633813fc60c", "086e83747d0e381e", "186e83747d0e381f"
START = 1_772_020_800_000_000_000


def varint(value: int) -> bytes:
    spelled = bytearray()
    value &= 2**64 - 1
    while value >= 0x80:
        spelled.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*spelled, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def fixed32(field: int, value: int) -> bytes:
    return varint(field << 3 | 5) + value.to_bytes(4, "little")


def any_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return number(2, value)
    if isinstance(value, str):
        return block(1, value)
    if isinstance(value, int):
        return number(3, value)
    if isinstance(value, float):
        return varint(4 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, bytes):
        return block(7, value)
    if isinstance(value, list):
        return block(5, b"".join(block(1, any_value(one)) for one in value))
    if isinstance(value, dict):
        return block(6, b"".join(block(1, pair(key, one)) for key, one in value.items()))
    return b""


def pair(key: str, value: Any) -> bytes:
    return block(1, key) + block(2, any_value(value))


def attributes(field: int, given: dict[str, Any]) -> bytes:
    return b"".join(block(field, pair(key, value)) for key, value in given.items())


def span(
    *,
    trace: str = TRACE,
    span: str = ROOT,
    parent: str = "",
    name: str = "GET /checkout",
    kind: int = 2,
    start: int = START,
    millis: int = 123,
    given: dict[str, Any] | None = None,
    events: list[tuple[str, dict[str, Any]]] | None = None,
    status: tuple[int, str] = (0, ""),
) -> bytes:
    """One span in protobuf."""
    parts = [
        block(1, bytes.fromhex(trace)), block(2, bytes.fromhex(span)), block(5, name), number(6, kind),
        fixed64(7, start), fixed64(8, start + millis * 1_000_000), attributes(9, given or {}), fixed32(16, 257),
        block(15, block(2, status[1]) + number(3, status[0])),
    ]  # fmt: skip
    if parent:
        parts.append(block(4, bytes.fromhex(parent)))
    for label, told in events or []:
        parts.append(block(11, fixed64(1, start) + block(2, label) + attributes(3, told)))
    return b"".join(parts)


def export(*spans: bytes, resource: dict[str, Any] | None = None, scope: str = "tests") -> bytes:
    """A whole request in protobuf."""
    held = block(1, block(1, scope) + block(2, "1.0")) + b"".join(block(2, one) for one in spans)
    return block(1, block(1, attributes(1, resource or {"service.name": "checkout"})) + block(2, held))


def json_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [json_value(one) for one in value]}}
    return {"kvlistValue": {"values": json_attributes(value)}}


def json_attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": json_value(value)} for key, value in given.items()]


def json_span(**more: Any) -> dict[str, Any]:
    """One span in JSON; attributes are given as an object."""
    given = more.pop("attributes", {})
    return {
        "traceId": TRACE,
        "spanId": ROOT,
        "name": "GET /checkout",
        "kind": 2,
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 123_000_000),
        "attributes": json_attributes(given),
        **more,
    }


def json_export(*spans: dict[str, Any], **resource: Any) -> dict[str, Any]:
    """A whole request in JSON."""
    held = {"attributes": json_attributes(resource or {"service.name": "checkout"})}
    scoped = {"scope": {"name": "tests", "version": "1.0"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": held, "scopeSpans": [scoped]}]}
