"""``POST /v1/entities/{id}/erase`` and ``/v1/erasures``: entities that are removed for good."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.entities.erasure.erasure_plan import ErasurePlan
from headrace.engine.entities.read.snapshots import EntityQuery
from headrace.errors import BadRequest, Conflict, EntityNotFound, InvalidCursor, NotFound
from headrace.extract.erasure import load
from headrace.schema.entity.identity import EntityId as Id
from headrace.server.http.auth import Principal
from headrace.server.http.route import READ, WRITE, Answer, Body, in_path, in_query, route
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import AlwaysTrue, User, When
from headrace.server.routes.entities import BY_ID, RequestedId, admit, user_of
from headrace.server.routes.entity_lists import LISTED, MAX_LISTED, limit_parameter
from headrace.server.routes.entity_relations import EntityChangeBody
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.storage.background_requests import ErasureRow
from headrace.types import rfc3339

_MAX_BYTES = 16 * 1024


class EraseBody(EntityChangeBody, forbid_unknown_fields=True, kw_only=True):
    """Whether only the plan is wanted."""

    dry_run: bool = False


class PlannedErasure(Struct):
    """What an erasure would remove."""

    dry_run: AlwaysTrue
    entity_id: Id
    plan: ErasurePlan


class ErasureReport(Struct):
    """The removed data; counts that are not known yet are left out."""

    log_rows: int | UnsetType = UNSET
    rewritten: dict[str, str] | UnsetType = UNSET
    removed: list[str] | UnsetType = UNSET


class Erasure(Struct, kw_only=True):
    """The progress of an erasure; ``complete`` once no file holds data of the entity."""

    erasure_id: str
    entity_id: Id
    entity_type: str
    state: Literal["running", "done"]
    step: Literal["log", "offered", "objects", "rows", "files", "pages", "done"]
    complete: bool
    begun_at: When
    completed_at: When | None
    plan: ErasurePlan
    report: ErasureReport


class ErasurePage(Struct):
    """Erasures, the newest first, and the last of them where there are more."""

    erasures: list[Erasure]
    after: str | None


_FOR_USER = in_query("user_id", User, "whose erasures, for an admin")


class ErasureRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._erasing, self._snapshots = engine.erasure, engine.snapshots

    @route(
        "POST",
        "/v1/entities/{id}/erase",
        "erase_entity",
        "An entity, and everything that was merged into it, is removed for good from wherever it lies",
        WRITE,
        {
            200: Answer("what would be removed", PlannedErasure),
            202: Answer("it is gone for everybody, and its data is being removed", Erasure),
        },
        fails=(EntityNotFound, Conflict, *BAD_BODY),
        parameters=(BY_ID,),
        body=Body(EraseBody, _MAX_BYTES),
        recorded_as="entity_erased",
    )
    async def erase(self, request: Request) -> Response:
        """POST: erase an entity, or report what that would remove."""
        body = await read_json(request, EraseBody)
        entity_id, user_id = request.path_params["id"], self._admitted(request, body)
        if body.dry_run:
            plan = await self._erasing.plan(entity_id, user_id)
            return json_response(PlannedErasure(True, entity_id, plan))
        begun = await self._erasing.begin(entity_id, user_id)
        return json_response(_erasure(begun), status=202, headers={"location": f"/v1/erasures/{begun.id}"})

    @route(
        "GET",
        "/v1/erasures/{id}",
        "get_erasure",
        "How far an erasure is, and its report; complete once nothing holds the data",
        READ,
        {200: Answer("the erasure", Erasure)},
        fails=(NotFound,),
        parameters=(in_path("id", str, "the id of an erasure"), _FOR_USER),
    )
    async def get(self, request: Request) -> Response:
        """GET: the progress of an erasure, and its report."""
        erasure = self._erasing.find(request.path_params["id"], self._reader(request))
        admit(request.state.principal, load(erasure.targets).entity_type)
        return json_response(_erasure(erasure))

    @route(
        "GET",
        "/v1/erasures",
        "list_erasures",
        "The erasures of a user, the newest first",
        READ,
        {200: Answer("a page", ErasurePage)},
        fails=(NotFound,),
        parameters=(
            in_query("after", RequestedId, "the last erasure of the page before"),
            limit_parameter(LISTED, MAX_LISTED),
            _FOR_USER,
        ),
    )
    async def page(self, request: Request) -> Response:
        """GET: the erasures of a user, the newest first."""
        user_id, query = self._reader(request), request.query_params
        request.state.principal.require("read")
        limit = _limit(query.get("limit"))
        if query.get("after") == "":
            raise InvalidCursor("after is the id of an erasure", field="after")
        rows = self._erasing.page(user_id, query.get("after", ""), limit)
        after = rows[-1].id if len(rows) == limit else None
        return json_response(ErasurePage([_erasure(row) for row in rows], after))

    def _admitted(self, request: Request, body: EraseBody) -> str:
        """The user whose entity is erased; refuses callers who may not write it."""
        principal: Principal = request.state.principal
        user_id = principal.acting_for(body.user_id)
        entity_id = request.path_params["id"]
        row = self._snapshots.groups.row(entity_id, user_id)
        admit(principal, self._snapshots.view(EntityQuery(row.entity_id, user_id)).entity_type, "write")
        return user_id

    def _reader(self, request: Request) -> str:
        return user_of(dict(request.query_params), request.state.principal)


def _limit(text: str | None) -> int:
    if text is None:
        return LISTED
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_LISTED:
        raise BadRequest(f"limit is a number from 1 to {MAX_LISTED}", field="limit")
    return int(text)


def _erasure(row: ErasureRow) -> Erasure:
    return Erasure(
        erasure_id=row.id,
        entity_id=row.entity_id,
        entity_type=load(row.targets).entity_type,
        state=row.state,  # type: ignore[arg-type]  # as the table has it
        step=row.step,  # type: ignore[arg-type]
        complete=row.ended_us is not None,
        begun_at=rfc3339(row.begun_us),
        completed_at=None if row.ended_us is None else rfc3339(row.ended_us),
        plan=decoding.decode(row.plan, ErasurePlan),
        report=msgspec.Raw(row.report.encode()),  # type: ignore[arg-type]  # as it is stored
    )
