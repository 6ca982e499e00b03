"""``POST /v1/observations``: what is known of entities, stored whole or not at all; answered on the hot path.

And what somebody decides about one entity: ``POST /v1/entities/{id}/correct``, ``/delete`` and ``/restore``.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.entities.write.correcting import Deciding, Decision, Deed
from headrace.engine.entities.write.observing import Observe, Outdated
from headrace.engine.entities.write.stores import TRIES, Found
from headrace.engine.runtime.computing import LONG_BYTES
from headrace.errors import (
    AppendTimedOut,
    BadRequest,
    UnsupportedMedia,
)
from headrace.schema.entity import request as asking
from headrace.schema.entity.request import Name, StoreRequest
from headrace.server.aside import Aside
from headrace.server.auth import LOCAL, Principal
from headrace.server.bodies import body_of, require_json
from headrace.server.exchange import JSON_TYPE, Reply, Request
from headrace.server.values import only
from headrace.types import JSON

_BODY_BYTES = 1024 * 1024
#: The most fields that are corrected at once.
MOST_FIELDS = 1_000
TIMED_OUT = "the request timed out and its outcome is unknown; the same request again stores nothing twice"
_REPLAYED = "idempotency-replayed: true\r\n"


class _Stored(msgspec.Struct):
    """A request on its way, to be accepted again if need be."""

    request: Request
    asked: StoreRequest
    tries: int


class Observations:
    """Answers requests on ``/v1/observations``."""

    def __init__(self, engine: Engine) -> None:
        self._stores = engine.stores
        self._aside, self._computing = Aside(engine.writer.damage), engine.computing
        self._when_settled = self._settled

    def post(self, request: Request) -> None:
        """POST: store observations of entities of any types, and acknowledge them once they are on disk."""
        if request.head.media_type != JSON:
            raise UnsupportedMedia("entities are stored as application/json", field="Content-Type")
        only(request.query)
        user_id = request.principal.user_id
        if len(request.body) > LONG_BYTES:
            self._aside.begin(request.exchange, self._read_aside(request, user_id))
            return
        asked = asking.read(request.body, user_id)
        found = self._look(request.principal, asked)
        if found.unknown and asked.envelope.commit:
            self._aside.begin(request.exchange, self._store_aside(request, asked))
            return
        wish = self._stores.storing(asked, found)
        self._stores.submit(wish, wish.prepare(found.typed), self._when_settled, _Stored(request, asked, 1))

    async def _read_aside(self, request: Request, user_id: str) -> None:
        """Read and accept a long body in a thread, while others are served."""
        asked = await self._computing.run(len(request.body), asking.read, request.body, user_id)
        await self._store_aside(request, asked)

    async def _store_aside(self, request: Request, asked: StoreRequest, tries: int = 1) -> None:
        found = self._look(request.principal, asked)
        wish = self._stores.storing(asked, found)
        if found.unknown and asked.envelope.commit:
            await self._stores.ensure(asked, found)
            found = self._look(request.principal, asked)
        with found.held():
            prepared = await self._computing.run(len(request.body), wish.prepare, found.typed)
            self._stores.submit(wish, prepared, self._when_settled, _Stored(request, asked, tries))

    def _look(self, principal: Principal, asked: StoreRequest) -> Found:
        principal.acting_for(asked.user_id)
        found = self._stores.look(asked)
        if principal is not LOCAL:
            for name in found.typed:
                principal.require_type("write", name)
        return found

    def _settled(self, observe: Observe) -> None:
        stored: _Stored = observe.caller
        exchange = stored.request.exchange
        if not observe.settled:
            exchange.reply(Reply.failure(AppendTimedOut(TIMED_OUT)))
        elif observe.expired:
            pass  # it was told so
        elif isinstance(observe.error, Outdated) and stored.tries < TRIES:
            self._aside.begin(exchange, self._store_aside(stored.request, stored.asked, stored.tries + 1))
        elif observe.error is not None:
            exchange.reply(Reply.failure(observe.error))
        else:
            exchange.told(observe.body, _REPLAYED if observe.replayed else "")


class DecisionBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is said with a decision about an entity; its type, where it is given, must be that of the entity."""

    entity_type: Name | None = None
    idempotency_key: Name | None = None
    #: For whom an admin decides.
    user_id: Name | None = None


class CorrectionBody(DecisionBody, forbid_unknown_fields=True, kw_only=True):
    """What one field is, or several are; null says that there is none."""

    field: Name | UnsetType = UNSET
    value: Any = UNSET
    fields: Annotated[dict[str, Any], msgspec.Meta(min_length=1, max_length=MOST_FIELDS)] | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """The fields and what they are."""
        if self.fields is not UNSET and self.field is UNSET and self.value is UNSET:
            return self.fields
        if self.field is UNSET or self.value is UNSET or self.fields is not UNSET:
            raise BadRequest("a correction has a field and its value, or fields", field="field")
        return {self.field: self.value}


def routes(engine: Engine) -> list[Route]:
    """Every route of this file that is not on the hot path."""
    api = Api(engine)
    return [
        Route("/v1/entities/{id}/correct", api.correct, methods=["POST"]),
        Route("/v1/entities/{id}/delete", api.delete, methods=["POST"]),
        Route("/v1/entities/{id}/restore", api.restore, methods=["POST"]),
    ]


class Api:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stores = engine.stores

    async def correct(self, request: HttpRequest) -> Response:
        """POST: what fields of an entity are, whatever was observed."""
        body = await _read(request, CorrectionBody)
        given = body.given()
        for name, value in given.items():
            if (reason := asking.find_flaw(value)) is not None:
                raise BadRequest(f"{name!r} {reason}", field=name)
        return await self._decide(request, "correction", body, given)

    async def delete(self, request: HttpRequest) -> Response:
        """POST: the entity is not there any more, until it is restored."""
        return await self._decide(request, "deletion", await _read(request, DecisionBody), {})

    async def restore(self, request: HttpRequest) -> Response:
        """POST: the entity is there again."""
        return await self._decide(request, "restoration", await _read(request, DecisionBody), {})

    async def _decide(self, request: HttpRequest, kind: Deed, body: DecisionBody, given: dict[str, Any]) -> Response:
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
            given=given,
            idempotency_key=body.idempotency_key,
        )
        observe = await self._stores.carry_out(Deciding(decision), lambda: self._stores.held(entity_type, user_id))
        headers = {"content-type": JSON_TYPE, "cache-control": "no-store"}
        if observe.replayed:
            headers["idempotency-replayed"] = "true"
        return Response(observe.body, headers=headers)


async def _read(request: HttpRequest, kind: Any) -> Any:
    only(request.query_params)
    body = await body_of(request, limit=_BODY_BYTES)
    if not body and kind is DecisionBody:
        return DecisionBody()
    require_json(request)
    return asking.convert(asking.parse_document(body), kind, "")
