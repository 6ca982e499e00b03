"""``POST /v1/observations``: what is known of entities, stored whole or not at all; answered on the hot path.

And what somebody decides about one entity, ``POST /v1/entities/{id}/correct``, ``/delete`` and ``/restore``; and what
a request has brought, ``GET /v1/sources/{id}``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.entities.entity_store import MAX_ATTEMPTS, RequestTypes
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.write.decisions import Decision, DecisionKind, StoreDecision
from headrace.engine.entities.write.store_observations import StoreObservations, TypesOutdated
from headrace.engine.runtime.gates import LONG_BYTES
from headrace.errors import AppendTimedOut, BadRequest, UnsupportedMedia
from headrace.schema.entity import request as entity_request
from headrace.schema.entity.request import Name, StoreRequest
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import JSON_TYPE, Reply
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.request import Request
from headrace.server.http.starlette_json import json_response, read_body, require_json
from headrace.types import JSON

_BODY_BYTES = 1024 * 1024
#: The most fields that are corrected at once.
MOST_FIELDS = 1_000
TIMED_OUT = "the request timed out and its outcome is unknown; the same request again stores nothing twice"
_REPLAYED = {"idempotency-replayed": "true"}


class _Stored(msgspec.Struct):
    """A request on its way, to be accepted again if need be."""

    request: Request
    store_request: StoreRequest
    tries: int


class ObservationRoute:
    """Answers requests on ``/v1/observations``."""

    def __init__(self, engine: Engine) -> None:
        self._stores = engine.entity_store
        self._background, self._computing = BackgroundRequests(engine.writer.damage), engine.computing
        self._when_settled = self._settled

    def post(self, request: Request) -> None:
        """POST: store observations of entities of any types, and acknowledge them once they are on disk."""
        if request.head.media_type != JSON:
            raise UnsupportedMedia("entities are stored as application/json", field="Content-Type")
        refuse_unknown_parameters(request.query)
        user_id = request.principal.user_id
        if len(request.body) > LONG_BYTES:
            self._background.begin(request.exchange, self._read_in_background(request, user_id))
            return
        store_request = entity_request.read_store_request(request.body, user_id)
        request_types = self._look_up(request.principal, store_request)
        if request_types.unknown and store_request.envelope.commit:
            self._background.begin(request.exchange, self._store_in_background(request, store_request))
            return
        write = self._stores.make_write(store_request, request_types)
        self._stores.submit(
            write, write.prepare(request_types.resolved), self._when_settled, _Stored(request, store_request, 1)
        )

    async def _read_in_background(self, request: Request, user_id: str) -> None:
        """Read and accept a long body in a thread, while others are served."""
        store_request = await self._computing.run(
            len(request.body), entity_request.read_store_request, request.body, user_id
        )
        await self._store_in_background(request, store_request)

    async def _store_in_background(self, request: Request, store_request: StoreRequest, tries: int = 1) -> None:
        request_types = self._look_up(request.principal, store_request)
        write = self._stores.make_write(store_request, request_types)
        if request_types.unknown and store_request.envelope.commit:
            await self._stores.ensure_schemas(store_request, request_types)
            request_types = self._look_up(request.principal, store_request)
        with request_types.held():
            prepared = await self._computing.run(len(request.body), write.prepare, request_types.resolved)
            self._stores.submit(write, prepared, self._when_settled, _Stored(request, store_request, tries))

    def _look_up(self, principal: Principal, store_request: StoreRequest) -> RequestTypes:
        principal.acting_for(store_request.user_id)
        request_types = self._stores.resolve_types(store_request)
        if principal is not LOCAL:
            for name in request_types.resolved:
                principal.require_type("write", name)
        return request_types

    def _settled(self, observe: StoreObservations) -> None:
        stored: _Stored = observe.caller
        exchange = stored.request.exchange
        if not observe.settled:
            exchange.reply(Reply.failure(AppendTimedOut(TIMED_OUT)))
        elif observe.expired:
            pass  # it was told so
        elif isinstance(observe.error, TypesOutdated) and stored.tries < MAX_ATTEMPTS:
            self._background.begin(
                exchange, self._store_in_background(stored.request, stored.store_request, stored.tries + 1)
            )
        elif observe.error is not None:
            exchange.reply(Reply.failure(observe.error))
        else:
            exchange.reply_json(observe.body, _REPLAYED if observe.replayed else None)


class EntityDecisionBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is said with a decision about an entity; its type, where it is given, must be that of the entity."""

    entity_type: Name | None = None
    idempotency_key: Name | None = None
    #: For whom an admin decides.
    user_id: Name | None = None


