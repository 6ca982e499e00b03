"""``GET /v1/sources/{id}``: what a request brought, as it was given."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.entities.kind import ENTITIES
from headrace.server.http.auth import Principal
from headrace.server.http.json_responses import json_response
from headrace.server.http.parameters import refuse_unknown_parameters


def routes(engine: Engine) -> list[Route]:
    """Every route of this file."""
    return [Route("/v1/sources/{id:path}", SourceRoute(engine).get, methods=["GET"])]


class SourceRoute:
    """Reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._sourcing = engine.sourcing

    async def get(self, request: HttpRequest) -> Response:
        """GET: the entities of a source, and the observations that they became."""
        refuse_unknown_parameters(request.query_params, "user_id")
        principal: Principal = request.state.principal
        user_id = principal.acting_for(request.query_params.get("user_id"))
        source_id = request.path_params["id"]
        places = self._sourcing.places(user_id, source_id)
        for place in places:
            if place.stream is not None:
                principal.require_type("read", place.stream.name.removeprefix(ENTITIES))
        return json_response(await asyncio.to_thread(self._sourcing.read, user_id, source_id, places))
