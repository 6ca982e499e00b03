"""What ``/v1/server/_details`` and ``/v1/server/_mem`` answer: the forms of ``report``."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from headrace.server.http.wire import NonNegative, When

Document = dict[str, Any]
TOP = 5
Fact = int | bool | str | None
Facts = dict[str, Fact]
#: Numbers by name, and groups of them.
Totals = dict[str, NonNegative]
Groups = dict[str, Totals]


class TopStreams(Struct):
    """The largest and the most watched among the streams in memory."""

    local_storage_bytes: Annotated[list[Facts], Meta(max_length=TOP)]
    pending_wal_bytes: Annotated[list[Facts], Meta(max_length=TOP)]
    touch_journal_filter_bytes: Annotated[list[Facts], Meta(max_length=TOP)]
    notifier_waiters: Annotated[list[Facts], Meta(max_length=TOP)]


class MemoryAccount(Struct, kw_only=True):
    """Who holds how much, and what of the process that leaves."""

    held: Totals
    held_bytes: NonNegative
    resident_bytes: NonNegative | None
    unaccounted_bytes: NonNegative | None
    allocators: Facts
    limits: Facts
    reliefs: NonNegative
    refused_requests: NonNegative


class MemoryReport(Struct, kw_only=True):
    """The memory of the process, for a quick look."""

    ts: When
    process: Facts
    process_breakdown: Facts
    account: MemoryAccount
    sqlite: Facts
    gc: Facts
    high_water: dict[str, Document]
    counters: Totals
    runtime_counts: Totals
    runtime_bytes: Groups
    runtime_totals: Totals
    top_streams: TopStreams


class ConfiguredLimits(Struct, kw_only=True):
    """The limits of the server, as they are set."""

    caches: Facts
    concurrency: Facts
    ingest: Facts
    search: Facts
    segmenting: Facts
    timeouts: Facts
    memory: Facts


class RuntimeMemory(Struct, kw_only=True):
    """The memory of the process, and what holds it."""

    pressure_active: bool
    pressure_limit_bytes: NonNegative | None
    last_rss_bytes: NonNegative | None
    max_rss_bytes: NonNegative | None
    process: Facts
    process_breakdown: Facts
    sqlite: Facts
    gc: Facts
    subsystems: Groups
    totals: Totals
    high_water: dict[str, Document]


class IngestQueue(Struct):
    """What waits to be committed."""

    requests: NonNegative
    bytes: NonNegative
    full: bool


class UploadQueue(Struct):
    """What waits to be published."""

    pending_segments: NonNegative


class GateStatus(Struct):
    """How many are let through at once, and how many wait."""

    configured_limit: NonNegative
    current_limit: NonNegative
    active: NonNegative
    queued: NonNegative


class GateStatuses(Struct, kw_only=True):
    """The gates of the server; one writer commits for everyone."""

    ingest: GateStatus
    read: GateStatus
    search: GateStatus
    async_index: GateStatus


class RuntimeStatus(Struct, kw_only=True):
    """How full the server is."""

    memory: RuntimeMemory
    ingest_queue: IngestQueue
    local_backpressure: Facts
    uploads: UploadQueue
    concurrency: GateStatuses
    top_streams: TopStreams


class ServerDetails(Struct, kw_only=True):
    """The node: its settings, and how full it is."""

    auto_tune: Facts
    configured_limits: ConfiguredLimits
    runtime: RuntimeStatus
