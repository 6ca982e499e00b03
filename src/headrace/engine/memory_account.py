"""The account of memory: who holds how much of it, and what each can do without.

Sizes are measured where that is cheap, and estimated on the safe side elsewhere. What is left over is memory of the
interpreter, of work in progress, and free pages that the allocators keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from headrace.engine.derive import tails
from headrace.engine.runtime import allocators, auto_tune
from headrace.storage import database

if TYPE_CHECKING:
    from headrace.config import FeaturesConfig
    from headrace.engine.derive.state_builder import StateBuilder
    from headrace.engine.derive.state_reader import StateReader
    from headrace.engine.log.log import Log
    from headrace.engine.log.tiers import Tiers
    from headrace.engine.log.writer import Writer
    from headrace.engine.object_caches import ObjectCaches
    from headrace.engine.touch.touches import Touches
    from headrace.format.decoded_columns import LruCache

#: Loaded with what computes aggregates; until then DuckDB holds nothing. It is asked no more often than this.
_DUCKDB, _DUCKDB_S = "headrace.reduce.duck", 5.0


class DuckDBMemory:
    """Measures what DuckDB holds."""

    def __init__(self) -> None:
        self._bytes, self._measured_s = 0, -_DUCKDB_S

    def bytes(self) -> int:
        """What DuckDB held a moment ago: asking it takes a query."""
        duck, now_s = allocators.loaded_module(_DUCKDB), monotonic()
        if duck is not None and now_s - self._measured_s >= _DUCKDB_S:
            self._bytes, self._measured_s = duck.held_bytes(), now_s
        return self._bytes


class Account:
    """Who holds how much memory; on the event loop."""

    def __init__(
        self,
        *,
        settings: FeaturesConfig,
        writer: Writer,
        log: Log,
        tiers: Tiers,
        touches: Touches,
        caches: ObjectCaches,
        state_builder: StateBuilder,
        entity_rows: LruCache,
        features: StateReader[Any],
        entities: Sequence[StateReader[Any]],
        release_pages: Callable[[], None],
    ) -> None:
        """``features`` and ``entities`` are the readers of their states."""
        self._settings, self._writer, self._log, self._tiers, self._touches = settings, writer, log, tiers, touches
        self._caches, self._state_rows, self._entity_rows = caches, state_builder.rows, entity_rows
        self._features, self._entities = features, entities
        self._release_pages = release_pages
        self._more: dict[str, Callable[[], int]] = {}
        self._duckdb = DuckDBMemory()

    def add(self, holder: str, measure: Callable[[], int]) -> None:
        """Count what someone else holds, too."""
        self._more[holder] = measure

    def held(self) -> dict[str, int]:
        """How many bytes each holder has now."""
        held = {**self._served(), **self._derived(), **self._libraries()}
        held |= {holder: measure() for holder, measure in self._more.items()}
        arrow_holders = ("decoded_segments", "companions", "tail_columns")
        held["arrow_work"] = max(0, allocators.arrow_bytes() - sum(held[name] for name in arrow_holders))
        return held

    def relieve(self) -> None:
        """Shrink caches."""
        for rows in (self._state_rows, self._entity_rows):
            rows.shrink(rows.bytes // 2)
        for reader in (self._features, *self._entities):
            tails.shrink(reader.followers)
        if self._caches.opened_segments is not None:
            self._caches.opened_segments.shrink()
        if self._caches.opened_archive is not None:
            self._caches.opened_archive.shrink()
        self._release_pages()

    def balance(self) -> None:
        """Share the memory for unpacked rows among the tails."""
        tails.balance(self._features.followers, self._settings.tail_bytes // 2)
        for reader in self._entities:
            tails.balance(reader.followers, self._settings.row_bytes // 2)

    def drop_mapped_pages(self) -> None:
        """Evict mapped pages of column files; pages that are read again come from the page cache."""
        if self._caches.opened_archive is not None:
            self._caches.opened_archive.blocks.drop_pages()

    def _served(self) -> dict[str, int]:
        journals = [stream_touches.journal for stream_touches in self._touches.followed()]
        return {
            "append_queue": self._writer.queued_bytes,
            "cached_streams": len(self._log.catalog) * auto_tune.STREAM_BYTES,
            "watchers": self._log.tail.watchers * auto_tune.WAITER_BYTES,
            "found_answers": self._tiers.answer_bytes,
            "touch_filters": sum(journal.filter_bytes for journal in journals),
        }

    def _derived(self) -> dict[str, int]:
        archive, opened_segments = self._caches.opened_archive, self._caches.opened_segments
        segments = None if opened_segments is None else opened_segments.usage()
        companions = None if archive is None else archive.files.usage()
        return {
            "decoded_segments": segments.decoded_bytes if segments else 0,
            "segment_footers": segments.reader_bytes if segments else 0,
            "companions": companions.decoded_bytes if companions else 0,
            "companion_footers": companions.open_bytes if companions else 0,
            "tail_columns": archive.blocks.bytes if archive else 0,
            "recent_events": archive.recent.bytes if archive else 0,
            "feature_tails": tails.tail_bytes(self._features.followers),
            "entity_tails": sum(tails.tail_bytes(reader.followers) for reader in self._entities),
            "state_rows": self._state_rows.bytes,
            "entity_rows": self._entity_rows.bytes,
        }

    def _libraries(self) -> dict[str, int]:
        return {"sqlite": database.sqlite_memory()["memory_used_bytes"], "duckdb": self._duckdb.bytes()}
