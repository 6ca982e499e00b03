"""The registry resource: ``/v1/stream/{name}/_schema``, its history, and changes of it that are tried on data."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.engine.registry.schemas import Schemas as Registries
from headrace.engine.registry.schemas import refused
from headrace.engine.verification.verify_job import Progress
from headrace.errors import BadRequest
from headrace.schema import entries
from headrace.schema.plan import Refusal
from headrace.schema.update import SchemaUpdate, parse_update
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Reply
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.request import Request
from headrace.server.routes.streams import refuse_owned
from headrace.storage.background_requests import VerificationRow
from headrace.types import JSON, json_fault, rfc3339

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class SchemaRoutes:
    """Answers requests on the registry of a stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._background = BackgroundRequests(engine.writer.damage)

    def get(self, request: Request) -> None:
        """GET ``_schema``: the registry."""
        stream = self._find(request, "read")
        parameters(request)
        request.exchange.reply(Reply.json(200, Registries.registry(stream).dump()))

    def history(self, request: Request) -> None:
        """GET ``_schema/history``: every revision, and when it came."""
        stream = self._find(request, "read")
        parameters(request)
        revisions = [
            {"revision": row.revision, "at": rfc3339(row.at_us), "registry": msgspec.Raw(row.document.encode())}
            for row in self._engine.schemas.history(stream)
        ]
        request.exchange.reply(Reply.json(200, {"stream": stream.name, "revisions": revisions}))

    def verification(self, request: Request) -> None:
        """GET ``_schema/verifications/{id}``: how far it is, and what was found."""
        stream = self._find(request, "read")
        parameters(request)
        row = self._engine.verifier.find(stream, request.target.key or "")
        request.exchange.reply(Reply.json(200, _verified(stream, row)))

    def post(self, request: Request) -> None:
        """POST ``_schema``: change the registry, or with ``dry_run=true`` say what would change."""
        stream = self._find(request, "write")
        refuse_owned(stream)
        query = parameters(request, "dry_run", "on_data")
        dry_run, on_data = flag(query, "dry_run"), flag(query, "on_data")
        if on_data and not dry_run:
            raise BadRequest("only a dry run is made on data: on_data goes with dry_run=true", field="on_data")
        if stream.media_type != JSON:
            raise BadRequest(f"a schema needs a JSON stream; this one holds {stream.content_type}", field="schema")
        update = _update(request.body)
        answer = self._verify if on_data else self._plan if dry_run else self._apply
        self._background.begin(request.exchange, answer(request, stream, update))

    async def _plan(self, request: Request, stream: Stream, update: SchemaUpdate) -> None:
        planned = await self._engine.schemas.plan(stream, update)
        request.exchange.reply(Reply.json(200, planned.dump()))

    async def _verify(self, request: Request, stream: Stream, update: SchemaUpdate) -> None:
        planned, proposal = await self._engine.schemas.propose(stream, update)
        if proposal is None:
            request.exchange.reply(Reply.json(200, {**planned.dump(), "verification": None}))
            return
        row = await self._engine.verifier.begin(stream, proposal)
        request.exchange.reply(Reply.json(202, {**planned.dump(), "verification": _verified(stream, row)}))

    async def _apply(self, request: Request, stream: Stream, update: SchemaUpdate) -> None:
        planned, registry = await self._engine.schemas.apply(stream, update, request.principal.user_id)
        plan = planned.dump()
        del plan["registry"]
        request.exchange.reply(Reply.json(200, {**registry.dump(), "diff": plan}))

    def _find(self, request: Request, scope: str) -> Stream:
        stream = self._engine.log.find(request.target.name)
        request.principal.require(scope, stream.name)
        return stream


def _verified(stream: Stream, row: VerificationRow) -> dict[str, Any]:
    progress = Progress(row)
    findings = progress.findings
    return {
        "id": row.id,
        "stream": stream.name,
        "state": row.state,
        "from_version": row.from_version,
        "to_version": row.from_version + 1,
        "begun_at": rfc3339(row.begun_us),
        "ended_at": None if row.ended_us is None else rfc3339(row.ended_us),
        "reason": row.reason,
        "events": findings.events,
        "total": max(findings.events, row.target - row.start),
        "through_offset": stream.offset_at(progress.through_seq),
        "failing": {"lens": findings.lens, "schema": findings.schema},
        "failures": [
            {
                "offset": stream.offset_at(misfit.seq + 1),
                "seq": misfit.seq,
                "cause": misfit.cause,
                "pointer": misfit.pointer,
                "reason": misfit.reason,
            }
            for misfit in findings.misfits
        ],
    }


def _update(body: bytes) -> SchemaUpdate:
    if len(body) > 1024 * 1024:
        raise BadRequest("an update has at most 1 MiB", field="body")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, body)}", field="body") from reason
    if lost := entries.read(body)[1]:
        raise refused(tuple(Refusal("bad_request", failure.pointer, failure.reason) for failure in lost))
    update = parse_update(document)
    if isinstance(update, list):
        raise refused(tuple(Refusal("bad_request", problem.pointer, problem.reason) for problem in update))
    return update


def parameters(request: Request, *known: str) -> dict[str, str]:
    """The parameters of a request, which are among these."""
    refuse_unknown_parameters(request.query, *known)
    return request.query


def flag(query: dict[str, str], name: str) -> bool:
    """A parameter that is true or false; one that is left out is false."""
    value = _FLAGS.get(query.get(name, "false").lower())
    if value is None:
        raise BadRequest(f"{name}: {query[name]!r} is neither true nor false", field=name)
    return value
