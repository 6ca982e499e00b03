"""``/v1/work``: what has to be derived is leased to workers, who report over HTTP; for operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.derive.lease_scheduler import MAX_UNITS
from headrace.engine.derive.work_overview import Overview
from headrace.errors import BadRequest
from headrace.reduce.work_units import JOBS, JobName, Result, Text
from headrace.server.http.starlette_json import Body, json_response, read_json
from headrace.storage.objects import Objects
from headrace.storage.work import FailureRow
from headrace.types import rfc3339

Endpoint = Callable[[Request], Awaitable[Response]]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]

ROOT = "/v1/work"


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The worker that asks for work, how much, and of which kinds; host and master are informative."""

    worker: Text
    host: Text | None = None
    master: Text | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS)] = MAX_UNITS
    jobs: Annotated[list[JobName], msgspec.Meta(min_length=1)] | None = None


class HeartbeatBody(msgspec.Struct, forbid_unknown_fields=True):
    """That a worker is still at it, and how far it is."""

    token: Whole
    done: Whole = 0
    total: Whole = 0


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """What became of some units."""

    token: Whole
    results: Annotated[list[Result], msgspec.Meta(max_length=MAX_UNITS)]


class LeaseReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """That a worker does no more."""

    token: Whole


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    """The stream to process now, and whether its newest entries are published first."""

    stream: Text
    seal: bool = False


def routes(engine: Engine) -> list[Route]:
    """Every route of this file; all need an operator's key."""
    api = WorkRoutes(engine)
    lease_path = f"{ROOT}/leases/{{id}}"
    return [
        _route(ROOT, "GET", api.overview),
        _route(f"{ROOT}/lease", "POST", api.lease),
        _route(f"{lease_path}/heartbeat", "POST", api.heartbeat),
        _route(f"{lease_path}/commit", "POST", api.commit),
        _route(f"{lease_path}/release", "POST", api.release),
        _route(f"{ROOT}/pause", "POST", api.pause),
        _route(f"{ROOT}/resume", "POST", api.resume),
        _route(f"{ROOT}/run", "POST", api.run),
    ]


class WorkRoutes:
    """One method per verb: reads the request, asks the scheduler, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._work = engine.work
        self._store = store_url(engine.objects, engine.config.storage.object_store)

    async def overview(self, _: Request) -> Response:
        """How things stand."""
        return json_response({"paused": self._work.paused, **_overview_document(await self._work.overview())})

    async def lease(self, request: Request) -> Response:
        """Give work away."""
        body = await self._read(request, LeaseBody)
        granted = await self._work.lease(body.worker, body.limit, body.jobs or JOBS, host=body.host, master=body.master)
        lease = None
        if granted is not None:
            lease = {
                "id": granted.lease.id,
                "token": granted.lease.token,
                **self._lease_times(granted.lease.expires_us),
            }
        units = [] if granted is None else granted.units
        return json_response({"lease": lease, "store": self._store, "paused": self._work.paused, "units": units})

    async def heartbeat(self, request: Request) -> Response:
        """Hear of a worker."""
        body = await self._read(request, HeartbeatBody)
        id = request.path_params["id"]
        expires_us, dropped = await self._work.heartbeat(id, body.token, body.done, body.total)
        return json_response({"lease": {"id": id, **self._lease_times(expires_us)}, "dropped": dropped})

    async def commit(self, request: Request) -> Response:
        """Take results."""
        body = await self._read(request, CommitBody)
        id = request.path_params["id"]
        committed = await self._work.commit(id, body.token, body.results)
        lease = {"id": id, **self._lease_times(committed.expires_us)}
        return json_response({"lease": lease, "results": committed.settled})

    async def release(self, request: Request) -> Response:
        """Take work back."""
        body = await self._read(request, LeaseReleaseBody)
        await self._work.release(request.path_params["id"], body.token)
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        """Give out nothing more."""
        await self._work.pause(True, request.state.principal.user_id)
        return json_response({"paused": True})

    async def resume(self, request: Request) -> Response:
        """Give out work again."""
        await self._work.pause(False, request.state.principal.user_id)
        return json_response({"paused": False})

    async def run(self, request: Request) -> Response:
        """Let a stream be due now; one without a search configuration has nothing to do."""
        body = await self._read(request, RunBody)
        stream = self._engine.log.find(body.stream)
        is_due = self._engine.coverage.defined(stream) is not None
        if is_due:
            if body.seal:
                self._engine.sealer.request(stream.id)
            await self._work.run(stream, request.state.principal.user_id)
        return json_response({"stream": stream.name, "due": is_due})

    def _lease_times(self, expires_us: int) -> dict[str, Any]:
        return {"expires_at": rfc3339(expires_us), "ttl_ms": self._work.ttl_us // 1000}

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        return await read_json(request, kind, limit=self._engine.config.limits.body_bytes)


def store_url(objects: Objects, configured: str) -> str:
    """Where workers find the objects: the URL as configured, or that of a local directory."""
    inside = objects.local_path("x")
    return configured if inside is None else inside.parent.resolve().as_uri()


def _overview_document(overview: Overview) -> dict[str, Any]:
    return {
        "counts": overview.counts,
        "complete": overview.complete,
        "due": overview.due,
        "streams": [stream._asdict() for stream in overview.streams],
        "leases": [
            {
                "id": lease.id,
                "worker": lease.worker,
                "granted_at": rfc3339(lease.granted_us),
                "expires_at": rfc3339(lease.expires_us),
                "done": lease.done,
                "total": lease.total,
                "units": [
                    {
                        "unit": unit.id,
                        "job": unit.job,
                        "stream": overview.names.get(unit.stream),
                        "first_seq": unit.first_seq,
                        "count": unit.count,
                        "outcome": unit.outcome,
                    }
                    for unit in units
                ],
            }
            for lease, units in overview.leases
        ],
        "resting": [
            _failure(overview, failure) | {"retry_at": rfc3339(failure.retry_us)} for failure in overview.resting
        ],
        "parked": [_failure(overview, failure) for failure in overview.parked],
        "workers": [
            {
                "worker": worker.worker,
                "local": worker.local,
                "alive": worker.alive,
                "host": worker.host,
                "master": worker.master,
                "first_seen_at": rfc3339(worker.since_us),
                "last_seen_at": rfc3339(worker.seen_us),
                "done": worker.done,
                "failed": worker.failed,
                "lost": worker.lost,
                "released": worker.released,
            }
            for worker in overview.workers
        ],
    }


def _failure(overview: Overview, failure: FailureRow) -> dict[str, Any]:
    return {
        "stream": overview.names.get(failure.stream),
        "job": failure.job,
        "first_seq": failure.first_seq,
        "count": failure.count,
        "attempts": failure.attempts,
        "last_attempt_at": rfc3339(failure.at_us),
        "reason": failure.reason,
    }


def _route(path: str, verb: str, endpoint: Endpoint) -> Route:
    async def checked(request: Request) -> Response:
        request.state.principal.require("admin")
        for name in request.query_params:
            raise BadRequest(f"there is no parameter {name!r} here", field=name)
        return await endpoint(request)

    return Route(path, checked, methods=[verb])
