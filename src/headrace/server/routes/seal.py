"""Sealing a stream now: what is in the log goes to the object store, whatever its age and its size."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest, Conflict, NotFound, Unavailable
from headrace.server.http import parameters
from headrace.server.http.background import BackgroundRequests
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request
from headrace.server.http.route import WRITE, Answer, in_query, route
from headrace.server.http.wire import AnyOffset, NonNegative, Wait
from headrace.server.routes.stream_headers import NAME, NOT_THERE
from headrace.server.routes.streams import reserved


class SealAnswer(msgspec.Struct, frozen=True):
    """How far a stream is in the object store; ``end_offset`` is where it ended when the request came."""

    stream: str
    state: Literal["sealed", "nothing_to_seal", "sealing"]
    #: Entries that were published while the request waited.
    sealed_entries: NonNegative
    published_offset: AnyOffset
    end_offset: AnyOffset
    #: Why the object store took nothing the last time, where sealing takes longer.
    trouble: str | None = None


#: How long a request waits, if it does not say.
_WAIT_S = 20.0
#: A publication that began before the request may lack its last entries; the next one has them.
_PUBLICATIONS = 2


class SealRoute:
    """Answers POST on ``/v1/stream/{name}/_seal``."""

    def __init__(self, engine: Engine) -> None:
        self._log, self._sealer, self._features = engine.log, engine.sealer, engine.features
        self._config = engine.config.server
        self._background = BackgroundRequests(engine.writer.damage)

    @route(
        "POST",
        "/v1/stream/{name}/_seal",
        "seal_stream",
        "[Seal](#seal) what is in the log and publish it now",
        WRITE,
        {
            200: Answer("everything up to the end is published, or already was", SealAnswer),
            202: Answer("it takes longer, and goes on", SealAnswer),
        },
        fails=(*NOT_THERE, Conflict, Unavailable),
        parameters=(NAME, in_query("timeout", Wait, "longest wait; 20 s if left out")),
        is_hot=True,
    )
    def seal(self, request: Request) -> None:
        """POST ``_seal``: publish, and answer when the entries of this moment are in the store."""
        name = request.target.name
        request.principal.require("write", name)
        derived = self._features.current.derived(name)
        if derived is not None:
            raise Conflict(f"a derived event has no entries of its own: seal events/{derived.root}", stream=name)
        stream = self._log.find(name)
        if stream.is_reserved:
            raise reserved(stream.name)
        if request.body:
            raise BadRequest("sealing takes no body", field="body")
        wait_s = parameters.wait_s(request.query, _WAIT_S, self._config.max_long_poll_s)
        self._background.begin(request.exchange, self._seal(request, stream, wait_s))

    async def _seal(self, request: Request, stream: Stream, wait_s: float) -> None:
        end, before = stream.head.next_seq, self._sealer.published_until(stream)
        request.exchange.parked = True
        published = await self._publish(stream, end, wait_s) if before < end else before
        request.principal.key_status.require()
        state: Literal["sealed", "nothing_to_seal", "sealing"] = "sealed" if before < end else "nothing_to_seal"
        trouble = None
        if published < end:
            state, trouble = "sealing", self._sealer.trouble
        published = min(published, end)
        offsets = stream.offset_at(published), stream.offset_at(end)
        answer = SealAnswer(stream.name, state, max(0, published - before), *offsets, trouble)
        request.exchange.reply(Reply.json(202 if state == "sealing" else 200, answer))

    async def _publish(self, stream: Stream, end: int, wait_s: float) -> int:
        """Publish entries up to an end; returns how many are published once they are, or the time is over."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        for _ in range(_PUBLICATIONS):
            if self._log.find(stream.name).id != stream.id:
                raise NotFound("the stream was deleted and created anew", stream=stream.name)
            seal = self._sealer.seal(stream)
            await asyncio.wait({seal}, timeout=max(0.0, until_s - loop.time()))
            published = self._sealer.published_until(stream)
            if published >= end or not seal.done():
                break
            _require(seal)
        return published


def _require(seal: asyncio.Task[None]) -> None:
    """Raise why a publication failed."""
    if seal.cancelled():
        raise Unavailable("the server stops", retry_after=1)
    reason = seal.exception()
    if reason is not None:
        raise reason
