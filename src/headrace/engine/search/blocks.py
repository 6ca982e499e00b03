"""Companions in memory: what no file covers, extracted once and kept in blocks, bounded in bytes.

Their tables may move to local files that no directory lists: memory-mapped, and gone with the last reader.
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
from headrace.engine.search.companion_coverage import Defined
from headrace.extract.columns import Extractor
from headrace.extract.postings import in_memory
from headrace.format.companion import tables
from headrace.format.companion.memory import MemoryCompanion, Tables
from headrace.format.ranges import Range
from headrace.storage.files import make_directories

_ALIGNED = 64


def spilled(tables: Tables, directory: Path) -> tuple[Tables, Any]:
    """The same tables, mapped from a file, and all that is mapped; raises OSError where it cannot be written.

    The file is unlinked at once, so that neither a crash nor an erasure leaves it behind.
    """
    make_directories(directory)
    descriptor, name = tempfile.mkstemp(dir=directory)
    os.close(descriptor)
    try:
        ends = _written(name, [tables.columns, *tables.postings.values(), *tables.panes.values()])
        with pa.memory_map(name) as mapped:
            whole = mapped.read_buffer(ends[-1])
    finally:
        Path(name).unlink()
    parts = iter([_read(whole.slice(start, end - start)) for start, end in zip([0, *ends], ends, strict=False)])
    mapped_tables = Tables(
        next(parts), {name: next(parts) for name in tables.postings}, {name: next(parts) for name in tables.panes}
    )
    return mapped_tables, whole


def _written(name: str, tables: list[Any]) -> list[int]:
    """Where each table ends in the file."""
    ends = []
    with pa.OSFile(name, "wb") as file:
        for table in tables:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            file.write(b"\0" * (-file.tell() % _ALIGNED))
            ends.append(file.tell())
    return ends


def _read(part: Any) -> Any:
    return pa.ipc.open_stream(part).read_all()


log = logging.getLogger("headrace.search")

_OVERHEAD = 64 * 1024
#: A block in a file takes so much memory: its description, and what was looked up in it.
_MAPPED_OVERHEAD = 4 * 1024
#: A neighbour is merged if it has at most so many times the rows.
_LARGER = 2
#: A stream whose last question is longer ago is not expected to be asked soon.
_EXPECTED_S = 60.0
#: Blocks with fewer rows are not worth a file.
_LEAST_SPILLED_ROWS = 4_096


class Block:
    """A companion in memory, and while it may still be merged the columns it was made from."""

    def __init__(self, companion: MemoryCompanion, columns: Any = None, *, bytes: int, disk_bytes: int = 0) -> None:
        self.companion = companion
        self.columns = columns
        self.first_seq, self.end_seq = companion.first_seq, companion.end_seq
        self.bytes = bytes
        self.disk_bytes = disk_bytes
        #: The whole file that its tables are mapped from.
        self.mapped: Any = None

    @classmethod
    def growing(cls, columns: Any, companion: MemoryCompanion) -> Block:
        """A block that may be merged with others."""
        return cls(companion, columns, bytes=_OVERHEAD + columns.nbytes + companion.bytes)

    def finished(self, defined: Defined) -> Block:
        """The same block with all its tables made, which is not merged any more."""
        if self.columns is None:
            return self
        made = self.tables(defined)
        return Block(MemoryCompanion.complete(self.companion.info, made), bytes=_OVERHEAD + made.bytes)

    def in_file(self, made: Tables, directory: Path) -> Block:
        """The same block with its tables in a file."""
        tables, mapped = spilled(made, directory)
        companion = MemoryCompanion.complete(self.companion.info, tables)
        block = Block(companion, bytes=_MAPPED_OVERHEAD, disk_bytes=made.bytes)
        block.mapped = mapped
        return block

    def tables(self, defined: Defined) -> Tables:
        """All tables of its companion."""
        rollups = defined.definition.search.rollups
        return self.companion.tables(
            (name, interval.millis) for name in self.companion.info.rollups for interval in rollups[name].intervals
        )

    @property
    def rows(self) -> int:
        """How many events it holds."""
        return self.end_seq - self.first_seq

    def is_current(self, defined: Defined) -> bool:
        """Whether it holds what is defined now, and nothing else."""
        info, wanted = self.companion.info, defined.hashes(self.companion.through_version)
        return {name: shape.hash for name, shape in info.fields.items()} == wanted.fields and (
            info.rollups == wanted.rollups
        )

    def may_grow(self, other: Block) -> bool:
        """Whether it is to be one block with a neighbour."""
        if self.columns is None or other.columns is None:
            return False
        fits = self.rows + other.rows <= CHUNK_ROWS and self.columns.nbytes + other.columns.nbytes <= CHUNK_BYTES
        return fits and other.rows <= _LARGER * self.rows


class Piece(NamedTuple):
    """Events ``start`` to ``stop``, and a companion in memory that describes them, and perhaps others."""

    companion: MemoryCompanion
    start: int
    stop: int


class Room(NamedTuple):
    """How much memory blocks may take, how much of the disk, and the directory of their files."""

    bytes: int
    disk_bytes: int
    directory: Path


class _Line:
    """The blocks of one stream, in order; who extracts holds the lock."""

    def __init__(self) -> None:
        self.extracting = threading.Lock()
        self.blocks: list[Block] = []
        #: What its blocks hold; they are all of this definition, or of an older one that nobody will ask for.
        self.defined: Defined | None = None
        #: When it was asked last, by the monotonic clock.
        self.asked_s = float("-inf")


class Blocks:
    """The blocks of all streams. For any thread."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._fitting = threading.Lock()
        #: The stream asked longest ago comes first.
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self.bytes = self.disk_bytes = 0
        #: Events extracted since the start.
        self.extracted = 0

    @property
    def used_share(self) -> float:
        """How much of the room is taken, from 0 to 1."""
        return (self.bytes + self.disk_bytes) / max(1, self._room.bytes + self._room.disk_bytes)

    def pieces(
        self,
        incarnation: str,
        defined: Defined,
        events: Events,
        start: int,
        stop: int,
        *,
        newest_first: bool,
        deadline: Deadline | None = None,
    ) -> Iterator[Piece]:
        """Companions of a range of events, one after the other; what is missing is extracted when its turn comes.

        Extraction ends, with Cancelled, once the deadline is cancelled.
        """
        self._note_use(incarnation)
        extractor: Extractor | None = None
        while start < stop:
            seq = stop - 1 if newest_first else start
            block = self._find(incarnation, defined, seq)
            if block is None:
                line = self._line(incarnation)
                line.asked_s = monotonic()
                with line.extracting:
                    block = self._find(incarnation, defined, seq)
                    if block is None:
                        extractor = extractor or Extractor(defined.definition)
                        low, high = self._hole(incarnation, start, stop, seq)
                        chunk = events.last_chunk(low, high) if newest_first else events.first_chunk(low, high)
                        block = self._extract(incarnation, defined, extractor, events, chunk, deadline)
            low, high = max(start, block.first_seq), min(stop, block.end_seq)
            yield Piece(block.companion, low, high)
            start, stop = (start, low) if newest_first else (high, stop)

    def extract(self, incarnation: str, defined: Defined, events: Events, start: int, stop: int) -> None:
        """Extract what is missing of a range ahead of questions, as far as there is room.

        Where questions are expected, postings and panes are made too.
        """
        extractor = Extractor(defined.definition)
        while start < stop and self.used_share < 1:
            with self._line(incarnation).extracting:
                block = self._find(incarnation, defined, start)
                if block is None:
                    chunk = events.first_chunk(*self._hole(incarnation, start, stop, start))
                    block = self._extract(incarnation, defined, extractor, events, chunk)
                if block.columns is not None and block.rows > CHUNK_ROWS // 2 and self.is_expected(incarnation):
                    finished = block.finished(defined)
                    self._replace(incarnation, block, finished)
                    self._make_room(incarnation, finished)
            start = block.end_seq

    def keep_only(self, incarnation: str, ranges: Sequence[Range]) -> None:
        """Let go of blocks of a stream that have no events in these ranges."""
        with self._lock:
            line = self._lines.get(incarnation)
            for block in list(line.blocks) if line is not None else ():
                if not any(Range(block.first_seq, block.end_seq).overlaps(kept_range) for kept_range in ranges):
                    self._remove(incarnation, block)

    def drop_pages(self) -> None:
        """Let no page of a file be resident; those that are read again come from the cache of the system."""
        with self._lock:
            mapped = [block.mapped for line in self._lines.values() for block in line.blocks if block.mapped]
        for buffer in mapped:
            drop_mapped_pages(buffer.address, buffer.size)

    def streams(self) -> list[str]:
        """The incarnations of streams that have blocks."""
        with self._lock:
            return [incarnation for incarnation, line in self._lines.items() if line.blocks]

    def has(self, incarnation: str) -> bool:
        """Whether there are blocks of a stream: somebody has asked, or they were extracted ahead."""
        with self._lock:
            return incarnation in self._lines

    def is_expected(self, incarnation: str) -> bool:
        """Whether a stream was asked a short time ago."""
        with self._lock:
            line = self._lines.get(incarnation)
            return line is not None and monotonic() - line.asked_s < _EXPECTED_S

    def _note_use(self, incarnation: str) -> None:
        with self._lock:
            if incarnation in self._lines:
                self._lines.move_to_end(incarnation)
                self._lines[incarnation].asked_s = monotonic()

    def _line(self, incarnation: str) -> _Line:
        with self._lock:
            return self._lines.setdefault(incarnation, _Line())

    def _find(self, incarnation: str, defined: Defined, seq: int) -> Block | None:
        """The block that holds an event; one that holds something else than is defined now goes."""
        with self._lock:
            line = self._lines.get(incarnation)
            at = -1 if line is None else bisect_right(line.blocks, seq, key=_first) - 1
            if line is None or at < 0 or line.blocks[at].end_seq <= seq:
                return None
            block = line.blocks[at]
            if block.is_current(defined):
                return block
            self._remove(incarnation, block)
            return None

    def _hole(self, incarnation: str, start: int, stop: int, seq: int) -> tuple[int, int]:
        """The events around one that no block holds, within a range."""
        with self._lock:
            line = self._lines.get(incarnation)
            blocks = [] if line is None else line.blocks
            at = bisect_left(blocks, seq, key=_first)
            low = max(start, blocks[at - 1].end_seq) if at else start
            return low, min(stop, blocks[at].first_seq) if at < len(blocks) else stop

    def _extract(
        self,
        incarnation: str,
        defined: Defined,
        extractor: Extractor,
        events: Events,
        chunk: Chunk,
        deadline: Deadline | None = None,
    ) -> Block:
        block = _extracted(extractor, defined, events, chunk, deadline)
        rows = block.rows
        while (neighbour := self._neighbour(incarnation, defined, block)) is not None:
            block = _merged(defined, *sorted((block, neighbour), key=_first))
        with self._lock:
            line = self._lines.setdefault(incarnation, _Line())
            line.defined = defined
            self.extracted += rows
            held = Range(block.first_seq, block.end_seq)
            for old in [old for old in line.blocks if held.overlaps(Range(old.first_seq, old.end_seq))]:
                self._remove(incarnation, old)
            line = self._lines.setdefault(incarnation, line)
            line.blocks.insert(bisect_left(line.blocks, block.first_seq, key=_first), block)
            self.bytes += block.bytes
        self._make_room(incarnation, block)
        return block

    def _neighbour(self, incarnation: str, defined: Defined, block: Block) -> Block | None:
        """A block beside this one to merge it with."""
        with self._lock:
            line = self._lines.get(incarnation)
            blocks = [] if line is None else line.blocks
            at = bisect_left(blocks, block.first_seq, key=_first)
            beside = [neighbour for neighbour in blocks[max(0, at - 1) :] if neighbour.first_seq <= block.end_seq][:4]
        touching = [
            neighbour
            for neighbour in beside
            if neighbour.end_seq == block.first_seq or neighbour.first_seq == block.end_seq
        ]
        return next(
            (neighbour for neighbour in touching if block.may_grow(neighbour) and neighbour.is_current(defined)), None
        )

    def _make_room(self, incarnation: str, added: Block) -> None:
        """Let blocks leave memory until the others fit into it."""
        with self._fitting:
            while self.bytes > self._room.bytes:
                chosen = self._leaving(incarnation, added)
                if chosen is None:
                    return
                owner, block, defined = chosen
                moved = self._moved(owner, block, defined)
                if moved is not None:
                    self._replace(owner, block, moved)
                elif owner != incarnation or not block.is_current(defined):
                    with self._lock:
                        self._remove(owner, block)
                else:
                    with self._lock:
                        self._remove(incarnation, added)
                    return

    def _leaving(self, incarnation: str, added: Block) -> tuple[str, Block, Defined] | None:
        """A block in memory of the stream asked longest ago, its oldest; of the stream of a new one at last."""
        with self._lock:
            others = [(owner, line) for owner, line in self._lines.items() if owner != incarnation]
            own = [(incarnation, line) for owner, line in self._lines.items() if owner == incarnation]
            for owner, line in [*others, *own]:
                for block in line.blocks:
                    if not block.disk_bytes and block is not added:
                        assert line.defined is not None, "there are blocks"
                        return owner, block, line.defined
        return None

    def _moved(self, owner: str, block: Block, defined: Defined) -> Block | None:
        """A block in a file, or None where it is too small for one or there is no room."""
        if block.rows < _LEAST_SPILLED_ROWS or not block.is_current(defined):
            return None
        made = block.tables(defined)
        if not self._has_disk_room(owner, made.bytes):
            return None
        try:
            return block.in_file(made, self._room.directory)
        except OSError as reason:
            log.warning("columns of events that no companion covers stay in memory: %s", reason)
            return None

    def _has_disk_room(self, owner: str, size: int) -> bool:
        """Whether a block fits on disk, once those of streams asked before its own have gone."""
        with self._lock:
            for other in list(self._lines):
                if self.disk_bytes + size <= self._room.disk_bytes:
                    return True
                if other == owner:
                    return False
                for block in [block for block in self._lines[other].blocks if block.disk_bytes]:
                    self._remove(other, block)
            return self.disk_bytes + size <= self._room.disk_bytes

    def _replace(self, incarnation: str, old: Block, new: Block) -> None:
        """Put a block in the place of another that holds the same; nothing happens where that is gone."""
        with self._lock:
            line = self._lines.get(incarnation)
            if line is not None and old in line.blocks:
                line.blocks[line.blocks.index(old)] = new
                self.bytes += new.bytes - old.bytes
                self.disk_bytes += new.disk_bytes - old.disk_bytes

    def _remove(self, incarnation: str, block: Block) -> None:
        line = self._lines.get(incarnation)
        if line is not None and block in line.blocks:
            line.blocks.remove(block)
            self.bytes -= block.bytes
            self.disk_bytes -= block.disk_bytes
            if not line.blocks and not line.extracting.locked():
                del self._lines[incarnation]


def _extracted(
    extractor: Extractor, defined: Defined, events: Events, chunk: Chunk, deadline: Deadline | None
) -> Block:
    """The block of a chunk of events."""
    rows = pa.Table.from_batches(events.batches(chunk))
    version = int(pc.max(rows.column("version")).as_py())
    columns = extractor.columns(rows, deadline)
    return Block.growing(columns, in_memory(columns, defined.definition, chunk.start, version))


def _merged(defined: Defined, left: Block, right: Block) -> Block:
    columns = tables.concat([left.columns, right.columns]).combine_chunks()
    version = max(left.companion.through_version, right.companion.through_version)
    return Block.growing(columns, in_memory(columns, defined.definition, left.first_seq, version))


def _first(block: Block) -> int:
    return block.first_seq
