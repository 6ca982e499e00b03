"""``/v1/entities``: lists of entities, the observations of one, where its values are from, and which are the same."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.read.entity_list import EntityFilter
from headrace.engine.entities.read.observations import StoredObservation
from headrace.engine.entities.read.snapshots import EntityAnswer, EntityView
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest, EntityNotFound, InvalidCursor, NotFound, OffsetGone
from headrace.format import offset as offsets
from headrace.reduce.duplicates import LEAST, find_duplicates
from headrace.schema.entity.accept import Fragment
from headrace.schema.entity.identity import EntityId as Id
from headrace.schema.entity.identity import name_part
from headrace.schema.entity.observation import Kind
from headrace.schema.entity.sources import name_of
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.route import READ, Answer, Parameter, in_path, in_query, route
from headrace.server.http.starlette_json import json_response
from headrace.server.http.wire import Counter, Object, Offset, Share, When
from headrace.server.routes.entities import (
    BY_ID,
    COMPLETE,
    COVERAGE,
    FOR_USER,
    VIEWED,
    EntitySnapshot,
    RequestedId,
    admit,
    read_entity_query,
    snapshot,
    user_of,
)
from headrace.types import rfc3339

LISTED, MAX_LISTED = 50, 500
_PAIRS, _MAX_PAIRS = 50, 1000
_FIELD = "field."
_SOURCE = "source"
_TYPE = in_query("entity_type", RequestedId, "the type of the entities, or another name of it")


def limit_parameter(default: int, highest: int) -> Parameter:
    """The query parameter for the length of a page."""
    return in_query("limit", Annotated[int, Meta(ge=1, le=highest)], "how many at most", default=default)


class EntityPage(Struct):
    """Entities in the order in which they came, and the last of them where there are more."""

    entities: list[EntitySnapshot]
    after: Id | None


class SourceReference(Struct):
    """The source that an observation is from, and its address."""

    source_id: str
    #: Its name; null where it was given none, and its id is a hash of its content.
    name: str | None
    href: str


class OriginAnswer(Struct):
    """The event of a stream that an observation was made from; the offset is that after the event."""

    stream: str
    offset: Offset


class ObservationAnswer(Struct, kw_only=True):
    """An observation of an entity."""

    id: str
    kind: Kind
    entity_id: Id
    entity_type: str
    user_id: str
    schema_version: str
    source_id: str | None
    source_priority: int
    observation_source: str
    specificity_score: float | UnsetType = UNSET
    fields: Object
    fragments: list[Fragment]
    canonical_name: str | UnsetType = UNSET
    identity_basis: str | UnsetType = UNSET
    identity_rule: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    details: Object | UnsetType = UNSET
    schema_scope: Annotated[str, Meta(extra_json_schema={"enum": ["global", "user"]})]
    observed_at: When
    ingested_at: When
    source: SourceReference | None
    #: The event that it was made from, where the store request named one.
    origin: OriginAnswer | UnsetType = UNSET
    offset: Offset


class ObservationPage(Struct):
    """Observations of an entity, and the offset of the last of them where there are more."""

    entity_id: Id
    observations: list[ObservationAnswer]
    after: Offset | None


class ProvenanceAnswer(Struct, kw_only=True):
    """The value of a field, and the observations that it is from."""

    entity_id: Id
    entity_type: str
    schema_version: str
    field: str
    value: Any
    observations: list[ObservationAnswer]


class ComparedEntity(Struct, gc=False):
    """One of two entities, and the text that it is compared by."""

    entity_id: Id
    canonical_name: str
    text: str


class SimilarPair(Struct):
    """Two entities that may be the same."""

    similarity: Share
    entities: list[ComparedEntity]


class DuplicatesAnswer(Struct, kw_only=True):
    """Pairs of entities that may be the same, the most similar first."""

    entity_type: str
    threshold: float
    fields: list[str]
    compared: Counter
    duplicates: list[SimilarPair]


class EntityListRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listing, self._snapshots, self._sources = engine.entity_list, engine.snapshots, engine.source_reader

    @route(
        "GET",
        "/v1/entities/{id:entity}",
        "get_unknown_entity",
        "What cannot be the id of an entity",
        READ,
        {},
        fails=(EntityNotFound,),
        parameters=(BY_ID,),
        takes_any_query=True,
        is_documented=False,
    )
    async def unknown(self, request: Request) -> Response:
        """GET of what cannot be the id of an entity."""
        raise EntityNotFound("there is no such entity", entity_id=request.path_params["id"])

    @route(
        "GET",
        "/v1/entities",
        "list_entities",
        "The [entities](#entities) of a user, in the order in which they came",
        READ,
        {200: Answer("a page", EntityPage, (COVERAGE,))},
        fails=(NotFound,),
        parameters=(
            _TYPE,
            in_query("after", RequestedId, "the last entity of the page before"),
            limit_parameter(LISTED, MAX_LISTED),
            in_query("canonical_name", str, "the name of the entity"),
            in_query("search", str, "a part of the name"),
            in_query(_SOURCE, RequestedId, "the name or the id of a source that a value is from"),
            Parameter("query", "field", dict[str, str], f"values of fields: `{_FIELD}<name>=<value>`", prefix=_FIELD),
            FOR_USER,
        ),
    )
    async def page(self, request: Request) -> Response:
        """GET: the entities of a user, in the order in which they came."""
        query, principal = _single_parameters(request), request.state.principal
        principal.require("read")
        wanted = self._read_query(query, principal)
        limit, after = number(query, "limit", LISTED, MAX_LISTED), query.get("after", "")
        if "after" in query and not self._snapshots.groups.has(after, wanted.user_id):
            raise InvalidCursor("after is the id of an entity", field="after")
        page = await self._listing.page(wanted, after, limit)
        shown = [entity for entity in page.entities if _may_read(principal, entity.view.entity_type)]
        return await self._engine.computing.run(0, _listed, shown, page.after)

    def _read_query(self, query: dict[str, str], principal: Principal) -> EntityFilter:
        user_id = user_of(query, principal)
        stream = None if "entity_type" not in query else self._stream(query["entity_type"], user_id, principal)
        fields = {name.removeprefix(_FIELD): _values(text) for name, text in query.items() if name.startswith(_FIELD)}
        search = None if "search" not in query else query["search"].lower()
        return EntityFilter(
            user_id,
            None if stream is None else stream.id,
            query.get("canonical_name"),
            search,
            fields,
            self._read_source(query, user_id),
        )

    def _read_source(self, query: dict[str, str], user_id: str) -> str | None:
        """The id of the source that a list is filtered by; raises where the user has no such source."""
        return None if _SOURCE not in query else self._sources.require(user_id, query[_SOURCE])

    def _stream(self, entity_type: str, user_id: str, principal: Principal) -> Stream:
        name = self._engine.types.resolve(entity_type, user_id)
        admit(principal, name)
        types = self._engine.types
        stream = types.stream(name)
        if stream is None or not (types.sees(name, user_id) or types.entities.page(stream.id, user_id, "", 1)):
            raise EntityNotFound("there is no entity type of this name", entity_type=entity_type)
        return stream

    @route(
        "GET",
        "/v1/entities/{id}/observations",
        "list_observations",
        "What was observed of an entity",
        READ,
        {200: Answer("a page", ObservationPage)},
        fails=(EntityNotFound,),
        parameters=(
            BY_ID,
            in_query("after", str, "the last offset of the page before"),
            limit_parameter(LISTED, MAX_LISTED),
            in_query("order", Literal["newest", "oldest"], "which come first; the newest by default"),
            in_query(_SOURCE, RequestedId, "only those of a source, by its name or its id"),
            FOR_USER,
        ),
    )
    async def observations(self, request: Request) -> Response:
        """GET: what was observed of an entity, the newest first or in order, each with its source."""
        query = _single_parameters(request)
        view = self._view(request, {name: query.pop(name) for name in list(query) if name == "user_id"})
        order = query.get("order", "newest")
        if order not in ("newest", "oldest"):
            raise BadRequest("order is newest or oldest", field="order")
        limit = number(query, "limit", LISTED, MAX_LISTED)
        after = None if "after" not in query else _seq(view.stream, query["after"])
        observed = await self._listing.observations(
            view,
            after,
            limit + 1,
            newest_first=order == "newest",
            source_id=self._read_source(query, view.query.user_id),
        )
        documents = [observation(view, seen) for seen in observed[:limit]]
        following = documents[-1].offset if len(observed) > limit else None
        answer = ObservationPage(view.group.row.entity_id, documents, following)
        return json_response(answer, headers=COMPLETE)

    @route(
        "GET",
        "/v1/entities/{id}/provenance/{field:path}",
        "get_provenance",
        "The observations that a value is from, and their sources",
        READ,
        {200: Answer("the value", ProvenanceAnswer)},
        fails=(EntityNotFound,),
        parameters=(BY_ID, in_path("field", str, "a field of the entity"), *VIEWED),
    )
    async def provenance(self, request: Request) -> Response:
        """GET: the observations that the value of a field is from, and their sources."""
        query, field = _single_parameters(request), request.path_params["field"]
        shown = await self._snapshots.find(read_entity_query(query, request.path_params["id"], request.state.principal))
        admit(request.state.principal, shown.view.entity_type)
        document = snapshot(shown)
        if shown.snapshot is None or field not in shown.snapshot.origins:
            raise EntityNotFound("the entity has no value in this field", entity_id=document.entity_id, field=field)
        ids = [origin.id for origin in shown.snapshot.origins[field]]
        observations = {
            observed.observation.id: observed for observed in await self._listing.observations_by_id(shown.view, ids)
        }
        answer = ProvenanceAnswer(
            entity_id=document.entity_id,
            entity_type=document.entity_type,
            schema_version=document.schema_version,
            field=field,
            value=document.snapshot[field],
            observations=[observation(shown.view, observations[id]) for id in ids if id in observations],
        )
        return json_response(answer, headers=COMPLETE)

    @route(
        "GET",
        "/v1/entities/duplicates",
        "list_duplicates",
        "Pairs of entities that may be the same, the most similar first",
        READ,
        {200: Answer("the pairs", DuplicatesAnswer)},
        fails=(NotFound,),
        parameters=(
            in_query("entity_type", RequestedId, _TYPE.doc, required=True),
            in_query("threshold", Annotated[float, Meta(ge=LEAST, le=1)], "how similar at least"),
            limit_parameter(_PAIRS, _MAX_PAIRS),
            FOR_USER,
        ),
    )
    async def duplicates(self, request: Request) -> Response:
        """GET: pairs of entities of a type that may be the same."""
        query = _single_parameters(request)
        if "entity_type" not in query:
            raise BadRequest("which entity_type is asked for", field="entity_type")
        user_id = user_of(query, request.state.principal)
        stream = self._stream(query["entity_type"], user_id, request.state.principal)
        entity_type = stream.name.removeprefix(ENTITIES)
        effective = self._engine.types.effective(entity_type, user_id)
        definition = None if effective is None else effective.schema.schema_definition
        threshold = _threshold(query, 0.85 if definition is None else definition.duplicate_detection_threshold)
        fields = () if definition is None else definition.duplicate_detection_fields
        limit = number(query, "limit", _PAIRS, _MAX_PAIRS)
        entities: dict[str, ComparedEntity] = {}
        async for page in self._listing.pages(EntityFilter(user_id, stream.id)):
            entities |= await self._engine.computing.run(0, _compared, page, fields)
        timeout_s = self._engine.config.server.resolver_timeout_s
        work = partial(_compare, entity_type, entities, fields, threshold, limit)
        return await self._engine.computing.plan(timeout_s, work)

    def _view(self, request: Request, query: dict[str, str]) -> EntityView:
        view = self._snapshots.view(read_entity_query(query, request.path_params["id"], request.state.principal))
        admit(request.state.principal, view.entity_type)
        return view


def _listed(shown: list[EntityAnswer], after: str | None) -> Response:
    return json_response(EntityPage([snapshot(entity) for entity in shown], after), headers=COMPLETE)


def _compared(page: list[EntityAnswer], fields: tuple[str, ...]) -> dict[str, ComparedEntity]:
    """The texts that some entities are compared by; those without any are not compared."""
    documents = [snapshot(entity) for entity in page]
    return {
        document.entity_id: ComparedEntity(document.entity_id, str(document.canonical_name), text)
        for document in documents
        if (text := _text(document, fields))
    }


def _compare(
    entity_type: str, entities: dict[str, ComparedEntity], fields: tuple[str, ...], threshold: float, limit: int
) -> Response:
    """The pairs of some entities that may be the same."""
    texts = {id: entity.text for id, entity in entities.items()}
    answer = DuplicatesAnswer(
        entity_type=entity_type,
        threshold=threshold,
        fields=list(fields),
        compared=len(texts),
        duplicates=[
            SimilarPair(pair.similarity, [entities[pair.left], entities[pair.right]])
            for pair in find_duplicates(texts, threshold, limit)
        ],
    )
    return json_response(answer, headers=COMPLETE)


def observation(view: EntityView, observed: StoredObservation) -> ObservationAnswer:
    """One observation as it is answered, with the address of its source."""
    stored = observed.observation
    document: dict[str, Any] = msgspec.to_builtins(stored)
    del document["observed_at_us"]
    document |= {"fields": stored.fields, "fragments": stored.fragments}
    return ObservationAnswer(
        **document,
        schema_scope=stored.schema_scope,
        observed_at=rfc3339(stored.observed_at_us),
        ingested_at=rfc3339(observed.at_us),
        source=_source(stored.source_id),
        origin=_origin(stored.details),
        offset=view.stream.offset_at(observed.seq + 1),
    )


def _origin(details: dict[str, Any]) -> OriginAnswer | UnsetType:
    origin = details.get("meta", {}).get("origin")
    return UNSET if origin is None else OriginAnswer(origin["stream"], origin["offset"])


def _source(source_id: str | None) -> SourceReference | None:
    if source_id is None:
        return None
    return SourceReference(source_id, name_of(source_id), f"/v1/sources/{quote(source_id, safe='')}")


def number(query: dict[str, str], name: str, default: int, maximum: int) -> int:
    """A parameter that is a number from 1 on."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):
        raise BadRequest(f"{name} is a number from 1 to {maximum}", field=name)
    return int(text)


