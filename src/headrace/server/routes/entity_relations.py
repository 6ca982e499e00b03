"""``POST /v1/entities/merge`` and ``/split``, and ``/undo`` of both: which observations are about which entity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.entities.read.snapshots import EntityQuery, EntityView
from headrace.engine.entities.write.relations import SplitPredicate, StoredRelation, moved_observations, split_target
from headrace.errors import BadRequest, Conflict, EntityNotFound
from headrace.schema.entity.identity import EntityId as Id
from headrace.schema.entity.sources import SourceName, identify
from headrace.server.http.auth import Principal
from headrace.server.http.route import WRITE, Answer, Body, Verb, route
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import Moment, User, When
from headrace.server.routes.entities import RequestedId, admit
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.storage.entities import EntityRow
from headrace.types import parse_timestamp_us, rfc3339

MAX_MOVED = 10_000
_MAX_BYTES = 1024 * 1024


class EntityChangeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every body may say: for which user an admin decides."""

    user_id: User | None = None


class MergeBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which entity is a part of which."""

    from_entity_id: RequestedId
    to_entity_id: RequestedId


class UnmergeBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which merged entity becomes separate again."""

    from_entity_id: RequestedId


class PredicateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which observations move: those that match every condition."""

    observation_ids: Annotated[list[RequestedId], Meta(min_length=1, max_length=MAX_MOVED)] | None = None
    source: SourceName | None = None
    source_id: RequestedId | None = None
    fields: dict[str, Any] = {}
    observed_from: Moment | None = None
    observed_until: Moment | None = None

    def predicate(self) -> SplitPredicate:
        """The predicate; refuses one without conditions."""
        if self == PredicateBody():
            raise BadRequest("the predicate is empty: nothing would stay", field="predicate")
        return SplitPredicate(
            None if self.observation_ids is None else frozenset(self.observation_ids),
            identify(self.source, self.source_id),
            self.fields,
            None if self.observed_from is None else parse_timestamp_us(self.observed_from, "observed_from"),
            None if self.observed_until is None else parse_timestamp_us(self.observed_until, "observed_until"),
        )


class SplitBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which observations of an entity are about another: one that there is, or one of a name."""

    entity_id: RequestedId
    predicate: PredicateBody
    to_entity_id: RequestedId | None = None
    to_canonical_name: RequestedId | None = None


class UnsplitBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Which split of an entity does not hold any more."""

    entity_id: RequestedId
    split_id: RequestedId


class MergedAnswer(Struct):
    """An entity that is a part of another from now on."""

    merge_id: str
    from_entity_id: Id
    to_entity_id: Id
    merged_at: When


class UnmergedAnswer(Struct):
    """An entity that is one of its own again."""

    undo_id: str
    from_entity_id: Id
    to_entity_id: Id
    undone_at: When


class SplitAnswer(Struct, kw_only=True):
    """Observations that are about another entity from now on."""

    entity_id: Id
    to_entity_id: Id
    observations: list[str]
    split_id: str
    split_at: When


class UnsplitAnswer(Struct, kw_only=True):
    """Observations that are about the entity again that they came from."""

    entity_id: Id
    to_entity_id: Id
    observations: list[str]
    split_id: str
    undo_id: str
    undone_at: When


def _changing(at: str, name: str, doc: str, answer: type[Struct], body: type[Struct]) -> Callable[[Verb], Verb]:
    """A POST that changes which observations are about which entity."""
    fails = (EntityNotFound, Conflict, *BAD_BODY)
    answers = {200: Answer("it is on disk", answer)}
    return route("POST", f"/v1/entities/{at}", name, doc, WRITE, answers, fails=fails, body=Body(body, _MAX_BYTES))


class EntityRelationRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._snapshots, self._listing, self._aliasing = engine.snapshots, engine.entity_list, engine.entity_relations

    @_changing("merge", "merge_entities", "An entity is another one: they are shown together", MergedAnswer, MergeBody)
    async def merge(self, request: Request) -> Response:
        """POST: an entity is another one."""
        body = await read_json(request, MergeBody)
        user_id = self._admitted(request, body, body.from_entity_id)
        made = await self._aliasing.merge(user_id, body.from_entity_id, body.to_entity_id)
        answer = MergedAnswer(made.observation.id, body.from_entity_id, body.to_entity_id, rfc3339(made.at_us))
        return json_response(answer)

    @_changing("merge/undo", "undo_merge", "An entity that was merged is one of its own", UnmergedAnswer, UnmergeBody)
    async def unmerge(self, request: Request) -> Response:
        """POST: an entity that was merged is one of its own."""
        body = await read_json(request, UnmergeBody)
        user_id = self._admitted(request, body, body.from_entity_id)
        made = await self._aliasing.unmerge(user_id, body.from_entity_id)
        into, undone_at = made.observation.details["into"], rfc3339(made.at_us)
        return json_response(UnmergedAnswer(made.observation.id, body.from_entity_id, into, undone_at))

    @_changing("split", "split_entity", "Some observations of an entity are about another", SplitAnswer, SplitBody)
    async def split(self, request: Request) -> Response:
        """POST: some observations of an entity are about another."""
        body = await read_json(request, SplitBody)
        if (body.to_entity_id is None) == (body.to_canonical_name is None):
            raise BadRequest("to_entity_id or to_canonical_name says which entity", field="to_entity_id")
        user_id = self._admitted(request, body, body.entity_id)
        view = self._snapshots.view(EntityQuery(body.entity_id, user_id))
        into = self._into(body, view, user_id)
        observed = await self._listing.observations(view, None, MAX_MOVED + 1, newest_first=False)
        if len(observed) > MAX_MOVED:
            raise BadRequest(f"an entity with more than {MAX_MOVED} observations cannot be split", field="entity_id")
        gone = moved_observations(view, body.predicate.predicate(), observed)
        made = await self._aliasing.split(user_id, view.group.row.entity_id, into, gone)
        split_at = rfc3339(made.at_us)
        return json_response(SplitAnswer(**_split(made), split_id=made.observation.id, split_at=split_at))

    @_changing(
        "split/undo",
        "undo_split",
        "Observations that were moved are about the entities that they came from",
        UnsplitAnswer,
        UnsplitBody,
    )
    async def unsplit(self, request: Request) -> Response:
        """POST: observations that were moved are about the entities that they came from."""
        body = await read_json(request, UnsplitBody)
        user_id = self._admitted(request, body, body.entity_id)
        view = self._snapshots.view(EntityQuery(body.entity_id, user_id))
        observations = [
            observed.observation for observed in await self._listing.observations_by_id(view, [body.split_id])
        ]
        if not observations or observations[0].kind != "split":
            raise EntityNotFound("the entity has no such split", entity_id=body.entity_id, split_id=body.split_id)
        made = await self._aliasing.unsplit(user_id, observations[0])
        answer = UnsplitAnswer(
            **_split(made), split_id=body.split_id, undo_id=made.observation.id, undone_at=rfc3339(made.at_us)
        )
        return json_response(answer)

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


def _split(made: StoredRelation) -> dict[str, Any]:
    details = made.observation.details
    return {
        "entity_id": made.observation.entity_id,
        "to_entity_id": details["into"],
        "observations": [observation[0] for observation in details["observations"]],
    }
