"""``/v1/entity-types``: entity types and their versions; register, update, activate, deactivate, list."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.types.document import files
from headrace.engine.entities.types.entity_types import Outcome
from headrace.engine.entities.types.rekey_preview import Rekeyed, is_rekeyed, rekey
from headrace.errors import BadRequest
from headrace.schema.entity import registration
from headrace.schema.entity.plan import refusal, unknown
from headrace.schema.entity.readers import INVALID, Reader, choice_reader, read_boolean, read_members
from headrace.schema.entity.registration import ChangeRequest, TypeRegistration, read_version, scope_of
from headrace.schema.problem import Location, RequestProblem
from headrace.server.http import parameters
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.starlette_json import json_response, read_json, require_json
from headrace.server.routes import entity_type_documents as documents
from headrace.storage.entity_types import EVERYBODY, SchemaRow

TYPES = "/v1/entity-types"
_BODY_BYTES = 4 * 1024 * 1024
_PAGE, MOST = 100, 1000
_NAMED: dict[str, Reader] = {
    "schema_version": read_version,
    "scope": choice_reader("global", "user"),
    "user_specific": read_boolean,
    "dry_run": read_boolean,
}


def routes(engine: Engine) -> list[Route]:
    """Every route of this file."""
    api = EntityTypeRoutes(engine)
    type_path = TYPES + "/{entity_type}"
    return [
        Route(TYPES, api.page, methods=["GET"]),
        Route(TYPES, api.register, methods=["POST"]),
        Route(type_path, api.get, methods=["GET"]),
        Route(type_path + "/versions", api.versions, methods=["GET"]),
        Route(type_path + "/history", api.history, methods=["GET"]),
        Route(type_path + "/export", api.export, methods=["GET"]),
        Route(type_path + "/update", api.update, methods=["POST"]),
        Route(type_path + "/activate", api.activate, methods=["POST"]),
        Route(type_path + "/deactivate", api.deactivate, methods=["POST"]),
    ]


class EntityTypeRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._types = engine.types
        self._snapshots = engine.snapshots

    # -- look

    async def page(self, request: Request) -> Response:
        """GET ``/v1/entity-types``: the active versions that the caller sees, by type."""
        user = self._reader(request, "after", "limit", "keyword")
        query = request.query_params
        rows = self._types.page(user, query.get("after", ""), limit := _limit(query), query.get("keyword", ""))
        types = sorted({row.entity_type for row in rows})
        own = {row.entity_type for row in rows if row.user_id}
        summaries = [
            {**documents.version(row), "effective": bool(row.user_id) or row.entity_type not in own} for row in rows
        ]
        return json_response({"entity_types": summaries, "next": types[-1] if len(types) == limit else None})

    async def get(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}``: the active version for the caller, or the requested one."""
        user = self._reader(request, "schema_version", "scope")
        entity_type, query = self._named(request, user), request.query_params
        version = self._types.active(entity_type, user)
        if "schema_version" in query or "scope" in query:
            version = self._requested_version(entity_type, user, query.get("scope"), query.get("schema_version"))
        if version is None:
            raise unknown(entity_type)
        kind = self._types.find(entity_type)
        return json_response(
            {
                **documents.version(version),
                "stream": ENTITIES + entity_type,
                "change": 0 if kind is None else kind.number,
            }
        )

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

    async def versions(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}/versions``: all that the caller sees, the newest first."""
        user = self._reader(request, "after", "limit")
        rows, query = self._types.versions(self._named(request, user), user), request.query_params
        after, limit = query.get("after"), _limit(query)
        if after is not None:
            ids = [row.id for row in rows]
            if after not in ids:
                raise BadRequest("after is the schema_id of a version of this type", field="after")
            rows = rows[ids.index(after) + 1 :]
        more = rows[limit - 1].id if len(rows) > limit else None
        return json_response({"versions": [documents.version(row) for row in rows[:limit]], "next": more})

    async def history(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}/history``: who changed what, and when."""
        user = self._reader(request, "after", "limit")
        entity_type, query = self._named(request, user), request.query_params
        after, limit = parameters.whole_number(query.get("after", "0"), "after"), _limit(query)
        if after >= 2**53:
            raise BadRequest("after is the number of a change", field="after")
        self._types.versions(entity_type, user)
        rows = self._types.history(entity_type, user, after, limit)
        more = rows[-1].number if len(rows) == limit else None
        changes = [documents.change(row) for row in rows]
        return json_response({"entity_type": entity_type, "changes": changes, "next": more})

    async def export(self, request: Request) -> Response:
        """GET ``/v1/entity-types/{type}/export``: every version that the caller sees, as a file."""
        user = self._reader(request)
        rows = self._types.versions(self._named(request, user), user)
        return json_response({"files": [{"path": path, "content": content.decode()} for path, content in files(rows)]})

    # -- change

    async def register(self, request: Request) -> Response:
        """POST ``/v1/entity-types``: store a version, and activate it where the request says so."""
        payload, user = await self._payload(request)
        principal: Principal = request.state.principal
        new_type = registration.read_registration(payload, guard=principal is not LOCAL)
        if not isinstance(new_type, TypeRegistration):
            raise refusal(new_type)
        owner = _owner(request, new_type.schema.scope, user, new_type.schema.entity_type)
        outcome = await self._types.register(new_type, owner, principal.user_id)
        return documents.answer(outcome, new_type.dry_run, rekey=await self._rekeyed(outcome, new_type.dry_run))

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
        more = {**documents.fields(outcome), "migration": outcome.migration}
        return documents.answer(outcome, change.dry_run, **more, rekey=await self._rekeyed(outcome, change.dry_run))

    async def activate(self, request: Request) -> Response:
        """POST ``/v1/entity-types/{type}/activate``: make a version the active one."""
        return await self._switch(request, self._types.activate)

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
        return documents.answer(outcome, dry_run, rekey=await self._rekeyed(outcome, dry_run))

    async def _rekeyed(self, outcome: Outcome, dry_run: bool) -> Rekeyed | None:
        """What a dry run of a change of the identity rule says about existing entities."""
        stream = self._types.stream(outcome.plan.registry.entity_type)
        if not dry_run or stream is None or not outcome.proposal.owner_changes or not is_rekeyed(outcome.proposal):
            return None
        return await rekey(outcome.proposal, stream.id, self._snapshots, self._types.entities)

    async def _payload(self, request: Request) -> tuple[Any, str]:
        """What is asked for, with what the address says of it, and for whom."""
        query, principal = request.query_params, request.state.principal
        refuse_unknown_parameters(request.query_params, "dry_run")
        require_json(request)
        payload: Any = await read_json(request, Any, limit=_BODY_BYTES)
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

    def _reader(self, request: Request, *known: str) -> str:
        """The user whose types are read."""
        refuse_unknown_parameters(request.query_params, *known, "user_id")
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
    limit = parameters.whole_number(query.get("limit", str(_PAGE)), "limit")
    if not 1 <= limit <= MOST:
        raise BadRequest(f"limit lies between 1 and {MOST}", field="limit")
    return limit
