"""The segments of a stream in which something is erased: each is taken the place of by one without it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.engine.history.publication import Built, Snapshot, Swaps
from headrace.errors import CorruptData
from headrace.extract.erasure import holds, rewrite
from headrace.extract.erasure_mask import Targets, load
from headrace.format.manifest import Segment, segment_entry
from headrace.format.object_names import segment_key, segment_name
from headrace.format.segment.reader import SegmentReader
from headrace.storage.database import Connection
from headrace.storage.erasures import OFFERED, Erasures
from headrace.storage.files import open_private
from headrace.storage.published import Placed

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

#: Segments that one publication rewrites; the others wait for the next, so that other streams have their turn.
AT_ONCE = 4


class SegmentEraser:
    """Finds and rewrites the segments of a stream that hold something erased; a ``SegmentRewriter``."""

    def __init__(self, connection: Connection, segments: Segments, directory: Path) -> None:
        self._erasures, self._segments, self._directory = Erasures(connection), segments, directory

    def pending(self, stream: int) -> Callable[[Snapshot], Swaps] | None:
        """Rewrites the next segments of a stream, given a snapshot of it; None where nothing is being erased."""
        targets = [load(row.targets) for row in self._erasures.running(stream)]
        return partial(self._swaps, targets) if targets else None

    def _swaps(self, targets: Sequence[Targets], snapshot: Snapshot) -> Swaps:
        """The next segments of a stream that hold something erased, without it."""
        swaps = Swaps([], [], 0)
        offered = all(row.step == OFFERED for row in self._erasures.running(snapshot.row.id))
        left = 0
        for placed in snapshot.segments:
            with self._segments.open_unmasked(placed.key, placed.segment) as reader:
                if not holds(reader, targets):
                    continue
                ready = self._ready(snapshot, placed, targets)
                if ready is not None:
                    swaps.made.append((placed, ready))
                elif len(swaps.built) < AT_ONCE and not offered:
                    built = self._rewritten(reader, placed.segment, targets)
                    swaps.built.append(built)
                    swaps.made.append((placed, built.segment))
                else:
                    left += 1
        return swaps._replace(left=left)

    def _ready(self, snapshot: Snapshot, placed: Placed, targets: Sequence[Targets]) -> Segment | None:
        """What a worker has made of a segment, if it did so and nothing of what goes is in it."""
        row = snapshot.row
        ready = self._erasures.rewritten(row.id, placed.segment.name)
        if ready is None:
            return None
        try:
            with self._segments.open_unmasked(segment_key(row.name, row.incarnation, ready.name), ready) as reader:
                return None if holds(reader, targets) or not _is_like(reader, placed.segment) else ready
        except CorruptData:
            return None

    def _rewritten(self, reader: SegmentReader, segment: Segment, targets: Sequence[Targets]) -> Built:
        path = self._directory / f"{secrets.token_hex(8)}.parquet"
        with open(path, "wb", opener=open_private) as file:
            sealed = rewrite(reader, targets, file)
        name = segment_name(segment.first_seq, segment.count, secrets.token_hex(4))
        return Built(path, segment_entry(sealed, name, segment.before_bytes, segment.total_bytes))


def _is_like(reader: SegmentReader, segment: Segment) -> bool:
    """Whether a segment holds as many entries of as many bytes as another, from the same times."""
    info = reader.info
    made = info.first_seq, info.count, info.payload_bytes, info.min_us, info.max_us
    return made == (segment.first_seq, segment.count, segment.payload_bytes, segment.min_us, segment.max_us)
