"""``/v1/entities``: lists of entities, the observations of one, where its values are from, and which are the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.read.entity_list import EntityFilter
from headrace.engine.entities.read.observations import StoredObservation
from headrace.engine.entities.read.snapshots import EntityAnswer, EntityView
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest, EntityNotFound, InvalidCursor, OffsetGone
from headrace.format import offset as offsets
from headrace.reduce.duplicates import LEAST, Pair, find_duplicates
from headrace.schema.entity.identity import name_part
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.starlette_json import json_response
from headrace.server.routes.entities import admit, asked_of, snapshot, user_of
from headrace.types import rfc3339

LISTED, MOST_LISTED = 50, 500
PAIRS, MOST_PAIRS = 50, 1000
FIELD = "field."
_COMPLETE = {"headrace-coverage": "complete"}


class EntityIdConvertor(StringConvertor):
    """What may be the id of an entity: none of the words that have addresses of their own there, with other verbs."""

    regex = "(?!(?:duplicates|merge|split)$)[^/]+"


register_url_convertor("entity", EntityIdConvertor())


def routes(engine: Engine) -> list[Route]:
    """Every Starlette route of this module; single entities are read on the hot path."""
    api = EntityListRoutes(engine)
    return [
        Route("/v1/entities", api.page, methods=["GET"]),
        Route("/v1/entities/duplicates", api.duplicates, methods=["GET"]),
        Route("/v1/entities/{id}/observations", api.observations, methods=["GET"]),
        Route("/v1/entities/{id}/provenance/{field:path}", api.provenance, methods=["GET"]),
        Route("/v1/entities/{id:entity}", api.unknown, methods=["GET"]),
    ]


class EntityListRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listing, self._snapshots = engine.entity_list, engine.snapshots

    async def unknown(self, request: Request) -> Response:
        """GET of what cannot be the id of an entity."""
        raise EntityNotFound("there is no such entity", entity_id=request.path_params["id"])

    async def page(self, request: Request) -> Response:
        """GET: the entities of a user, in the order in which they came."""
        query, principal = _single_parameters(request), request.state.principal
        principal.require("read")
        wanted = self._read_query(query, principal)
        limit, after = number(query, "limit", LISTED, MOST_LISTED), query.get("after", "")
        if "after" in query and not self._snapshots.groups.has(after, wanted.user_id):
            raise InvalidCursor("after is the id of an entity", field="after")
        page = await self._listing.page(wanted, after, limit)
        shown = [entity for entity in page.entities if _may_read(principal, entity.view.entity_type)]
        return await self._engine.computing.run(0, _listed, shown, page.after)

    def _read_query(self, query: dict[str, str], principal: Principal) -> EntityFilter:
        parameters = {"entity_type", "canonical_name", "search", "after", "limit", "user_id"}
        for name in query:
            if name not in parameters and not name.startswith(FIELD):
                raise BadRequest(f"there is no parameter {name} here", field=name)
        user_id = user_of(query, principal)
        stream = None if "entity_type" not in query else self._stream(query["entity_type"], user_id, principal)
        fields = {name.removeprefix(FIELD): _values(text) for name, text in query.items() if name.startswith(FIELD)}
        search = None if "search" not in query else query["search"].lower()
        return EntityFilter(user_id, None if stream is None else stream.id, query.get("canonical_name"), search, fields)

    def _stream(self, entity_type: str, user_id: str, principal: Principal) -> Stream:
        name = self._engine.types.resolve(entity_type, user_id)
        admit(principal, name)
        types = self._engine.types
        stream = types.stream(name)
        if stream is None or not (types.sees(name, user_id) or types.entities.page(stream.id, user_id, "", 1)):
            raise EntityNotFound("there is no entity type of this name", entity_type=entity_type)
        return stream

    async def observations(self, request: Request) -> Response:
        """GET: what was observed of an entity, the newest first or in order, each with its source."""
        query = _single_parameters(request)
        view = self._view(request, {name: query.pop(name) for name in list(query) if name == "user_id"})
        refuse_unknown_parameters(query, "after", "limit", "order")
        order = query.get("order", "newest")
        if order not in ("newest", "oldest"):
            raise BadRequest("order is newest or oldest", field="order")
        limit = number(query, "limit", LISTED, MOST_LISTED)
        after = None if "after" not in query else _seq(view.stream, query["after"])
        observed = await self._listing.observations(view, after, limit + 1, newest_first=order == "newest")
        documents = [observation(view, seen) for seen in observed[:limit]]
        following = documents[-1]["offset"] if len(observed) > limit else None
        answer = {"entity_id": view.group.row.entity_id, "observations": documents, "after": following}
        return json_response(answer, headers=_COMPLETE)

    async def provenance(self, request: Request) -> Response:
        """GET: the observations that the value of a field is from, and their sources."""
        query, field = _single_parameters(request), request.path_params["field"]
        shown = await self._snapshots.find(asked_of(query, request.path_params["id"], request.state.principal))
        admit(request.state.principal, shown.view.entity_type)
        document = snapshot(shown)
        if shown.snapshot is None or field not in shown.snapshot.origins:
            raise EntityNotFound("the entity has no value in this field", entity_id=document["entity_id"], field=field)
        ids = [said.id for said in shown.snapshot.origins[field]]
        observations = {
            observed.observation.id: observed for observed in await self._listing.observations_by_id(shown.view, ids)
        }
        facts = {name: document[name] for name in ("entity_id", "entity_type", "schema_version")}
        values = [observation(shown.view, observations[id]) for id in ids if id in observations]
        answer = {**facts, "field": field, "value": document["snapshot"][field], "observations": values}
        return json_response(answer, headers=_COMPLETE)

    async def duplicates(self, request: Request) -> Response:
        """GET: pairs of entities of a type that may be the same."""
        query = _single_parameters(request)
        refuse_unknown_parameters(query, "entity_type", "threshold", "limit", "user_id")
        if "entity_type" not in query:
            raise BadRequest("which entity_type is asked for", field="entity_type")
        user_id = user_of(query, request.state.principal)
        stream = self._stream(query["entity_type"], user_id, request.state.principal)
        entity_type = stream.name.removeprefix(ENTITIES)
        effective = self._engine.types.effective(entity_type, user_id)
        definition = None if effective is None else effective.schema.schema_definition
        threshold = _threshold(query, 0.85 if definition is None else definition.duplicate_detection_threshold)
        fields = () if definition is None else definition.duplicate_detection_fields
        every = await self._listing.every(EntityFilter(user_id, stream.id))
        limit = number(query, "limit", PAIRS, MOST_PAIRS)
        facts = {"entity_type": entity_type, "threshold": threshold, "fields": list(fields)}
        patience_s = self._engine.config.server.resolver_timeout_s
        work = partial(_compared, every, fields, threshold, limit, facts)
        return await self._engine.computing.plan(patience_s, work)

    def _view(self, request: Request, query: dict[str, str]) -> EntityView:
        view = self._snapshots.view(asked_of(query, request.path_params["id"], request.state.principal))
        admit(request.state.principal, view.entity_type)
        return view


def _listed(shown: list[EntityAnswer], after: str | None) -> Response:
    return json_response({"entities": [snapshot(entity) for entity in shown], "after": after}, headers=_COMPLETE)


def _compared(
    every: list[EntityAnswer], fields: tuple[str, ...], threshold: float, limit: int, facts: dict[str, Any]
) -> Response:
    """The pairs of some entities that may be the same."""
    named = {entity.view.group.row.entity_id: snapshot(entity) for entity in every}
    texts = {id: text for id, document in named.items() if (text := _text(document, fields))}
    pairs = [_pair(pair, named, texts) for pair in find_duplicates(texts, threshold, limit)]
    return json_response({**facts, "compared": len(texts), "duplicates": pairs}, headers=_COMPLETE)


def observation(view: EntityView, observed: StoredObservation) -> dict[str, Any]:
    """One observation as a JSON document, with the address of its source."""
    stored = observed.observation
    document: dict[str, Any] = msgspec.to_builtins(stored)
    document.pop("observed_at_us")
    source = (
        None if stored.source_id is None else {"source_id": stored.source_id, "href": f"/v1/sources/{stored.source_id}"}
    )
    times = {"observed_at": rfc3339(stored.observed_at_us), "ingested_at": rfc3339(observed.at_us)}
    facts = {
        "schema_scope": stored.schema_scope,
        "fields": stored.fields,
        "fragments": msgspec.to_builtins(stored.fragments),
    }
    return {**document, **facts, **times, "source": source, "offset": view.stream.offset_at(observed.seq + 1)}


def number(query: dict[str, str], name: str, default: int, most: int) -> int:
    """A parameter that is a number from 1 on."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise BadRequest(f"{name} is a number from 1 to {most}", field=name)
    return int(text)


def _single_parameters(request: Request) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in parameters:
            raise BadRequest(f"{name} is given more than once", field=name)
        parameters[name] = value
    return parameters


def _values(text: str) -> list[Any]:
    """What a text may stand for: itself, and the JSON value that it spells."""
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


def _text(snapshot: dict[str, Any], fields: tuple[str, ...]) -> str:
    """What an entity is compared by: some of its fields, else its name without the type."""
    if not fields:
        return str(snapshot["canonical_name"]).partition(":")[2]
    return " ".join(text for name in fields if (text := name_part(snapshot["snapshot"].get(name))) is not None)


def _pair(pair: Pair, named: dict[str, dict[str, Any]], texts: dict[str, str]) -> dict[str, Any]:
    both = [
        {"entity_id": id, "canonical_name": named[id]["canonical_name"], "text": texts[id]}
        for id in (pair.left, pair.right)
    ]
    return {"similarity": pair.similarity, "entities": both}
