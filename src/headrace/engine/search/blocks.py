"""Companions in memory: events that no file covers are extracted once, and kept in blocks bounded in bytes.

Tables of blocks are spilled to local files that are unlinked at once: memory-mapped, and gone with the last reader.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.deadline import Deadline
from headrace.engine.history.stored_events import CHUNK_BYTES, CHUNK_ROWS, Chunk, Events
from headrace.engine.runtime.allocators import drop_mapped_pages
from headrace.engine.search.companion_coverage import SearchDefinition
from headrace.extract.columns import Extractor
from headrace.extract.postings import in_memory
from headrace.format.companion import tables
from headrace.format.companion.memory import MemoryCompanion, Tables
from headrace.format.ranges import Range
from headrace.storage.files import make_directories

_ALIGNED = 64


def spill(tables: Tables, directory: Path) -> tuple[Tables, Any]:
    """The same tables mapped from a file, and the mapped buffer; raises OSError where it cannot be written.

    The file is unlinked at once, so that neither a crash nor an erasure leaves it behind.
    """
    make_directories(directory)
    descriptor, name = tempfile.mkstemp(dir=directory)
    os.close(descriptor)
    try:
        ends = _write_tables(name, [tables.columns, *tables.postings.values(), *tables.panes.values()])
        with pa.memory_map(name) as mapped:
            mapped_file = mapped.read_buffer(ends[-1])
    finally:
        Path(name).unlink()
    parts = iter(
        [_read_table(mapped_file.slice(start, end - start)) for start, end in zip([0, *ends], ends, strict=False)]
    )
    mapped_tables = Tables(
        next(parts), {name: next(parts) for name in tables.postings}, {name: next(parts) for name in tables.panes}
    )
    return mapped_tables, mapped_file


def _write_tables(name: str, tables: list[Any]) -> list[int]:
    """Write tables to a file; returns where each one ends."""
    ends = []
    with pa.OSFile(name, "wb") as file:
        for table in tables:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            file.write(b"\0" * (-file.tell() % _ALIGNED))
            ends.append(file.tell())
    return ends


def _read_table(buffer: Any) -> Any:
    return pa.ipc.open_stream(buffer).read_all()


log = logging.getLogger("headrace.search")

_OVERHEAD = 64 * 1024
#: A block in a file takes so much memory: its description, and what was looked up in it.
_MAPPED_OVERHEAD = 4 * 1024
#: A neighbour is merged if it has at most so many times the rows.
_MAX_MERGE_RATIO = 2
#: A stream that was queried longer ago is not expected to be queried soon.
_RECENT_S = 60.0
#: Blocks with fewer rows are not spilled.
_MIN_SPILLED_ROWS = 4_096


class Block:
    """A companion in memory, and while it may still be merged the columns it was made from."""

    def __init__(self, companion: MemoryCompanion, columns: Any = None, *, bytes: int, disk_bytes: int = 0) -> None:
        self.companion = companion
        self.columns = columns
        self.first_seq, self.end_seq = companion.first_seq, companion.end_seq
        self.bytes = bytes
        self.disk_bytes = disk_bytes
        #: The file that its tables are mapped from.
        self.mapped: Any = None

    @classmethod
    def mergeable(cls, columns: Any, companion: MemoryCompanion) -> Block:
        """A block that may be merged with others."""
        return cls(companion, columns, bytes=_OVERHEAD + columns.nbytes + companion.bytes)

    def finished(self, defined: SearchDefinition) -> Block:
        """The same block with all its tables, which is not merged any more."""
        if self.columns is None:
            return self
        tables = self.tables(defined)
        return Block(MemoryCompanion.complete(self.companion.info, tables), bytes=_OVERHEAD + tables.bytes)

    def spilled(self, made: Tables, directory: Path) -> Block:
        """The same block with its tables in a file."""
        tables, mapped = spill(made, directory)
        companion = MemoryCompanion.complete(self.companion.info, tables)
        block = Block(companion, bytes=_MAPPED_OVERHEAD, disk_bytes=made.bytes)
        block.mapped = mapped
        return block

    def tables(self, defined: SearchDefinition) -> Tables:
        """All tables of its companion."""
        rollups = defined.definition.search.rollups
        return self.companion.tables(
            (name, interval.millis) for name in self.companion.info.rollups for interval in rollups[name].intervals
        )

    @property
    def rows(self) -> int:
        """How many events it holds."""
        return self.end_seq - self.first_seq

    def is_current(self, defined: SearchDefinition) -> bool:
        """Whether its columns are those of the current definition."""
        info, wanted = self.companion.info, defined.hashes(self.companion.through_version)
        return {name: shape.hash for name, shape in info.fields.items()} == wanted.fields and (
            info.rollups == wanted.rollups
        )

    def may_merge(self, other: Block) -> bool:
        """Whether it is to be merged with a neighbour."""
        if self.columns is None or other.columns is None:
            return False
        fits = self.rows + other.rows <= CHUNK_ROWS and self.columns.nbytes + other.columns.nbytes <= CHUNK_BYTES
        return fits and other.rows <= _MAX_MERGE_RATIO * self.rows


class Piece(NamedTuple):
    """Events ``start`` to ``stop``, and a companion in memory that describes them, and perhaps others."""

    companion: MemoryCompanion
    start: int
    stop: int


class BlockLimits(NamedTuple):
    """How much memory and how much of the disk blocks may take, and the directory of their files."""

    bytes: int
    disk_bytes: int
    directory: Path


class _StreamBlocks:
    """The blocks of one stream, in order; held locked by the thread that extracts more."""

    def __init__(self) -> None:
        self.extracting = threading.Lock()
        self.blocks: list[Block] = []
        #: The newest definition of its blocks; those of older ones are dropped when they are found.
        self.defined: SearchDefinition | None = None
        #: When it was queried last, by the monotonic clock.
        self.queried_s = float("-inf")


class BlockCache:
    """The blocks of all streams; for any thread."""

    def __init__(self, limits: BlockLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._fitting = threading.Lock()
        #: By incarnation; the stream that was queried longest ago comes first.
        self._streams: OrderedDict[str, _StreamBlocks] = OrderedDict()
        self.bytes = self.disk_bytes = 0
        #: Events extracted since the start.
        self.extracted = 0

    @property
    def used_share(self) -> float:
        """How much of the limits is used, from 0 to 1."""
        return (self.bytes + self.disk_bytes) / max(1, self._limits.bytes + self._limits.disk_bytes)

    def pieces(
        self,
        incarnation: str,
        defined: SearchDefinition,
        events: Events,
        start: int,
        stop: int,
        *,
        newest_first: bool,
        deadline: Deadline | None = None,
    ) -> Iterator[Piece]:
        """Companions of a range of events, in order; missing blocks are extracted lazily.

        Extraction ends, with Cancelled, once the deadline is cancelled.
        """
        self._note_query(incarnation)
        extractor: Extractor | None = None
        while start < stop:
            seq = stop - 1 if newest_first else start
            block = self._find(incarnation, defined, seq)
            if block is None:
                stream_blocks = self._blocks_of(incarnation)
                stream_blocks.queried_s = monotonic()
                with stream_blocks.extracting:
                    block = self._find(incarnation, defined, seq)
                    if block is None:
                        extractor = extractor or Extractor(defined.definition)
                        low, high = self._gap(incarnation, start, stop, seq)
                        chunk = events.last_chunk(low, high) if newest_first else events.first_chunk(low, high)
                        block = self._extract(incarnation, defined, extractor, events, chunk, deadline)
            low, high = max(start, block.first_seq), min(stop, block.end_seq)
            yield Piece(block.companion, low, high)
            start, stop = (start, low) if newest_first else (high, stop)

    def extract(self, incarnation: str, defined: SearchDefinition, events: Events, start: int, stop: int) -> None:
        """Extract the missing blocks of a range ahead of queries, as far as the limits allow.

        Where queries are expected, postings and panes are made too.
        """
        extractor = Extractor(defined.definition)
        while start < stop and self.used_share < 1:
            with self._blocks_of(incarnation).extracting:
                block = self._find(incarnation, defined, start)
                if block is None:
                    chunk = events.first_chunk(*self._gap(incarnation, start, stop, start))
                    block = self._extract(incarnation, defined, extractor, events, chunk)
                if block.columns is not None and block.rows > CHUNK_ROWS // 2 and self.is_queried(incarnation):
                    finished = block.finished(defined)
                    self._replace(incarnation, block, finished)
                    self._evict(incarnation, finished)
            start = block.end_seq

    def keep_only(self, incarnation: str, ranges: Sequence[Range]) -> None:
        """Drop the blocks of a stream that have no events in these ranges."""
        with self._lock:
            stream_blocks = self._streams.get(incarnation)
            for block in list(stream_blocks.blocks) if stream_blocks is not None else ():
                if not any(Range(block.first_seq, block.end_seq).overlaps(kept_range) for kept_range in ranges):
                    self._remove(incarnation, block)

    def drop_pages(self) -> None:
        """Drop the resident pages of mapped files; the system caches those that are read again."""
        with self._lock:
            mapped = [
                block.mapped
                for stream_blocks in self._streams.values()
                for block in stream_blocks.blocks
                if block.mapped
            ]
        for buffer in mapped:
            drop_mapped_pages(buffer.address, buffer.size)

    def streams(self) -> list[str]:
        """The incarnations of streams that have blocks."""
        with self._lock:
            return [incarnation for incarnation, stream_blocks in self._streams.items() if stream_blocks.blocks]

    def has(self, incarnation: str) -> bool:
        """Whether there are blocks of a stream, since it was queried or they were extracted ahead."""
        with self._lock:
            return incarnation in self._streams

    def is_queried(self, incarnation: str) -> bool:
        """Whether a stream was queried a short time ago."""
        with self._lock:
            stream_blocks = self._streams.get(incarnation)
            return stream_blocks is not None and monotonic() - stream_blocks.queried_s < _RECENT_S

    def _note_query(self, incarnation: str) -> None:
        with self._lock:
            if incarnation in self._streams:
                self._streams.move_to_end(incarnation)
                self._streams[incarnation].queried_s = monotonic()

    def _blocks_of(self, incarnation: str) -> _StreamBlocks:
        with self._lock:
            return self._streams.setdefault(incarnation, _StreamBlocks())

    def _find(self, incarnation: str, defined: SearchDefinition, seq: int) -> Block | None:
        """The block that holds an event; one of another definition is dropped."""
        with self._lock:
            stream_blocks = self._streams.get(incarnation)
            at = -1 if stream_blocks is None else bisect_right(stream_blocks.blocks, seq, key=_first) - 1
            if stream_blocks is None or at < 0 or stream_blocks.blocks[at].end_seq <= seq:
                return None
            block = stream_blocks.blocks[at]
            if block.is_current(defined):
                return block
            self._remove(incarnation, block)
            return None

    def _gap(self, incarnation: str, start: int, stop: int, seq: int) -> tuple[int, int]:
        """The events of a range around one that no block holds."""
        with self._lock:
            stream_blocks = self._streams.get(incarnation)
            blocks = [] if stream_blocks is None else stream_blocks.blocks
            at = bisect_left(blocks, seq, key=_first)
            low = max(start, blocks[at - 1].end_seq) if at else start
            return low, min(stop, blocks[at].first_seq) if at < len(blocks) else stop

    def _extract(
        self,
        incarnation: str,
        defined: SearchDefinition,
        extractor: Extractor,
        events: Events,
        chunk: Chunk,
        deadline: Deadline | None = None,
    ) -> Block:
        block = _extract_block(extractor, defined, events, chunk, deadline)
        rows = block.rows
        while (neighbour := self._neighbour(incarnation, defined, block)) is not None:
            block = _merge_blocks(defined, *sorted((block, neighbour), key=_first))
        with self._lock:
            stream_blocks = self._streams.setdefault(incarnation, _StreamBlocks())
            stream_blocks.defined = defined
            self.extracted += rows
            held = Range(block.first_seq, block.end_seq)
            for old in [old for old in stream_blocks.blocks if held.overlaps(Range(old.first_seq, old.end_seq))]:
                self._remove(incarnation, old)
            stream_blocks = self._streams.setdefault(incarnation, stream_blocks)
            stream_blocks.blocks.insert(bisect_left(stream_blocks.blocks, block.first_seq, key=_first), block)
            self.bytes += block.bytes
        self._evict(incarnation, block)
        return block

    def _neighbour(self, incarnation: str, defined: SearchDefinition, block: Block) -> Block | None:
        """A block beside this one to merge it with."""
        with self._lock:
            stream_blocks = self._streams.get(incarnation)
            blocks = [] if stream_blocks is None else stream_blocks.blocks
            at = bisect_left(blocks, block.first_seq, key=_first)
            beside = [neighbour for neighbour in blocks[max(0, at - 1) :] if neighbour.first_seq <= block.end_seq][:4]
        touching = [
            neighbour
            for neighbour in beside
            if neighbour.end_seq == block.first_seq or neighbour.first_seq == block.end_seq
        ]
        return next(
            (neighbour for neighbour in touching if block.may_merge(neighbour) and neighbour.is_current(defined)), None
        )

    def _evict(self, incarnation: str, added: Block) -> None:
        """Spill or drop blocks until the others fit into memory; a block that was just added goes last."""
        with self._fitting:
            while self.bytes > self._limits.bytes:
                chosen = self._next_to_evict(incarnation, added)
                if chosen is None:
                    return
                owner, block, defined = chosen
                spilled = self._spill(owner, block, defined)
                if spilled is not None:
                    self._replace(owner, block, spilled)
                elif owner != incarnation or not block.is_current(defined):
                    with self._lock:
                        self._remove(owner, block)
                else:
                    with self._lock:
                        self._remove(incarnation, added)
                    return

    def _next_to_evict(self, incarnation: str, added: Block) -> tuple[str, Block, SearchDefinition] | None:
        """The block to evict: the oldest of the least recently queried stream, that of a new block last."""
        with self._lock:
            others = [(owner, stream_blocks) for owner, stream_blocks in self._streams.items() if owner != incarnation]
            own = [
                (incarnation, stream_blocks) for owner, stream_blocks in self._streams.items() if owner == incarnation
            ]
            for owner, stream_blocks in [*others, *own]:
                for block in stream_blocks.blocks:
                    if not block.disk_bytes and block is not added:
                        assert stream_blocks.defined is not None, "there are blocks"
                        return owner, block, stream_blocks.defined
        return None

    def _spill(self, owner: str, block: Block, defined: SearchDefinition) -> Block | None:
        """A block in a file, or None where it is too small for one or there is no room on disk."""
        if block.rows < _MIN_SPILLED_ROWS or not block.is_current(defined):
            return None
        made = block.tables(defined)
        if not self._make_disk_room(owner, made.bytes):
            return None
        try:
            return block.spilled(made, self._limits.directory)
        except OSError as reason:
            log.warning("columns of events that no companion covers stay in memory: %s", reason)
            return None

    def _make_disk_room(self, owner: str, size: int) -> bool:
        """Whether a block fits on disk, once those of streams that were queried before its own are dropped."""
        with self._lock:
            for other in list(self._streams):
                if self.disk_bytes + size <= self._limits.disk_bytes:
                    return True
                if other == owner:
                    return False
                for block in [block for block in self._streams[other].blocks if block.disk_bytes]:
                    self._remove(other, block)
            return self.disk_bytes + size <= self._limits.disk_bytes

    def _replace(self, incarnation: str, old: Block, new: Block) -> None:
        """Replace a block by one with the same content, unless it was dropped."""
        with self._lock:
            stream_blocks = self._streams.get(incarnation)
            if stream_blocks is not None and old in stream_blocks.blocks:
                stream_blocks.blocks[stream_blocks.blocks.index(old)] = new
                self.bytes += new.bytes - old.bytes
                self.disk_bytes += new.disk_bytes - old.disk_bytes

    def _remove(self, incarnation: str, block: Block) -> None:
        stream_blocks = self._streams.get(incarnation)
        if stream_blocks is not None and block in stream_blocks.blocks:
            stream_blocks.blocks.remove(block)
            self.bytes -= block.bytes
            self.disk_bytes -= block.disk_bytes
            if not stream_blocks.blocks and not stream_blocks.extracting.locked():
                del self._streams[incarnation]


def _extract_block(
    extractor: Extractor, defined: SearchDefinition, events: Events, chunk: Chunk, deadline: Deadline | None
) -> Block:
    """The block of a chunk of events."""
    rows = pa.Table.from_batches(events.batches(chunk))
    version = int(pc.max(rows.column("version")).as_py())
    columns = extractor.columns(rows, deadline)
    return Block.mergeable(columns, in_memory(columns, defined.definition, chunk.start, version))


def _merge_blocks(defined: SearchDefinition, left: Block, right: Block) -> Block:
    columns = tables.concat([left.columns, right.columns]).combine_chunks()
    version = max(left.companion.through_version, right.companion.through_version)
    return Block.mergeable(columns, in_memory(columns, defined.definition, left.first_seq, version))


def _first(block: Block) -> int:
    return block.first_seq
