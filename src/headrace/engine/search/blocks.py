"""Companions in memory: what no file covers, extracted once and kept in blocks, bounded in bytes.

The blocks of a stream lie side by side and never overlap, wherever the events lie at the moment. New events become a
block of their own. A block that has a neighbour not much larger than itself is merged with it, so that there are few
of them, and none is merged often.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.search.events import CHUNK_BYTES, CHUNK_ROWS, Chunk, Events
from headrace.engine.work.definitions import Defined
from headrace.extract.columns import Extractor
from headrace.extract.memory import in_memory
from headrace.format.companion import tables
from headrace.format.companion.memory import MemoryCompanion

_OVERHEAD = 64 * 1024
#: A neighbour is merged if it has at most so many times the rows.
_LARGER = 2


class Block:
    """A companion in memory, and the columns it was made from."""

    def __init__(self, columns: Any, companion: MemoryCompanion) -> None:
        self.columns = columns
        self.companion = companion
        self.first_seq, self.end_seq = companion.first_seq, companion.end_seq
        self.bytes: int = _OVERHEAD + columns.nbytes + companion.bytes

    def is_current(self, defined: Defined) -> bool:
        """Whether it holds what is defined now, and nothing else."""
        info, wanted = self.companion.info, defined.hashes(self.companion.through_version)
        return {name: shape.hash for name, shape in info.fields.items()} == wanted.fields and (
            info.rollups == wanted.rollups
        )

    def may_grow(self, other: Block) -> bool:
        """Whether it is to be one block with a neighbour."""
        rows, others = len(self.columns), len(other.columns)
        fits = rows + others <= CHUNK_ROWS and self.columns.nbytes + other.columns.nbytes <= CHUNK_BYTES
        return fits and others <= _LARGER * rows


class Piece(NamedTuple):
    """Events ``start`` to ``stop``, and a companion in memory that describes them, and perhaps others."""

    companion: MemoryCompanion
    start: int
    stop: int


class _Line:
    """The blocks of one stream, in order; who extracts holds the lock."""

    def __init__(self) -> None:
        self.extracting = threading.Lock()
        self.blocks: list[Block] = []


class Blocks:
    """The blocks of all streams; those used longest ago make room. For any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._used: OrderedDict[Block, str] = OrderedDict()
        self.bytes = self.extracted = 0

    def pieces(
        self, incarnation: str, defined: Defined, events: Events, start: int, stop: int, *, newest_first: bool
    ) -> Iterator[Piece]:
        """Companions of a range of events, one after the other; what is missing is extracted when its turn comes."""
        extractor: Extractor | None = None
        while start < stop:
            seq = stop - 1 if newest_first else start
            block = self._find(incarnation, defined, seq)
            if block is None:
                with self._line(incarnation).extracting:
                    block = self._find(incarnation, defined, seq)
                    if block is None:
                        extractor = extractor or Extractor(defined.definition)
                        low, high = self._hole(incarnation, start, stop, seq)
                        chunk = events.last_chunk(low, high) if newest_first else events.first_chunk(low, high)
                        block = self._add(incarnation, defined, _extracted(extractor, defined, events, chunk))
            low, high = max(start, block.first_seq), min(stop, block.end_seq)
            yield Piece(block.companion, low, high)
            start, stop = (start, low) if newest_first else (high, stop)

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
                self._used.move_to_end(block)
                return block
            self._remove(block)
            return None

    def _hole(self, incarnation: str, start: int, stop: int, seq: int) -> tuple[int, int]:
        """The events around one that no block holds, within a range."""
        with self._lock:
            line = self._lines.get(incarnation)
            blocks = [] if line is None else line.blocks
            at = bisect_left(blocks, seq, key=_first)
            low = max(start, blocks[at - 1].end_seq) if at else start
            return low, min(stop, blocks[at].first_seq) if at < len(blocks) else stop

    def _add(self, incarnation: str, defined: Defined, block: Block) -> Block:
        """Put a block between the others, merged with those beside it that are small."""
        while True:
            neighbour = self._neighbour(incarnation, defined, block)
            if neighbour is None:
                break
            block = _merged(defined, *sorted((block, neighbour), key=_first))
        with self._lock:
            line = self._lines.setdefault(incarnation, _Line())
            low = bisect_left(line.blocks, block.first_seq, key=_first)
            for old in [old for old in line.blocks[low:] if old.first_seq < block.end_seq]:
                self._remove(old)
            line.blocks.insert(low, block)
            self._used[block] = incarnation
            self.bytes += block.bytes
            while self.bytes > self._limit_bytes and len(self._used) > 1:
                self._remove(next(iter(self._used)))
        return block

    def _neighbour(self, incarnation: str, defined: Defined, block: Block) -> Block | None:
        """A block beside this one to merge it with."""
        with self._lock:
            line = self._lines.get(incarnation)
            found = [] if line is None else line.blocks
            at = bisect_left(found, block.first_seq, key=_first)
            beside = [one for one in found[max(0, at - 1) :] if one.first_seq <= block.end_seq][:4]
        touching = [one for one in beside if one.end_seq == block.first_seq or one.first_seq == block.end_seq]
        return next((one for one in touching if block.may_grow(one) and one.is_current(defined)), None)

    def _remove(self, block: Block) -> None:
        incarnation = self._used.pop(block)
        self.bytes -= block.bytes
        line = self._lines.get(incarnation)
        if line is not None and block in line.blocks:
            line.blocks.remove(block)
            if not line.blocks and not line.extracting.locked():
                del self._lines[incarnation]


def _extracted(extractor: Extractor, defined: Defined, events: Events, chunk: Chunk) -> Block:
    """The block of a chunk of events."""
    rows = pa.Table.from_batches(events.batches(chunk))
    version = int(pc.max(rows.column("version")).as_py())
    columns = extractor.columns(rows)
    return Block(columns, in_memory(columns, defined.definition, chunk.start, version))


def _merged(defined: Defined, left: Block, right: Block) -> Block:
    columns = tables.concat([left.columns, right.columns]).combine_chunks()
    version = max(left.companion.through_version, right.companion.through_version)
    return Block(columns, in_memory(columns, defined.definition, left.first_seq, version))


def _first(block: Block) -> int:
    return block.first_seq
