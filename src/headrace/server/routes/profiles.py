"""The profile resource: ``/v1/stream/{name}/_profile``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.engine.registry.schemas import refused
from headrace.errors import BadRequest, Conflict, NotFound
from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.schema import pointer
from headrace.schema.plan import Refusal
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import READ, WRITE, Answer, Body, in_query, one_of, route
from headrace.server.http.wire import Flag, fill
from headrace.server.routes.schemas import SchemaPlan, flag
from headrace.server.routes.stream_headers import BAD_BODY, NAME, NOT_THERE
from headrace.server.routes.streams import refuse_owned
from headrace.types import json_fault

_MAX_BYTES = 64 * 1024
_PATH = "/v1/stream/{name}/_profile"

ApiVersion = Literal["durable.streams/profile/v1"]


class ProfileSettings(Struct):
    """The kind of a profile; its settings stand beside it."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": list(table.PROFILES)})]


class ProfileDocument(Struct, rename="camel"):
    """The profile of a stream."""

    api_version: ApiVersion
    profile: ProfileSettings


class ProfileBody(Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """A change of what a stream means; ``profiles.table`` reads it, and names everything that is wrong with it."""

    api_version: ApiVersion | UnsetType = UNSET
    profile: ProfileSettings


class ProfilePlan(SchemaPlan, kw_only=True):
    """The effects that a change of a profile would have, and the resulting profile."""

    api_version: ApiVersion = msgspec.field(name="apiVersion")
    profile: ProfileSettings


class ProfileRoutes:
    """Answers requests on the profile of a stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._background = BackgroundRequests(engine.writer.damage)

    @route(
        "GET",
        _PATH,
        "show_profile",
        "What the stream [means](profiles.md)",
        READ,
        {200: Answer("found", ProfileDocument)},
        fails=NOT_THERE,
        parameters=(NAME,),
        is_hot=True,
    )
    def get(self, request: Request) -> None:
        """GET ``_profile``: what the stream means."""
        stream = self._engine.log.find(request.target.name)
        request.principal.require("read", stream.name)
        request.exchange.reply(Reply.json(200, fill(ProfileDocument, table.load(stream.profile).resource())))

    @route(
        "POST",
        _PATH,
        "change_profile",
        "Change what the stream means; what it holds stays, and a schema that it has",
        WRITE,
        {200: Answer("the profile; of a dry run the plan as well", one_of(ProfileDocument, ProfilePlan))},
        fails=(*NOT_THERE, Conflict, *BAD_BODY),
        parameters=(NAME, in_query("dry_run", Flag, "only say what would change")),
        body=Body(ProfileBody, _MAX_BYTES),
        is_hot=True,
        recorded_as="profile_changed",
    )
    def post(self, request: Request) -> None:
        """POST ``_profile``: change it, or with ``dry_run=true`` return what would change."""
        stream = self._engine.log.find(request.target.name)
        request.principal.require("write", stream.name)
        refuse_owned(stream)
        dry_run = flag(request.query, "dry_run")
        profile = read(request.body)
        self._background.begin(request.exchange, (self._plan if dry_run else self._apply)(request, stream, profile))

    async def _plan(self, request: Request, stream: Stream, profile: Profile) -> None:
        planned = await self._engine.profiles.plan(stream, profile)
        request.exchange.reply(Reply.json(200, fill(ProfilePlan, {**planned.dump(), **profile.resource()})))

    async def _apply(self, request: Request, stream: Stream, profile: Profile) -> None:
        await self._engine.profiles.apply(stream, profile, request.principal.user_id)
        request.exchange.reply(Reply.json(200, fill(ProfileDocument, profile.resource())))


def profile_with_route(stream: Stream, resource: str, otherwise: str) -> Profile:
    """The profile of a stream; raises 404 with the message ``otherwise`` where it has no such resource."""
    profile = table.load(stream.profile)
    if resource not in profile.definition.routes:
        raise NotFound(otherwise, stream=stream.name, profile=profile.name)
    return profile


def read(body: bytes) -> Profile:
    """The profile that a request asks for."""
    if len(body) > _MAX_BYTES:
        raise BadRequest(f"a profile has at most {_MAX_BYTES} bytes", field="body")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, body)}", field="body") from reason
    outcome = table.read(document)
    if isinstance(outcome, Profile):
        return outcome
    problems = [(problem, ".".join(pointer.parse(problem.pointer) or ()) or "the body") for problem in outcome]
    raise refused(
        tuple(Refusal("bad_request", problem.pointer, f"{where} {problem.reason}") for problem, where in problems)
    )
