"""``/v1/entity-types/{type}/…``: what fragments speak for, promotion, settings, migration and reconciliation."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.entities.enhancement.candidates import Analysis
from headrace.engine.entities.enhancement.migrations import run_document
from headrace.engine.entities.enhancement.queue import WAIT_S
from headrace.engine.entities.enhancement.settings import EffectiveSettings, EnhancementSettings
from headrace.errors import BadRequest
from headrace.reduce.fragments.agreement import Agreement
from headrace.reduce.fragments.candidates import Candidate
from headrace.server.http.auth import Principal
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.starlette_json import json_response, read_json, require_json
from headrace.server.routes import entity_type_documents as documents
from headrace.server.routes.entity_types import TYPES
from headrace.storage.enhancements import Recommendation, Run
from headrace.storage.entity_types import EVERYBODY
from headrace.types import rfc3339

_BODY_BYTES = 1024 * 1024
_MOST_FIELDS = 1_000
_LISTED = 20

Scope = Literal["global", "user"]


class EnhancementBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose schema a request is about: the caller's own, unless it says that it is everybody's."""

    scope: Scope = "user"
    user_id: str | None = None


class UndoBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose migration is meant; without a scope it is found by its id."""

    scope: Scope | None = None
    user_id: str | None = None


class EnhanceBody(EnhancementBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be promoted; nothing is, unless ``dry_run`` is false."""

    fields: tuple[str, ...] | None = None
    force: bool = False
    migrate_existing: bool = False
    dry_run: bool = True


