"""Asking Parquet's split-block Bloom filters, which pyarrow writes but cannot ask."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

#: The hash by which Parquet finds values in its filters: XXH64 with seed 0.
xxh64: Callable[[bytes], int] = xxhash.xxh64_intdigest
_SALT = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_NUM_BYTES_FIELD = 0x15
_BLOCK_BYTES = 32


def may_hold(stored: bytes, key_hash: int) -> bool:
    """Whether a value with this hash may be among those the filter was made of; False is certain.

    ``stored`` is the filter with its header, as it lies in the file.
    """
    bits = stored[len(stored) - _bitset_bytes(stored) :]
    block = ((key_hash >> 32) * (len(bits) // _BLOCK_BYTES) >> 32) * _BLOCK_BYTES
    low = key_hash & 0xFFFFFFFF
    for word, salt in enumerate(_SALT):
        bit = (low * salt & 0xFFFFFFFF) >> 27
        if not bits[block + 4 * word + bit // 8] >> bit % 8 & 1:
            return False
    return True


def _bitset_bytes(stored: bytes) -> int:
    """The header's first field: a zigzag varint."""
    if stored[0] != _NUM_BYTES_FIELD:
        raise ValueError("a Bloom filter begins with its size")
    value = shift = 0
    for byte in stored[1:6]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    size = value >> 1
    if not 0 < size < len(stored) or size % _BLOCK_BYTES:
        raise ValueError(f"a Bloom filter of {len(stored)} bytes cannot hold {size}")
    return size
