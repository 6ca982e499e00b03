"""A database that nobody can write to, not even root, whom permissions do not bind."""

from __future__ import annotations

from pathlib import Path

_WRITE_VERSION = 18


def make_read_only(path: Path) -> None:
    """Let SQLite take a file for one of a later version, which it only reads."""
    content = bytearray(path.read_bytes())
    content[_WRITE_VERSION] = 3
    path.write_bytes(content)
