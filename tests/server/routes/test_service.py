from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from headrace.config import Config, LimitsConfig, MemoryConfig, MiB, ServerConfig, StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.holdings import holdings
from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor, ProcessMemory
from headrace.errors import CorruptData, HeadraceError, Overloaded
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.starlette_json import failure_response
from headrace.server.metrics import Metrics
from headrace.server.routes import service
from headrace.server.routes.report import Report
from headrace.server.routes.route_table import starlette_routes
from headrace.storage.streams import StreamRow
from support.engine_rig import Rig
from support.work_rig import Worker, listed, searched

READER = Principal("ann", frozenset({"read"}))


class _Node:
    """An engine with its operator routes, asked without a socket."""

    def __init__(self, engine: Engine, *, rss: int | None = None, limit: int | None = 1000 * MiB) -> None:
        self.engine = engine
        self.gates = Gates(engine.config.limits)
        self.rss = rss
        read = {} if rss is None else {"read": lambda: ProcessMemory(rss_bytes=self.rss)}
        self.monitor = MemoryMonitor(self.gates, limit_bytes=limit, **read)  # type: ignore[arg-type]
        self.readiness = service.Readiness(engine, timeout_s=0.2)
        self.readiness.serving = True
        metrics = Metrics(engine, self.gates, self.monitor)
        resource = service.ServiceRoutes(engine, self.gates, self.monitor, self.readiness, metrics, {})
        routes = starlette_routes([resource])
        refused = {HeadraceError: _refused}
        self._app = Starlette(routes=routes, exception_handlers=refused)  # type: ignore[arg-type]

    async def get(self, path: str, *, principal: Principal = LOCAL) -> tuple[int, dict[str, str], bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": []}
        scope |= {"query_string": b"", "root_path": "", "state": {"principal": principal}}
        await self._app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])

    async def json(self, path: str, status: int = 200) -> Any:
        found, headers, body = await self.get(path)
        assert found == status
        assert headers["content-type"] == "application/json; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        return msgspec.json.decode(body)

    async def fill(self, name: str, *bodies: bytes) -> None:
        """A stream with some entries."""
        created: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        row = StreamRow(name=name, content_type="text/plain", created_us=1, epochs="[]")
        self.engine.log.create(row, created.set_result)
        _check(await created)
        stream = self.engine.log.find(name)
        for body in bodies:
            appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.engine.log.append(Append(stream, body, 1, appended.set_result))
            self.engine.log.settled(_check(await appended))


def _check(operation: Any) -> Any:
    if operation.error is not None:
        raise operation.error
    return operation


async def _refused(_: object, error: HeadraceError) -> object:
    return failure_response(error)


def _run(config: Config, scenario: Callable[[_Node], Awaitable[None]], **facts: Any) -> None:
    async def run() -> None:
        engine = await Engine.open(config)
        try:
            await scenario(_Node(engine, **facts))
        finally:
            await engine.close()

    asyncio.run(run())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(storage=StorageConfig(data_dir=str(tmp_path)))


