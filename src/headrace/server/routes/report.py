"""What ``/v1/server/_details`` and ``/v1/server/_mem`` say: settings as they are, and the process as it is.

Both keep the fields that tools know. A field is null where this server has no such thing, or cannot know it; a
zero is a zero that was counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from headrace.engine.assembly import Engine
from headrace.engine.holdings import Holdings, cache_usage, companion_cache_bytes, holdings
from headrace.engine.log.stream import Stream
from headrace.engine.runtime import allocators, auto_tune
from headrace.engine.runtime.gates import Gate, Gates
from headrace.engine.runtime.memory import HighWater, MemoryMonitor
from headrace.query.request import MAX_TIMEOUT_MS
from headrace.server.routes.report_documents import (
    TOP,
    ConfiguredLimits,
    Facts,
    GateStatus,
    GateStatuses,
    IngestQueue,
    MemoryAccount,
    MemoryReport,
    RuntimeMemory,
    RuntimeStatus,
    ServerDetails,
    TopStreams,
    UploadQueue,
)
from headrace.server.routes.watched import DocumentWait
from headrace.storage import database
from headrace.types import rfc3339

Document = dict[str, Any]

# The newest streams in memory; looking at more of them would hold up the loop.
_LOOKED_AT = 20_000
# Only so many streams are measured exactly, which takes questions to the database.
_MEASURED = 25
_BYTE_GROUPS = (
    "heap_estimates", "mapped_files", "disk_caches", "configured_budgets", "pipeline_buffers", "sqlite_runtime",
)  # fmt: skip


class Report:
    """Writes both documents; hangs itself on the monitor, so that high-water marks see every sample."""

    def __init__(self, engine: Engine, gates: Gates, monitor: MemoryMonitor) -> None:
        self._engine = engine
        self._config = engine.config
        self._gates = gates
        self._monitor = monitor
        self._database = Path(engine.config.storage.data_dir) / "headrace.db"
        self._high_water = HighWater(engine.clock)
        monitor.on_sample.append(self._note)
        self._note()

    def details(self) -> ServerDetails:
        """The node: its settings, and how full it is."""
        return ServerDetails(auto_tune=self._auto_tune(), configured_limits=self._limits(), runtime=self._runtime())

    def memory(self) -> MemoryReport:
        """The memory of the process, for a quick look."""
        self._monitor.sample()
        subsystems = self._subsystems()
        return MemoryReport(
            ts=rfc3339(self._engine.clock.now_us()),
            process=self._process(),
            process_breakdown=self._breakdown(),
            account=self._account(subsystems["heap_estimates"]),
            sqlite=_sqlite(),
            gc=_GC,
            high_water=self._high_water.marks(),
            counters={f"headrace.mem.leak_candidate.{name}": n for name, n in subsystems["counts"].items()},
            runtime_counts=subsystems["counts"],
            runtime_bytes={group: subsystems[group] for group in _BYTE_GROUPS},
            runtime_totals=_totals(subsystems),
            top_streams=self._top_streams(),
        )

    def _account(self, held: dict[str, int]) -> MemoryAccount:
        """Who holds how much, and what of the process that leaves."""
        monitor, heap = self._monitor, allocators.heap_bytes()
        accounted = {"process": monitor.first.rss_anon_bytes or 0, **held}
        return MemoryAccount(
            held=accounted,
            held_bytes=sum(accounted.values()),
            resident_bytes=monitor.last.rss_bytes,
            unaccounted_bytes=_rest(monitor.last.rss_anon_bytes, sum(accounted.values())),
            allocators={
                "heap_used_bytes": None if heap is None else heap[0],
                "heap_free_bytes": None if heap is None else heap[1],
                "arrow_bytes": allocators.arrow_bytes(),
                "trims": monitor.trims,
                "trimmed_bytes": monitor.trimmed_bytes,
            },
            limits={
                "limit_bytes": monitor.limit_bytes,
                "pressure_limit_bytes": monitor.pressure_limit_bytes,
                "refusal_limit_bytes": monitor.refusal_limit_bytes,
            },
            reliefs=monitor.reliefs,
            refused_requests=self._gates.shortage.refused,
        )

    def _auto_tune(self) -> Document:
        memory, limit = self._config.memory, self._monitor.limit_bytes
        limit_mb = None if limit is None else limit // 2**20
        return {
            "enabled": memory.auto_tune,
            "requested_memory_mb": memory.limit_mb or None,
            "preset_mb": None if limit_mb is None else auto_tune.preset_mb(limit_mb),
            "effective_memory_limit_mb": limit_mb,
        }

    def _limits(self) -> ConfiguredLimits:
        server, storage, limits = self._config.server, self._config.storage, self._config.limits
        return ConfiguredLimits(
            caches={
                "sqlite_cache_bytes": storage.cache_bytes,
                "worker_sqlite_cache_bytes": storage.cache_bytes // 4,
                "segment_cache_bytes": storage.segment_cache_bytes,
                "companion_section_cache_bytes": limits.companion_bytes,
                "companion_file_cache_bytes": storage.companion_cache_bytes,
                **_absent("index_run_memory_cache_bytes index_run_disk_cache_bytes lexicon_index_cache_bytes"),
                **_absent("companion_toc_cache_bytes"),
            },
            concurrency={
                "ingest": 1,
                "read": self._gates.read.configured_limit,
                "search": self._gates.search.configured_limit,
                "async_index": self._gates.index.configured_limit,
                "upload": 1,
                **_absent("index_build index_compact"),
            },
            ingest={
                "max_batch_requests": limits.batch_requests,
                "max_batch_bytes": limits.batch_bytes,
                "max_queue_requests": limits.queue_requests,
                "max_queue_bytes": limits.queue_bytes,
                "busy_timeout_ms": database.BUSY_TIMEOUT_MS,
                "local_backlog_max_bytes": storage.backlog_bytes,
            },
            search=_absent(
                "companion_batch_segments companion_yield_blocks wal_overlay_quiet_period_ms wal_overlay_max_bytes"
            ),
            segmenting={
                "segment_max_bytes": storage.seal_bytes,
                "segment_target_rows": storage.seal_rows,
                "segmenter_workers": 1,
            },
            timeouts={
                "append_request_timeout_ms": round(server.append_timeout_s * 1000),
                "resolver_timeout_ms": round(server.resolver_timeout_s * 1000),
                "object_store_timeout_ms": round(storage.store_timeout_s * 1000),
                "search_request_timeout_ms": MAX_TIMEOUT_MS,
            },
            memory={
                "limit_bytes": self._monitor.limit_bytes,
                "pressure_limit_bytes": self._monitor.pressure_limit_bytes,
                "refusal_limit_bytes": self._monitor.refusal_limit_bytes,
                # Of a process of its own, and not part of the limit.
                "spark_driver_memory": self._config.pipeline.memory,
            },
        )

    def _runtime(self) -> RuntimeStatus:
        writer = self._engine.writer
        return RuntimeStatus(
            memory=self._memory_now(),
            ingest_queue=IngestQueue(writer.queued_requests, writer.queued_bytes, writer.full),
            local_backpressure={
                "enabled": True,
                "current_bytes": self._engine.sealer.watch.backlog_bytes,
                "max_bytes": self._config.storage.backlog_bytes,
                "over_limit": writer.room_bytes <= 0,
            },
            # A segment is uploaded as soon as it is sealed, by the same thread: none waits in between.
            uploads=UploadQueue(0),
            concurrency=self._concurrency(),
            top_streams=self._top_streams(),
        )

    def _memory_now(self) -> RuntimeMemory:
        monitor = self._monitor
        monitor.sample()
        subsystems = self._subsystems()
        return RuntimeMemory(
            pressure_active=monitor.pressure_active,
            pressure_limit_bytes=monitor.pressure_limit_bytes,
            last_rss_bytes=monitor.last.rss_bytes,
            max_rss_bytes=monitor.max_rss_bytes,
            process=self._process(),
            process_breakdown=self._breakdown(),
            sqlite=_sqlite(),
            gc=_GC,
            subsystems=subsystems,
            totals=_totals(subsystems),
            high_water=self._high_water.marks(),
        )

    def _concurrency(self) -> GateStatuses:
        # One writer commits for everyone; those in its commit count as queued until they are answered.
        queued = self._engine.writer.queued_requests
        return GateStatuses(
            ingest=GateStatus(1, 1, int(queued > 0), queued),
            read=_gate(self._gates.read),
            search=_gate(self._gates.search),
            async_index=_gate(self._gates.index),
        )

    def _process(self) -> Document:
        heap = _absent("heap_total_bytes heap_used_bytes external_bytes array_buffers_bytes")
        return {"rss_bytes": self._monitor.last.rss_bytes, **heap}

    def _breakdown(self) -> Document:
        seen = self._monitor.last
        mapped, sqlite = self._mapped_bytes(), database.sqlite_memory()["memory_used_bytes"]
        return {
            "source": "process_memory_usage_only" if seen.rss_bytes is None else "linux_proc_status",
            "rss_anon_bytes": seen.rss_anon_bytes,
            "rss_file_bytes": seen.rss_file_bytes,
            "rss_shmem_bytes": seen.rss_shmem_bytes,
            **_absent("js_managed_bytes js_external_non_array_buffers_bytes"),
            "mapped_file_bytes": mapped,
            "sqlite_runtime_bytes": sqlite,
            "unattributed_anon_bytes": _rest(seen.rss_anon_bytes, sqlite),
            "unattributed_rss_bytes": _rest(seen.rss_bytes, sqlite + mapped),
        }

    def _subsystems(self) -> Document:
        engine, usage = self._engine, cache_usage(self._engine)
        archive, journals = (
            engine.caches.opened_archive,
            [stream_touches.journal for stream_touches in engine.touches.followed()],
        )
        companions = None if archive is None else archive.files.usage()
        streams, watchers = len(engine.log.catalog), engine.tail.watchers
        return {
            "heap_estimates": engine.account.held(),
            "mapped_files": {"sqlite_wal_index": self._mapped_bytes()},
            "disk_caches": {
                "segments": usage.bytes if usage else 0,
                "companions": companions.bytes if companions else 0,
                "tail_columns": archive.blocks.disk_bytes if archive else 0,
            },
            "configured_budgets": auto_tune.expected_parts(self._config),
            "pipeline_buffers": {},
            "sqlite_runtime": {"memory_used": database.sqlite_memory()["memory_used_bytes"]},
            "counts": {
                "append_queue_requests": engine.writer.queued_requests,
                "cached_streams": streams,
                "touched_streams": len(engine.log.catalog.accessed),
                "watchers": watchers,
                "cached_segments": usage.files if usage else 0,
                "open_segments": usage.readers if usage else 0,
                "cached_companions": companions.files if companions else 0,
                "open_companions": companions.opened if companions else 0,
                "open_states": engine.state_builder.open_files,
                "touch_journals": len(journals),
                "touch_keys": sum(map(len, journals)),
                "sqlite_connections": database.sqlite_memory()["open_connections"],
            },
        }

    def _mapped_bytes(self) -> int:
        return _size(self._database.with_name(self._database.name + "-shm"))

    def _note(self) -> None:
        subsystems = self._subsystems()
        self._high_water.note(
            {
                "process": self._process(),
                "process_breakdown": self._breakdown(),
                "sqlite": _sqlite(),
                "runtime_bytes": {group: subsystems[group] for group in _BYTE_GROUPS},
                "runtime_totals": _totals(subsystems),
            }
        )

    def _in_memory(self) -> Iterator[Stream]:
        return islice(self._engine.log.catalog.recent(), _LOOKED_AT)

    def _top_streams(self) -> TopStreams:
        """The largest and the most watched among the streams in memory."""
        streams = list(self._in_memory())
        pending = self._measured(_largest(streams, _pending_bytes))
        return TopStreams(
            local_storage_bytes=self._stored_here(pending, streams),
            pending_wal_bytes=[_pending(stream, held) for stream, held in pending.items()],
            touch_journal_filter_bytes=self._touched(),
            notifier_waiters=[_waiters(stream) for stream in _largest(streams, _watched)],
        )

    def _measured(self, streams: Iterable[Stream]) -> dict[Stream, Holdings]:
        return {stream: holdings(self._engine, stream) for stream in streams}

    def _stored_here(self, measured: dict[Stream, Holdings], streams: list[Stream]) -> list[Document]:
        """What takes most of this disk, of some streams and of those that hold most; caches are of remote stores."""
        if not self._engine.objects.is_local:
            largest = _largest(streams, _held_bytes, _MEASURED)
            measured = measured | self._measured(stream for stream in largest if stream not in measured)
        stored = [self._stored(stream, held) for stream, held in measured.items()]
        return heapq.nlargest(TOP, (stream for stream in stored if stream["bytes"]), key=lambda row: int(row["bytes"]))

    def _stored(self, stream: Stream, held: Holdings) -> Document:
        companions = companion_cache_bytes(self._engine, stream)
        return {
            "stream": stream.name,
            "bytes": held.log.bytes + held.cached_bytes + companions,
            "wal_retained_bytes": held.log.bytes,
            "segment_cache_bytes": held.cached_bytes,
            "index_cache_bytes": companions,
        }

    def _touched(self) -> list[Document]:
        """The streams whose journals take most room."""
        followed = [stream for stream in self._engine.touches.followed() if stream.journal.filter_bytes]
        return [
            {
                "stream": stream_touches.stream.name,
                "journal_filter_bytes": stream_touches.journal.filter_bytes,
                "dirty": not stream_touches.settled,
                "touch_mode": stream_touches.mode,
            }
            for stream_touches in heapq.nlargest(TOP, followed, key=lambda row: row.journal.filter_bytes)
        ]


_GC: Facts = {
    "forced_gc_count": 0,
    "forced_gc_reclaimed_bytes_total": 0,
    "last_forced_gc_at_ms": None,
    "last_forced_gc_before_bytes": None,
    "last_forced_gc_after_bytes": None,
    "last_forced_gc_reclaimed_bytes": None,
    "heap_snapshots_written": 0,
    "last_heap_snapshot_at_ms": None,
}


def _absent(names: str) -> Facts:
    return dict.fromkeys(names.split())


def _sqlite() -> Document:
    return {"available": True, "source": "sqlite3_status64", **database.sqlite_memory(), "prepared_statements": None}


def _gate(gate: Gate) -> GateStatus:
    return GateStatus(
        configured_limit=gate.configured_limit,
        current_limit=gate.current_limit,
        active=gate.active,
        queued=gate.queued,
    )


def _totals(subsystems: Document) -> dict[str, int]:
    names = [group.removesuffix("s") for group in _BYTE_GROUPS]
    return {f"{name}_bytes": sum(subsystems[group].values()) for name, group in zip(names, _BYTE_GROUPS, strict=True)}


def _largest(streams: list[Stream], measure: Callable[[Stream], int], limit: int = TOP) -> list[Stream]:
    measured = ((stream, measure(stream)) for stream in streams)
    largest = heapq.nlargest(limit, (pair for pair in measured if pair[1]), key=lambda pair: pair[1])
    return [stream for stream, _ in largest]


def _held_bytes(stream: Stream) -> int:
    """The payload of a stream, wherever it lies."""
    return stream.head.bytes - stream.head.first_bytes


def _pending_bytes(stream: Stream) -> int:
    """About how much of a stream is in the log alone, as if its entries had one size."""
    head = stream.head
    pending = head.next_seq - max(head.published_seq, head.first_seq)
    return _held_bytes(stream) * pending // max(head.next_seq - head.first_seq, 1)


def _pending(stream: Stream, held: Holdings) -> Document:
    pending = held.pending
    return {"stream": stream.name, "pending_wal_bytes": pending.bytes, "pending_rows": pending.entries}


def _watched(stream: Stream) -> int:
    return len(stream.watchers or ())


def _waiters(stream: Stream) -> Document:
    total, details = _watched(stream), sum(isinstance(watcher, DocumentWait) for watcher in stream.watchers or ())
    return {"stream": stream.name, "waiters": total - details, "details_waiters": details, "total_waiters": total}


def _rest(total: int | None, accounted: int) -> int | None:
    return None if total is None else max(0, total - accounted)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
