"""``/v1/entity-types/{type}/…``: candidates, promotion, settings, migration and reconciliation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.entities.enhancement.queue import WAIT_S
from headrace.engine.entities.enhancement.settings import EffectiveSettings
from headrace.errors import BadRequest, Conflict, NotFound
from headrace.server.http.auth import Principal
from headrace.server.http.route import ADMIN, Answer, Body, Parameter, Verb, in_path, in_query, one_of, route
from headrace.server.http.route import Scope as RouteScope
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import NonEmpty, TrueFalse, User
from headrace.server.routes import entity_type_documents as documents
from headrace.server.routes.enhancement_documents import (
    MAX_FIELDS,
    CandidateDecisionBody,
    CandidatesAnswer,
    EnhanceAnswer,
    EnhanceBody,
    EnhancementBody,
    MigrateBody,
    MigrationsAnswer,
    RecommendationAnswer,
    RecommendationsAnswer,
    ReconcileAnswer,
    ReconcileBody,
    SettingsAnswer,
    SettingsBody,
    UndoBody,
    candidate_answer,
    candidates_answer,
    enhancement_run,
    field_agreement,
    recommendation_answer,
)
from headrace.server.routes.entities import Scope
from headrace.server.routes.entity_type_documents import MigrationAnswer, PlannedMigration
from headrace.server.routes.entity_types import NAMED, TYPES, WRITE_SCHEMA
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.storage.entity_types import EVERYBODY

_MAX_BYTES = 1024 * 1024
_LISTED = 20

_RUN_ID = in_path("run_id", NonEmpty, "the migration")
_READ_SCHEMA = RouteScope("read", "read, global: admin")
_FOR_OWNER = (
    in_query("scope", Scope, "the caller's own, or everybody's, for which it takes an operator"),
    in_query("user_id", User, "somebody else's, for which it takes an operator"),
)


def _get(
    at: str, name: str, doc: str, description: str, answer: type[Struct], *parameters: Parameter
) -> Callable[[Verb], Verb]:
    """Declare a GET that an operator may send for other users."""
    declared = (NAMED, *parameters, *_FOR_OWNER)
    answers = {200: Answer(description, answer)}
    at = f"{TYPES}/{{entity_type}}/{at}"
    return route("GET", at, name, doc, _READ_SCHEMA, answers, fails=(NotFound, Conflict), parameters=declared)


def _post(
    at: str, name: str, doc: str, done: str, answer: Any, body: type[Struct], scope: RouteScope = WRITE_SCHEMA
) -> Callable[[Verb], Verb]:
    """Declare a POST that an operator may send for other users."""
    return route(
        "POST",
        f"{TYPES}/{{entity_type}}/{at}",
        name,
        doc,
        scope,
        {200: Answer(done, answer)},
        fails=(NotFound, Conflict, *BAD_BODY),
        parameters=(NAMED, _RUN_ID) if "{run_id}" in at else (NAMED,),
        body=Body(body, _MAX_BYTES),
        recorded_as="entity_type_changed",
    )


class EnhancementRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._types, parts = engine.types, engine.enhancement
        self._candidates, self._enhancing, self._queue = parts.candidates, parts.promotions, parts.queue
        self._migrating, self._reconciling = parts.migrations, parts.reconciliation

    @_get(
        "candidates",
        "get_entity_type_candidates",
        "What fragments would make of the schema",
        "candidates with the evidence, and what speaks against each; the most frequent first",
        CandidatesAnswer,
        in_query("promotable", TrueFalse, "only those that nothing speaks against"),
    )
    async def candidates(self, request: Request) -> Response:
        """GET ``…/candidates``: the fields that fragments suggest, with the evidence and the reasons against."""
        entity_type, owner = self._readable_owner(request)
        wanted = request.query_params.get("promotable", "false")
        if wanted not in ("true", "false"):
            raise BadRequest("promotable is true or false", field="promotable")
        analysis = await self._candidates.analyse(entity_type, owner)
        candidates = [
            candidate_answer(analysis, candidate)
            for candidate in analysis.candidates
            if candidate.promotable or wanted == "false"
        ]
        return json_response(candidates_answer(analysis, owner, candidates))

    @_get(
        "enhancement",
        "get_entity_type_enhancement",
        "How a type grows by itself",
        "the settings that hold",
        SettingsAnswer,
    )
    async def get_settings(self, request: Request) -> Response:
        """GET ``…/enhancement``: the settings of automatic promotion, and its last run."""
        entity_type, owner = self._readable_owner(request)
        return json_response(self._settings(entity_type, owner, self._enhancing.settings(entity_type, owner)))

    @_get(
        "recommendations",
        "get_entity_type_recommendations",
        "What was recommended, and what was decided about it",
        "recommendations by field",
        RecommendationsAnswer,
    )
    async def recommendations(self, request: Request) -> Response:
        """GET ``…/recommendations``: the recommendations, and the decisions about them."""
        entity_type, owner = self._readable_owner(request)
        recommendations = self._enhancing.recommendations(entity_type, owner)
        answers = [recommendation_answer(recommendation) for recommendation in recommendations]
        return json_response(RecommendationsAnswer(entity_type, answers))

    @_get("migrations", "get_entity_type_migrations", "The migrations of a type", "the newest first", MigrationsAnswer)
    async def migrations(self, request: Request) -> Response:
        """GET ``…/migrations``: the migrations of every scope that the caller may see, or of one, the newest first."""
        entity_type, owners = self._owners(request, *self._scope_and_user(request), "read")
        runs = self._migrating.runs(entity_type, owners)
        return json_response(MigrationsAnswer(entity_type, [documents.migration(run) for run in runs]))

    @_get(
        "migrations/{run_id}",
        "get_entity_type_migration",
        "A migration of a type",
        "how far it is",
        MigrationAnswer,
        _RUN_ID,
    )
    async def migration(self, request: Request) -> Response:
        """GET ``…/migrations/{run_id}``: the progress of a migration."""
        entity_type, owners = self._owners(request, *self._scope_and_user(request), "read")
        run = self._migrating.find(entity_type, request.path_params["run_id"], owners)
        return json_response(documents.migration(run))

    @_post(
        "enhance",
        "enhance_entity_type",
        "Promote what nothing speaks against; a dry run, unless `dry_run` is false",
        "the version that was made, or would be",
        EnhanceAnswer,
        EnhanceBody,
    )
    async def enhance(self, request: Request) -> Response:
        """POST ``…/enhance``: promote the candidates that no reason excludes, or report them in a dry run."""
        body = await read_json(request, EnhanceBody)
        entity_type, owner, who = self._owner(request, body)
        fields = body.fields if body.fields is None else _names(body.fields)
        moves, dry_run = body.migrate_existing, body.dry_run
        enhanced = await self._enhancing.enhance(
            entity_type, owner, who, fields=fields, force=body.force, migrate=moves, dry_run=dry_run
        )
        migration: MigrationAnswer | PlannedMigration | None = None
        if enhanced.run is not None:
            self._queue.wake()
            migration = documents.migration(await self._queue.wait(enhanced.run, WAIT_S), dry_run=False)
        elif moves and dry_run:
            migration = await self._moved(entity_type, owner, enhanced.fields, who, True)
        promoted = [candidate_answer(enhanced.analysis, candidate) for candidate in enhanced.promoted]
        return documents.answer(
            EnhanceAnswer, enhanced.outcome, dry_run=dry_run, promoted=promoted, migration=migration, rekey=None
        )

    @_post(
        "enhancement",
        "set_entity_type_enhancement",
        "Say how a type grows by itself",
        "the settings that hold from now on",
        SettingsAnswer,
        SettingsBody,
    )
    async def set_settings(self, request: Request) -> Response:
        """POST ``…/enhancement``: change the settings of automatic promotion."""
        body = await read_json(request, SettingsBody)
        entity_type, owner, who = self._owner(request, body)
        held = await self._enhancing.set(entity_type, owner, body.settings(), who)
        self._queue.wake()
        return json_response(self._settings(entity_type, owner, held))

    @_post(
        "recommendations",
        "decide_entity_type_recommendation",
        "Approve or reject what fragments of a key speak for",
        "what is decided",
        RecommendationAnswer,
        CandidateDecisionBody,
    )
    async def decide(self, request: Request) -> Response:
        """POST ``…/recommendations``: approve or reject a recommendation."""
        body = await read_json(request, CandidateDecisionBody)
        entity_type, owner, who = self._owner(request, body)
        decided = await self._enhancing.decide(entity_type, owner, body.field, body.status, who)
        self._queue.analyse_again(entity_type, owner)
        return json_response(recommendation_answer(decided))

    @_post(
        "migrate",
        "migrate_entity_type",
        "Move values that were stored before there was a field for them",
        "how far it is; one that takes longer goes on",
        one_of(MigrationAnswer, PlannedMigration),
        MigrateBody,
    )
    async def migrate(self, request: Request) -> Response:
        """POST ``…/migrate``: move values of fragments to fields that were added later."""
        body = await read_json(request, MigrateBody)
        entity_type, owner, who = self._owner(request, body)
        return json_response(await self._moved(entity_type, owner, _names(body.fields), who, body.dry_run))

    @_post(
        "migrations/{run_id}/undo",
        "undo_entity_type_migration",
        "Let a migration count no more",
        "it is undone",
        MigrationAnswer,
        UndoBody,
    )
    async def undo(self, request: Request) -> Response:
        """POST ``…/migrations/{run_id}/undo``: undo a migration."""
        body = await read_json(request, UndoBody)
        entity_type, owners = self._owners(request, body.scope, body.user_id, "write")
        who = request.state.principal.user_id
        run = await self._migrating.undo(entity_type, request.path_params["run_id"], owners, who)
        return json_response(documents.migration(run))

    @_post(
        "reconcile",
        "reconcile_entity_type",
        "Let everybody have the fields that users agree on; a dry run, unless `dry_run` is false",
        "the version that was made, or would be",
        ReconcileAnswer,
        ReconcileBody,
        ADMIN,
    )
    async def reconcile(self, request: Request) -> Response:
        """POST ``…/reconcile``: add the fields that users agree on to everybody's schema."""
        body = await read_json(request, ReconcileBody)
        entity_type, _, who = self._owner(request, EnhancementBody(scope="global"))
        reconciled = await self._reconciling.reconcile(entity_type, who, dry_run=body.dry_run)
        agreements = [field_agreement(agreement) for agreement in reconciled.agreements]
        return documents.answer(
            ReconcileAnswer, reconciled.outcome, dry_run=body.dry_run, agreements=agreements, rekey=None
        )

    async def _moved(
        self, entity_type: str, owner: str, fields: tuple[str, ...], who: str, dry_run: bool
    ) -> MigrationAnswer | PlannedMigration:
        if dry_run:
            return PlannedMigration(True, await self._migrating.count_values(entity_type, owner, fields))
        run = await self._migrating.begin(entity_type, owner, fields, who)
        return documents.migration(await self._queue.wait(run, WAIT_S), dry_run=False)

    def _settings(self, entity_type: str, owner: str, held: EffectiveSettings) -> SettingsAnswer:
        return SettingsAnswer(
            entity_type=entity_type,
            scope="user" if owner else "global",
            user_id=owner or None,
            is_set=held.is_set,
            settings=msgspec.structs.replace(held.own, blacklist=held.own.banned),
            runs=[enhancement_run(run) for run in self._queue.runs(entity_type, owner, _LISTED)],
        )

    def _readable_owner(self, request: Request) -> tuple[str, str]:
        """The type, and the user whose fragments are read."""
        scope, user = self._scope_and_user(request)
        return self._admitted(request, scope or "user", user, "read")

    def _scope_and_user(self, request: Request) -> tuple[str | None, str | None]:
        """The scope and the user that a query names."""
        query = request.query_params
        scope = query.get("scope")
        if scope not in (None, "global", "user"):
            raise BadRequest("scope is global or user", field="scope")
        return scope, query.get("user_id")

    def _owners(self, request: Request, scope: str | None, user: str | None, may: str) -> tuple[str, list[str]]:
        """The type and the owners of its migrations: without a scope, all that the caller may see and change."""
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


def _names(fields: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(fields) <= MAX_FIELDS:
        raise BadRequest(f"1 to {MAX_FIELDS} fields are named", field="fields")
    return tuple(dict.fromkeys(fields))
