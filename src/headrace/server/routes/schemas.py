"""The registry resource: ``/v1/stream/{name}/_schema``, its history, and changes of it that are tried on data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.engine.assembly import Engine
from headrace.engine.features.definitions import IMPACT
from headrace.engine.log.stream import Stream
from headrace.engine.registry.schemas import Schemas as Registries
from headrace.engine.registry.schemas import refused
from headrace.engine.verification.first_schema import VerificationRunning, describe_misfit
from headrace.engine.verification.verify_job import Progress
from headrace.errors import BadRequest, Conflict, EventsDoNotFit
from headrace.schema import entries
from headrace.schema import pointer as pointers
from headrace.schema.change import Change
from headrace.schema.lens.carry import CarryEffect
from headrace.schema.plan import Plan, PlannedLens, Refusal, ValueImpact
from headrace.schema.registry import Boundary, Registry
from headrace.schema.trial import MAX_NAMED, Cause
from headrace.schema.update import SchemaUpdate, parse_update
from headrace.server.http.auth import Principal
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import READ, WRITE, Answer, Body, in_path, in_query, one_of, route
from headrace.server.http.wire import Flag, NonEmpty, NonNegative, Object, Offset, Pointer, RunState, When, fill
from headrace.server.routes.stream_headers import BAD_BODY, NAME, NOT_THERE
from headrace.server.routes.streams import refuse_owned
from headrace.storage.background_requests import VerificationRow
from headrace.types import JSON, json_fault, rfc3339

MAX_UPDATE_BYTES = 1024 * 1024
_PATH = "/v1/stream/{name}/_schema"
ApiVersion = Annotated[Literal["durable.streams/schema-registry/v1"], Meta(description="the form of the document")]
_ByVersion = Annotated[Object, Meta(extra_json_schema={"propertyNames": {"pattern": "^[1-9][0-9]*$"}})]
_Schema = Annotated[Any, Meta(extra_json_schema={"type": ["object", "boolean"]})]


class PlannedImpact(Struct):
    """A setting whose values change or are lost, or how much of what is derived does."""

    subject: str
    effect: Literal["changed", "lost"]
    from_version: NonNegative
    op: Pointer | None
    reason: str


class PlanRefusal(Struct):
    """Why a change cannot be applied."""

    code: str
    pointer: str
    message: str


class SchemaPlan(Struct, kw_only=True):
    """The effects that a change of a registry would have."""

    subject: str
    from_version: NonNegative
    to_version: NonNegative
    classification: Literal["identical", "additive", "widening", "destructive", "forbidden"]
    requires_force: bool
    changes: list[Change]
    reasons: list[str]
    lens: PlannedLens | None
    impact: list[PlannedImpact]
    refusals: list[PlanRefusal]
    registry: Object | UnsetType = UNSET


class RoutingKeySetting(Struct, forbid_unknown_fields=True, rename="camel"):
    """Where an event holds its routing key, and whether it must."""

    json_pointer: Pointer
    required: bool


class SchemaRegistry(Struct, kw_only=True, rename="camel"):
    """All schema versions of a stream, and the lenses between them."""

    api_version: ApiVersion
    schema: str
    current_version: NonNegative
    routing_key: RoutingKeySetting | UnsetType = UNSET
    search: Object | UnsetType = UNSET
    boundaries: list[Boundary]
    schemas: _ByVersion
    lenses: _ByVersion
    breaks: list[int] | UnsetType = UNSET
    diff: SchemaPlan | UnsetType = UNSET


class SchemaRevision(Struct):
    """A registry as it was from some time on."""

    revision: NonNegative
    at: When
    registry: Annotated[Any, Meta(extra_json_schema={"$ref": "#/components/schemas/SchemaRegistry"})]


class SchemaHistory(Struct):
    """Every revision of a registry."""

    stream: str
    revisions: list[SchemaRevision]


class MisfitEvent(Struct):
    """An event that a change would make unreadable, and why."""

    offset: Offset
    seq: NonNegative
    cause: Cause
    pointer: str
    reason: str


class FailingEvents(Struct):
    """The number of events that fail at a lens, at the schema, and at the routing key of a first schema."""

    lens: NonNegative
    schema: NonNegative
    key: NonNegative


class Verification(Struct, kw_only=True):
    """The progress of checking a change against stored events."""

    id: str
    stream: str
    state: RunState
    from_version: NonNegative
    to_version: NonNegative
    begun_at: When
    ended_at: When | None
    reason: str | None
    events: NonNegative
    total: NonNegative
    through_offset: Offset
    failing: FailingEvents
    failures: Annotated[list[MisfitEvent], Meta(max_length=MAX_NAMED)]


class VerifiedPlan(SchemaPlan, kw_only=True):
    """A plan, and how far it is checked against stored events, where there is something to check."""

    verification: Verification | None


class SchemaChangeBody(Struct, forbid_unknown_fields=True, rename="camel"):
    """A change of a registry; ``schema.update`` reads it, and names everything that is wrong with it."""

    api_version: ApiVersion | UnsetType = UNSET
    schema: _Schema | UnsetType = UNSET
    lens: Object | UnsetType = UNSET
    routing_key: RoutingKeySetting | None = None
    search: Object | None = None


_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class SchemaRoutes:
    """Answers requests on the registry of a stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._background = BackgroundRequests(engine.writer.damage)

    @route(
        "GET",
        _PATH,
        "show_schema",
        "The [registry](#schemas): schemas, lenses, search fields",
        READ,
        {200: Answer("found", SchemaRegistry)},
        fails=NOT_THERE,
        parameters=(NAME,),
        is_hot=True,
    )
    def get(self, request: Request) -> None:
        """GET ``_schema``: the registry."""
        stream = self._find(request, "read")
        request.exchange.reply(Reply.json(200, fill(SchemaRegistry, Registries.registry(stream).dump())))

    @route(
        "GET",
        _PATH + "/history",
        "list_schema_history",
        "Every revision of the registry, the oldest first",
        READ,
        {200: Answer("found", SchemaHistory)},
        fails=NOT_THERE,
        parameters=(NAME,),
        is_hot=True,
    )
    def history(self, request: Request) -> None:
        """GET ``_schema/history``: every revision, and when it came."""
        stream = self._find(request, "read")
        revisions = [
            SchemaRevision(row.revision, rfc3339(row.at_us), msgspec.Raw(row.document.encode()))
            for row in self._engine.schemas.history(stream)
        ]
        request.exchange.reply(Reply.json(200, SchemaHistory(stream.name, revisions)))

    @route(
        "GET",
        _PATH + "/verifications/{id}",
        "get_verification",
        "How far a change is checked against stored events, and what was found",
        READ,
        {200: Answer("as it is now", Verification)},
        fails=NOT_THERE,
        parameters=(NAME, in_path("id", NonEmpty, "the verification")),
        is_hot=True,
    )
    def verification(self, request: Request) -> None:
        """GET ``_schema/verifications/{id}``: how far it is, and what was found."""
        stream = self._find(request, "read")
        row = self._engine.verifier.find(stream, request.target.key or "")
        request.exchange.reply(Reply.json(200, _verification(stream, row)))

    @route(
        "POST",
        _PATH,
        "change_schema",
        "Change the schema, the routing key or the search fields",
        WRITE,
        {
            200: Answer("the registry and its diff; of a dry run the plan", one_of(SchemaRegistry, SchemaPlan)),
            202: Answer("the plan, which is being checked against stored events", VerifiedPlan),
        },
        fails=(*NOT_THERE, Conflict, EventsDoNotFit, *BAD_BODY),
        parameters=(
            NAME,
            in_query("dry_run", Flag, "only say what would change"),
            in_query("on_data", Flag, "check the change against stored events; only with dry_run"),
            in_query("first_on_data", Flag, "install a first schema although there are events, if all of them fit"),
        ),
        body=Body(SchemaChangeBody, MAX_UPDATE_BYTES),
        is_hot=True,
        recorded_as="schema_changed",
    )
    def post(self, request: Request) -> None:
        """POST ``_schema``: change the registry, or with ``dry_run=true`` return what would change."""
        stream = self._find(request, "write")
        refuse_owned(stream)
        dry_run, on_data = flag(request.query, "dry_run"), flag(request.query, "on_data")
        if on_data and not dry_run:
            raise BadRequest("only a dry run is made on data: on_data goes with dry_run=true", field="on_data")
        if stream.media_type != JSON:
            raise BadRequest(f"a schema needs a JSON stream; this one holds {stream.content_type}", field="schema")
        first_on_data = flag(request.query, "first_on_data")
        update = msgspec.structs.replace(_update(request.body), first_on_data=first_on_data)
        answer = self._verify if on_data else self._plan if dry_run else self._apply
        self._background.begin(request.exchange, answer(request, stream, update))

    async def _plan(self, request: Request, stream: Stream, update: SchemaUpdate) -> None:
        planned = await self._engine.schemas.plan(stream, update)
        request.exchange.reply(Reply.json(200, fill(SchemaPlan, _shown(planned, request, stream))))

    async def _verify(self, request: Request, stream: Stream, update: SchemaUpdate) -> None:
        planned, proposal = await self._engine.schemas.propose(stream, update)
        if proposal is None:
            request.exchange.reply(
                Reply.json(
                    200,
                    fill(VerifiedPlan, {**_shown(planned, request, stream), "verification": None}),
                )
            )
            return
        row = await self._engine.verifier.begin(stream, proposal)
        document = {
            **_shown(planned, request, stream),
            "verification": _verification(stream, row),
        }
        request.exchange.reply(Reply.json(202, fill(VerifiedPlan, document)))

    async def _apply(self, request: Request, stream: Stream, update: SchemaUpdate) -> None:
        prove = self._engine.first_schemas.prove if update.first_on_data else None
        try:
            planned, registry = await self._engine.schemas.apply(stream, update, request.principal.user_id, prove)
        except VerificationRunning as running:
            planned = await self._engine.schemas.plan(stream, update)
            document = {
                **_shown(planned, request, stream),
                "verification": _verification(stream, running.row),
            }
            request.exchange.reply(Reply.json(202, fill(VerifiedPlan, document)))
            return
        plan = _shown(planned, request, stream)
        del plan["registry"]
        request.exchange.reply(Reply.json(200, fill(SchemaRegistry, {**registry.dump(), "diff": plan})))

    def _find(self, request: Request, scope: str) -> Stream:
        stream = self._engine.log.find(request.target.name)
        request.principal.require(scope, stream.name)
        return stream


