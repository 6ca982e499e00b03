"""The account of memory: who holds how much of it, and what each can do without.

Sizes are measured where that is cheap, and estimated on the safe side elsewhere. What is left over is memory of the
interpreter, of work in progress, and free pages that the allocators keep.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from headrace.engine.derive import tail_memory
from headrace.engine.runtime import allocators, auto_tune
from headrace.storage import database

if TYPE_CHECKING:
    from headrace.engine.assembly import Engine
    from headrace.engine.derive.state_reader import StateReader

#: Loaded with what computes aggregates; until then DuckDB holds nothing. It is asked no more often than this.
_DUCKDB, _DUCKDB_S = "headrace.reduce.duck", 5.0


class Account:
    """Who holds how much memory; on the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._more: dict[str, Callable[[], int]] = {}
        self._duckdb_bytes, self._duckdb_asked_s = 0, -_DUCKDB_S

    def add(self, holder: str, measure: Callable[[], int]) -> None:
        """Count what someone else holds, too."""
        self._more[holder] = measure

    def held(self) -> dict[str, int]:
        """How many bytes each holder has now."""
        held = {**self._served(), **self._derived(), **self._libraries()}
        held |= {holder: measure() for holder, measure in self._more.items()}
        known = ("decoded_segments", "companions", "tail_columns")
        held["arrow_work"] = max(0, allocators.arrow_bytes() - sum(held[name] for name in known))
        return held

    def relieve(self) -> None:
        """Let go of some of what is only kept to answer sooner."""
        engine = self._engine
        engine.bench.rows.shrink(engine.bench.rows.bytes // 2)
        engine.snapshots.rows.shrink(engine.snapshots.rows.bytes // 2)
        for serving in self._servings():
            tail_memory.shrink(serving)
        if engine.segments is not None:
            engine.segments.shrink()
        if engine.archive is not None:
            engine.archive.shrink()
        engine.release_pages()

    def balance(self) -> None:
        """Let tails share the memory that they have for rows at hand."""
        features, *others = self._servings()
        settings = self._engine.config.features
        tail_memory.balance(features, settings.tail_bytes // 2)
        for serving in others:
            tail_memory.balance(serving, settings.row_bytes // 2)

    def drop_mapped_pages(self) -> None:
        """Let no page of columns in files be resident; those that are read again come from the cache of the system."""
        if self._engine.archive is not None:
            self._engine.archive.blocks.drop_pages()

    def _servings(self) -> list[StateReader[Any]]:
        engine = self._engine
        return [engine.serving, engine.snapshots.serving, engine.enhancement.candidates.serving]

    def _served(self) -> dict[str, int]:
        engine = self._engine
        journals = [touching.journal for touching in engine.touches.followed()]
        return {
            "append_queue": engine.writer.queued_bytes,
            "cached_streams": len(engine.log.catalog) * auto_tune.STREAM_BYTES,
            "watchers": engine.tail.watchers * auto_tune.WAITER_BYTES,
            "found_answers": engine.tiers.answer_bytes,
            "touch_filters": sum(journal.filter_bytes for journal in journals),
        }

    def _derived(self) -> dict[str, int]:
        engine, archive = self._engine, self._engine.archive
        segments = None if engine.segments is None else engine.segments.usage()
        companions = None if archive is None else archive.files.usage()
        return {
            "decoded_segments": segments.decoded_bytes if segments else 0,
            "segment_footers": segments.reader_bytes if segments else 0,
            "companions": companions.decoded_bytes if companions else 0,
            "companion_footers": companions.open_bytes if companions else 0,
            "tail_columns": archive.blocks.bytes if archive else 0,
            "recent_events": archive.recent.bytes if archive else 0,
            "feature_tails": tail_memory.tail_bytes(engine.serving),
            "entity_tails": sum(map(tail_memory.tail_bytes, self._servings()[1:])),
            "state_rows": engine.bench.rows.bytes,
            "entity_rows": engine.snapshots.rows.bytes,
        }

    def _libraries(self) -> dict[str, int]:
        return {"sqlite": database.sqlite_memory()["memory_used_bytes"], "duckdb": self._duckdb()}

    def _duckdb(self) -> int:
        """What DuckDB held a moment ago: asking it takes a query."""
        duck, now_s = allocators.loaded_module(_DUCKDB), monotonic()
        if duck is not None and now_s - self._duckdb_asked_s >= _DUCKDB_S:
            self._duckdb_bytes, self._duckdb_asked_s = duck.held_bytes(), now_s
        return self._duckdb_bytes
