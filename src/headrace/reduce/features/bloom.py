"""Whether the newest value had been there before: a Bloom filter of all values, and a note on the last one.

A value that had been there is always known; one that had not is taken for known with the chance asked for, once as
many different values came as expected. The state is ``[bits, hash of the last value, whether it was known in its own
range]``: of -n ln p / ln²2 bits, 1.2 KB for 1,024 values at 1 %.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

from headrace.reduce.features.operator import OfValues, canonical
from headrace.schema.descriptor.nodes import Type

_ENCODE = msgspec.msgpack.Encoder().encode


class BloomMember(OfValues):
    """Whether the newest value had been there before; false without any."""

    def __init__(self, field: str, kind: Type, expected: int, chance: float) -> None:
        super().__init__(field, kind)
        bits = math.ceil(-expected * math.log(chance) / math.log(2) ** 2)
        self._bytes = max(1, -(-bits // 8))
        self._probes = max(1, round(8 * self._bytes / expected * math.log(2)))

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value, the newest."""
        bits = bytearray(self._bytes) if state is None else state[0]
        if not isinstance(bits, bytearray):
            bits = bytearray(bits)
        hashed = _hashed(canonical(value, self.kind))
        known = self._has(bits, hashed)
        for place in self._places(hashed):
            bits[place >> 3] |= 1 << (place & 7)
        return [bits, hashed, known]

    def joined(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The bits of both; the newest value may have been there in the left."""
        bits = (int.from_bytes(left[0], "little") | int.from_bytes(right[0], "little")).to_bytes(self._bytes, "little")
        return [bits, right[1], right[2] or self._has(left[0], right[1])]

    def finish(self, state: list[Any] | None, now_ms: int) -> bool:
        """Whether it had been there."""
        return state is not None and state[2]

    def _has(self, bits: bytes | bytearray, hashed: bytes) -> bool:
        return all(bits[place >> 3] >> (place & 7) & 1 for place in self._places(hashed))

    def _places(self, hashed: bytes) -> list[int]:
        start = int.from_bytes(hashed[:8], "little")
        step = int.from_bytes(hashed[8:], "little") | 1
        size = 8 * self._bytes
        return [(start + turn * step) % size for turn in range(self._probes)]


def _hashed(value: Any) -> bytes:
    return hashlib.blake2b(_ENCODE(value), digest_size=16).digest()
