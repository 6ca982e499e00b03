"""Compression of request bodies in the log, which mostly repeat the same words.

A packed body is one raw LZ4 block. Packing costs a fraction of what it spares: each byte of the log is summed, written,
synced, copied to its place and read again before it is sealed.
"""

from __future__ import annotations

import pyarrow as pa

VERSION = 1

#: Packing shorter bodies does not pay.
LEAST_BYTES = 2048

_LZ4 = pa.Codec("lz4_raw")


def pack(body: bytes) -> bytes | None:
    """A body in less space; None where that does not pay."""
    packed: bytes = _LZ4.compress(body, asbytes=True)
    return packed if len(packed) < len(body) * 3 // 4 else None


def unpack(packed: bytes, size: int) -> bytes:
    """The body of so many bytes that was packed."""
    body: bytes = _LZ4.decompress(packed, size, asbytes=True)
    return body
