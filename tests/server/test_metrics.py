from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.search.searches import Searched
from engine.touch.touched import NAME, Touched, by, change
from headrace.config import Config, LimitsConfig, MiB, StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.log.append import Append
from headrace.engine.runtime.event_loop import StallWatchdog
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor, ProcessMemory
from headrace.engine.system_streams import System
from headrace.engine.touch.report import GAUGES, report
from headrace.profiles.state_protocol import keys
from headrace.server.metrics import Metrics
from headrace.server.metrics_stream import MetricsStream
from headrace.storage.streams import StreamRow
from support.engine_rig import Rig

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _samples(metrics: Metrics) -> Samples:
    body, content_type = metrics.render("text/plain")
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def _append(engine: Engine, name: str, *bodies: bytes) -> None:
    created: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    row = StreamRow(name=name, content_type="text/plain", created_us=1, epochs="[]")
    engine.log.create(row, created.set_result)
    await created
    for body in bodies:
        appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        engine.log.append(Append(engine.log.find(name), body, 1, appended.set_result))
        engine.log.settled(await appended)


def test_the_numbers_are_those_of_the_engine_its_gates_and_its_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = LimitsConfig(concurrent_searches=4, queue_bytes=777)
        engine = await Engine.open(Config(storage=StorageConfig(data_dir=str(tmp_path)), limits=limits))
        gates = Gates(limits)
        monitor = MemoryMonitor(gates, limit_bytes=100 * MiB, read=lambda: ProcessMemory(rss_bytes=90 * MiB))
        metrics = Metrics(engine, gates, monitor)
        await _append(engine, "a", b"four", b"five!")
        engine.counters.responses[204] = 2
        async with gates.read:
            found = _samples(metrics)
        assert found["headrace_appends_total", ()] == 2
        assert found["headrace_appended_events_total", ()] == 2
        assert found["headrace_appended_bytes_total", ()] == 9
        assert found["headrace_streams_created_total", ()] == 1
        assert found["headrace_commits_total", ()] == engine.writer.commits == 3
        assert found["headrace_failed_commits_total", ()] == 0
        assert found["headrace_append_queue_requests", ()] == 0
        assert found["headrace_append_queue_limit_bytes", ()] == 777
        assert found["headrace_responses_total", (("status", "204"),)] == 2
        assert found["headrace_cached_streams", ()] == 1
        assert found["headrace_watchers", ()] == 0
        assert found["headrace_gate_active", (("gate", "read"),)] == 1
        assert found["headrace_gate_limit", (("gate", "search"), ("kind", "configured"))] == 4
        assert found["headrace_gate_limit", (("gate", "rows"), ("kind", "configured"))] == 1
        assert found["headrace_gate_limit", (("gate", "search"), ("kind", "current"))] == 2
        assert found["headrace_memory_pressure", ()] == 1
        assert found["headrace_memory_rss_bytes", ()] == 90 * MiB
        assert found["headrace_memory_limit_bytes", ()] == 100 * MiB
        assert found["process_open_fds", ()] > 0
        await engine.close()

    asyncio.run(scenario())


def test_what_waits_to_be_published_and_what_was_is_measured(tmp_path: Path) -> None:
    with Rig(tmp_path, storage={"object_store": "memory://"}) as rig:
        metrics = _metrics(rig)
        found = _samples(metrics)
        assert found["headrace_oldest_unpublished_seconds", ()] == 0
        assert found["headrace_backlog_bytes", ()] == found["headrace_published_segments_total", ()] == 0
        assert found["headrace_segment_cache_bytes", ()] == found["headrace_segment_fetches_total", ()] == 0
        rig.create("a", body=b"entry")
        rig.run(rig.engine.sealer.work())
        rig.clock.us += 42_000_000
        found = _samples(metrics)
        assert found["headrace_oldest_unpublished_seconds", ()] == 42
        assert found["headrace_backlog_bytes", ()] == 5
        assert found["headrace_backlog_limit_bytes", ()] == rig.config.storage.backlog_bytes
        rig.publish("a")
        rig.run(rig.engine.sealer.work())
        found, held = _samples(metrics), rig.engine.published.totals(rig.find("a").id)
        assert found["headrace_oldest_unpublished_seconds", ()] == found["headrace_backlog_bytes", ()] == 0
        assert found["headrace_published_segments_total", ()] == held.segments == found["headrace_seals_total", ()] == 1
        assert found["headrace_failed_seals_total", ()] == 0
        assert found["headrace_published_bytes_total", ()] == found["headrace_segment_cache_bytes", ()] == held.bytes
        assert found["headrace_segment_cache_files", ()] == 1
        assert found["headrace_segment_cache_limit_bytes", ()] == rig.config.storage.segment_cache_bytes
        assert found["headrace_object_store_requests_total", _asked("segment", "put", "ok")] == 1
        assert found["headrace_object_store_requests_total", _asked("manifest", "put", "ok")] == 1


def test_columns_of_events_without_companions_are_measured(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"tail_columns_bytes": 500_000}, storage={"tail_cache_bytes": 7}) as rig:
        found = _samples(_metrics(rig))
        assert found["headrace_tail_columns_bytes", ()] == found["headrace_tail_columns_events_total", ()] == 0
        stream = Searched(rig)
        stream.append({"time": 1, "service": "a"}, {"time": 2, "service": "b"})
        assert len(stream.ask("service:a").seqs) == 1
        found = _samples(_metrics(rig))
        assert found["headrace_tail_columns_events_total", ()] == 2
        assert 0 < found["headrace_tail_columns_bytes", ()] <= found["headrace_tail_columns_limit_bytes", ()] == 500_000
        assert found["headrace_tail_columns_disk_bytes", ()] == 0
        assert found["headrace_tail_columns_disk_limit_bytes", ()] == 7


