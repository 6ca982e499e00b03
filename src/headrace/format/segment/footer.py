"""What a segment's footer says of each row group, checked against the segment's identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import CorruptData
from headrace.format.segment import layout
from headrace.format.segment.layout import SegmentInfo


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
    if not footer.schema.to_arrow_schema().equals(layout.schema(info.json)):
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
    seqs, times, versions = (
        row_group.column(column).statistics for column in (layout.SEQ, layout.APPEND_TIME, layout.VERSION_COLUMN)
    )
    end_seq = first_seq + row_group.num_rows
    if (seqs.min_raw, seqs.max_raw) != (first_seq, end_seq - 1):
        return None
    chunk = row_group.column(layout.KEY)
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


class KeyIndex:
    """The rows of every key, by hashes that hold for this process, and when they were appended."""

    __slots__ = ("_hashes", "_rows", "_run_times", "_runs", "bytes")

    def __init__(self, columns: Iterable[Sequence[Any]]) -> None:
        """``columns`` are the times and the keys of each row group, in order."""
        hashes, times = [], []
        for moments, keys in columns:
            hashes.append(np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys)))
            times.append(np.asarray(moments.cast("int64")))
        every, at_us = np.concatenate(hashes), np.concatenate(times)
        order = np.argsort(every, kind="stable")
        self._hashes, self._rows = every[order], order.astype(np.uint32)
        #: Entries of one request have one time, so that there are few.
        self._runs = np.flatnonzero(np.diff(at_us, prepend=at_us[0] - 1)).astype(np.uint32)
        self._run_times = at_us[self._runs]
        self.bytes = sum(array.nbytes for array in (self._hashes, self._rows, self._runs, self._run_times))

    def of(self, key: str) -> list[int]:
        """The rows of a key, in order, and those of keys with the same hash."""
        wanted = np.int64(hash(key))
        first, end = np.searchsorted(self._hashes, wanted, "left"), np.searchsorted(self._hashes, wanted, "right")
        rows: list[int] = self._rows[first:end].tolist()
        return rows

    def time(self, row: int) -> int:
        """When a row was appended."""
        return int(self._run_times[np.searchsorted(self._runs, row, "right") - 1])
