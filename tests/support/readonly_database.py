"""A database that nobody can write to, not even root, whom permissions do not bind."""

from __future__ import annotations

import struct
from pathlib import Path

_WRITE_VERSION = 18
_RESERVED, _CHECKSUM_BYTES = 20, 8


def make_read_only(path: Path) -> None:
    """Let SQLite take a file for one of a later version, which it only reads."""
    content = bytearray(path.read_bytes())
    content[_WRITE_VERSION] = 3
    page_bytes = int.from_bytes(content[16:18], "big")
    if content[_RESERVED] == _CHECKSUM_BYTES:
        end = page_bytes - _CHECKSUM_BYTES
        content[end:page_bytes] = page_checksum(content[:end])
    path.write_bytes(content)


def page_checksum(page: bytes) -> bytes:
    """The checksum that SQLite's checksum VFS keeps at the end of a page."""
    words = struct.unpack(f"<{len(page) // 4}I", page)
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return struct.pack("<2I", first, second)