class CorrectionBody(EntityDecisionBody, forbid_unknown_fields=True, kw_only=True):
    """What one field is, or several are; null says that there is none."""

    field: Name | UnsetType = UNSET
    value: Any = UNSET
    fields: Annotated[dict[str, Any], msgspec.Meta(min_length=1, max_length=MOST_FIELDS)] | UnsetType = UNSET

    def corrections(self) -> dict[str, Any]:
        """The fields and what they are."""
        if self.fields is not UNSET and self.field is UNSET and self.value is UNSET:
            return self.fields
        if self.field is UNSET or self.value is UNSET or self.fields is not UNSET:
            raise BadRequest("a correction has a field and its value, or fields", field="field")
        return {self.field: self.value}


def routes(engine: Engine) -> list[Route]:
    """Every route of this file that is not on the hot path."""
    api = ObservationDecisionRoutes(engine)
    return [
        Route("/v1/entities/{id}/correct", api.correct, methods=["POST"]),
        Route("/v1/entities/{id}/delete", api.delete, methods=["POST"]),
        Route("/v1/entities/{id}/restore", api.restore, methods=["POST"]),
        Route("/v1/sources/{id:path}", SourceRoute(engine).get, methods=["GET"]),
    ]


class ObservationDecisionRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stores = engine.entity_store

    async def correct(self, request: HttpRequest) -> Response:
        """POST: what fields of an entity are, whatever was observed."""
        body = await _read(request, CorrectionBody)
        corrections = body.corrections()
        for name, value in corrections.items():
            if (reason := entity_request.find_unstorable_value(value)) is not None:
                raise BadRequest(f"{name!r} {reason}", field=name)
        return await self._decide(request, "correction", body, corrections)

    async def delete(self, request: HttpRequest) -> Response:
        """POST: the entity is not there any more, until it is restored."""
        return await self._decide(request, "deletion", await _read(request, EntityDecisionBody), {})

    async def restore(self, request: HttpRequest) -> Response:
        """POST: the entity is there again."""
        return await self._decide(request, "restoration", await _read(request, EntityDecisionBody), {})

    async def _decide(
        self, request: HttpRequest, kind: DecisionKind, body: EntityDecisionBody, corrections: dict[str, Any]
    ) -> Response:
        principal: Principal = request.state.principal
        user_id = principal.acting_for(body.user_id)
        entity_id = request.path_params["id"]
        row, entity_type = self._stores.find(entity_id, user_id)
        principal.require_type("write", entity_type)
        if body.entity_type is not None and body.entity_type != entity_type:
            raise BadRequest(f"{entity_id} is of the type {entity_type}", field="entity_type")
        decision = Decision(
            kind=kind,
            entity_id=entity_id,
            entity_type=entity_type,
            canonical_name=row.canonical_name,
            user_id=user_id,
            at_us=self._engine.clock.now_us(),
            fields=corrections,
            idempotency_key=body.idempotency_key,
        )
        observe = await self._stores.store(
            StoreDecision(decision), lambda: self._stores.require_type(entity_type, user_id)
        )
        headers = {"content-type": JSON_TYPE, "cache-control": "no-store"}
        if observe.replayed:
            headers["idempotency-replayed"] = "true"
        return Response(observe.body, headers=headers)


async def _read(request: HttpRequest, kind: Any) -> Any:
    refuse_unknown_parameters(request.query_params)
    body = await read_body(request, limit=_BODY_BYTES)
    if not body and kind is EntityDecisionBody:
        return EntityDecisionBody()
    require_json(request)
    return entity_request.convert(entity_request.parse_document(body), kind, "")


class SourceRoute:
    """Reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._source_reader = engine.source_reader

    async def get(self, request: HttpRequest) -> Response:
        """GET: the entities of a source, and the observations that they became."""
        refuse_unknown_parameters(request.query_params, "user_id")
        principal: Principal = request.state.principal
        user_id = principal.acting_for(request.query_params.get("user_id"))
        source_id = request.path_params["id"]
        places = self._source_reader.find_parts(user_id, source_id)
        for stored_place in places:
            if stored_place.stream is not None:
                principal.require_type("read", stored_place.stream.name.removeprefix(ENTITIES))
        return json_response(await asyncio.to_thread(self._source_reader.read, user_id, source_id, places))
