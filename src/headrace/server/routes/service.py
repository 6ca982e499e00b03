"""What operators ask: is it alive, is it ready, how does it fare, what does it serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor
from headrace.errors import HeadraceError, Unavailable
from headrace.server.http.starlette_json import json_response
from headrace.server.metrics import Metrics
from headrace.server.routes import openapi
from headrace.server.routes.report import Report

PROBE_TIMEOUT_S = 2.0
PROBE_LASTS_S = 1.0
WORK_PROBE_LASTS_S = 10.0

Endpoint = Callable[[Request], Awaitable[Response]]
ProbeOutcome = TypeVar("ProbeOutcome")


class _SharedProbe(Generic[ProbeOutcome]):
    """A probe whose outcome is shared by everyone who asks within some seconds."""

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
    """Whether requests should come here: the log is recovered, the server serves, and a write reaches the disk."""

    def __init__(self, engine: Engine, *, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._probe = _SharedProbe(engine.probe, lasts_s=PROBE_LASTS_S, timeout_s=timeout_s)
        self._work_probe = _SharedProbe(engine.work.has_work, lasts_s=WORK_PROBE_LASTS_S, timeout_s=timeout_s)
        # Set once requests are taken, and cleared when the server begins to stop.
        self.serving = False

    async def check(self) -> dict[str, object]:
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
        document: dict[str, object] = {**lines, "object_store": store, "pipeline": await self._pipeline()}
        if reasons:
            raise Unavailable("not ready: " + "; ".join(reasons), retry_after=1, reasons=reasons, **document)
        return {"ready": True, **document}

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


def routes(
    engine: Engine, gates: Gates, monitor: MemoryMonitor, readiness: Readiness, metrics: Metrics | None = None
) -> list[Route]:
    """Every route of this file; the probes need no key, the settings and stream names need an operator's."""
    report, metrics = Report(engine, gates, monitor), metrics or Metrics(engine, gates, monitor)
    document = openapi.document(subscriptions=engine.config.subscriptions.enabled)

    async def live(_: Request) -> Response:
        return json_response({"ok": True})

    async def ready(_: Request) -> Response:
        return json_response(await readiness.check())

    async def described(_: Request) -> Response:
        return json_response(document)

    async def scrape(request: Request) -> Response:
        request.state.principal.require("read")
        body, content_type = metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    async def details(request: Request) -> Response:
        request.state.principal.require("admin")
        return json_response(report.details())

    async def memory(request: Request) -> Response:
        request.state.principal.require("admin")
        return json_response(report.memory())

    endpoints: dict[str, Endpoint] = {
        "/health": live,
        "/health/live": live,
        "/health/ready": ready,
        "/metrics": scrape,
        "/openapi.json": described,
        "/v1/server/_details": details,
        "/v1/server/_mem": memory,
    }
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in endpoints.items()]
