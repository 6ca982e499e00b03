"""Reading a segment: the footer first, then the row groups that a request needs, and no others.

A reader may be used from several threads. It keeps its file open, so it works on even after the file was removed; it
does not map it, since mapped pages would count as memory of the process. Every failure of the bytes is ``CorruptData``
and names the object.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import CorruptData
from headrace.format import bloom
from headrace.format.decoded_columns import LruCache
from headrace.format.parquet_file import OpenParquet, ParquetSource, intact
from headrace.format.segment import layout, pages
from headrace.format.segment.columns import (
    KeyIndex,
    Payloads,
    RowMask,
    int32s,
    pieces,
    text,
    with_tombstones,
    without_keys,
)
from headrace.format.segment.layout import RowGroup, groups_of
from headrace.types import Piece

_COLUMNS = ["seq", "append_time", "key", "version", "first", "payload"]
_MASKED = frozenset(("key", "payload"))
# What an open footer takes for each row group, measured.
_GROUP_FOOTPRINT = 6 * 1024
# Where so large a part of a row group has the key, all of it is likely to be wanted again.
_MANY = 8
# An index of keys is made for who comes so often; twice as often once it had to make room for others.
_OFTEN = 8
_PLACES = "places"


class SlicePart(NamedTuple):
    """Consecutive entries of one schema version: JSON joined by commas, bytes end to end."""

    version: int
    entries: int
    body: Piece


class Slice(NamedTuple):
    """What a read found, and where to go on."""

    parts: list[SlicePart]
    position: int


class Entry(NamedTuple):
    """One entry: its number, when it was appended, and its payload."""

    seq: int
    at_us: int
    payload: Piece


class _Selected(NamedTuple):
    """Entries of one row group: the payloads ``start`` to ``stop``, and how to read their other columns.

    ``versions`` is one for all or a column; ``rows`` are their places after ``first_seq``, None where none is left out.
    """

    payloads: Payloads
    start: int
    stop: int
    versions: Any
    first_seq: int
    rows: Any = None

    def seq(self, number: int) -> int:
        """The sequence number of one of them."""
        return self.first_seq + (number if self.rows is None else int(self.rows[number].as_py()))


class AppendTimes(NamedTuple):
    """Entries that were appended later than the one before them, and when."""

    seqs: np.ndarray[Any, np.dtype[np.int64]]
    times_us: np.ndarray[Any, np.dtype[np.int64]]

    def first_since(self, moment_us: int) -> tuple[int, int] | None:
        """The first entry that was appended at or after a moment, and when; None if all were before."""
        at = int(np.searchsorted(self.times_us, moment_us))
        return (int(self.seqs[at]), int(self.times_us[at])) if at < len(self.seqs) else None


class Checksums(NamedTuple):
    """CRC-32 of what has no checksum in the file: its footer, and the Bloom filter of every row group, 0 for none."""

    footer: int
    filters: array[int]


class SegmentReader:
    """One segment, on a local file or in memory; its ``name`` must never name other bytes.

    Rows that the ``mask`` hides are read as tombstones without a key.
    """

    def __init__(
        self,
        source: Path | bytes,
        *,
        name: str,
        decoded: LruCache,
        sha256: str | None = None,
        mask: RowMask | None = None,
        checksums: Checksums | None = None,
        replace: Callable[[], Path] | None = None,
    ) -> None:
        """``checksums`` are those of a reader that has verified the whole file; ``replace`` makes a fresh copy."""
        self.name, self.mask = name, mask
        self._decoded, self._cache_name = decoded, name if mask is None else f"{name}#{mask.number}"
        self._hidden: dict[int, list[int]] = {}
        self._placing = threading.Lock()
        footer_checksum = None if checksums is None else checksums.footer
        self._source = ParquetSource(source, name, sha256=sha256, footer_checksum=footer_checksum, replace=replace)
        with intact(self.name):
            footer = self._source.metadata
            self.info = layout.decode_info((footer.metadata or {}).get(layout.METADATA), name)
            self._groups = groups_of(footer, self.info, name)
        self.checksums = self._checksums() if checksums is None else checksums
        self._starts = [group.first_seq for group in self._groups]
        #: Who waits for a row group waits for that one alone.
        self._loading = {group.number: threading.Lock() for group in self._groups}
        self.first_seq = self.info.first_seq
        self.end_seq = self.first_seq + self.info.count
        #: About how much memory the open footer takes.
        self.footprint = _GROUP_FOOTPRINT * (1 + len(self._groups))
        self._key_lookups, self._often = 0, _OFTEN

    def read(self, position: int, end: int, budget: int, key: str | None = None) -> Slice:
        """Entries of [position, end) in order, as many as the budget allows and at least one if there is any.

        The budget is for the parts joined, by commas where the stream is JSON.
        """
        parts: list[SlicePart] = []
        room, end = budget, min(end, self.end_seq)
        wanted = None if key is None else (key, bloom.xxh64(key.encode()))
        for group in self._groups_between(position, end):
            start, stop = max(position, group.first_seq), min(end, group.end_seq)
            selected = (
                self._select_all(group, start, stop)
                if wanted is None
                else self._select_key(group, start, stop, *wanted)
            )
            if selected is None:
                continue
            last = selected.payloads.fitting(selected.start, selected.stop, room)
            if last == selected.start and not parts:
                last += 1
            for part in _parts(selected, last):
                parts.append(part)
                room -= len(part.body) + self.info.json
            if last < selected.stop:
                return Slice(parts, selected.seq(last))
        return Slice(parts, max(position, end))

    def load(self, seq: int) -> None:
        """Decode the row group that holds an entry, so that the next read of it is quick."""
        self._payloads(self._holding(seq))

    def is_loaded(self, seq: int) -> bool:
        """Whether the row group that holds an entry can be read without decoding."""
        return self._decoded.get((self._cache_name, self._holding(seq).number)) is not None

    def group_end(self, seq: int) -> int:
        """Where the row group ends that holds an entry."""
        return self._holding(seq).end_seq

    def append_times(self) -> AppendTimes:
        """When all entries were appended."""
        times_us = np.concatenate([np.frombuffer(self._times(group), np.int64) for group in self._groups])
        changes = np.concatenate([[0], np.flatnonzero(np.diff(times_us)) + 1])
        return AppendTimes(changes + self.first_seq, times_us[changes])

    def time_at(self, seq: int) -> int:
        """When an entry was appended."""
        group = self._holding(seq)
        return self._times(group)[seq - group.first_seq]

    def cell(self, seq: int) -> tuple[int, str | None, bytes]:
        """One entry: when it was appended, its key, and its payload."""
        row = next(self.batches(seq, seq + 1))
        payload = row.column(layout.PAYLOAD)[0].as_py()
        key: str | None = row.column(layout.KEY)[0].as_py()
        return self.time_at(seq), key, payload.encode() if isinstance(payload, str) else payload

    def request_at(self, seq: int) -> tuple[int, int]:
        """Where the append request that holds an entry begins, and where it ends."""
        number = self._holding(seq).number
        starts = [self._groups[number].first_seq + row for row in self._first_rows(self._groups[number])]
        at = bisect_right(starts, seq)
        begin = starts[at - 1] if at else None
        end = starts[at] if at < len(starts) else None
        for group in reversed(self._groups[:number] if begin is None else []):
            if rows := self._first_rows(group):
                begin = group.first_seq + rows[-1]
                break
        for group in self._groups[number + 1 :] if end is None else []:
            if rows := self._first_rows(group):
                end = group.first_seq + rows[0]
                break
        return self.first_seq if begin is None else begin, self.end_seq if end is None else end

    def bytes_before(self, seq: int) -> int:
        """Payload bytes of this segment before an entry, as the log counts them: commas within a request too."""
        group = self._holding(min(seq, self.end_seq - 1))
        row = seq - group.first_seq
        commas = row - bisect_left(self._first_rows(group), row) if self.info.json else 0
        payloads = self._decode(group, ["payload"])[0].slice(0, row)
        return group.bytes_before + (pc.sum(pc.binary_length(payloads)).as_py() or 0) + commas

    def batches(self, position: int, end: int, columns: Sequence[str] = _COLUMNS) -> Iterator[Any]:
        """The rows of [position, end) as Arrow record batches with these columns, one for each row group."""
        fields = layout.schema(self.info.json)
        schema = pa.schema([fields.field(name) for name in columns])
        for group in self._groups_between(position, min(end, self.end_seq)):
            arrays = self._decode(group, list(columns))
            start, stop = max(position, group.first_seq), min(end, group.end_seq)
            batch = pa.record_batch(arrays, schema=schema)
            yield batch.slice(start - group.first_seq, stop - start)

    def keyed(self, position: int, end: int, key: str) -> Iterator[Any]:
        """The rows of [position, end) that have a key as Arrow record batches, one for each row group with any."""
        key_hash = bloom.xxh64(key.encode())
        for group in self._groups_between(position, min(end, self.end_seq)):
            if not self._may_hold(group, key, key_hash):
                continue
            first, stop = max(position, group.first_seq), min(end, group.end_seq)
            mask = pc.equal(self._decode(group, ["key"])[0].slice(first - group.first_seq, stop - first), text(key))
            if pc.any(mask).as_py():
                batch = pa.record_batch(self._decode(group, _COLUMNS), schema=layout.schema(self.info.json))
                yield batch.slice(first - group.first_seq, stop - first).filter(mask)

    def having(self, position: int, end: int, key: str) -> Iterator[Entry]:
        """The entries of [position, end) that have a key, in order; where two keys have one hash, those of both."""
        places = self._key_index()
        if places is None:
            for batch in self.keyed(position, end, key):
                seqs, times = batch.column(layout.SEQ), batch.column(layout.APPEND_TIME).cast("int64")
                payloads = Payloads.of(batch.column(layout.PAYLOAD))
                pieces_ = (payloads.piece(number, number + 1) for number in range(payloads.count))
                yield from map(Entry, seqs.to_pylist(), times.to_pylist(), pieces_)
            return
        rows = [row for row in places.of(key) if position <= self.first_seq + row < end]
        for group, group_rows in groupby(rows, lambda row: self._holding(self.first_seq + row)):
            before, chosen = group.first_seq - self.first_seq, list(group_rows)
            payloads = self._pick(group, [row - before for row in chosen])
            for number, row in enumerate(chosen):
                yield Entry(self.first_seq + row, places.time(row), payloads.piece(number, number + 1))

    def keys(self, position: int, end: int) -> Any:
        """The keys of the entries of [position, end), each once and in order, as an Arrow array."""
        key_arrays = [pa.array([], pa.string())]
        for group in self._groups_between(position, min(end, self.end_seq)):
            if group.keyed:
                start, stop = max(position, group.first_seq), min(end, group.end_seq)
                column = self._decode(group, ["key"])[0].slice(start - group.first_seq, stop - start)
                key_arrays.append(column.unique())
        keys = pa.concat_arrays(key_arrays).unique().drop_null()
        return keys.take(pc.array_sort_indices(keys))

    def verify(self) -> None:
        """Decode every page and hold every row against the footer; raises for the first that is wrong."""
        last_us = self.info.min_us
        for group, (size, requests) in zip(self._groups, self.info.groups, strict=True):
            seqs, times, _, _, firsts, payloads = self._decode(group, _COLUMNS)
            marks = [last_us, *_int64s(times)]
            counted = (pc.sum(pc.binary_length(payloads)).as_py(), pc.sum(firsts).as_py())
            if not seqs.equals(pa.arange(group.first_seq, group.end_seq)):
                raise self._corrupt("continuity", f"its entries from {group.first_seq} on have gaps")
            if marks != sorted(marks) or marks[-1] > self.info.max_us:
                raise self._corrupt("order", f"its times from entry {group.first_seq} on are out of order")
            if counted != (size, requests):
                raise self._corrupt("count", f"its payloads from entry {group.first_seq} on have another size")
            last_us = marks[-1]

    def _select_all(self, group: RowGroup, start: int, stop: int) -> _Selected:
        versions = self._decode(group, ["version"])[0] if group.version is None else group.version
        first = group.first_seq
        return _Selected(self._payloads(group), start - first, stop - first, versions, first)

    def _select_key(self, group: RowGroup, start: int, stop: int, key: str, key_hash: int) -> _Selected | None:
        """The entries of one key: pruned by the statistics of the footer, then compared one by one, natively."""
        if not self._may_hold(group, key, key_hash):
            return None
        first = start - group.first_seq
        keys = self._decode(group, ["key"])[0].slice(first, stop - start)
        mask = pc.equal(keys, text(key))
        rows = pc.indices_nonzero(mask)
        if not len(rows):
            return None
        loaded = self._decoded.get((self._cache_name, group.number))
        if loaded is None and len(rows) * _MANY >= group.end_seq - group.first_seq:
            loaded = self._payloads(group)
        if loaded is not None:
            payloads = loaded.chosen(first, mask)
        else:
            payloads = self._pick(group, [first + row for row in rows.to_pylist()])
        versions = group.version
        if versions is None:
            versions = self._decode(group, ["version"])[0].slice(first, stop - start).filter(mask)
        return _Selected(payloads, 0, len(rows), versions, start, rows)

    def _pick(self, group: RowGroup, rows: list[int]) -> Payloads:
        """The payloads of some rows of a group."""
        if len(rows) <= pages.MAX_PICKED and not self._hidden_rows(group):
            payloads = self._source.ask(lambda opened: _pick_payloads(opened, group, rows))
            if payloads is not None:
                return Payloads.of(pieces(pa.string() if self.info.json else pa.binary(), payloads))
        return Payloads.of(self._decode(group, ["payload"])[0].take(int32s(rows)))

    def _may_hold(self, group: RowGroup, key: str, key_hash: int) -> bool:
        if not group.keyed or (group.keys is not None and not group.keys[0] <= key <= group.keys[1]):
            return False
        if group.filter is None:
            return True
        return bloom.may_hold(self._source.ask(lambda opened: self._filter(opened, group)), key_hash)

    def _filter(self, opened: OpenParquet, group: RowGroup) -> bytes:
        """The Bloom filter of a row group; raises ValueError where it is not what it was when the file was verified."""
        filter_bytes = _filter_bytes(opened, group)
        if zlib.crc32(filter_bytes) != self.checksums.filters[group.number]:
            raise ValueError("a Bloom filter is not what was written")
        return filter_bytes

    def _checksums(self) -> Checksums:
        checksums = self._source.ask(
            lambda opened: array("I", [zlib.crc32(_filter_bytes(opened, group)) for group in self._groups])
        )
        return Checksums(self._source.footer_checksum, checksums)

    def _payloads(self, group: RowGroup) -> Payloads:
        """The payloads of a row group, decoded once for many reads; concurrent readers wait for the same."""
        name = (self._cache_name, group.number)
        payloads: Payloads | None = self._decoded.get(name)
        if payloads is not None:
            return payloads
        with self._loading[group.number]:
            payloads = self._decoded.get(name)
            if payloads is None:
                payloads = Payloads.of(self._decode(group, ["payload"])[0])
                self._decoded.put(name, payloads, payloads.bytes)
            return payloads

    def _key_index(self) -> KeyIndex | None:
        """The index of keys, once keys were looked up often enough; None while another thread makes it."""
        name = (self._cache_name, _PLACES)
        key_index: KeyIndex | None = self._decoded.get(name)
        self._key_lookups += key_index is None
        if key_index is not None or self._key_lookups < self._often or not self._placing.acquire(blocking=False):
            return key_index
        try:
            key_index = KeyIndex(self._decode(group, ["append_time", "key"]) for group in self._groups)
            self._decoded.put(name, key_index, key_index.bytes)
            self._key_lookups, self._often = 0, 2 * self._often
            return key_index
        finally:
            self._placing.release()

    def _times(self, group: RowGroup) -> memoryview:
        return _int64s(self._decode(group, ["append_time"])[0])

    def _first_rows(self, group: RowGroup) -> list[int]:
        """The rows of a group with which append requests begin."""
        rows: list[int] = pc.indices_nonzero(self._decode(group, ["first"])[0]).to_pylist()
        return rows

    def _decode(self, group: RowGroup, columns: list[str]) -> list[Any]:
        """Columns of a row group, without what the mask hides."""
        arrays = self._read_columns(group, columns)
        if self.mask is None or _MASKED.isdisjoint(columns) or not (rows := self._hidden_rows(group)):
            return arrays
        for number, name in enumerate(columns):
            if name == "key":
                arrays[number] = without_keys(arrays[number], rows)
            elif name == "payload":
                arrays[number] = with_tombstones(arrays[number], rows, self.mask)
        return arrays

    def _hidden_rows(self, group: RowGroup) -> list[int]:
        """The rows of a group that the mask hides."""
        if self.mask is None:
            return []
        rows = self._hidden.get(group.number)
        if rows is None:
            rows = self._hidden[group.number] = self._find_hidden(group, self.mask)
        return rows

    def _find_hidden(self, group: RowGroup, mask: RowMask) -> list[int]:
        hashed = ((key, bloom.xxh64(key.encode())) for key in mask.keys)
        if group.first_seq >= mask.before_seq or not any(self._may_hold(group, *key) for key in hashed):
            return []
        return mask.rows(pa.record_batch(self._read_columns(group, _COLUMNS), schema=layout.schema(self.info.json)))

    def _read_columns(self, group: RowGroup, columns: list[str]) -> list[Any]:
        """Columns of a row group as the file holds them."""
        table = self._source.table(group.number, columns)
        return [
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) for column in table.columns
        ]

    def _holding(self, seq: int) -> RowGroup:
        if not self.first_seq <= seq < self.end_seq:
            raise ValueError(f"entry {seq} is not in {self.name}")
        return self._groups[bisect_right(self._starts, seq) - 1]

    def _groups_between(self, position: int, end: int) -> list[RowGroup]:
        """The row groups that hold entries of [position, end)."""
        if position >= end:
            return []
        first = max(0, bisect_right(self._starts, position) - 1)
        return self._groups[first : bisect_left(self._starts, end)]

    def _corrupt(self, check: str, what: str) -> CorruptData:
        return CorruptData(f"{self.name} is damaged: {what}", object=self.name, check=check)


def _filter_bytes(opened: OpenParquet, group: RowGroup) -> bytes:
    """The Bloom filter of a row group, nothing where it has none."""
    return b"" if group.filter is None else bytes(opened.source.read_at(group.filter[1], group.filter[0]))


def _pick_payloads(opened: OpenParquet, group: RowGroup, rows: list[int]) -> list[bytes] | None:
    """The payloads of some rows, from the pages that hold them; None where the library has to decode the column."""
    chunk = opened.parquet.metadata.row_group(group.number).column(layout.PAYLOAD)
    return pages.pick(opened.source.read_at(chunk.total_compressed_size, chunk.data_page_offset), rows)


def _parts(selected: _Selected, last: int) -> Iterator[SlicePart]:
    """The entries up to ``last``, cut where the schema version changes."""
    start, payloads = selected.start, selected.payloads
    if isinstance(selected.versions, int):
        if last > start:
            yield SlicePart(selected.versions, last - start, payloads.piece(start, last))
        return
    runs = pc.run_end_encode(selected.versions.slice(start, last - start))
    before = 0
    for end, version in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield SlicePart(version, end - before, payloads.piece(start + before, start + end))
        before = end


def _int64s(column: Any) -> memoryview:
    """A column of whole numbers or times as a plain sequence."""
    return memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]