def _shown(planned: Plan[Registry], request: Request, stream: Stream) -> dict[str, Any]:
    return plan_as_shown(planned, request.principal, stream.name)


def plan_as_shown(planned: Plan[Registry], principal: Principal, stream: str) -> dict[str, Any]:
    """A plan as its caller may see it: who may not read the stream sees how many features it has an impact on."""
    plan = planned.dump()
    if principal.may("read", stream):
        return plan
    base = pointers.text(IMPACT) + "/"
    features = [each for each in plan["impact"] if each["subject"].startswith(base)]
    if features:
        rest = [each for each in plan["impact"] if each not in features]
        effect = "lost" if any(each["effect"] == "lost" for each in features) else "changed"
        reason = f"{len(features)} features that are computed from this stream are rebuilt or end"
        hidden = ValueImpact(pointers.text(IMPACT), CarryEffect(effect), planned.registry.current_version, reason)
        plan["impact"] = [*rest, hidden.dump()]
    return plan


def _verification(stream: Stream, row: VerificationRow) -> Verification:
    progress = Progress(row)
    findings = progress.findings
    return Verification(
        id=row.id,
        stream=stream.name,
        state=row.state,
        from_version=row.from_version,
        to_version=row.from_version + 1,
        begun_at=rfc3339(row.begun_us),
        ended_at=None if row.ended_us is None else rfc3339(row.ended_us),
        reason=row.reason,
        events=findings.events,
        total=max(findings.events, row.target - row.start),
        through_offset=stream.offset_at(progress.through_seq),
        failing=FailingEvents(findings.lens, findings.schema, findings.key),
        failures=[MisfitEvent(**describe_misfit(stream, misfit)) for misfit in findings.misfits],
    )


def _update(body: bytes) -> SchemaUpdate:
    if len(body) > MAX_UPDATE_BYTES:
        raise BadRequest("an update has at most 1 MiB", field="body")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, body)}", field="body") from reason
    if lost := entries.read(body)[1]:
        raise refused(tuple(Refusal("bad_request", failure.pointer, failure.reason) for failure in lost))
    update = parse_update(document)
    if isinstance(update, list):
        raise refused(tuple(Refusal("bad_request", problem.pointer, problem.reason) for problem in update))
    return update


def flag(query: dict[str, str], name: str) -> bool:
    """A parameter that is true or false; one that is left out is false."""
    value = _FLAGS.get(query.get(name, "false").lower())
    if value is None:
        raise BadRequest(f"{name}: {query[name]!r} is neither true nor false", field=name)
    return value
