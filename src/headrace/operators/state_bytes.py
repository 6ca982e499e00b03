"""States as bytes: msgpack of plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_ENCODE = msgspec.msgpack.Encoder().encode
#: How an array of up to 2^32 values begins.
_ARRAY = b"\xdd"
_DECODE = msgspec.msgpack.Decoder(strict=True).decode


def pack(state: Any) -> bytes:
    """The bytes of a state; integers of more than 64 bits become doubles."""
    try:
        return _ENCODE(state)
    except OverflowError:
        return _ENCODE(_limit_integers(state))


def unpack(packed: bytes) -> Any:
    """The state in these bytes."""
    return _DECODE(packed)


def unpack_all(packed: Sequence[bytes]) -> list[Any]:
    """The states in many packed ones, in one go."""
    states: list[Any] = _DECODE(_ARRAY + len(packed).to_bytes(4, "big") + b"".join(packed))
    return states


def _limit_integers(state: Any) -> Any:
    match state:
        case dict():
            return {key: _limit_integers(value) for key, value in state.items()}
        case list():
            return [_limit_integers(value) for value in state]
        case int() if not -(2**63) <= state < 2**64:
            return float(state)
    return state
