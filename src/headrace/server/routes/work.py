"""``/v1/work``: work on derived data is leased to workers, which report over HTTP; for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.derive.lease_scheduler import MAX_UNITS
from headrace.engine.derive.leases import LeaseLost
from headrace.engine.derive.work_overview import Overview, WorkerFacts
from headrace.reduce.work_units import JOBS, JobName, Result, Settled, Text, Unit
from headrace.server.http.route import ADMIN, Answer, Body, Parameter, Verb, in_path, route
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import Counter, NonEmpty, NonNegative, When
from headrace.server.routes.stream_headers import BAD_BODY, NOT_THERE
from headrace.storage.objects import Objects
from headrace.storage.work import FailureRow
from headrace.types import rfc3339

ROOT = "/v1/work"


class LeaseBody(Struct, forbid_unknown_fields=True):
    """The worker that asks for work, how much, and of which kinds; the others tell people where it runs."""

    worker: Text
    host: Text | None = None
    master: Text | None = None
    ui: Text | None = None
    event_log: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_UNITS)] = MAX_UNITS
    jobs: Annotated[list[JobName], Meta(min_length=1)] | None = None


class AttachBody(Struct, forbid_unknown_fields=True):
    """The pipeline that looks for work, or does so no more."""

    pipeline: Text
    attached: bool = True


class HeartbeatBody(Struct, forbid_unknown_fields=True):
    """The heartbeat of a worker, with its progress."""

    token: Counter
    done: Counter = 0
    total: Counter = 0


class CommitBody(Struct, forbid_unknown_fields=True):
    """The results of some units."""

    token: Counter
    results: Annotated[list[Result], Meta(max_length=MAX_UNITS)]


class LeaseReleaseBody(Struct, forbid_unknown_fields=True):
    """The end of a lease, with the token of it."""

    token: Counter


class RunBody(Struct, forbid_unknown_fields=True):
    """The stream to process now, and whether its newest entries are published first."""

    stream: Text
    seal: bool = False


class LeaseTimes(Struct):
    """When a lease ends."""

    id: str
    expires_at: When
    ttl_ms: NonNegative


class GrantedLease(Struct):
    """A lease that was granted to a worker; every report about it carries its token."""

    id: str
    token: NonNegative
    expires_at: When
    ttl_ms: NonNegative


class LeaseAnswer(Struct):
    """Units of work and their lease, or none where nothing is due."""

    lease: GrantedLease | None
    store: str
    paused: bool
    units: list[Unit]


class AttachAnswer(Struct):
    """How long a pipeline counts as attached without saying so again."""

    attached: bool
    ttl_ms: NonNegative


class HeartbeatAnswer(Struct):
    """An extended lease, and its units that are not needed any more."""

    lease: LeaseTimes
    dropped: list[str]


class CommitAnswer(Struct):
    """How each unit ended."""

    lease: LeaseTimes
    results: list[Settled]


class PausedAnswer(Struct):
    """Whether leasing is paused."""

    paused: bool


class RunAnswer(Struct):
    """Whether anything is derived from a stream."""

    stream: str
    due: bool


class WorkCounts(Struct):
    """The number of units, leases and workers."""

    due: NonNegative
    leases: NonNegative
    units: NonNegative
    resting: NonNegative
    parked: NonNegative
    workers: NonNegative
    pipelines: NonNegative


class DerivationProgress(Struct):
    """How much of a stream is derived."""

    stream: str
    done: NonNegative
    total: NonNegative


class LeasedUnit(Struct, kw_only=True):
    """A unit that is leased; what is made of tables and entity types has no stream."""

    unit: str
    job: Annotated[str, Meta(extra_json_schema={"enum": list(JOBS)})]
    stream: str | None
    first_seq: NonNegative
    count: NonNegative
    outcome: str | None


class LeaseStatus(Struct, kw_only=True):
    """A lease, and how far its worker is."""

    id: str
    worker: str
    granted_at: When
    expires_at: When
    done: NonNegative
    total: NonNegative
    units: list[LeasedUnit]


class ParkedUnit(Struct, kw_only=True):
    """A unit that failed, and is not tried again; jobs on tables and entity types are named with these."""

    stream: str | None
    job: str
    first_seq: NonNegative
    count: NonNegative
    attempts: NonNegative
    last_attempt_at: When
    reason: str


class RestingUnit(ParkedUnit, kw_only=True):
    """A unit that failed, and is tried again."""

    retry_at: When


class WorkerSummary(Struct, kw_only=True):
    """A worker, and what it did."""

    worker: str
    local: bool
    alive: bool
    host: str | None
    master: str | None
    ui: str | None
    event_log: str | None
    first_seen_at: When
    last_seen_at: When
    done: NonNegative
    failed: NonNegative
    lost: NonNegative
    released: NonNegative
    jobs: dict[str, int]


class WorkOverview(Struct, kw_only=True):
    """All pending work, leases and workers."""

    paused: bool
    counts: WorkCounts
    complete: bool
    due: list[str]
    streams: list[DerivationProgress]
    leases: list[LeaseStatus]
    resting: list[RestingUnit]
    parked: list[ParkedUnit]
    workers: list[WorkerSummary]


_ID = in_path("id", NonEmpty, "the lease")
_ONE = ROOT + "/leases/{id}"


def _post(
    at: str, name: str, doc: str, answer: Answer, body: type[Struct] | None = None, *fails: Any, **rest: Any
) -> Callable[[Verb], Verb]:
    """A POST that only operators may send."""
    parameters: tuple[Parameter, ...] = (_ID,) if at.startswith(_ONE) else ()
    answers = {204 if answer.type is UNSET else 200: answer}
    if body is not None:
        fails, rest = (*fails, *BAD_BODY), {**rest, "body": Body(body, needs_type=False)}
    return route("POST", at, name, doc, ADMIN, answers, fails=fails, parameters=parameters, **rest)


class WorkRoutes:
    """One method per verb: reads the request, asks the scheduler, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._work = engine.work
        self._store = store_url(engine.objects, engine.config.storage.object_store)

    @route(
        "GET",
        ROOT,
        "get_work",
        "[What is to be derived](#work), and who does it",
        ADMIN,
        {200: Answer("as it is now", WorkOverview)},
    )
    async def overview(self, _: Request) -> Response:
        """GET: the state of all work, leases and workers."""
        return json_response(_overview_document(self._work.paused, await self._work.overview()))

    @_post(
        f"{ROOT}/lease",
        "lease_work",
        "Take work",
        Answer("units, or none where nothing is due", LeaseAnswer),
        LeaseBody,
    )
    async def lease(self, request: Request) -> Response:
        """POST: lease units of work to a worker."""
        body = await read_json(request, LeaseBody)
        facts = WorkerFacts(body.host, body.master, body.ui, body.event_log)
        granted = await self._work.lease(body.worker, body.limit, body.jobs or JOBS, facts)
        lease = None
        if granted is not None:
            times = self._lease_times(granted.lease.id, granted.lease.expires_us)
            lease = GrantedLease(granted.lease.id, granted.lease.token, times.expires_at, times.ttl_ms)
        units = [] if granted is None else granted.units
        return json_response(LeaseAnswer(lease, self._store, self._work.paused, units))

    @_post(
        f"{ROOT}/attach",
        "attach_pipeline",
        "Say that a pipeline looks for work, so that the server leaves it what is due",
        Answer("so it is", AttachAnswer),
        AttachBody,
    )
    async def attach(self, request: Request) -> Response:
        """POST: note that a pipeline is there, or is not any more."""
        body = await read_json(request, AttachBody)
        self._work.attach(body.pipeline, attached=body.attached)
        return json_response(AttachAnswer(body.attached, self._work.ttl_us // 1000))

    @_post(
        f"{_ONE}/heartbeat",
        "keep_work",
        "Say that a worker is at it",
        Answer("the lease goes on", HeartbeatAnswer),
        HeartbeatBody,
        LeaseLost,
    )
    async def heartbeat(self, request: Request) -> Response:
        """POST: extend the lease of a worker, and note its progress."""
        body = await read_json(request, HeartbeatBody)
        id = request.path_params["id"]
        expires_us, dropped = await self._work.heartbeat(id, body.token, body.done, body.total)
        return json_response(HeartbeatAnswer(self._lease_times(id, expires_us), dropped))

    @_post(
        f"{_ONE}/commit",
        "commit_work",
        "Report results; repeated, they change nothing",
        Answer("how each unit ended", CommitAnswer),
        CommitBody,
        LeaseLost,
    )
    async def commit(self, request: Request) -> Response:
        """POST: commit the results of units."""
        body = await read_json(request, CommitBody)
        id = request.path_params["id"]
        committed = await self._work.commit(id, body.token, body.results)
        return json_response(CommitAnswer(self._lease_times(id, committed.expires_us), committed.settled))

    @_post(f"{_ONE}/release", "release_work", "Give work back", Answer("it is free"), LeaseReleaseBody, LeaseLost)
    async def release(self, request: Request) -> Response:
        """POST: release a lease."""
        body = await read_json(request, LeaseReleaseBody)
        await self._work.release(request.path_params["id"], body.token)
        return Response(status_code=204)

    @_post(
        f"{ROOT}/pause", "pause_work", "Give out no work", Answer("so it is", PausedAnswer), recorded_as="work_paused"
    )
    async def pause(self, request: Request) -> Response:
        """POST: pause leasing."""
        await self._work.pause(True, request.state.principal.user_id)
        return json_response(PausedAnswer(True))

    @_post(
        f"{ROOT}/resume",
        "resume_work",
        "Give out work again",
        Answer("so it is", PausedAnswer),
        recorded_as="work_resumed",
    )
    async def resume(self, request: Request) -> Response:
        """POST: resume leasing."""
        await self._work.pause(False, request.state.principal.user_id)
        return json_response(PausedAnswer(False))

    @_post(
        f"{ROOT}/run",
        "run_work",
        "Let a stream be due, however little there is to do",
        Answer("whether anything is derived from it", RunAnswer),
        RunBody,
        *NOT_THERE,
        recorded_as="work_asked_for",
    )
    async def run(self, request: Request) -> Response:
        """POST: make a stream due now; one without a search configuration has no work."""
        body = await read_json(request, RunBody)
        stream = self._engine.log.find(body.stream)
        is_due = self._engine.coverage.defined(stream) is not None
        if is_due:
            if body.seal:
                self._engine.sealer.request(stream.id)
            await self._work.run(stream, request.state.principal.user_id)
        return json_response(RunAnswer(stream.name, is_due))

    def _lease_times(self, id: str, expires_us: int) -> LeaseTimes:
        return LeaseTimes(id, rfc3339(expires_us), self._work.ttl_us // 1000)


def store_url(objects: Objects, configured: str) -> str:
    """Where workers find the objects: the URL as configured, or that of a local directory."""
    inside = objects.local_path("x")
    return configured if inside is None else inside.parent.resolve().as_uri()


def _overview_document(paused: bool, overview: Overview) -> WorkOverview:
    return WorkOverview(
        paused=paused,
        counts=WorkCounts(**overview.counts),
        complete=overview.complete,
        due=overview.due,
        streams=[DerivationProgress(**stream._asdict()) for stream in overview.streams],
        leases=[
            LeaseStatus(
                id=lease.id,
                worker=lease.worker,
                granted_at=rfc3339(lease.granted_us),
                expires_at=rfc3339(lease.expires_us),
                done=lease.done,
                total=lease.total,
                units=[
                    LeasedUnit(
                        unit=unit.id,
                        job=unit.job,
                        stream=overview.names.get(unit.stream),
                        first_seq=unit.first_seq,
                        count=unit.count,
                        outcome=unit.outcome,
                    )
                    for unit in units
                ],
            )
            for lease, units in overview.leases
        ],
        resting=[
            RestingUnit(**_failure(overview, failure), retry_at=rfc3339(failure.retry_us))
            for failure in overview.resting
        ],
        parked=[ParkedUnit(**_failure(overview, failure)) for failure in overview.parked],
        workers=[
            WorkerSummary(
                worker=worker.worker,
                local=worker.local,
                alive=worker.alive,
                **worker.facts._asdict(),
                first_seen_at=rfc3339(worker.since_us),
                last_seen_at=rfc3339(worker.seen_us),
                done=worker.done,
                failed=worker.failed,
                lost=worker.lost,
                released=worker.released,
                jobs=worker.jobs,
            )
            for worker in overview.workers
        ],
    )


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
