"""``POST /v1/entities/{id}/erase`` and ``/v1/erasures``: entities that are removed for good."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.entities.erasure.erasure_plan import ErasurePlan
from headrace.engine.entities.read.snapshots import EntityQuery
from headrace.errors import BadRequest, InvalidCursor
from headrace.extract.erasure import load
from headrace.server.http.auth import Principal
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.starlette_json import json_response, read_json, require_json
from headrace.server.routes.entities import admit, user_of
from headrace.server.routes.entity_relations import EntityChangeBody
from headrace.storage.background_requests import ErasureRow
from headrace.types import rfc3339

LISTED, MOST_LISTED = 50, 500
_BODY_BYTES = 16 * 1024


class EraseBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Whether only the plan is wanted."""

    dry_run: bool = False


def routes(engine: Engine) -> list[Route]:
    """Every route of this file."""
    api = ErasureRoutes(engine)
    return [
        Route("/v1/entities/{id}/erase", api.erase, methods=["POST"]),
        Route("/v1/erasures", api.page, methods=["GET"]),
        Route("/v1/erasures/{id}", api.get, methods=["GET"]),
    ]


class ErasureRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._erasing, self._snapshots = engine.erasure, engine.snapshots

    async def erase(self, request: Request) -> Response:
        """POST: remove an entity for good, or tell what that would remove."""
        refuse_unknown_parameters(request.query_params)
        require_json(request)
        body = await read_json(request, EraseBody, limit=_BODY_BYTES)
        entity_id, user_id = request.path_params["id"], self._admitted(request, body)
        if body.dry_run:
            plan = await self._erasing.plan(entity_id, user_id)
            return json_response({"dry_run": True, "entity_id": entity_id, "plan": _plan(plan)})
        begun = await self._erasing.begin(entity_id, user_id)
        return json_response(_erasure_document(begun), status=202, headers={"location": f"/v1/erasures/{begun.id}"})

    async def get(self, request: Request) -> Response:
        """GET: how far an erasure is, and what came of it."""
        erasure = self._erasing.find(request.path_params["id"], self._reader(request))
        admit(request.state.principal, load(erasure.targets).entity_type)
        return json_response(_erasure_document(erasure))

    async def page(self, request: Request) -> Response:
        """GET: the erasures of a user, the newest first."""
        user_id, query = self._reader(request, "after", "limit"), request.query_params
        request.state.principal.require("read")
        limit = _limit(query.get("limit"))
        if query.get("after") == "":
            raise InvalidCursor("after is the id of an erasure", field="after")
        rows = self._erasing.page(user_id, query.get("after", ""), limit)
        after = rows[-1].id if len(rows) == limit else None
        return json_response({"erasures": [_erasure_document(row) for row in rows], "after": after})

    def _admitted(self, request: Request, body: EraseBody) -> str:
        """The user whose entity is erased; refuses callers who may not write it."""
        principal: Principal = request.state.principal
        user_id = principal.acting_for(body.user_id)
        entity_id = request.path_params["id"]
        row = self._snapshots.groups.row(entity_id, user_id)
        admit(principal, self._snapshots.view(EntityQuery(row.entity_id, user_id)).entity_type, "write")
        return user_id

    def _reader(self, request: Request, *known: str) -> str:
        query, principal = dict(request.query_params), request.state.principal
        refuse_unknown_parameters(query, *known, "user_id")
        return user_of(query, principal)


def _limit(text: str | None) -> int:
    if text is None:
        return LISTED
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_LISTED:
        raise BadRequest(f"limit is a number from 1 to {MOST_LISTED}", field="limit")
    return int(text)


def _erasure_document(row: ErasureRow) -> dict[str, Any]:
    """An erasure as it is answered; ``complete`` once nothing holds the data."""
    plan = decoding.decode(row.plan, ErasurePlan)
    return {
        "erasure_id": row.id,
        "entity_id": row.entity_id,
        "entity_type": load(row.targets).entity_type,
        "state": row.state,
        "step": row.step,
        "complete": row.ended_us is not None,
        "begun_at": rfc3339(row.begun_us),
        "completed_at": None if row.ended_us is None else rfc3339(row.ended_us),
        "plan": _plan(plan),
        "report": msgspec.json.decode(row.report),
    }


def _plan(plan: ErasurePlan) -> Any:
    return msgspec.to_builtins(plan)