def _single_parameters(request: Request) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in parameters:
            raise BadRequest(f"{name} is given more than once", field=name)
        parameters[name] = value
    return parameters


def _values(text: str) -> list[Any]:
    """The values that a text may mean: the text itself, and the JSON value that it encodes."""
    try:
        return [text, msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError):
        return [text]


def _seq(stream: Stream, cursor: str) -> int:
    try:
        offset = offsets.decode(cursor)
        stream.locate(offset)
    except (ValueError, OffsetGone) as reason:
        raise InvalidCursor("after is the offset of an observation", field="after") from reason
    return offset.position - 1


def _may_read(principal: Principal, entity_type: str) -> bool:
    return principal is LOCAL or ("read" in principal.scopes and principal.covers(ENTITIES + entity_type))


def _threshold(query: dict[str, str], default: float) -> float:
    try:
        threshold = float(query.get("threshold", default))
    except ValueError:
        threshold = 0.0
    if not LEAST <= threshold <= 1:
        raise BadRequest(f"threshold is a number from {LEAST} to 1", field="threshold")
    return threshold


def _text(document: EntitySnapshot, fields: tuple[str, ...]) -> str:
    """The text that an entity is compared by: some of its fields, else its name without the type."""
    if not fields:
        return str(document.canonical_name).partition(":")[2]
    return " ".join(text for name in fields if (text := name_part(document.snapshot.get(name))) is not None)
