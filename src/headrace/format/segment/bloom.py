"""Asking Parquet's split-block Bloom filters, which pyarrow writes but cannot ask."""

from __future__ import annotations

_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
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
    for place, salt in enumerate(_SALT):
        bit = (low * salt & 0xFFFFFFFF) >> 27
        if not bits[block + 4 * place + bit // 8] >> bit % 8 & 1:
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


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0, by which Parquet hashes values for its filters."""
    end, at = len(data), 0
    if end >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at <= end - 32:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        mixed = sum(_rotate(value, turn) for value, turn in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for value in lanes:
            mixed = ((mixed ^ _round(0, value)) * _P1 + _P4) & _MASK
    else:
        mixed = _P5
    return _avalanche(_rest(mixed + end & _MASK, data[at:]))


def _rest(mixed: int, data: bytes) -> int:
    """Take in what is left after the blocks of 32: words of 8, one of 4, then bytes."""
    at = 0
    while at <= len(data) - 8:
        mixed = _rotate(mixed ^ _round(0, int.from_bytes(data[at : at + 8], "little")), 27) * _P1 + _P4 & _MASK
        at += 8
    if at <= len(data) - 4:
        word = int.from_bytes(data[at : at + 4], "little")
        mixed = _rotate(mixed ^ word * _P1 & _MASK, 23) * _P2 + _P3 & _MASK
        at += 4
    for byte in data[at:]:
        mixed = _rotate(mixed ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    return mixed


def _avalanche(mixed: int) -> int:
    mixed = (mixed ^ mixed >> 33) * _P2 & _MASK
    mixed = (mixed ^ mixed >> 29) * _P3 & _MASK
    return mixed ^ mixed >> 32


def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * _P2 & _MASK, 31) * _P1 & _MASK


def _rotate(value: int, turn: int) -> int:
    return (value << turn | value >> 64 - turn) & _MASK
