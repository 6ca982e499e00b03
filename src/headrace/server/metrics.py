"""Prometheus metrics: numbers the server keeps anyway, read when someone asks."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from headrace.engine.assembly import Engine
from headrace.engine.holdings import cache_usage, dropped_files
from headrace.engine.runtime.event_loop import StallWatchdog
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor
from headrace.engine.touch import report
from headrace.engine.touch.touches import Touches

_COUNTED = {
    "appends": "append requests that wrote entries",
    "appended_events": "events appended",
    "appended_bytes": "payload bytes appended",
    "deduplicated_events": "events that were there already",
    "reads": "slices read",
    "read_bytes": "payload bytes read",
    "created": "streams created",
    "deleted": "streams deleted, expired ones included",
    "expired": "streams that expired",
    "slow_requests": "requests that worked for longer than a second",
}
_NAMES = {"created": "streams_created", "deleted": "streams_deleted", "expired": "streams_expired"}


class Metrics:
    """Renders everything there is to measure, in the format the scraper asks for."""

    def __init__(
        self, engine: Engine, gates: Gates, monitor: MemoryMonitor, watchdog: StallWatchdog | None = None
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ServerNumbers(engine, gates, monitor, watchdog or StallWatchdog()))
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """Everything there is to measure."""
        yield from self._registry.collect()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _ServerNumbers(Collector):
    def __init__(self, engine: Engine, gates: Gates, monitor: MemoryMonitor, watchdog: StallWatchdog) -> None:
        self._engine = engine
        self._gates = gates
        self._monitor = monitor
        self._watchdog = watchdog
        self._started = time.monotonic()
        self._version = version("headrace")

    def collect(self) -> Iterator[Metric]:
        yield from self._counted()
        yield from self._writing()
        yield from self._publishing()
        yield from self._deriving()
        yield from self._cached()
        yield from self._columns()
        yield from self._gated()
        yield from self._stalled()
        yield from touch_metrics(self._engine.touches)
        yield from self._held()

    def _counted(self) -> Iterator[Metric]:
        counters = self._engine.counters
        for field, sentence in _COUNTED.items():
            name = f"headrace_{_NAMES.get(field, field)}"
            yield CounterMetricFamily(name, sentence.capitalize(), value=getattr(counters, field))
        late = CounterMetricFamily(
            "headrace_late_events", "Events appended too late by their event time to count", labels=["stream"]
        )
        for stream, count in sorted(counters.late_events.items()):
            late.add_metric([stream], count)
        yield late
        yield _gauge(
            "feature_registry_version", "Version of the feature registry", self._engine.features.current.version
        )
        responses = CounterMetricFamily("headrace_responses", "Responses by status", labels=["status"])
        for status, count in sorted(counters.responses.items()):
            responses.add_metric([str(status)], count)
        yield responses

    def _writing(self) -> Iterator[Metric]:
        writer, limits = self._engine.writer, self._engine.config.limits
        yield CounterMetricFamily("headrace_commits", "Commits on disk", value=writer.commits)
        yield CounterMetricFamily("headrace_failed_commits", "Commits rolled back", value=writer.failed_commits)
        yield _gauge("append_queue_requests", "Operations waiting for the writer", writer.queued_requests)
        yield _gauge("append_queue_bytes", "Bytes waiting for the writer", writer.queued_bytes)
        yield _gauge("append_queue_limit_requests", "Operations that may wait", limits.queue_requests)
        yield _gauge("append_queue_limit_bytes", "Bytes that may wait", limits.queue_bytes)

    def _publishing(self) -> Iterator[Metric]:
        engine, sealer = self._engine, self._engine.sealer
        watch = engine.sealer.watch
        waited_us = 0 if watch.oldest_us is None else max(0, engine.clock.now_us() - watch.oldest_us)
        yield _gauge("oldest_unpublished_seconds", "Age of the oldest unpublished append", waited_us / 1e6)
        yield _gauge("backlog_bytes", "Payload bytes that are not published", watch.backlog_bytes)
        yield _gauge("backlog_limit_bytes", "Unpublished bytes that may wait", engine.config.storage.backlog_bytes)
        yield CounterMetricFamily("headrace_seals", "Publications of streams", sealer.seals)
        yield CounterMetricFamily("headrace_failed_seals", "Rounds of publishing that failed", sealer.failed_seals)
        yield CounterMetricFamily("headrace_published_segments", "Segments sealed and published", sealer.segments)
        yield CounterMetricFamily("headrace_published_bytes", "Bytes of published segments", sealer.bytes)
        yield _gauge("fenced", "1 where another node has taken over the object store", engine.writer.fenced)
        requests = CounterMetricFamily(
            "headrace_object_store_requests", "Requests to the object store", labels=["artifact", "verb", "outcome"]
        )
        for labels, count in sorted(engine.objects.requests.totals().items()):
            requests.add_metric(labels, count)
        yield requests

    def _deriving(self) -> Iterator[Metric]:
        work = self._engine.work
        counts = work.counts()
        yield _gauge("work_due_streams", "Streams that may have something to derive", counts["due"])
        yield _gauge("work_leases", "Leases that workers hold", counts["leases"])
        yield _gauge("work_units", "Units that workers are at", counts["units"])
        yield _gauge("work_parked", "Ranges on which work is not tried any more", counts["parked"])
        yield _gauge("work_paused", "1 while no work is given out", work.paused)
        pipelines = work.workers.count_pipelines(self._engine.clock.now_us())
        yield _gauge("work_pipelines", "Pipelines that look for work", pipelines)
        done = CounterMetricFamily(
            "headrace_work_done_units", "Units done by the server itself, or by a pipeline", labels=["by", "job"]
        )
        for labels, units in sorted(work.workers.done_by_job.items()):
            done.add_metric(labels, units)
        yield done

    def _cached(self) -> Iterator[Metric]:
        usage, limit = cache_usage(self._engine), self._engine.config.storage.segment_cache_bytes
        yield _gauge("segment_cache_bytes", "Disk that cached segments take", usage.bytes if usage else 0)
        yield _gauge("segment_cache_limit_bytes", "Disk that they may take", limit)
        yield _gauge("segment_cache_files", "Segments known to the cache", usage.files if usage else 0)
        yield _gauge("segment_decoded_bytes", "Decoded parts of segments", usage.decoded_bytes if usage else 0)
        fetches = usage.fetches if usage else 0
        yield CounterMetricFamily("headrace_segment_fetches", "Segments fetched from the object store", fetches)
        dropped = CounterMetricFamily(
            "headrace_cache_damaged_files", "Damaged files that a cache has dropped and made anew", labels=["cache"]
        )
        for cache, count in dropped_files(self._engine).items():
            dropped.add_metric([cache], count)
        yield dropped

    def _columns(self) -> Iterator[Metric]:
        archive, config = self._engine.caches.opened_archive, self._engine.config
        blocks = None if archive is None else archive.blocks
        gauges = {
            "tail_columns_bytes": ("Memory for columns of events without companions", blocks.bytes if blocks else 0),
            "tail_columns_limit_bytes": ("Memory that they may take", config.limits.tail_columns_bytes),
            "tail_columns_disk_bytes": ("Disk that more of them take", blocks.disk_bytes if blocks else 0),
            "tail_columns_disk_limit_bytes": ("Disk that they may take", config.storage.tail_cache_bytes),
        }
        yield from (_gauge(name, text, value) for name, (text, value) in gauges.items())
        extracted = blocks.extracted if blocks else 0
        yield CounterMetricFamily("headrace_tail_columns_events", "Events extracted into such columns", extracted)

    def _gated(self) -> Iterator[Metric]:
        limit = GaugeMetricFamily("headrace_gate_limit", "Work admitted at once", labels=["gate", "kind"])
        active = GaugeMetricFamily("headrace_gate_active", "Work being done", labels=["gate"])
        queued = GaugeMetricFamily("headrace_gate_queued", "Work waiting its turn", labels=["gate"])
        for name, gate in self._gates.named().items():
            limit.add_metric([name, "configured"], gate.configured_limit)
            limit.add_metric([name, "current"], gate.current_limit)
            active.add_metric([name], gate.active)
            queued.add_metric([name], gate.queued)
        yield from (limit, active, queued)

    def _stalled(self) -> Iterator[Metric]:
        stalls = {
            "loop_stall_seconds": ("How long the event loop did not turn", self._watchdog.stalls),
            "loop_stall_busy_seconds": ("Processor time of its thread meanwhile", self._watchdog.busy),
        }
        for name, (sentence, stalled) in stalls.items():
            yield HistogramMetricFamily(
                f"headrace_{name}", sentence, buckets=stalled.buckets(), sum_value=stalled.sum_s
            )
        yield _gauge(
            "loop_longest_stall_seconds", "The longest such time since the start", self._watchdog.stalls.longest_s
        )

    def _held(self) -> Iterator[Metric]:
        engine, monitor = self._engine, self._monitor
        build = GaugeMetricFamily("headrace_build_info", "The running version", labels=["version"])
        build.add_metric([self._version], 1)
        yield build
        yield _gauge("uptime_seconds", "Seconds since the start", time.monotonic() - self._started)
        yield _gauge("watchers", "Readers waiting at a tail", engine.tail.watchers)
        yield _gauge("cached_streams", "Stream heads in memory", len(engine.log.catalog))
        yield _gauge("memory_pressure", "1 while gates are halved and caches shrink", monitor.pressure_active)
        yield _gauge("memory_short", "1 while work is refused that takes much memory", self._gates.shortage.is_on)
        counted = {
            "memory_reliefs": ("Times that caches were made smaller under pressure", monitor.reliefs),
            "memory_trims": ("Times that free pages were given back", monitor.trims),
            "memory_trimmed_bytes": ("Resident memory that this took away", monitor.trimmed_bytes),
            "memory_refused": ("Requests that were refused for want of memory", self._gates.shortage.refused),
        }
        yield from (CounterMetricFamily(f"headrace_{name}", text, value=n) for name, (text, n) in counted.items())
        held = GaugeMetricFamily("headrace_memory_held_bytes", "Memory by who holds it", labels=["holder"])
        for holder, size in engine.account.held().items():
            held.add_metric([holder], size)
        yield held
        gauges = {
            "memory_rss_bytes": ("Resident memory", monitor.last.rss_bytes),
            "memory_max_rss_bytes": ("The most there ever was", monitor.max_rss_bytes),
            "memory_limit_bytes": ("The memory limit", monitor.limit_bytes),
            "memory_pressure_limit_bytes": ("Where pressure begins", monitor.pressure_limit_bytes),
        }
        yield from (_gauge(name, text, value) for name, (text, value) in gauges.items() if value is not None)


def _gauge(name: str, sentence: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headrace_{name}", sentence, value=value)


_PREFIX = "headrace_touch_"
_CAPITAL = re.compile("(?<!^)(?=[A-Z])")
_TEMPLATE_EVENTS = ("activated", "retired", "evicted", "denied")


def touch_metrics(touches: Touches) -> Iterator[Metric]:
    """The gauges of touches, and their counters since the server started."""
    modes = Counter(stream_touches.mode for stream_touches in touches.followed())
    streams = GaugeMetricFamily(f"{_PREFIX}streams", "Streams that are followed, by touchMode", labels=["mode"])
    for mode, count in sorted(modes.items()):
        streams.add_metric([mode], count)
    yield streams
    for name, value in report.gauges(touches).items():
        yield GaugeMetricFamily(_PREFIX + _snake(name), f"{name} of touch/meta, over all streams", value=value)
    for name, total in report.totals(touches).items():
        if not name.endswith("Total"):
            continue
        text, seconds = f"{name} of touch/meta, over all streams", name.endswith("MsTotal")
        metric_name = _snake(name.removesuffix("Total")).removesuffix("_ms") + "_seconds" * seconds
        yield CounterMetricFamily(_PREFIX + metric_name, text, value=total / 1000 if seconds else total)
    template_outcomes = CounterMetricFamily(f"{_PREFIX}templates", "What became of templates", labels=["outcome"])
    counts = report.total_counts(touches)
    for outcome in _TEMPLATE_EVENTS:
        template_outcomes.add_metric([outcome], getattr(counts, outcome))
    yield template_outcomes


def _snake(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()
