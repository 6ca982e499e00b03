"""``POST /v1/observations``: what is known of entities, stored whole or not at all; answered on the hot path.

And what somebody decides about one entity, ``POST /v1/entities/{id}/correct``, ``/delete`` and ``/restore``; and what
a request has brought, ``GET /v1/sources/{id}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.entities.entity_store import MAX_ATTEMPTS, RequestTypes
from headrace.engine.entities.entity_type import ENTITIES
from headrace.engine.entities.read.source_reader import SourceSummary
from headrace.engine.entities.write.decisions import Decision, DecisionAnswer, DecisionKind, StoreDecision
from headrace.engine.entities.write.store_observations import StoreObservations, TypesOutdated
from headrace.engine.runtime.gates import LONG_BYTES
from headrace.errors import AppendTimedOut, BadRequest, Conflict, NotFound, TooLarge, UnsupportedMedia
from headrace.schema.entity import request as entity_request
from headrace.schema.entity.request import MAX_ENTITIES, Name, RequestOptions, StoreAnswer, StoreRequest, UserName
from headrace.server.http.auth import LOCAL, Principal
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import JSON_TYPE, Reply
from headrace.server.http.request import Request
from headrace.server.http.route import READ, WRITE, Answer, Body, Header, Verb, in_path, in_query, one_of, route
from headrace.server.http.starlette_json import json_response, read_body, require_json
from headrace.server.http.wire import IsTrue, NonEmpty, User
from headrace.server.routes.entities import BY_ID
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.types import JSON

_MAX_BYTES = 1024 * 1024
#: The most fields that are corrected at once.
MAX_FIELDS = 1_000
TIMED_OUT = "the request timed out and its outcome is unknown; the same request again stores nothing twice"
_REPLAYED = {"idempotency-replayed": "true"}


_REPLAYED_HEADER = Header("Idempotency-Replayed", IsTrue, "the request was answered before, and is answered the same")


class GivenEntity(msgspec.Struct, kw_only=True):
    """The fields of an entity by name, and options of it besides."""

    entity_type: NonEmpty
    options: entity_request.Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)


class ObservationsBody(RequestOptions, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Entities, and options of all of them; ``schema.entity.request`` reads it without losing a digit."""

    entities: Annotated[list[GivenEntity], Meta(min_length=1, max_length=MAX_ENTITIES)]


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

    @route(
        "POST",
        "/v1/observations",
        "store_observations",
        "Store what is known of [entities](#entities): all of it, or nothing",
        WRITE,
        {200: Answer("all of it is on disk, or would be", StoreAnswer, (_REPLAYED_HEADER,))},
        fails=(Conflict, *BAD_BODY),
        body=Body(ObservationsBody),
        is_hot=True,
    )
    def post(self, request: Request) -> None:
        """POST: store observations of entities of any types, and acknowledge them once they are on disk."""
        if request.head.media_type != JSON:
            raise UnsupportedMedia("entities are stored as application/json", field="Content-Type")
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
    user_id: UserName | None = None


class CorrectionBody(EntityDecisionBody, forbid_unknown_fields=True, kw_only=True):
    """What one field is, or several are; null says that there is none."""

    field: Name | UnsetType = UNSET
    value: Any = UNSET
    fields: Annotated[dict[str, Any], Meta(min_length=1, max_length=MAX_FIELDS)] | UnsetType = UNSET

    def corrections(self) -> dict[str, Any]:
        """The fields and what they are."""
        if self.fields is not UNSET and self.field is UNSET and self.value is UNSET:
            return self.fields
        if self.field is UNSET or self.value is UNSET or self.fields is not UNSET:
            raise BadRequest("a correction has a field and its value, or fields", field="field")
        return {self.field: self.value}


class FieldCorrection(EntityDecisionBody, forbid_unknown_fields=True, kw_only=True):
    """What one field is; null says that there is nothing."""

    field: Name
    value: Any


class FieldCorrections(EntityDecisionBody, forbid_unknown_fields=True, kw_only=True):
    """What several fields are."""

    fields: Annotated[dict[str, Any], Meta(min_length=1, max_length=MAX_FIELDS)]


def _deciding(verb: str, name: str, doc: str, body: Body) -> Callable[[Verb], Verb]:
    """A POST by which somebody decides about an entity."""
    answers = {200: Answer("it is on disk", DecisionAnswer, (_REPLAYED_HEADER,))}
    fails = (NotFound, Conflict, *BAD_BODY)
    at = "/v1/entities/{id}/" + verb
    return route("POST", at, name, doc, WRITE, answers, fails=fails, parameters=(BY_ID,), body=body)


_OPTIONAL = Body(EntityDecisionBody, _MAX_BYTES, required=False, needs_type=False)


class ObservationDecisionRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stores = engine.entity_store

    @_deciding(
        "correct",
        "correct_entity",
        "Say what fields of an entity are",
        Body(one_of(FieldCorrection, FieldCorrections), _MAX_BYTES, needs_type=False),
    )
    async def correct(self, request: HttpRequest) -> Response:
        """POST: what fields of an entity are, whatever was observed."""
        body = await _read(request, CorrectionBody)
        corrections = body.corrections()
        for name, value in corrections.items():
            if (reason := entity_request.find_unstorable_value(value)) is not None:
                raise BadRequest(f"{name!r} {reason}", field=name)
        return await self._decide(request, "correction", body, corrections)

    @_deciding("delete", "delete_entity", "Let an entity be deleted", _OPTIONAL)
    async def delete(self, request: HttpRequest) -> Response:
        """POST: the entity is not there any more, until it is restored."""
        return await self._decide(request, "deletion", await _read(request, EntityDecisionBody), {})

    @_deciding("restore", "restore_entity", "Let a deleted entity be there again", _OPTIONAL)
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
    body = await read_body(request)
    if not body and kind is EntityDecisionBody:
        return EntityDecisionBody()
    require_json(request)
    return entity_request.convert(entity_request.parse_document(body), kind, "")


class SourceRoute:
    """Reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._source_reader = engine.source_reader

    @route(
        "GET",
        "/v1/sources/{id:path}",
        "get_source",
        "What a request brought, as it was given",
        READ,
        {200: Answer("the entities, and the observations that they became", SourceSummary)},
        fails=(NotFound, TooLarge),
        parameters=(
            in_path("id", str, "the id of a source"),
            in_query("user_id", User, "whose source it is; for admins"),
        ),
    )
    async def get(self, request: HttpRequest) -> Response:
        """GET: the entities of a source, and the observations that they became."""
        principal: Principal = request.state.principal
        user_id = principal.acting_for(request.query_params.get("user_id"))
        source_id = request.path_params["id"]
        parts = self._source_reader.find_parts(user_id, source_id)
        for stored_part in parts:
            if stored_part.stream is not None:
                principal.require_type("read", stored_part.stream.name.removeprefix(ENTITIES))
        return json_response(await asyncio.to_thread(self._source_reader.read, user_id, source_id, parts))
