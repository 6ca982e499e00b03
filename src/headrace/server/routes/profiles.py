"""The profile resource: ``/v1/stream/{name}/_profile``."""

from __future__ import annotations

import msgspec

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.engine.registry.schemas import refused
from headrace.errors import BadRequest, NotFound
from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.schema import pointer
from headrace.schema.plan import Refusal
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.routes.schemas import flag, parameters
from headrace.server.routes.streams import refuse_owned
from headrace.types import json_fault

_MOST_BYTES = 64 * 1024


class ProfileRoutes:
    """Answers requests on the profile of a stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._background = BackgroundRequests(engine.writer.damage)

    def get(self, request: Request) -> None:
        """GET ``_profile``: what the stream means."""
        stream = self._engine.log.find(request.target.name)
        request.principal.require("read", stream.name)
        parameters(request)
        request.exchange.reply(Reply.json(200, table.load(stream.profile).resource()))

    def post(self, request: Request) -> None:
        """POST ``_profile``: change it, or with ``dry_run=true`` say what would change."""
        stream = self._engine.log.find(request.target.name)
        request.principal.require("write", stream.name)
        refuse_owned(stream)
        dry_run = flag(parameters(request, "dry_run"), "dry_run")
        profile = read(request.body)
        self._background.begin(request.exchange, (self._plan if dry_run else self._apply)(request, stream, profile))

    async def _plan(self, request: Request, stream: Stream, profile: Profile) -> None:
        planned = await self._engine.profiles.plan(stream, profile)
        request.exchange.reply(Reply.json(200, {**planned.dump(), **profile.resource()}))

    async def _apply(self, request: Request, stream: Stream, profile: Profile) -> None:
        await self._engine.profiles.apply(stream, profile, request.principal.user_id)
        request.exchange.reply(Reply.json(200, profile.resource()))


def profile_with_route(stream: Stream, resource: str, otherwise: str) -> Profile:
    """The profile of a stream; raises 404 with the message ``otherwise`` where it has no such resource."""
    profile = table.load(stream.profile)
    if resource not in profile.definition.routes:
        raise NotFound(otherwise, stream=stream.name, profile=profile.name)
    return profile


def read(body: bytes) -> Profile:
    """The profile that a request asks for."""
    if len(body) > _MOST_BYTES:
        raise BadRequest(f"a profile has at most {_MOST_BYTES} bytes", field="body")
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
