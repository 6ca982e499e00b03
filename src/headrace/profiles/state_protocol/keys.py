"""Touch keys: 64-bit numbers that stand for a table, a template, or the rows and fields that a template picks.

A key is the XXH3 hash of a family's name and the parts, with a zero byte between them, so that a client and the server
find the same key without a word. On the wire a key is 16 hex digits; its last eight are the key's id, which is enough
to wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import xxhash

Key = int
_ID = 0xFFFFFFFF
_HEX16 = re.compile("[0-9a-f]{16}")
_hash = xxhash.xxh3_64_intdigest


def table_key(entity: str) -> Key:
    """Touched by every change of an entity."""
    return _hash(b"tbl\0" + entity.encode())


def template_id(entity: str, fields: Iterable[str]) -> int:
    """Names a template: rows of an entity that are picked by some fields, in whatever order these are given."""
    return _hash(b"tpl\0" + b"\0".join(part.encode() for part in (entity, *sorted(fields))))


def template_key(template: int) -> Key:
    """Touched in place of the keys of a template's rows, where these cannot be told."""
    return _hash(b"tpl\0" + template.to_bytes(8))


def watch_key(template: int, arguments: Iterable[str]) -> Key:
    """Touched when a row that a template picks with these arguments changes, comes or goes."""
    return _hash(b"key\0" + template.to_bytes(8) + suffix(arguments))


def membership_key(template: int, arguments: Iterable[str]) -> Key:
    """Touched when a row begins or ceases to be picked with these arguments."""
    return _hash(b"mem\0" + template.to_bytes(8) + suffix(arguments))


def field_key(template: int, field: str, arguments: Iterable[str]) -> Key:
    """Touched when a field changes of a row that is picked with these arguments before and after."""
    return _hash(b"fld\0" + template.to_bytes(8) + b"\0" + field.encode() + suffix(arguments))


def suffix(arguments: Iterable[str]) -> bytes:
    """The end of what is hashed: each argument after a zero byte."""
    return b"".join(b"\0" + argument.encode() for argument in arguments)


def hash_key(data: bytes) -> Key:
    """The key of what was put together from a family, a template and a suffix."""
    return _hash(data)


def text(key: Key) -> str:
    """A key, or the id of a template, as it is written."""
    return f"{key:016x}"


def parse_key(written: str) -> Key | None:
    """The key that 16 hex digits stand for; None for any other text."""
    written = written.strip().lower()
    return int(written, 16) if _HEX16.fullmatch(written) else None


def id_of(key: Key) -> int:
    """The id of a key."""
    return key & _ID


def id_of_text(written: str) -> int:
    """The id that a text stands for: that of a key, or of any other word."""
    key = parse_key(written)
    return xxhash.xxh32_intdigest(written.strip().lower().encode()) if key is None else key & _ID
