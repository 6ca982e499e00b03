"""What a segment file consists of: its columns, its identity, and the sizes of its row groups."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pyarrow as pa

from headrace.format import identity

VERSION = 1
METADATA = b"headrace"

GROUP_ROWS = 32_768
#: With its commas a row group fits into one answer of a mebibyte.
GROUP_BYTES = 1024 * 1024 - GROUP_ROWS

SEQ, APPEND_TIME, KEY, VERSION_COLUMN, FIRST, PAYLOAD = range(6)
TIME = pa.timestamp("us", "UTC")


class SegmentInfo(msgspec.Struct, frozen=True):
    """What a segment says about itself."""

    version: int
    stream: str
    incarnation: str
    json: bool
    first_seq: int
    count: int
    payload_bytes: int
    min_us: int
    max_us: int
    #: For each row group its payload bytes and how many append requests begin in it.
    groups: tuple[tuple[int, int], ...]


class Sealed(NamedTuple):
    """A segment that was written whole: what it says about itself, its size and its SHA-256 in hex."""

    info: SegmentInfo
    bytes: int
    sha256: str


def schema(is_json: bool) -> pa.Schema:
    """The columns of a segment."""
    return pa.schema(
        [
            pa.field("seq", pa.int64(), nullable=False),
            pa.field("append_time", TIME, nullable=False),
            pa.field("key", pa.string()),
            pa.field("version", pa.int32(), nullable=False),
            pa.field("first", pa.bool_(), nullable=False),
            pa.field("payload", pa.string() if is_json else pa.binary(), nullable=False),
        ]
    )


def decode_info(document: bytes | None, name: str) -> SegmentInfo:
    """Read a segment's identity; refuses what is damaged and what a newer Headrace wrote."""
    return identity.decode(document, SegmentInfo, name=name, kind="segment", newest=VERSION)
