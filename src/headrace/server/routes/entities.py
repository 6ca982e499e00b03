"""``GET /v1/entities/{id}``: an entity as it is now, or was, answered on the hot path."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.engine.assembly import Engine
from headrace.engine.derive.generation import NotReady
from headrace.engine.entities.read.snapshots import EntityAnswer, EntityQuery
from headrace.errors import BadRequest, EntityNotFound
from headrace.schema.entity.identity import EntityId as Id
from headrace.schema.entity.identity import find_links, find_moments
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.request import Request
from headrace.server.http.route import READ, Answer, Header, in_path, in_query, route
from headrace.server.http.wire import Counter, Object, TrueFalse, User, When
from headrace.server.http.wire import Moment as MomentText
from headrace.types import parse_timestamp_us, rfc3339

COMPLETE = {"headrace-coverage": "complete"}
_ENCODE = msgspec.json.Encoder().encode
_SCOPES = ("global", "user")
_FLAGS = {"true": True, "false": False}


#: What a caller names, which may be no id at all.
RequestedId = Annotated[str, Meta(min_length=1, max_length=256)]
Scope = Literal["global", "user"]

BY_ID = in_path("id", str, "the id of an entity")
FOR_USER = in_query("user_id", User, "whose entities, for an admin")
COVERAGE = Header("Headrace-Coverage", Literal["complete"], "whether nothing is missing")
#: How an entity is looked at.
VIEWED = (
    in_query("as_of", MomentText, "by what was observed until then"),
    in_query("at_ingested", MomentText, "by what was stored until then"),
    in_query("schema_version", RequestedId, "as this version shows it"),
    in_query("scope", Scope, "whose version that is; the user's own where they have it"),
    in_query("explain", TrueFalse, "also how the answer came about"),
    FOR_USER,
)


class DatedEvent(Struct):
    """Something that happened to an entity: which field dates it, what it is, and when."""

    field: str
    event_type: str
    at: str


class EntityLink(Struct):
    """A reference to another entity: the value that names it, and the id that an entity of this name has."""

    field: str
    relationship_type: str
    target_entity_type: str
    value: Any
    target_id: str


class EntitySnapshot(Struct, kw_only=True):
    """An entity as it is now or was."""

    entity_id: Id
    entity_type: str
    canonical_name: str
    schema_version: str
    snapshot: Object
    provenance: dict[str, str]
    sources: dict[str, list[str]]
    computed_at: When
    observation_count: Counter
    last_observation_at: When
    merged_from: list[Id]
    events: list[DatedEvent]
    links: list[EntityLink]
    requested_entity_id: str | UnsetType = UNSET
    truncated_fields: list[str] | UnsetType = UNSET
    explain: Object | UnsetType = UNSET


class EntityRoute:
    """Answers requests for one entity."""

    def __init__(self, engine: Engine) -> None:
        self._snapshots = engine.snapshots
        self._background = BackgroundRequests(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s

    @route(
        "GET",
        "/v1/entities/{id}",
        "get_entity",
        "An entity as it is now or was, with the observations that its values are from",
        READ,
        {200: Answer("the entity", EntitySnapshot, (COVERAGE,))},
        fails=(EntityNotFound,),
        parameters=(BY_ID, *VIEWED),
        is_hot=True,
    )
    def get(self, request: Request) -> None:
        """GET: the snapshot of an entity, and the observations that its values are from."""
        entity_query = read_entity_query(request.query, request.target.name, request.principal)
        try:
            shown = self._snapshots.get(entity_query)
        except NotReady:
            self._background.answer_with_timeout(request, self._get_later(request, entity_query), self._time_s)
            return
        self._reply(request, shown)

    async def _get_later(self, request: Request, entity_query: EntityQuery) -> None:
        self._reply(request, await self._snapshots.find(entity_query))

    def _reply(self, request: Request, shown: EntityAnswer) -> None:
        admit(request.principal, shown.view.entity_type)
        document = snapshot(shown)
        if request.query and flag(request.query, "explain"):
            document.explain = explained(shown, self._snapshots.state_reader.tail_of(shown.view.entity_type))
        request.exchange.reply_json(_ENCODE(document), COMPLETE)


def read_entity_query(query: dict[str, str], entity_id: str, principal: Principal) -> EntityQuery:
    """The entity query of a request; an admin may name another user."""
    if not query:
        return EntityQuery(entity_id, principal.user_id)
    as_of, at_ingested = query.get("as_of"), query.get("at_ingested")
    if "scope" in query and (query["scope"] not in _SCOPES or "schema_version" not in query):
        raise BadRequest("scope is global or user, and says whose the schema_version is", field="scope")
    return EntityQuery(
        entity_id,
        user_of(query, principal),
        None if as_of is None else parse_timestamp_us(as_of, "as_of"),
        None if at_ingested is None else parse_timestamp_us(at_ingested, "at_ingested"),
        query.get("schema_version"),
        query.get("scope"),
    )


def user_of(query: dict[str, str], principal: Principal) -> str:
    """The user whose entities are requested."""
    return principal.acting_for(query.get("user_id"))


def admit(principal: Principal, entity_type: str, scope: str = "read") -> None:
    """Refuse a key that does not open the type's observations."""
    if principal is not LOCAL:
        principal.require_type(scope, entity_type)


def flag(query: dict[str, str], name: str) -> bool:
    """A parameter that is true or false, and false where it is not given."""
    text = query.get(name, "false")
    if text not in _FLAGS:
        raise BadRequest(f"{name} is true or false", field=name)
    return _FLAGS[text]


def snapshot(shown: EntityAnswer) -> EntitySnapshot:
    """An entity as it is answered; raises where it has none."""
    view, entity = shown.view, shown.snapshot
    row = view.group.row
    if entity is None:
        raise EntityNotFound("the entity is deleted, or was not known then", entity_id=view.query.entity_id)
    document = EntitySnapshot(
        entity_id=row.entity_id,
        entity_type=view.entity_type,
        canonical_name=row.canonical_name,
        schema_version=entity.schema_version,
        snapshot=entity.snapshot,
        provenance=entity.provenance,
        sources=entity.sources,
        computed_at=rfc3339(entity.computed_at_us),
        observation_count=entity.observation_count,
        last_observation_at=rfc3339(entity.last_observation_at_us),
        merged_from=list(view.group.members[1:]),
        events=[],
        links=[],
        requested_entity_id=UNSET if view.query.entity_id == row.entity_id else view.query.entity_id,
        truncated_fields=list(entity.truncated) if entity.truncated else UNSET,
    )
    definition = None if view.schema is None else view.schema.schema_definition
    if definition is not None and definition.temporal_fields:
        document.events = [DatedEvent(*event) for event in find_moments(definition, entity.snapshot)]
    if definition is not None and definition.reference_fields:
        document.links = [EntityLink(*link) for link in find_links(definition, entity.snapshot, row.user_id)]
    return document


def explained(shown: EntityAnswer, generation: Any) -> dict[str, Any]:
    """What an answer was computed from: states and a tail, or the observations of the entity."""
    view, stream = shown.view, shown.view.stream
    document: dict[str, Any] = {
        "from": "states" if shown.kept else "observations",
        "members": list(view.group.members),
        "moved_observations": len(view.group.moved),
        "policies": view.config.dump(),
        "life": view.policy_user or None,
        "through": stream.offset_at(view.head.next_seq),
    }
    if shown.kept and generation is not None:
        document["tail_from"] = stream.offset_at(generation.base.start)
        document["states"] = [state.name for state in generation.base.states]
    return document
