"""``POST /v1/entities/merge`` and ``/split``, and ``/undo`` of both: which observations are about which entity."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.entities.read.snapshots import EntityQuery, EntityView
from headrace.engine.entities.write.relations import SplitPredicate, StoredRelation, moved_observations, split_target
from headrace.errors import BadRequest, EntityNotFound
from headrace.server.http.auth import Principal
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.starlette_json import json_response, read_json, require_json
from headrace.server.routes.entities import admit
from headrace.storage.entities import EntityRow
from headrace.types import parse_timestamp_us, rfc3339

MOST_MOVED = 10_000
_BODY_BYTES = 1024 * 1024

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class EntityChangeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What every body may say: for which user an admin decides."""

    user_id: Id | None = None


class MergeBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which entity is a part of which."""

    from_entity_id: Id
    to_entity_id: Id


class UnmergeBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which merged entity becomes separate again."""

    from_entity_id: Id


class PredicateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which observations move: those that match every condition."""

    observation_ids: Annotated[list[Id], msgspec.Meta(min_length=1, max_length=MOST_MOVED)] | None = None
    source_id: Id | None = None
    fields: dict[str, Any] = {}
    observed_from: str | None = None
    observed_until: str | None = None

    def predicate(self) -> SplitPredicate:
        """The predicate; refuses one without conditions."""
        if self == PredicateBody():
            raise BadRequest("the predicate is empty: nothing would stay", field="predicate")
        return SplitPredicate(
            None if self.observation_ids is None else frozenset(self.observation_ids),
            self.source_id,
            self.fields,
            None if self.observed_from is None else parse_timestamp_us(self.observed_from, "observed_from"),
            None if self.observed_until is None else parse_timestamp_us(self.observed_until, "observed_until"),
        )


class SplitBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which observations of an entity are about another: one that there is, or one of a name."""

    entity_id: Id
    predicate: PredicateBody
    to_entity_id: Id | None = None
    to_canonical_name: Id | None = None


class UnsplitBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which split of an entity does not hold any more."""

    entity_id: Id
    split_id: Id


def routes(engine: Engine) -> list[Route]:
    """Every route of this file."""
    api = EntityRelationRoutes(engine)
    return [
        Route("/v1/entities/merge", api.merge, methods=["POST"]),
        Route("/v1/entities/merge/undo", api.unmerge, methods=["POST"]),
        Route("/v1/entities/split", api.split, methods=["POST"]),
        Route("/v1/entities/split/undo", api.unsplit, methods=["POST"]),
    ]


class EntityRelationRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._snapshots, self._listing, self._aliasing = engine.snapshots, engine.entity_list, engine.entity_relations

    async def merge(self, request: Request) -> Response:
        """POST: an entity is another one."""
        body: MergeBody = await self._read(request, MergeBody)
        user_id = self._admitted(request, body, body.from_entity_id)
        made = await self._aliasing.merge(user_id, body.from_entity_id, body.to_entity_id)
        ids = {"from_entity_id": body.from_entity_id, "to_entity_id": body.to_entity_id}
        return json_response({"merge_id": made.observation.id, **ids, "merged_at": rfc3339(made.at_us)})

    async def unmerge(self, request: Request) -> Response:
        """POST: an entity that was merged is one of its own."""
        body: UnmergeBody = await self._read(request, UnmergeBody)
        user_id = self._admitted(request, body, body.from_entity_id)
        made = await self._aliasing.unmerge(user_id, body.from_entity_id)
        ids = {"from_entity_id": body.from_entity_id, "to_entity_id": made.observation.details["into"]}
        return json_response({"undo_id": made.observation.id, **ids, "undone_at": rfc3339(made.at_us)})

    async def split(self, request: Request) -> Response:
        """POST: some observations of an entity are about another."""
        body: SplitBody = await self._read(request, SplitBody)
        if (body.to_entity_id is None) == (body.to_canonical_name is None):
            raise BadRequest("to_entity_id or to_canonical_name says which entity", field="to_entity_id")
        user_id = self._admitted(request, body, body.entity_id)
        view = self._snapshots.view(EntityQuery(body.entity_id, user_id))
        into = self._into(body, view, user_id)
        observed = await self._listing.observations(view, None, MOST_MOVED + 1, newest_first=False)
        if len(observed) > MOST_MOVED:
            raise BadRequest(f"an entity with more than {MOST_MOVED} observations cannot be split", field="entity_id")
        gone = moved_observations(view, body.predicate.predicate(), observed)
        made = await self._aliasing.split(user_id, view.group.row.entity_id, into, gone)
        return json_response({**_split(made), "split_id": made.observation.id, "split_at": rfc3339(made.at_us)})

    async def unsplit(self, request: Request) -> Response:
        """POST: observations that were moved are about the entities that they came from."""
        body: UnsplitBody = await self._read(request, UnsplitBody)
        user_id = self._admitted(request, body, body.entity_id)
        view = self._snapshots.view(EntityQuery(body.entity_id, user_id))
        observations = [
            observed.observation for observed in await self._listing.observations_by_id(view, [body.split_id])
        ]
        if not observations or observations[0].kind != "split":
            raise EntityNotFound("the entity has no such split", entity_id=body.entity_id, split_id=body.split_id)
        made = await self._aliasing.unsplit(user_id, observations[0])
        facts = {"split_id": body.split_id, "undo_id": made.observation.id, "undone_at": rfc3339(made.at_us)}
        return json_response({**_split(made), **facts})

    def _into(self, body: SplitBody, view: EntityView, user_id: str) -> EntityRow:
        if body.to_canonical_name is not None:
            into = split_target(view, body.to_canonical_name)
        else:
            assert body.to_entity_id is not None
            into = self._snapshots.groups.row(body.to_entity_id, user_id)
        if into.entity_id in view.group.members:
            raise BadRequest("an entity cannot be split into itself", field="to_entity_id")
        return into

    def _admitted(self, request: Request, body: EntityChangeBody, entity_id: str) -> str:
        """The user whose entities change; refuses callers who may not write them."""
        principal: Principal = request.state.principal
        user_id = principal.acting_for(body.user_id)
        admit(principal, self._snapshots.view(EntityQuery(entity_id, user_id)).entity_type, "write")
        return user_id

    async def _read(self, request: Request, kind: Any) -> Any:
        refuse_unknown_parameters(request.query_params)
        require_json(request)
        return await read_json(request, kind, limit=_BODY_BYTES)


def _split(made: StoredRelation) -> dict[str, Any]:
    details = made.observation.details
    return {
        "entity_id": made.observation.entity_id,
        "to_entity_id": details["into"],
        "observations": [observation[0] for observation in details["observations"]],
    }
