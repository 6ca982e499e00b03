"""What a stream holds and where it lies: in the log, in the object store, in the cache of this node.

Everything is answered from heads and indexes, and from sums over the stream's own segments.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.engine.log.stream import Stream
from headrace.storage.published import Backlog, Published

if TYPE_CHECKING:
    from headrace.engine.assembly import Engine
    from headrace.storage.segments import SegmentUsage


class Holdings(NamedTuple):
    """One stream; a fork holds what was appended to it, and nothing of its source."""

    published_until: int
    #: What is in the log and not yet published, and all that is in the log.
    pending: Backlog
    log: Backlog
    segments: int
    segment_bytes: int
    manifest_bytes: int
    cached_bytes: int
    updated_us: int
    published_us: int
    generation: int


def published_until(published: Published, stream: Stream) -> int:
    """The sequence number before which everything is in segments, what a fork reads from its source included."""
    for ancestor, end in stream.lineage:
        until = published.published_until(ancestor)
        if until < end:
            return until
    return stream.head.published_seq


def holdings(engine: Engine, stream: Stream) -> Holdings:
    """The present size of a stream by location."""
    head, published = stream.head, engine.published
    held = published.totals(stream.id)
    return Holdings(
        published_until=published_until(published, stream),
        pending=published.backlog(stream.id, max(head.published_seq, head.first_seq)),
        log=published.backlog(stream.id),
        segments=held.segments,
        segment_bytes=held.bytes,
        manifest_bytes=held.manifest_bytes,
        cached_bytes=_cached_bytes(engine, stream),
        updated_us=max(stream.created_us, head.last_us, held.published_us, held.registry_us),
        published_us=held.published_us,
        generation=held.generation,
    )


def cache_usage(engine: Engine) -> SegmentUsage | None:
    """The size of the cache of segments; None while no segment was read."""
    return None if engine.caches.opened_segments is None else engine.caches.opened_segments.usage()


def dropped_files(engine: Engine) -> dict[str, int]:
    """How many damaged files each cache has dropped."""
    segments, archive = cache_usage(engine), engine.caches.opened_archive
    return {
        "segments": 0 if segments is None else segments.dropped,
        "companions": 0 if archive is None else archive.files.usage().dropped,
        "states": engine.state_builder.dropped,
    }


def companion_cache_bytes(engine: Engine, stream: Stream) -> int:
    """The disk that files of a stream's companions take here."""
    if engine.objects.is_local:
        return 0  # those of a local store are read where they are
    directory = Path(engine.config.storage.data_dir) / "cache" / "companions"
    parts = [part for companion in engine.indexes.companions(stream) for part in companion.parts.values()]
    files = {directory / f"{part.sha256}.parquet": part.bytes for part in parts}
    return sum(size for path, size in files.items() if path.exists())


def _cached_bytes(engine: Engine, stream: Stream) -> int:
    segments = engine.caches.opened_segments
    if segments is None or engine.objects.is_local:
        return 0  # those of a local store are read where they are
    return segments.held_bytes(engine.published.checksums(stream.id))
