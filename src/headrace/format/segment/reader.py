"""Reading a segment: one look at the footer, then the row groups that a request touches, and no others.

A reader may be used from several threads. It keeps its file open, so it works on even after the file was removed; it
does not map it, since mapped pages would count as memory of the process. Every failure of the bytes is ``CorruptData``
and names the object.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import CorruptData
from headrace.format.parquet_file import Opened, ParquetSource, intact
from headrace.format.segment import bloom, layout, pages
from headrace.format.segment.columns import Payloads, int32s, pieces, text
from headrace.format.segment.decoded import DecodedCache
from headrace.format.segment.footer import KeyIndex, RowGroup, groups_of
from headrace.format.segment.mask import Mask, with_tombstones, without_keys
from headrace.types import Piece

_COLUMNS = ["seq", "append_time", "key", "version", "first", "payload"]
_MASKED = frozenset(("key", "payload"))
# What an open footer takes for each row group, measured.
_GROUP_FOOTPRINT = 6 * 1024
# Where so large a part of a row group has the key, the whole of it is likely to be wanted again.
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


class _Found(NamedTuple):
    """Entries of one row group: the payloads ``start`` to ``stop``, and how to tell more about them.

    ``versions`` is one for all or a column; ``rows`` are their places after ``first_seq``, None where none is left out.
    """

    payloads: Payloads
    start: int
    stop: int
    versions: Any
    first_seq: int
    rows: Any = None

    def seq(self, place: int) -> int:
        """The sequence number of one of them."""
        return self.first_seq + (place if self.rows is None else int(self.rows[place].as_py()))


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
        decoded: DecodedCache,
        sha256: str | None = None,
        mask: Mask | None = None,
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
        self._asked, self._often = 0, _OFTEN

    def read(self, position: int, end: int, budget: int, key: str | None = None) -> Slice:
        """Entries of [position, end) in order, as many as the budget allows and at least one if there is any.

        The budget is for the parts joined, by commas where the stream is JSON.
        """
        parts: list[SlicePart] = []
        room, end = budget, min(end, self.end_seq)
        wanted = None if key is None else (key, bloom.xxh64(key.encode()))
        for group in self._touched(position, end):
            start, stop = max(position, group.first_seq), min(end, group.end_seq)
            found = self._all(group, start, stop) if wanted is None else self._keyed(group, start, stop, *wanted)
            if found is None:
                continue
            last = found.payloads.fitting(found.start, found.stop, room)
            if last == found.start and not parts:
                last += 1
            for part in _parts(found, last):
                parts.append(part)
                room -= len(part.body) + self.info.json
            if last < found.stop:
                return Slice(parts, found.seq(last))
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
        place = self._holding(seq).number
        starts = [self._groups[place].first_seq + row for row in self._first_rows(self._groups[place])]
        at = bisect_right(starts, seq)
        begin = starts[at - 1] if at else None
        end = starts[at] if at < len(starts) else None
        for group in reversed(self._groups[:place] if begin is None else []):
            if rows := self._first_rows(group):
                begin = group.first_seq + rows[-1]
                break
        for group in self._groups[place + 1 :] if end is None else []:
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

    def batches(self, position: int, end: int) -> Iterator[Any]:
        """The rows of [position, end) as Arrow record batches, one for each row group."""
        for group in self._touched(position, min(end, self.end_seq)):
            columns = self._decode(group, _COLUMNS)
            start, stop = max(position, group.first_seq), min(end, group.end_seq)
            batch = pa.record_batch(columns, schema=layout.schema(self.info.json))
            yield batch.slice(start - group.first_seq, stop - start)

    def keyed(self, position: int, end: int, key: str) -> Iterator[Any]:
        """The rows of [position, end) that have a key as Arrow record batches, one for each row group with any."""
        key_hash = bloom.xxh64(key.encode())
        for group in self._touched(position, min(end, self.end_seq)):
            if not self._may_hold(group, key, key_hash):
                continue
            first, stop = max(position, group.first_seq), min(end, group.end_seq)
            mask = pc.equal(self._decode(group, ["key"])[0].slice(first - group.first_seq, stop - first), text(key))
            if pc.any(mask).as_py():
                batch = pa.record_batch(self._decode(group, _COLUMNS), schema=layout.schema(self.info.json))
                yield batch.slice(first - group.first_seq, stop - first).filter(mask)

    def having(self, position: int, end: int, key: str) -> Iterator[Entry]:
        """The entries of [position, end) that have a key, in order; where two keys have one hash, those of both."""
        places = self._places()
        if places is None:
            for batch in self.keyed(position, end, key):
                seqs, times = batch.column(layout.SEQ), batch.column(layout.APPEND_TIME).cast("int64")
                payloads = Payloads.of(batch.column(layout.PAYLOAD))
                pieces_ = (payloads.piece(place, place + 1) for place in range(payloads.count))
                yield from map(Entry, seqs.to_pylist(), times.to_pylist(), pieces_)
            return
        rows = [row for row in places.of(key) if position <= self.first_seq + row < end]
        for group, found in groupby(rows, lambda row: self._holding(self.first_seq + row)):
            before, chosen = group.first_seq - self.first_seq, list(found)
            payloads = self._picked(group, [row - before for row in chosen])
            for place, row in enumerate(chosen):
                yield Entry(self.first_seq + row, places.time(row), payloads.piece(place, place + 1))

    def keys(self, position: int, end: int) -> Any:
        """The keys of the entries of [position, end), each once and in order, as an Arrow array."""
        found = [pa.array([], pa.string())]
        for group in self._touched(position, min(end, self.end_seq)):
            if group.keyed:
                start, stop = max(position, group.first_seq), min(end, group.end_seq)
                column = self._decode(group, ["key"])[0].slice(start - group.first_seq, stop - start)
                found.append(column.unique())
        keys = pa.concat_arrays(found).unique().drop_null()
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

    def _all(self, group: RowGroup, start: int, stop: int) -> _Found:
        versions = self._decode(group, ["version"])[0] if group.version is None else group.version
        first = group.first_seq
        return _Found(self._payloads(group), start - first, stop - first, versions, first)

    def _keyed(self, group: RowGroup, start: int, stop: int, key: str, key_hash: int) -> _Found | None:
        """The entries of one key: pruned by what the footer says, then compared one by one, natively."""
        if not self._may_hold(group, key, key_hash):
            return None
        first = start - group.first_seq
        keys = self._decode(group, ["key"])[0].slice(first, stop - start)
        mask = pc.equal(keys, text(key))
        rows = pc.indices_nonzero(mask)
        if not len(rows):
            return None
        whole = self._decoded.get((self._cache_name, group.number))
        if whole is None and len(rows) * _MANY >= group.end_seq - group.first_seq:
            whole = self._payloads(group)
        if whole is not None:
            payloads = whole.chosen(first, mask)
        else:
            payloads = self._picked(group, [first + row for row in rows.to_pylist()])
        versions = group.version
        if versions is None:
            versions = self._decode(group, ["version"])[0].slice(first, stop - start).filter(mask)
        return _Found(payloads, 0, len(rows), versions, start, rows)

    def _picked(self, group: RowGroup, rows: list[int]) -> Payloads:
        """The payloads of some rows of a group."""
        if len(rows) <= pages.MOST and not self._hidden_rows(group):
            found = self._source.ask(lambda opened: _picked(opened, group, rows))
            if found is not None:
                return Payloads.of(pieces(pa.string() if self.info.json else pa.binary(), found))
        return Payloads.of(self._decode(group, ["payload"])[0].take(int32s(rows)))

    def _may_hold(self, group: RowGroup, key: str, key_hash: int) -> bool:
        if not group.keyed or (group.keys is not None and not group.keys[0] <= key <= group.keys[1]):
            return False
        if group.filter is None:
            return True
        return bloom.may_hold(self._source.ask(lambda opened: self._filter(opened, group)), key_hash)

    def _filter(self, opened: Opened, group: RowGroup) -> bytes:
        """The Bloom filter of a row group; raises ValueError where it is not what it was when the file was verified."""
        found = _filter_bytes(opened, group)
        if zlib.crc32(found) != self.checksums.filters[group.number]:
            raise ValueError("a Bloom filter is not what was written")
        return found

    def _checksums(self) -> Checksums:
        checksums = self._source.ask(
            lambda opened: array("I", [zlib.crc32(_filter_bytes(opened, group)) for group in self._groups])
        )
        return Checksums(self._source.footer_checksum, checksums)

    def _payloads(self, group: RowGroup) -> Payloads:
        """The payloads of a row group, decoded once for many reads; who comes meanwhile waits for the same."""
        name = (self._cache_name, group.number)
        found: Payloads | None = self._decoded.get(name)
        if found is not None:
            return found
        with self._loading[group.number]:
            found = self._decoded.get(name)
            if found is None:
                found = Payloads.of(self._decode(group, ["payload"])[0])
                self._decoded.keep(name, found, found.bytes)
            return found

    def _places(self) -> KeyIndex | None:
        """Where keys lie, once that was asked for often enough; who comes while it is made does without."""
        name = (self._cache_name, _PLACES)
        found: KeyIndex | None = self._decoded.get(name)
        self._asked += found is None
        if found is not None or self._asked < self._often or not self._placing.acquire(blocking=False):
            return found
        try:
            found = KeyIndex(self._decode(group, ["append_time", "key"]) for group in self._groups)
            self._decoded.keep(name, found, found.bytes)
            self._asked, self._often = 0, 2 * self._often
            return found
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
        found = self._stored(group, columns)
        if self.mask is None or _MASKED.isdisjoint(columns) or not (rows := self._hidden_rows(group)):
            return found
        for place, name in enumerate(columns):
            if name == "key":
                found[place] = without_keys(found[place], rows)
            elif name == "payload":
                found[place] = with_tombstones(found[place], rows, self.mask)
        return found

    def _hidden_rows(self, group: RowGroup) -> list[int]:
        """The rows of a group that the mask hides."""
        if self.mask is None:
            return []
        known = self._hidden.get(group.number)
        if known is None:
            known = self._hidden[group.number] = self._find_hidden(group, self.mask)
        return known

    def _find_hidden(self, group: RowGroup, mask: Mask) -> list[int]:
        hashed = ((key, bloom.xxh64(key.encode())) for key in mask.keys)
        if group.first_seq >= mask.before_seq or not any(self._may_hold(group, *key) for key in hashed):
            return []
        return mask.rows(pa.record_batch(self._stored(group, _COLUMNS), schema=layout.schema(self.info.json)))

    def _stored(self, group: RowGroup, columns: list[str]) -> list[Any]:
        """Columns of a row group as the file holds them."""
        table = self._source.table(group.number, columns)
        return [
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) for column in table.columns
        ]

    def _holding(self, seq: int) -> RowGroup:
        if not self.first_seq <= seq < self.end_seq:
            raise ValueError(f"entry {seq} is not in {self.name}")
        return self._groups[bisect_right(self._starts, seq) - 1]

    def _touched(self, position: int, end: int) -> list[RowGroup]:
        """The row groups that hold entries of [position, end)."""
        if position >= end:
            return []
        first = max(0, bisect_right(self._starts, position) - 1)
        return self._groups[first : bisect_left(self._starts, end)]

    def _corrupt(self, check: str, what: str) -> CorruptData:
        return CorruptData(f"{self.name} is damaged: {what}", object=self.name, check=check)


def _filter_bytes(opened: Opened, group: RowGroup) -> bytes:
    """The Bloom filter of a row group, nothing where it has none."""
    return b"" if group.filter is None else bytes(opened.source.read_at(group.filter[1], group.filter[0]))


def _picked(opened: Opened, group: RowGroup, rows: list[int]) -> list[bytes] | None:
    """The payloads of some rows, from the pages that hold them; None where the library has to decode the column."""
    place = opened.parquet.metadata.row_group(group.number).column(layout.PAYLOAD)
    return pages.pick(opened.source.read_at(place.total_compressed_size, place.data_page_offset), rows)


def _parts(found: _Found, last: int) -> Iterator[SlicePart]:
    """The entries up to ``last``, cut where the schema version changes."""
    start, payloads = found.start, found.payloads
    if isinstance(found.versions, int):
        if last > start:
            yield SlicePart(found.versions, last - start, payloads.piece(start, last))
        return
    runs = pc.run_end_encode(found.versions.slice(start, last - start))
    before = 0
    for end, version in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield SlicePart(version, end - before, payloads.piece(start + before, start + end))
        before = end


def _int64s(column: Any) -> memoryview:
    """A column of whole numbers or times as a plain sequence."""
    return memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]
