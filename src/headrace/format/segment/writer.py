"""Writing a segment: entries go in as append requests, row groups go out to a file as they fill up.

Memory: a row group has at most ``GROUP_BYTES`` of payload, or one larger entry. While it is written it exists as the
caller's objects, as Arrow columns and as an encoded and a compressed page: about four times its payload. The Bloom
filters stay in memory until the end: a few bytes for each key.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.format.segment import layout, pages
from headrace.format.segment.layout import SealedSegment, SegmentInfo
from headrace.format.segment.row_group import AppendRun, RowGroupBuilder, RunColumns, Split, decode_keys, payload_bytes
from headrace.types import NEVER_US

_FALSE_POSITIVES = 0.01
_COMPRESSION_LEVEL = 1
# A column of a row group of small entries is one page, and compresses as one; where there are keys, pages are smaller.
_PAGE_BYTES = 4 * layout.GROUP_BYTES
# Keys are numbered where they come so often: a list of many that come once is larger than the keys.
_REPEATED = 4


class SegmentWriter:
    """Writes one segment to a file that is open for writing, and returns what it wrote."""

    def __init__(
        self,
        sink: BinaryIO,
        *,
        stream: str,
        incarnation: str,
        is_json: bool,
        first_seq: int,
        split: Split,
        group_bytes: int = layout.GROUP_BYTES,
        group_rows: int = layout.GROUP_ROWS,
    ) -> None:
        self._sink = _Sink(sink)
        self._stream, self._incarnation, self._is_json = stream, incarnation, is_json
        self.first_seq = self.next_seq = first_seq
        self._group_bytes, self._group_rows = group_bytes, group_rows
        self._min_us = self._max_us = NEVER_US
        self._schema = layout.schema(is_json)
        self._split = split
        self._row_group = RowGroupBuilder(self._schema, first_seq, split)
        self._groups: list[tuple[int, int]] = []
        self._file: Any = None

    def add(self, run: AppendRun) -> None:
        """Take the entries of one append request; raises ValueError where they do not follow the last."""
        seq, append_us, _, keys, payloads = run
        count = len(payloads)
        self._follow(seq, append_us)
        if not (keys is None or isinstance(keys, str) or len(keys) == count):
            raise ValueError(f"{count} entries cannot have {len(keys)} keys")
        self._spread(run)
        self._advance(count, append_us)

    def add_joined(self, seq: int, runs: RunColumns, bodies: Sequence[bytes]) -> None:
        """Take append requests from their JSON bodies, in which entries are joined by commas as the log has them."""
        rows = list(accumulate(runs.counts, initial=0))
        sizes = list(accumulate(map(len, bodies), initial=0))
        start = 0
        while start < len(bodies):
            stop = self._fitting(rows, sizes, start)
            if stop > start:
                self._follow(seq + rows[start], runs.append_us[start])
                self._row_group.add(runs.part(start, stop), bodies[start:stop], runs.counts[start:stop])
                self._advance(rows[stop] - rows[start], runs.append_us[stop - 1])
                start = stop
            elif self._row_group.rows:
                self._flush()
            else:
                append_us, version, run_keys = runs.append_us[start], runs.versions[start], runs.keys[start]
                keys = run_keys if run_keys is None or isinstance(run_keys, str) else decode_keys(run_keys)
                self.add(AppendRun(seq + rows[start], append_us, version, keys, self._split(bodies[start])))
                start += 1

    def add_bundle(self, seq: int, runs: RunColumns, body: bytes) -> None:
        """Take append requests from one JSON body that holds all their entries; they share a row group."""
        count = sum(runs.counts)
        self._follow(seq, runs.append_us[0])
        if not self._fitting((0, count), (0, len(body)), 0):
            self._flush()
        self._row_group.add(runs, [body], [count])
        self._advance(count, runs.append_us[-1])

    def copy(self, batches: Iterable[Any]) -> None:
        """Take entries over from another segment, as ``SegmentReader.batches`` yields them."""
        for batch in batches:
            times, size = batch.column(layout.APPEND_TIME).cast(pa.int64()), payload_bytes(batch)
            self._follow(batch.column(layout.SEQ)[0].as_py(), times[0].as_py())
            if not self._fitting((0, batch.num_rows), (0, size), 0):
                self._flush()
            self._row_group.take(batch, size)
            self._advance(batch.num_rows, times[-1].as_py())

    def finish(self) -> SealedSegment:
        """Write what is left and the footer; the file stays open, and is not synced yet."""
        self._flush()
        if self._file is None:
            raise ValueError("a segment has at least one entry")
        info = SegmentInfo(
            version=layout.VERSION,
            stream=self._stream,
            incarnation=self._incarnation,
            json=self._is_json,
            first_seq=self.first_seq,
            count=self.next_seq - self.first_seq,
            payload_bytes=sum(size for size, _ in self._groups),
            min_us=self._min_us,
            max_us=self._max_us,
            groups=tuple(self._groups),
        )
        self._file.add_key_value_metadata({layout.METADATA: msgspec.json.encode(info)})
        self._file.close()
        self._sink.flush()
        return SealedSegment(info, self._sink.size, self._sink.digest.hexdigest())

    def _follow(self, seq: int, append_us: int) -> None:
        if seq != self.next_seq:
            raise ValueError(f"entry {seq} cannot come where {self.next_seq} is due")
        if append_us < self._max_us:
            raise ValueError(f"entry {seq} was appended before the one it follows")

    def _advance(self, count: int, last_us: int) -> None:
        self.next_seq += count
        self._max_us = last_us

    def _fitting(self, rows: Sequence[int], sizes: Sequence[int], start: int) -> int:
        """Where to stop, so that what lies between fits into the row group; rows and bytes are given as sums."""
        group = self._row_group
        by_rows = bisect_right(rows, rows[start] + self._group_rows - group.rows, start) - 1
        by_bytes = bisect_right(sizes, sizes[start] + self._group_bytes - group.bytes, start) - 1
        return max(start, min(by_rows, by_bytes))

    def _spread(self, run: AppendRun) -> None:
        """Fill row groups with the entries of a run."""
        start, count = 0, len(run.payloads)
        sizes = list(accumulate(map(len, run.payloads), initial=0))
        while start < count:
            stop = self._fitting(range(count + 1), sizes, start)
            if stop == start and self._row_group.rows:
                self._flush()
                continue
            stop = max(stop, start + 1)
            self._row_group.extend(run, start, stop, sizes[stop] - sizes[start])
            start = stop

    def _flush(self) -> None:
        """Write the row group gathered so far, and begin the next."""
        group = self._row_group
        if not group.rows:
            return
        table = group.table()
        if self._file is None:
            self._open(table)
        self._file.write_table(table, row_group_size=group.rows)
        self._groups.append((payload_bytes(table), pc.sum(table.column(layout.FIRST)).as_py()))
        self._row_group = RowGroupBuilder(self._schema, group.first_seq + group.rows, self._split)

    def _open(self, first: Any) -> None:
        """Begin the file; what the first row group holds decides on the Bloom filters."""
        self._min_us = first.column(layout.APPEND_TIME)[0].value
        keys = pc.count_distinct(first.column(layout.KEY)).as_py()
        repeats = keys * _REPEATED <= first.num_rows
        self._file = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            self._schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=["key", "version"] if repeats else ["version"],
            column_encoding={"seq": "DELTA_BINARY_PACKED", "append_time": "DELTA_BINARY_PACKED", "payload": "PLAIN"},
            write_statistics=["seq", "append_time", "key", "version"],
            write_page_checksum=True,
            data_page_size=pages.PAGE_BYTES if keys else _PAGE_BYTES,
            write_batch_size=pages.rows_at_once(payload_bytes(first) // first.num_rows) if keys else None,
            bloom_filter_options={"key": {"ndv": keys, "fpp": _FALSE_POSITIVES}} if keys else None,
            store_schema=False,
        )


class _Sink:
    """Passes bytes on to a file, and counts and digests them."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """All of it."""
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""
        self._file.flush()
