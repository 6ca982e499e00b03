"""``/v1/entity-types``: entity types and their versions; register, update, activate, deactivate, list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.types.document import files
from headrace.engine.entities.types.entity_types import Outcome
from headrace.engine.entities.types.rekey_preview import Rekeyed, is_rekeyed, rekey
from headrace.errors import BadRequest, Conflict, NotFound
from headrace.schema.entity import registration
from headrace.schema.entity.plan import refusal, unknown
from headrace.schema.entity.readers import INVALID, Reader, choice_reader, read_boolean, read_members
from headrace.schema.entity.registration import ChangeRequest, TypeRegistration, read_version, scope_of
from headrace.schema.problem import Location, RequestProblem
from headrace.server.http import parameters
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.route import READ, Answer, Body, Verb, in_path, in_query, route
from headrace.server.http.route import Scope as RouteScope
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import Counter, NonEmpty, Object, TrueFalse, User
from headrace.server.routes import entity_type_documents as documents
from headrace.server.routes.entities import Scope
from headrace.server.routes.entity_type_documents import (
    EffectiveType,
    FieldsChange,
    MigrationAnswer,
    TypeChangeAnswer,
    TypeChangeSummary,
    TypeVersion,
    Version,
)
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.storage.entity_types import EVERYBODY, SchemaRow

TYPES = "/v1/entity-types"
_MAX_BYTES = 4 * 1024 * 1024
_PAGE, _MAX_PAGE = 100, 1000
_NAMED: dict[str, Reader] = {
    "schema_version": read_version,
    "scope": choice_reader("global", "user"),
    "user_specific": read_boolean,
    "dry_run": read_boolean,
}


class RegistrationOfTypeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A version of a type; ``schema.entity.registration`` reads it, and names everything that is wrong with it."""

    entity_type: str
    schema_version: Version
    schema_definition: Object
    reducer_config: Object
    metadata: Object | UnsetType = UNSET
    activate: bool | UnsetType = UNSET
    force: bool | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    user_specific: bool | UnsetType = UNSET
    user_id: User | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class UpdateOfTypeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A change of a type in parts, read likewise."""

    fields_to_add: list[Object] | UnsetType = UNSET
    fields_to_remove: list[str] | UnsetType = UNSET
    converters_to_add: list[Object] | UnsetType = UNSET
    canonical_name_fields: list[Any] | UnsetType = UNSET
    schema_version: Version | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET
    activate: bool | UnsetType = UNSET
    migrate_existing: bool | UnsetType = UNSET
    migrate_user_id: str | UnsetType = UNSET
    force: bool | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    user_specific: bool | UnsetType = UNSET
    user_id: User | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class ActivationOfTypeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which version is activated or deactivated."""

    schema_version: Version
    scope: Scope | UnsetType = UNSET
    user_specific: bool | UnsetType = UNSET
    user_id: User | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class TypeList(Struct):
    """The active versions of types, and the last type where there are more."""

    entity_types: list[TypeVersion]
    next: str | None


class TypeVersions(Struct):
    """Versions of a type, and the last of them where there are more."""

    versions: list[TypeVersion]
    next: str | None


class TypeHistory(Struct):
    """Changes of a type, and the last of them where there are more."""

    entity_type: str
    changes: list[TypeChangeSummary]
    next: Counter | None


class ExportedFile(Struct):
    """A version as a file."""

    path: str
    content: str


class TypeExport(Struct):
    """Versions as files."""

    files: list[ExportedFile]


class TypeUpdateAnswer(FieldsChange, kw_only=True):
    """The version that was made of a change, or would be."""

    migration: MigrationAnswer | None
    rekey: Rekeyed | None


