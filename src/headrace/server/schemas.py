"""The registry resource: ``/v1/stream/{name}/_schema`` and its history."""

from __future__ import annotations

import msgspec

from headrace.engine.engine import Engine
from headrace.engine.schemas import Schemas as Registries
from headrace.engine.schemas import refused
from headrace.engine.stream import Stream
from headrace.errors import BadRequest
from headrace.schema.plan import Refusal
from headrace.schema.update import Update, parse_update
from headrace.server.aside import Aside
from headrace.server.exchange import Reply, Request
from headrace.types import JSON, rfc3339

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Schemas:
    """Answers requests on the registry of a stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._aside = Aside()

    def get(self, request: Request) -> None:
        """GET ``_schema``: the registry."""
        stream = self._find(request, "read")
        _parameters(request)
        request.exchange.reply(Reply.json(200, Registries.registry(stream).dump()))

    def history(self, request: Request) -> None:
        """GET ``_schema/history``: every revision, and when it came."""
        stream = self._find(request, "read")
        _parameters(request)
        revisions = [
            {"revision": row.revision, "at": rfc3339(row.at_us), "registry": msgspec.Raw(row.document.encode())}
            for row in self._engine.schemas.history(stream)
        ]
        request.exchange.reply(Reply.json(200, {"stream": stream.name, "revisions": revisions}))

    def post(self, request: Request) -> None:
        """POST ``_schema``: change the registry, or with ``dry_run=true`` say what would change."""
        stream = self._find(request, "write")
        dry_run = _flag(_parameters(request, "dry_run"), "dry_run")
        if stream.media_type != JSON:
            raise BadRequest(f"a schema needs a JSON stream; this one holds {stream.content_type}", field="schema")
        update = _update(request.body)
        answer = self._plan if dry_run else self._apply
        self._aside.begin(request.exchange, answer(request, stream, update))

    async def _plan(self, request: Request, stream: Stream, update: Update) -> None:
        planned = await self._engine.schemas.plan(stream, update)
        request.exchange.reply(Reply.json(200, planned.dump()))

    async def _apply(self, request: Request, stream: Stream, update: Update) -> None:
        planned, registry = await self._engine.schemas.apply(stream, update)
        plan = planned.dump()
        del plan["registry"]
        request.exchange.reply(Reply.json(200, {**registry.dump(), "diff": plan}))

    def _find(self, request: Request, scope: str) -> Stream:
        stream = self._engine.log.find(request.target.name)
        request.principal.require(scope, stream.name)
        return stream


def _update(body: bytes) -> Update:
    if len(body) > 1024 * 1024:
        raise BadRequest("an update has at most 1 MiB", field="body")
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not JSON: {reason}", field="body") from reason
    update = parse_update(given)
    if isinstance(update, list):
        raise refused(tuple(Refusal("bad_request", problem.pointer, problem.reason) for problem in update))
    return update


def _parameters(request: Request, *known: str) -> dict[str, str]:
    for name in request.query:
        if name not in known:
            raise BadRequest(f"there is no parameter {name} here", field=name)
    return request.query


def _flag(query: dict[str, str], name: str) -> bool:
    value = _FLAGS.get(query.get(name, "false").lower())
    if value is None:
        raise BadRequest(f"{name}: {query[name]!r} is neither true nor false", field=name)
    return value
