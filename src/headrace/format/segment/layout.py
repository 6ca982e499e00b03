"""What a segment file consists of: its columns, its identity, and its row groups as the footer describes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.errors import CorruptData
from headrace.format.identity import decode_identity

VERSION = 1
METADATA = b"headrace"

GROUP_ROWS = 32_768
#: With its commas a row group fits into one answer of a mebibyte.
GROUP_BYTES = 1024 * 1024 - GROUP_ROWS

SEQ, APPEND_TIME, KEY, VERSION_COLUMN, FIRST, PAYLOAD = range(6)
TIME = pa.timestamp("us", "UTC")


class SegmentInfo(msgspec.Struct, frozen=True):
    """The metadata of a segment."""

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


class SealedSegment(NamedTuple):
    """A segment that was written completely: its metadata, its size and its SHA-256 in hex."""

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
    return decode_identity(document, SegmentInfo, name=name, kind="segment", newest=VERSION)


class RowGroup(NamedTuple):
    """One row group; ``version`` is None where there are several, ``keys`` where it cannot be said."""

    number: int
    first_seq: int
    end_seq: int
    min_us: int
    max_us: int
    version: int | None
    keyed: bool
    keys: tuple[str, str] | None
    filter: tuple[int, int] | None
    #: Payload bytes of the segment before this group, as the log counts them.
    bytes_before: int


def groups_of(footer: Any, info: SegmentInfo, name: str) -> list[RowGroup]:
    """The row groups in order; raises where they do not make up the segment that the identity describes."""
    if not footer.schema.to_arrow_schema().equals(schema(info.json)):
        raise CorruptData(f"{name} does not have the columns of a segment", object=name, check="columns")
    if footer.num_row_groups != len(info.groups) or footer.num_rows != info.count:
        raise CorruptData(
            f"{name} has {footer.num_rows} entries in {footer.num_row_groups} row groups, "
            f"its identity says {info.count} in {len(info.groups)}",
            object=name,
            check="count",
        )
    groups: list[RowGroup] = []
    seq, size = info.first_seq, 0
    for number, (payload_bytes, requests) in enumerate(info.groups):
        group = _group(footer.row_group(number), number, seq, size)
        if group is None:
            raise CorruptData(f"{name} does not go on with entry {seq}", object=name, check="continuity")
        groups.append(group)
        size += payload_bytes + (group.end_seq - seq - requests if info.json else 0)
        seq = group.end_seq
    return groups


def _group(row_group: Any, number: int, first_seq: int, bytes_before: int) -> RowGroup | None:
    """A row group that begins with this entry, or None."""
    seqs, times, versions = (row_group.column(column).statistics for column in (SEQ, APPEND_TIME, VERSION_COLUMN))
    end_seq = first_seq + row_group.num_rows
    if (seqs.min_raw, seqs.max_raw) != (first_seq, end_seq - 1):
        return None
    chunk = row_group.column(KEY)
    keys, filter_offset = chunk.statistics, chunk.bloom_filter_offset
    return RowGroup(
        number=number,
        first_seq=first_seq,
        end_seq=end_seq,
        min_us=times.min_raw,
        max_us=times.max_raw,
        version=versions.min_raw if versions.min_raw == versions.max_raw else None,
        keyed=keys.null_count < row_group.num_rows,
        keys=(keys.min, keys.max) if keys.has_min_max else None,
        filter=None if filter_offset is None else (filter_offset, chunk.bloom_filter_length),
        bytes_before=bytes_before,
    )
