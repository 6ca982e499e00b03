"""Liveness, readiness, metrics, settings and the OpenAPI document of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor
from headrace.errors import HeadraceError, Unavailable
from headrace.server.http.route import ADMIN, ANY_KEY, NO_KEY, READ, Answer, route
from headrace.server.http.starlette_json import json_response
from headrace.server.http.wire import AlwaysTrue, Object
from headrace.server.metrics import Metrics
from headrace.server.routes.report import Report
from headrace.server.routes.report_documents import MemoryReport, ServerDetails

PROBE_TIMEOUT_S = 2.0
PROBE_LASTS_S = 1.0
WORK_PROBE_LASTS_S = 10.0

ProbeOutcome = TypeVar("ProbeOutcome")


class Entrance(Struct):
    """Which server this is, and where to go on."""

    name: str
    version: str
    links: Mapping[str, str]


#: Addresses of the server that lead to everything else.
_LINKS = {
    "openapi": "/openapi.json",
    "health": "/health/ready",
    "metrics": "/metrics",
    "streams": "/v1/streams",
    "features": "/v1/registry",
    "entity_types": "/v1/entity-types",
}


class Liveness(Struct):
    """That the process runs."""

    ok: AlwaysTrue


class ReadinessAnswer(Struct, kw_only=True):
    """The answer of a ready server, with the state of each part."""

    ready: AlwaysTrue
    recovered: str
    serving: str
    writes: str
    database: str
    object_store: str
    pipeline: str


class _SharedProbe(Generic[ProbeOutcome]):
    """A probe whose outcome is shared by all requests within some seconds."""

    def __init__(
        self, ask: Callable[[], Coroutine[Any, Any, ProbeOutcome]], *, lasts_s: float, timeout_s: float
    ) -> None:
        self._probe = ask
        self._lasts_s = lasts_s
        self._timeout_s = timeout_s
        self._task: asyncio.Task[ProbeOutcome] | None = None
        self._started_at = 0.0

    async def current_task(self) -> asyncio.Task[ProbeOutcome]:
        """The question that is under way, or young enough; not done only where it takes longer than the timeout."""
        task, now = self._task, time.monotonic()
        if task is None or (task.done() and now >= self._started_at + self._lasts_s):
            self._started_at = now
            task = self._task = asyncio.create_task(self._probe())
        await asyncio.wait({task}, timeout=self._timeout_s)
        return task


class Readiness:
    """Checks readiness: the log is recovered, the server serves, and a write reaches the disk."""

    def __init__(self, engine: Engine, *, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._probe = _SharedProbe(engine.probe, lasts_s=PROBE_LASTS_S, timeout_s=timeout_s)
        self._work_probe = _SharedProbe(engine.work.has_work, lasts_s=WORK_PROBE_LASTS_S, timeout_s=timeout_s)
        # Set once requests are taken, and cleared when the server begins to stop.
        self.serving = False

    async def check(self) -> ReadinessAnswer:
        """The lines of the answer; raises Unavailable with every reason while not ready."""
        writes = await self._writes()
        # An engine that answers has recovered its log.
        damage = self._engine.writer.damage.first_error
        lines = {
            "recovered": "ok",
            "serving": "ok" if self.serving else "not serving",
            "writes": writes,
            "database": "ok" if damage is None else damage.message,
        }
        reasons = [f"{name}: {line}" for name, line in lines.items() if line != "ok"]
        # Requests are served while the store is away: what waits to be published is kept here.
        store = self._engine.sealer.trouble or "ok"
        document = {**lines, "object_store": store, "pipeline": await self._pipeline()}
        if reasons:
            raise Unavailable("not ready: " + "; ".join(reasons), retry_after=1, reasons=reasons, **document)
        return ReadinessAnswer(ready=True, **document)

    async def _pipeline(self) -> str:
        """The state of derived data; does not affect readiness."""
        work = self._engine.work
        if work.paused:
            return "paused"
        counts = work.counts()
        if counts["leases"]:
            return "working"
        return "behind" if counts["due"] and await self._work_waits() else "idle"

    async def _work_waits(self) -> bool:
        """Whether streams that may have something to derive were found to have."""
        has_work = await self._work_probe.current_task()
        return has_work.done() and has_work.exception() is None and has_work.result()

    async def _writes(self) -> str:
        """The outcome of the last write."""
        probe = await self._probe.current_task()
        if not probe.done():
            return f"no write came back within {self._timeout_s:g} s"
        failure = probe.exception()
        if failure is None:
            return "ok"
        return failure.message if isinstance(failure, HeadraceError) else "a write failed"


_ALIVE = {200: Answer("it runs", Liveness)}
_METRICS = {"text/plain": str, "application/openmetrics-text": str}


class ServiceRoutes:
    """Answers requests about the server; the probes need no key, the settings and stream names need an operator's."""

    def __init__(
        self,
        engine: Engine,
        gates: Gates,
        monitor: MemoryMonitor,
        readiness: Readiness,
        metrics: Metrics,
        document: Object,
    ) -> None:
        self._report = Report(engine, gates, monitor)
        self._readiness, self._metrics, self._document = readiness, metrics, document

    @route(
        "GET",
        "/",
        "enter_server",
        "Name and version of the server, and where to go on",
        ANY_KEY,
        {200: Answer("this server", Entrance)},
        takes_any_query=True,
    )
    async def entrance(self, _: Request) -> Response:
        """The name, the version and links."""
        return json_response(Entrance("headrace", version("headrace"), _LINKS))

    @route("GET", "/health", "check_health", "Whether the process runs", NO_KEY, _ALIVE, takes_any_query=True)
    @route("GET", "/health/live", "check_live_health", "Whether the process runs", NO_KEY, _ALIVE, takes_any_query=True)
    async def live(self, _: Request) -> Response:
        """That the process runs."""
        return json_response(Liveness(True))

    @route(
        "GET",
        "/health/ready",
        "check_ready_health",
        "Whether requests should come here",
        NO_KEY,
        {200: Answer("it serves and writes", ReadinessAnswer)},
        takes_any_query=True,
    )
    async def ready(self, _: Request) -> Response:
        """GET: 200 if the server is ready, or every reason why it is not."""
        return json_response(await self._readiness.check())

    @route(
        "GET",
        "/metrics",
        "scrape_server",
        "[Prometheus metrics](operations.md#metrics)",
        READ,
        {200: Answer("numbers, in the format the Accept header asks for", media=_METRICS)},
        takes_any_query=True,
    )
    async def scrape(self, request: Request) -> Response:
        """The metrics of the server."""
        request.state.principal.require("read")
        body, content_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    @route(
        "GET",
        "/openapi.json",
        "describe_server",
        "This document",
        ANY_KEY,
        {200: Answer("the document", Object)},
        takes_any_query=True,
    )
    async def described(self, _: Request) -> Response:
        """The OpenAPI document."""
        return json_response(self._document)

    @route(
        "GET",
        "/v1/server/_details",
        "detail_server",
        "[Settings and state](operations.md#settings-and-state-of-a-node)",
        ADMIN,
        {200: Answer("as it is now", ServerDetails)},
        takes_any_query=True,
    )
    async def details(self, _: Request) -> Response:
        """The settings of the server, and how full it is."""
        return json_response(self._report.details())

    @route(
        "GET",
        "/v1/server/_mem",
        "measure_server",
        "Memory of the process",
        ADMIN,
        {200: Answer("as it is now", MemoryReport)},
        takes_any_query=True,
    )
    async def memory(self, _: Request) -> Response:
        """The memory of the process."""
        return json_response(self._report.memory())