def test_a_segment_that_is_read_is_fetched_and_decoded(tmp_path: Path) -> None:
    with Rig(tmp_path, storage={"object_store": "memory://", "segment_cache_bytes": 0}) as rig:
        rig.create("a", body=b"entry")
        rig.publish("a")
        assert rig.read("a") == [b"entry"]
        found = _samples(_metrics(rig))
        assert found["headrace_segment_fetches_total", ()] == 1
        assert found["headrace_segment_decoded_bytes", ()] > 0
        assert found["headrace_object_store_requests_total", _asked("segment", "get", "ok")] == 1


def test_touches_of_all_streams_are_measured_in_the_words_of_meta(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        metrics, user = _metrics(db.rig), by("todos", "user")
        assert _samples(metrics)["headrace_touch_touches_emitted_total", ()] == 0
        db.activate(user)
        wait = db.ask("now", keys.watch_key(user.id, ["a"]), templates=(user,))
        db.ask("now", 7)
        db.append(change("todos", "insert", after={"user": "a"}))
        db.settle()
        assert wait.outcome is True
        found, meta = _samples(metrics), report(db.stream_touches, 0.0)
        for name in GAUGES:
            assert found[f"headrace_touch_{_snake(name)}", ()] == meta[name]
        for name in ("touchesEmitted", "touchesTable", "waitTouched", "waitStale", "journalNotifyWakeups", "scanRows"):
            assert found[f"headrace_touch_{_snake(name)}_total", ()] == meta[f"{name}Total"]
        assert meta["activeWaiters"] == 1
        assert meta["journalKeys"] == 3
        assert meta["waitTouchedTotal"] == 1
        assert found["headrace_touch_journal_notify_wake_seconds_total", ()] == meta["journalNotifyWakeMsTotal"] / 1000
        assert found["headrace_touch_streams", (("mode", "fine"),)] == 1
        assert found["headrace_touch_templates_total", (("outcome", "activated"),)] == 1
        db.rig.delete(NAME)
        after = _samples(metrics)
        assert after["headrace_touch_active_waiters", ()] == 0
        assert after["headrace_touch_touches_emitted_total", ()] == meta["touchesEmittedTotal"]


def _snake(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()


def test_a_node_that_was_replaced_says_so(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        metrics = _metrics(rig)
        assert _samples(metrics)["headrace_fenced", ()] == 0
        rig.engine.writer.fenced = True
        assert _samples(metrics)["headrace_fenced", ()] == 1
        rig.engine.writer.fenced = False


def _metrics(rig: Rig) -> Metrics:
    gates = Gates(rig.config.limits)
    return Metrics(rig.engine, gates, MemoryMonitor(gates, limit_bytes=None))


def _asked(artifact: str, verb: str, outcome: str) -> tuple[tuple[str, str], ...]:
    return ("artifact", artifact), ("outcome", outcome), ("verb", verb)


def test_stalls_of_the_loop_are_histograms(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        gates, watchdog = Gates(LimitsConfig()), StallWatchdog()
        watchdog.stalls.observe(0.3)
        watchdog.stalls.observe(0.03)
        watchdog.busy.observe(0.04)
        metrics = Metrics(rig.engine, gates, MemoryMonitor(gates, limit_bytes=None), watchdog)
        found = _samples(metrics)
        assert found["headrace_loop_stall_seconds_bucket", (("le", "0.05"),)] == 1
        assert found["headrace_loop_stall_seconds_bucket", (("le", "0.5"),)] == 2
        assert found["headrace_loop_stall_seconds_count", ()] == 2
        assert found["headrace_loop_stall_seconds_sum", ()] == pytest.approx(0.33)
        assert found["headrace_loop_longest_stall_seconds", ()] == 0.3
        assert found["headrace_loop_stall_busy_seconds_count", ()] == 1
        told: list[list[dict[str, Any]]] = []

        class _Told:
            async def measured(self, records: list[dict[str, Any]]) -> None:
                told.append([one for one in records if one["metric"].startswith("headrace_loop_stall_seconds")])

        emitter = MetricsStream(cast(System, _Told()), metrics.collect, rig.engine.clock)
        rig.run(emitter.emit())
        watchdog.stalls.observe(3.0)
        rig.run(emitter.emit())
        counts = [[one["sum"] for one in records if one["metric"].endswith("_count")] for records in told]
        assert counts == [[2], [1]], "an interval tells how many stalls came in it"
        assert {one["temporality"] for records in told for one in records} == {"delta"}


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = await Engine.open(Config(storage=StorageConfig(data_dir=str(tmp_path))))
        gates = Gates(LimitsConfig())
        metrics = Metrics(engine, gates, MemoryMonitor(gates, limit_bytes=None, read=ProcessMemory))
        names = {name for name, _ in _samples(metrics)}
        kept = {"headrace_memory_held_bytes"}  # measured by the server, not by the system
        memory = {name for name in names if name.startswith("headrace_memory_") and name.endswith("_bytes")}
        assert memory <= kept
        assert all(name.startswith(("headrace_", "process_")) for name in names)
        await engine.close()

    asyncio.run(scenario())


def test_a_scraper_that_wants_openmetrics_gets_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = await Engine.open(Config(storage=StorageConfig(data_dir=str(tmp_path))))
        gates = Gates(LimitsConfig())
        metrics = Metrics(engine, gates, MemoryMonitor(gates, limit_bytes=None))
        body, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
        assert content_type.startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")
        await engine.close()

    asyncio.run(scenario())