_TYPE_PATH = TYPES + "/{entity_type}"
NAMED = in_path("entity_type", NonEmpty, "the type, or another name of it")
_USER = in_query("user_id", User, "whose types are looked at; of somebody else's only by an operator")
_LIMIT = in_query("limit", Annotated[int, Meta(ge=1, le=_MAX_PAGE)], "as many at most")
_DRY_RUN = in_query("dry_run", TrueFalse, "say what would be done, and do nothing")
WRITE_SCHEMA = RouteScope("write", "write, global: admin")


def _changing(
    at: str, name: str, doc: str, body: type[Struct], done: str, answer: type[Struct] = TypeChangeAnswer
) -> Callable[[Verb], Verb]:
    """A POST that changes a type."""
    return route(
        "POST",
        at,
        name,
        doc,
        WRITE_SCHEMA,
        {200: Answer(done, answer)},
        fails=(NotFound, Conflict, *BAD_BODY),
        parameters=(NAMED, _DRY_RUN) if "{" in at else (_DRY_RUN,),
        body=Body(body, _MAX_BYTES),
        recorded_as="entity_type_changed",
    )


class EntityTypeRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._types = engine.types
        self._snapshots = engine.snapshots

    @route(
        "GET",
        TYPES,
        "list_entity_types",
        "The active versions of all [types](#entities): the global ones, and the caller's own",
        READ,
        {200: Answer("versions by type; `effective` is what holds for the caller", TypeList)},
        parameters=(
            in_query("after", str, "types after this one"),
            in_query("keyword", str, "types whose name or metadata has it"),
            _LIMIT,
            _USER,
        ),
    )
    async def page(self, request: Request) -> Response:
        """GET ``/v1/entity-types``: the active versions that the caller sees, by type."""
        user = self._reader(request)
        query = request.query_params
        rows = self._types.page(user, query.get("after", ""), limit := _limit(query), query.get("keyword", ""))
        types = sorted({row.entity_type for row in rows})
        own = {row.entity_type for row in rows if row.user_id}
        versions = [documents.version(row) for row in rows]
        for version in versions:
            version.effective = version.scope == "user" or version.entity_type not in own
        return json_response(TypeList(versions, types[-1] if len(types) == limit else None))

    @route(
        "GET",
        _TYPE_PATH,
        "get_entity_type",
        "The version that holds for the caller",
        READ,
        {200: Answer("the version", EffectiveType)},
        fails=(NotFound,),
        parameters=(
            NAMED,
            in_query("schema_version", Version, "this version, whether it is active or not"),
            in_query("scope", Scope, "the global version, or the caller's own"),
            _USER,
        ),
    )
    async def get(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}``: the active version for the caller, or the requested one."""
        user = self._reader(request)
        entity_type, query = self._named(request, user), request.query_params
        version = self._types.active(entity_type, user)
        if "schema_version" in query or "scope" in query:
            version = self._requested_version(entity_type, user, query.get("scope"), query.get("schema_version"))
        if version is None:
            raise unknown(entity_type)
        kind = self._types.find(entity_type)
        change = 0 if kind is None else kind.number
        return json_response(documents.effective(version, ENTITIES + entity_type, change))

    def _requested_version(
        self, entity_type: str, user: str, scope: str | None, version: str | None
    ) -> SchemaRow | None:
        """A version by its name, or the active one of a scope."""
        if scope not in (None, "global", "user"):
            raise BadRequest("scope is global or user", field="scope")
        problems: list[RequestProblem] = []
        named = None if version is None else read_version(version, Location("/schema_version", problems))
        if problems:
            raise refusal(problems)
        owners = (user, EVERYBODY) if scope is None else (user if scope == "user" else EVERYBODY,)
        rows = (row for row in self._types.versions(entity_type, user) if row.user_id in owners)
        return next((row for row in rows if (row.active if named is None else row.schema_version == named)), None)

    @route(
        "GET",
        _TYPE_PATH + "/versions",
        "get_entity_type_versions",
        "Every version that the caller sees, the newest first",
        READ,
        {200: Answer("versions", TypeVersions)},
        fails=(NotFound,),
        parameters=(NAMED, in_query("after", str, "versions after the one of this schema_id"), _LIMIT, _USER),
    )
    async def versions(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}/versions``: all that the caller sees, the newest first."""
        user = self._reader(request)
        rows, query = self._types.versions(self._named(request, user), user), request.query_params
        after, limit = query.get("after"), _limit(query)
        if after is not None:
            ids = [row.id for row in rows]
            if after not in ids:
                raise BadRequest("after is the schema_id of a version of this type", field="after")
            rows = rows[ids.index(after) + 1 :]
        more = rows[limit - 1].id if len(rows) > limit else None
        return json_response(TypeVersions([documents.version(row) for row in rows[:limit]], more))

    @route(
        "GET",
        _TYPE_PATH + "/history",
        "get_entity_type_history",
        "Who changed what, and when",
        READ,
        {200: Answer("changes in order", TypeHistory)},
        fails=(NotFound,),
        parameters=(NAMED, in_query("after", Counter, "changes after this one"), _LIMIT, _USER),
    )
    async def history(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}/history``: who changed what, and when."""
        user = self._reader(request)
        entity_type, query = self._named(request, user), request.query_params
        after, limit = parameters.non_negative_integer(query.get("after", "0"), "after"), _limit(query)
        if after >= 2**53:
            raise BadRequest("after is the number of a change", field="after")
        self._types.versions(entity_type, user)
        rows = self._types.history(entity_type, user, after, limit)
        more = rows[-1].number if len(rows) == limit else None
        return json_response(TypeHistory(entity_type, [documents.change(row) for row in rows], more))

    @route(
        "GET",
        _TYPE_PATH + "/export",
        "export_entity_type",
        "Every version that the caller sees as a file, with the same bytes each time",
        READ,
        {200: Answer("files", TypeExport)},
        fails=(NotFound,),
        parameters=(NAMED, _USER),
    )
    async def export(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}/export``: every version that the caller sees, as a file."""
        user = self._reader(request)
        rows = self._types.versions(self._named(request, user), user)
        return json_response(TypeExport([ExportedFile(path, content.decode()) for path, content in files(rows)]))

    @_changing(
        TYPES,
        "register_entity_type",
        "Store a version of a type",
        RegistrationOfTypeBody,
        "what was stored, or would be",
    )
    async def register(self, request: Request) -> Response:
        """POST ``/v1/entity-types``: store a version, and activate it where the request says so."""
        payload, user = await self._payload(request)
        principal: Principal = request.state.principal
        new_type = registration.read_registration(payload, guard=principal is not LOCAL)
        if not isinstance(new_type, TypeRegistration):
            raise refusal(new_type)
        owner = _owner(request, new_type.schema.scope, user, new_type.schema.entity_type)
        outcome = await self._types.register(new_type, owner, principal.user_id)
        return await self._answer(outcome, new_type.dry_run)

    @_changing(
        _TYPE_PATH + "/update",
        "update_entity_type",
        "Add and remove fields, add converters, replace the identity rule: the next version",
        UpdateOfTypeBody,
        "the version that was made, or would be; the same as before where nothing changes",
        TypeUpdateAnswer,
    )
    async def update(self, request: Request) -> Response:
        """POST ``/v1/entity-types/{type}/update``: the next version of what holds, in parts."""
        payload, user = await self._payload(request)
        entity_type = self._named(request, user)
        change = registration.read_change_request(payload)
        if not isinstance(change, ChangeRequest):
            raise refusal(change)
        owner = _owner(request, change.scope, user, entity_type)
        principal: Principal = request.state.principal
        outcome = await self._types.update(entity_type, change, owner, principal.user_id)
        rekeyed = await self._rekeyed(outcome, change.dry_run)
        return documents.answer(
            TypeUpdateAnswer, outcome, dry_run=change.dry_run, migration=outcome.migration, rekey=rekeyed
        )

    @_changing(
        _TYPE_PATH + "/activate",
        "activate_entity_type",
        "Make a version the active one of its owner",
        ActivationOfTypeBody,
        "it is active",
    )
    async def activate(self, request: Request) -> Response:
        """POST ``/v1/entity-types/{type}/activate``: make a version the active one."""
        return await self._switch(request, self._types.activate)

    @_changing(
        _TYPE_PATH + "/deactivate",
        "deactivate_entity_type",
        "Let a version be active no longer",
        ActivationOfTypeBody,
        "it is not active",
    )
    async def deactivate(self, request: Request) -> Response:
        """POST ``/v1/entity-types/{type}/deactivate``: let a version be active no longer."""
        return await self._switch(request, self._types.deactivate)

    async def _switch(self, request: Request, verb: Any) -> Response:
        payload, user = await self._payload(request)
        entity_type = self._named(request, user)
        problems: list[RequestProblem] = []
        fields = read_members(payload, _NAMED, Location("", problems), required=("schema_version",))
        scope = scope_of(fields, Location("", problems))
        if problems:
            raise refusal(problems)
        owner, dry_run = _owner(request, scope, user, entity_type), fields.get("dry_run", False)
        principal: Principal = request.state.principal
        outcome = await verb(entity_type, fields["schema_version"], owner, principal.user_id, dry_run=dry_run)
        return await self._answer(outcome, dry_run)

    async def _answer(self, outcome: Outcome, dry_run: bool) -> Response:
        rekeyed = await self._rekeyed(outcome, dry_run)
        return documents.answer(TypeChangeAnswer, outcome, dry_run=dry_run, rekey=rekeyed)

    async def _rekeyed(self, outcome: Outcome, dry_run: bool) -> Rekeyed | None:
        """What a dry run of a change of the identity rule says about existing entities."""
        stream = self._types.stream(outcome.plan.registry.entity_type)
        if not dry_run or stream is None or not outcome.proposal.owner_changes or not is_rekeyed(outcome.proposal):
            return None
        return await rekey(outcome.proposal, stream.id, self._snapshots, self._types.entities)

    async def _payload(self, request: Request) -> tuple[Any, str]:
        """What is asked for, with what the address says of it, and for whom."""
        query, principal = request.query_params, request.state.principal
        payload: Any = await read_json(request, Any)
        if not isinstance(payload, dict):
            return payload, principal.user_id
        user = payload.pop("user_id", principal.user_id)
        if not isinstance(user, str) or not user:
            raise refusal([RequestProblem(INVALID, "/user_id", "user_id is the name of a user")])
        if query.get("dry_run", "false") not in ("true", "false"):
            raise BadRequest("dry_run is true or false", field="dry_run")
        if query.get("dry_run") == "true":
            payload["dry_run"] = True
        return payload, user

    def _named(self, request: Request, user: str) -> str:
        """The type that the address names, by itself or by another name."""
        return self._types.resolve(request.path_params["entity_type"], user)

    def _reader(self, request: Request) -> str:
        """The user whose types are read."""
        principal: Principal = request.state.principal
        principal.require_type("read", request.path_params.get("entity_type", ""))
        return principal.acting_for(request.query_params.get("user_id"))


def _owner(request: Request, scope: str, user: str, entity_type: str) -> str:
    """The owner of the schema to change; refuses callers who may not change it."""
    principal: Principal = request.state.principal
    principal.require_type("write", entity_type)
    principal.acting_for(user)
    if scope == "global":
        principal.require("admin")
    return user if scope == "user" else EVERYBODY


def _limit(query: Any) -> int:
    limit = parameters.non_negative_integer(query.get("limit", str(_PAGE)), "limit")
    if not 1 <= limit <= _MAX_PAGE:
        raise BadRequest(f"limit lies between 1 and {_MAX_PAGE}", field="limit")
    return limit