def test_a_running_process_is_live(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        for path in ("/health", "/health/live"):
            assert await node.json(path) == {"ok": True}

    _run(config, scenario)


def test_a_server_that_serves_and_writes_is_ready_without_a_pipeline(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        assert await node.json("/health/ready") == {
            "ready": True,
            "recovered": "ok",
            "serving": "ok",
            "writes": "ok",
            "database": "ok",
            "object_store": "ok",
            "pipeline": "idle",
        }
        node.engine.sealer.trouble = "the object store did not put x: Connection refused"
        told = await node.json("/health/ready")
        assert told["ready"] is True
        assert told["object_store"] == node.engine.sealer.trouble
        assert node.engine.writer.commits == 1

    _run(config, scenario)


def _pipeline(rig: Rig) -> object:
    """What a new answer says of derived data."""
    readiness = service.Readiness(rig.engine)
    readiness.serving = True
    return rig.run(readiness.check()).pipeline


def test_the_pipeline_is_idle_where_streams_turn_out_to_need_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        searched(rig, "a", 10)
        assert rig.engine.work.counts()["due"] == 1
        assert _pipeline(rig) == "idle"
        assert rig.engine.work.counts()["due"] == 0


def test_the_pipeline_is_behind_while_work_waits_and_nobody_does_it(tmp_path: Path) -> None:
    with Rig(tmp_path, pipeline={"min_rows": 0}) as rig:
        searched(rig, "a", 10)
        assert _pipeline(rig) == "behind"
        worker = Worker(rig)
        worker.granted()
        assert _pipeline(rig) == "working"
        rig.clock.us += 2 * rig.engine.work.ttl_us
        _pipeline(rig)  # which notices that the worker is lost, and lets its work rest for a second
        rig.clock.us += 2_000_000
        assert _pipeline(rig) == "behind"
        worker.work()
        assert _pipeline(rig) == "idle"


def test_work_is_looked_for_once_for_everyone_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig(tmp_path, pipeline={"min_rows": 0}) as rig:
        searched(rig, "a", 10)
        looks, look = list[None](), rig.engine.work.has_work

        async def counted() -> bool:
            looks.append(None)
            return await look()

        monkeypatch.setattr(rig.engine.work, "has_work", counted)
        readiness = service.Readiness(rig.engine)
        readiness.serving = True

        async def together() -> list[dict[str, object]]:
            return await asyncio.gather(*(readiness.check() for _ in range(20)))

        assert {answer.pipeline for answer in (*rig.run(together()), rig.run(readiness.check()))} == {"behind"}
        assert len(looks) == 1


def test_probes_that_come_together_or_within_a_second_share_one_write(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        await asyncio.gather(*(node.json("/health/ready") for _ in range(20)))
        await node.json("/health/ready")
        assert node.engine.writer.commits == 1

    _run(config, scenario)


def test_a_stopping_server_is_not_ready_and_says_so(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        node.readiness.serving = False
        answer = await node.json("/health/ready", 503)
        assert answer["error"]["code"] == "unavailable"
        assert answer["error"]["reasons"] == ["serving: not serving"]

    _run(config, scenario)


def test_a_server_whose_writes_do_not_come_back_is_not_ready_until_they_do(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        loop, stuck = asyncio.get_running_loop(), asyncio.Event()
        release = _hold_writer(node.engine, loop, stuck)
        await asyncio.wait_for(stuck.wait(), 10)
        answer = await node.json("/health/ready", 503)
        assert answer["error"]["reasons"] == ["writes: no write came back within 0.2 s"]
        assert await node.json("/health/ready", 503) == answer
        assert node.engine.writer.queued_requests == 2  # what holds the writer, and one probe
        release()
        while node.engine.writer.queued_requests:
            await asyncio.sleep(0.01)
        assert (await node.json("/health/ready"))["writes"] == "ok"

    _run(config, scenario)


def _hold_writer(engine: Engine, loop: asyncio.AbstractEventLoop, stuck: asyncio.Event) -> Callable[[], None]:
    gone = threading.Event()

    def perform(_: Batch) -> None:
        loop.call_soon_threadsafe(stuck.set)
        gone.wait(20)

    held = asyncio.ensure_future(engine.apply(perform))

    def release() -> None:
        gone.set()
        assert not held.done()

    return release


def test_a_node_says_how_much_waits_to_be_published(tmp_path: Path) -> None:
    async def scenario(node: _Node) -> None:
        async def pressure() -> dict[str, Any]:
            found: dict[str, Any] = (await node.json("/v1/server/_details"))["runtime"]["local_backpressure"]
            return found

        assert await pressure() == {"enabled": True, "current_bytes": 0, "max_bytes": 1000, "over_limit": False}
        await node.fill("a", b"x" * 800)
        await node.engine.sealer.work()
        assert await pressure() == {"enabled": True, "current_bytes": 800, "max_bytes": 1000, "over_limit": False}
        await node.fill("b", b"x" * 800)
        await node.engine.sealer.work()
        assert await pressure() == {"enabled": True, "current_bytes": 1600, "max_bytes": 1000, "over_limit": True}
        with pytest.raises(Overloaded):
            await node.fill("c", b"x")
        for name in ("a", "b"):
            await node.engine.sealer.publish(node.engine.log.find(name).id)
        await node.engine.sealer.work()
        assert await pressure() == {"enabled": True, "current_bytes": 0, "max_bytes": 1000, "over_limit": False}

    _run(Config(storage=StorageConfig(data_dir=str(tmp_path), backlog_bytes=1000)), scenario)


def test_a_reader_may_scrape_but_not_see_the_servers_details(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        assert (await node.get("/metrics", principal=READER))[0] == 200
        for path in ("/v1/server/_details", "/v1/server/_mem"):
            assert (await node.get(path, principal=READER))[0] == 403
            limited = Principal("ann", frozenset({"read", "write", "admin"}), "team/")
            assert (await node.get(path, principal=limited))[0] == 403

    _run(config, scenario)


def test_details_have_every_field_of_the_contract(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        details = await node.json("/v1/server/_details")
        assert set(details) == {"auto_tune", "configured_limits", "runtime"}
        limits = details["configured_limits"]
        assert set(limits["caches"]) == _named(
            "sqlite_cache_bytes worker_sqlite_cache_bytes index_run_memory_cache_bytes index_run_disk_cache_bytes "
            "lexicon_index_cache_bytes segment_cache_bytes companion_toc_cache_bytes companion_section_cache_bytes "
            "companion_file_cache_bytes"
        )
        assert set(limits["concurrency"]) == _named("ingest read search async_index upload index_build index_compact")
        assert set(limits["ingest"]) == _named(
            "max_batch_requests max_batch_bytes max_queue_requests max_queue_bytes busy_timeout_ms "
            "local_backlog_max_bytes"
        )
        assert set(limits["search"]) == _named(
            "companion_batch_segments companion_yield_blocks wal_overlay_quiet_period_ms wal_overlay_max_bytes"
        )
        assert set(limits["segmenting"]) == {"segment_max_bytes", "segment_target_rows", "segmenter_workers"}
        assert set(limits["timeouts"]) == _named(
            "append_request_timeout_ms search_request_timeout_ms resolver_timeout_ms object_store_timeout_ms"
        )
        runtime = details["runtime"]
        assert set(runtime) == _named("memory ingest_queue local_backpressure uploads concurrency top_streams")
        assert set(runtime["memory"]) == _named(
            "pressure_active pressure_limit_bytes last_rss_bytes max_rss_bytes process process_breakdown sqlite gc "
            "subsystems totals high_water"
        )
        assert set(runtime["memory"]["subsystems"]) == _named(
            "heap_estimates mapped_files disk_caches configured_budgets pipeline_buffers sqlite_runtime counts"
        )
        assert set(runtime["concurrency"]) == {"ingest", "read", "search", "async_index"}

    _run(config, scenario)


def test_the_memory_of_spark_is_told_beside_the_limit(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        limits = (await node.json("/v1/server/_details"))["configured_limits"]["memory"]
        assert set(limits) == _named("limit_bytes pressure_limit_bytes refusal_limit_bytes spark_driver_memory")
        assert limits["spark_driver_memory"] == config.pipeline.memory

    _run(config, scenario)


def test_memory_has_every_field_of_the_contract(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        memory = await node.json("/v1/server/_mem")
        assert set(memory) == _named(
            "ts process process_breakdown account sqlite gc high_water counters runtime_counts runtime_bytes "
            "runtime_totals top_streams"
        )
        account = memory["account"]
        assert set(account) == _named(
            "held held_bytes resident_bytes unaccounted_bytes allocators limits reliefs refused_requests"
        )
        assert account["held_bytes"] == sum(account["held"].values())
        assert set(account["limits"]) == _named("limit_bytes pressure_limit_bytes refusal_limit_bytes")
        held = account["held"]
        assert held["process"] > 5 * MiB and held["sqlite"] > 0
        assert set(held) >= _named(
            "append_queue cached_streams decoded_segments segment_footers companions companion_footers tail_columns "
            "recent_events feature_tails entity_tails state_rows entity_rows duckdb arrow_work found_answers"
        )
        assert set(memory["process_breakdown"]) == _named(
            "source rss_anon_bytes rss_file_bytes rss_shmem_bytes js_managed_bytes js_external_non_array_buffers_bytes "
            "mapped_file_bytes sqlite_runtime_bytes unattributed_anon_bytes unattributed_rss_bytes"
        )
        assert set(memory["sqlite"]) == _named(
            "available source memory_used_bytes memory_highwater_bytes pagecache_used_slots "
            "pagecache_used_slots_highwater pagecache_overflow_bytes pagecache_overflow_highwater_bytes malloc_count "
            "malloc_count_highwater open_connections prepared_statements"
        )
        assert set(memory["runtime_totals"]) == _named(
            "heap_estimate_bytes mapped_file_bytes disk_cache_bytes configured_budget_bytes pipeline_buffer_bytes "
            "sqlite_runtime_bytes"
        )
        assert memory["process"]["rss_bytes"] > 5 * MiB
        assert memory["process"]["heap_used_bytes"] is None
        assert memory["high_water"]["process"]["rss_bytes"]["value"] >= memory["process"]["rss_bytes"]
        assert memory["sqlite"]["memory_used_bytes"] > 0

    _run(config, scenario)


def _named(words: str) -> set[str]:
    return set(words.split())


def test_details_show_the_settings_that_are_in_force(tmp_path: Path) -> None:
    config = Config(
        server=ServerConfig(append_timeout_s=1.5),
        storage=StorageConfig(
            data_dir=str(tmp_path), cache_bytes=8 * MiB, seal_bytes=MiB, seal_rows=77, segment_cache_bytes=5 * MiB
        ),
        limits=LimitsConfig(concurrent_searches=6, queue_bytes=123_456),
        memory=MemoryConfig(auto_tune=True, limit_mb=3000),
    )

    async def scenario(node: _Node) -> None:
        details = await node.json("/v1/server/_details")
        assert details["auto_tune"] == {
            "enabled": True,
            "requested_memory_mb": 3000,
            "preset_mb": 2048,
            "effective_memory_limit_mb": 3000,
        }
        limits = details["configured_limits"]
        assert limits["caches"]["sqlite_cache_bytes"] == 8 * MiB
        assert limits["ingest"]["max_queue_bytes"] == 123_456
        assert limits["timeouts"]["append_request_timeout_ms"] == 1500
        assert limits["memory"]["pressure_limit_bytes"] == int(3000 * MiB * 0.85)
        assert limits["segmenting"] == {"segment_max_bytes": MiB, "segment_target_rows": 77, "segmenter_workers": 1}
        assert limits["caches"]["segment_cache_bytes"] == 5 * MiB
        assert limits["caches"]["companion_file_cache_bytes"] == config.storage.companion_cache_bytes
        assert limits["caches"]["companion_section_cache_bytes"] == config.limits.companion_bytes
        assert limits["timeouts"]["search_request_timeout_ms"] == 3000
        assert details["runtime"]["concurrency"]["search"] == {
            "configured_limit": 6,
            "current_limit": 6,
            "active": 0,
            "queued": 0,
        }

    _run(config, scenario, limit=3000 * MiB)


def test_without_auto_tune_the_limit_is_told_too(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        assert (await node.json("/v1/server/_details"))["auto_tune"] == {
            "enabled": False,
            "requested_memory_mb": None,
            "preset_mb": 512,
            "effective_memory_limit_mb": 1000,
        }

    _run(config, scenario)


def test_details_show_pressure_while_it_lasts(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        node.rss = 900 * MiB
        node.monitor.sample()
        runtime = (await node.json("/v1/server/_details"))["runtime"]
        assert runtime["memory"]["pressure_active"] is True
        assert runtime["memory"]["last_rss_bytes"] == 900 * MiB
        assert runtime["concurrency"]["search"]["current_limit"] == 1
        assert runtime["concurrency"]["search"]["configured_limit"] == 2
        assert runtime["concurrency"]["read"]["current_limit"] == 4
        node.rss = 10 * MiB
        runtime = (await node.json("/v1/server/_details"))["runtime"]
        assert runtime["memory"]["pressure_active"] is False
        assert runtime["concurrency"]["search"]["current_limit"] == 2
        assert runtime["memory"]["high_water"]["process"]["rss_bytes"]["value"] == 900 * MiB

    _run(config, scenario, rss=10 * MiB)


def test_details_show_who_is_inside_a_gate(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        async with node.gates.read:
            read = (await node.json("/v1/server/_details"))["runtime"]["concurrency"]["read"]
        assert read["active"] == 1
        assert read["queued"] == 0

    _run(config, scenario)


class _Reader:
    def wake(self) -> None:
        pass


def test_top_streams_are_the_five_largest_and_the_most_watched(config: Config) -> None:
    async def scenario(node: _Node) -> None:
        for number in range(7):
            await node.fill(f"s{number}", *[b"x" * 10] * number)
        watched, readers = node.engine.log.find("s0"), [_Reader(), _Reader()]
        for reader in readers:
            node.engine.tail.watch(watched, reader)
        memory = await node.json("/v1/server/_mem")
        top = memory["top_streams"]
        assert [(line["stream"], line["bytes"]) for line in top["local_storage_bytes"]] == [
            (f"s{n}", 10 * n) for n in (6, 5, 4, 3, 2)
        ]
        assert top["pending_wal_bytes"][0] == {"stream": "s6", "pending_wal_bytes": 60, "pending_rows": 6}
        assert top["notifier_waiters"] == [{"stream": "s0", "waiters": 2, "details_waiters": 0, "total_waiters": 2}]
        assert memory["runtime_counts"]["watchers"] == 2
        assert memory["runtime_counts"]["cached_streams"] == 7
        for reader in readers:
            node.engine.tail.leave(watched, reader)

    _run(config, scenario)


def test_a_stream_that_is_only_cached_is_among_those_that_take_most_of_the_disk(tmp_path: Path) -> None:
    storage = {"object_store": "memory://", "seal_rows": 10}
    with Rig(tmp_path, storage=storage, pipeline={"min_rows": 0}) as rig:
        for number in range(6):
            rig.create(f"small{number}", body=b"x")
        searched(rig, "cached", 100)
        Worker(rig).work()
        stream, companion = rig.find("cached"), listed(rig, "cached")[0]
        files = rig.engine.caches.archive().files
        with pytest.raises(CorruptData), files.open("cached", stream.incarnation, companion, ["columns"]):
            pass
        monitor = MemoryMonitor(rig.engine.gates, limit_bytes=None)
        top = Report(rig.engine, rig.engine.gates, monitor).memory().top_streams
        first = top.local_storage_bytes[0]
        assert first["segment_cache_bytes"] == holdings(rig.engine, stream).segment_bytes > 0
        assert first["index_cache_bytes"] == companion.columns.bytes > 0
        assert first == {
            "stream": "cached",
            "bytes": first["segment_cache_bytes"] + first["index_cache_bytes"],
            "wal_retained_bytes": 0,
            "segment_cache_bytes": first["segment_cache_bytes"],
            "index_cache_bytes": first["index_cache_bytes"],
        }
        assert [one["bytes"] for one in top.local_storage_bytes[1:]] == [1, 1, 1, 1]
        assert {one["pending_wal_bytes"] for one in top.pending_wal_bytes} == {1}