class SettingsBody(EnhancementSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an owner; those that are left out are the defaults."""

    scope: Scope = "user"
    user_id: str | None = None

    def settings(self) -> EnhancementSettings:
        """The settings alone."""
        names = EnhancementSettings.__struct_fields__
        return EnhancementSettings(**{name: getattr(self, name) for name in names})


class CandidateDecisionBody(EnhancementBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody decides about fragments of a key."""

    field: str
    status: Literal["pending", "approved", "rejected"]


class MigrateBody(EnhancementBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that values of fragments are to be moved to."""

    fields: tuple[str, ...]
    dry_run: bool = False


class ReconcileBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``dry_run`` only reports what users agree on."""

    dry_run: bool = True


Body = TypeVar("Body")


def routes(engine: Engine) -> list[Route]:
    """Every route of this file."""
    api = EnhancementRoutes(engine)
    type_path = TYPES + "/{entity_type}"
    return [
        Route(type_path + "/candidates", api.candidates, methods=["GET"]),
        Route(type_path + "/enhance", api.enhance, methods=["POST"]),
        Route(type_path + "/enhancement", api.get_settings, methods=["GET"]),
        Route(type_path + "/enhancement", api.set_settings, methods=["POST"]),
        Route(type_path + "/recommendations", api.recommendations, methods=["GET"]),
        Route(type_path + "/recommendations", api.decide, methods=["POST"]),
        Route(type_path + "/migrate", api.migrate, methods=["POST"]),
        Route(type_path + "/migrations", api.migrations, methods=["GET"]),
        Route(type_path + "/migrations/{run_id}", api.migration, methods=["GET"]),
        Route(type_path + "/migrations/{run_id}/undo", api.undo, methods=["POST"]),
        Route(type_path + "/reconcile", api.reconcile, methods=["POST"]),
    ]


class EnhancementRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._types, parts = engine.types, engine.enhancement
        self._candidates, self._enhancing, self._queue = parts.candidates, parts.promotions, parts.queue
        self._migrating, self._reconciling = parts.migrations, parts.reconciliation

    # -- look

    async def candidates(self, request: Request) -> Response:
        """GET ``…/candidates``: what fragments would make of the schema, with the evidence and the reasons against."""
        entity_type, owner = self._readable_owner(request, "promotable")
        wanted = request.query_params.get("promotable", "false")
        if wanted not in ("true", "false"):
            raise BadRequest("promotable is true or false", field="promotable")
        analysis = await self._candidates.analyse(entity_type, owner)
        candidates = [
            _candidate(analysis, candidate)
            for candidate in analysis.candidates
            if candidate.promotable or wanted == "false"
        ]
        return json_response({**_about(analysis, owner), "candidates": candidates})

    async def get_settings(self, request: Request) -> Response:
        """GET ``…/enhancement``: how the type grows by itself, and what it did last."""
        entity_type, owner = self._readable_owner(request)
        return json_response(self._settings(entity_type, owner, self._enhancing.settings(entity_type, owner)))

    async def recommendations(self, request: Request) -> Response:
        """GET ``…/recommendations``: what was recommended, and what was decided about it."""
        entity_type, owner = self._readable_owner(request)
        recommendations = self._enhancing.recommendations(entity_type, owner)
        return json_response(
            {
                "entity_type": entity_type,
                "recommendations": [_recommendation(recommendation) for recommendation in recommendations],
            }
        )

    async def migrations(self, request: Request) -> Response:
        """GET ``…/migrations``: the migrations of every scope that the caller may see, or of one, the newest first."""
        entity_type, owners = self._owners(request, *self._scope_and_user(request), "read")
        runs = self._migrating.runs(entity_type, owners)
        return json_response({"entity_type": entity_type, "migrations": [run_document(run) for run in runs]})

    async def migration(self, request: Request) -> Response:
        """GET ``…/migrations/{run_id}``: how far it is."""
        entity_type, owners = self._owners(request, *self._scope_and_user(request), "read")
        return json_response(run_document(self._migrating.find(entity_type, request.path_params["run_id"], owners)))

    # -- change

    async def enhance(self, request: Request) -> Response:
        """POST ``…/enhance``: promote what nothing speaks against, or say what that would be."""
        body = await self._read(request, EnhanceBody)
        entity_type, owner, who = self._owner(request, body)
        fields = body.fields if body.fields is None else _names(body.fields)
        moves, dry_run = body.migrate_existing, body.dry_run
        enhanced = await self._enhancing.enhance(
            entity_type, owner, who, fields=fields, force=body.force, migrate=moves, dry_run=dry_run
        )
        migration = None
        if enhanced.run is not None:
            self._queue.wake()
            migration = {"dry_run": False, **run_document(await self._queue.wait(enhanced.run, WAIT_S))}
        elif moves and dry_run:
            migration = await self._moved(entity_type, owner, enhanced.fields, who, True)
        promoted = [_candidate(enhanced.analysis, candidate) for candidate in enhanced.promoted]
        more = {**documents.fields(enhanced.outcome), "promoted": promoted, "migration": migration, "rekey": None}
        return documents.answer(enhanced.outcome, body.dry_run, **more)

    async def set_settings(self, request: Request) -> Response:
        """POST ``…/enhancement``: say how the type grows by itself."""
        body = await self._read(request, SettingsBody)
        entity_type, owner, who = self._owner(request, body)
        held = await self._enhancing.set(entity_type, owner, body.settings(), who)
        self._queue.wake()
        return json_response(self._settings(entity_type, owner, held))

    async def decide(self, request: Request) -> Response:
        """POST ``…/recommendations``: approve or reject what fragments of a key speak for."""
        body = await self._read(request, CandidateDecisionBody)
        entity_type, owner, who = self._owner(request, body)
        decided = await self._enhancing.decide(entity_type, owner, body.field, body.status, who)
        self._queue.analyse_again(entity_type, owner)
        return json_response(_recommendation(decided))

    async def migrate(self, request: Request) -> Response:
        """POST ``…/migrate``: move values that were stored before there was a field for them."""
        body = await self._read(request, MigrateBody)
        entity_type, owner, who = self._owner(request, body)
        return json_response(await self._moved(entity_type, owner, _names(body.fields), who, body.dry_run))

    async def undo(self, request: Request) -> Response:
        """POST ``…/migrations/{run_id}/undo``: let a migration count no more."""
        body = await self._read(request, UndoBody)
        entity_type, owners = self._owners(request, body.scope, body.user_id, "write")
        who = request.state.principal.user_id
        return json_response(
            run_document(await self._migrating.undo(entity_type, request.path_params["run_id"], owners, who))
        )

    async def reconcile(self, request: Request) -> Response:
        """POST ``…/reconcile``: let everybody have the fields that users agree on."""
        body = await self._read(request, ReconcileBody)
        entity_type, _, who = self._owner(request, EnhancementBody(scope="global"))
        reconciled = await self._reconciling.reconcile(entity_type, who, dry_run=body.dry_run)
        more = {
            **documents.fields(reconciled.outcome),
            "agreements": [_agreement(agreement) for agreement in reconciled.agreements],
        }
        more["rekey"] = None
        return documents.answer(reconciled.outcome, body.dry_run, **more)

    async def _moved(
        self, entity_type: str, owner: str, fields: tuple[str, ...], who: str, dry_run: bool
    ) -> dict[str, Any]:
        if dry_run:
            return {"dry_run": True, "fragments": await self._migrating.count_values(entity_type, owner, fields)}
        run = await self._migrating.begin(entity_type, owner, fields, who)
        return {"dry_run": False, **run_document(await self._queue.wait(run, WAIT_S))}

    def _settings(self, entity_type: str, owner: str, held: EffectiveSettings) -> dict[str, Any]:
        return {
            "entity_type": entity_type,
            "scope": "user" if owner else "global",
            "user_id": owner or None,
            "is_set": held.is_set,
            "settings": msgspec.to_builtins(msgspec.structs.replace(held.own, blacklist=held.own.banned)),
            "runs": [_looked(run) for run in self._queue.runs(entity_type, owner, _LISTED)],
        }

    # -- who and whose

    def _readable_owner(self, request: Request, *known: str) -> tuple[str, str]:
        """The type, and the user whose fragments are read."""
        scope, user = self._scope_and_user(request, *known)
        return self._admitted(request, scope or "user", user, "read")

    def _scope_and_user(self, request: Request, *known: str) -> tuple[str | None, str | None]:
        """The scope and the user that a query names."""
        query = request.query_params
        refuse_unknown_parameters(query, *known, "scope", "user_id")
        scope = query.get("scope")
        if scope not in (None, "global", "user"):
            raise BadRequest("scope is global or user", field="scope")
        return scope, query.get("user_id")

    def _owners(self, request: Request, scope: str | None, user: str | None, may: str) -> tuple[str, list[str]]:
        """The type, and whose migrations are meant: without a scope, all that the caller may see and change."""
        entity_type, owner = self._admitted(request, scope or "user", user, may)
        principal: Principal = request.state.principal
        return entity_type, [owner, EVERYBODY] if scope is None and principal.is_operator else [owner]

    def _owner(self, request: Request, body: Any) -> tuple[str, str, str]:
        """The type, the owner of the schema to change, and the caller."""
        principal: Principal = request.state.principal
        return (*self._admitted(request, body.scope, body.user_id, "write"), principal.user_id)

    def _admitted(self, request: Request, scope: str, user: str | None, may: str) -> tuple[str, str]:
        principal: Principal = request.state.principal
        user = principal.acting_for(user)
        entity_type = self._types.resolve(request.path_params["entity_type"], user)
        principal.require_type(may, entity_type)
        if scope == "global":
            principal.require("admin")
        return entity_type, user if scope == "user" else EVERYBODY

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        refuse_unknown_parameters(request.query_params)
        require_json(request)
        return await read_json(request, kind, limit=_BODY_BYTES)


def _names(fields: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(fields) <= _MOST_FIELDS:
        raise BadRequest(f"1 to {_MOST_FIELDS} fields are named", field="fields")
    return tuple(dict.fromkeys(fields))


def _about(analysis: Analysis, owner: str) -> dict[str, Any]:
    schema, counts = analysis.schema, analysis.counts
    return {
        "entity_type": schema.entity_type,
        "schema_version": schema.schema_version,
        "scope": "user" if owner else "global",
        "user_id": owner or None,
        "coverage": {
            "complete": counts.complete,
            "observations": counts.next_seq - counts.first_seq,
            "missing": counts.missing,
            "truncated": counts.fragments.truncated,
        },
    }


def _candidate(analysis: Analysis, candidate: Candidate) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(candidate)
    document["first_seen"] = rfc3339(document.pop("first_seen_us"))
    document["last_seen"] = rfc3339(document.pop("last_seen_us"))
    recommendations = {recommendation.field: recommendation for recommendation in analysis.recommendations}
    status = recommendations[candidate.fragment_key].status if candidate.fragment_key in recommendations else None
    return {**document, "promotable": candidate.promotable, "status": status}


def _recommendation(recommendation: Recommendation) -> dict[str, Any]:
    return {
        "key": recommendation.key,
        "field": recommendation.field,
        "change": recommendation.change,
        "status": recommendation.status,
        "can_rollback": recommendation.can_rollback,
        "schema_version": recommendation.schema_version,
        "who": recommendation.who,
        "at": rfc3339(recommendation.at_us),
        "evidence": recommendation.evidence,
    }


def _agreement(agreement: Agreement) -> dict[str, Any]:
    return {
        "field": agreement.field_name,
        "field_type": agreement.field.type,
        "users": agreement.users,
        "entities": agreement.entities,
        "type_share": agreement.type_share,
        "confidence": agreement.confidence,
        "promotable": agreement.promotable,
        "reasons": msgspec.to_builtins(agreement.reasons),
    }


def _looked(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "state": run.state,
        "attempts": run.attempts,
        "reason": run.reason,
        "begun_at": rfc3339(run.begun_us),
        "ended_at": None if run.ended_us is None else rfc3339(run.ended_us),
        "outcome": run.outcome,
    }
