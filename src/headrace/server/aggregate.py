"""``POST /v1/stream/{name}/_aggregate``: from a request to buckets, and what is said about how they were found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.query.deadline import Deadline
from headrace.server import asking
from headrace.server.aside import SHARE, Aside, in_thread, partial_answer_s
from headrace.server.exchange import Reply, Request

if TYPE_CHECKING:
    from headrace.engine.search.aggregate import Aggregated
    from headrace.reduce.request import AggregateRequest


class Aggregates:
    """Answers aggregates, each in a thread; the gate says how many at once."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._aside = Aside(engine.writer.damage)
        self._time_s = engine.config.server.resolver_timeout_s

    def post(self, request: Request) -> None:
        """The request is the body."""
        given = asking.document(request, "an aggregate")
        stream = asking.asked(self._engine, request)
        deadline = Deadline(self._time_s * SHARE)
        answer_by = deadline.within(partial_answer_s(self._time_s) * SHARE)
        answer = self._answer(request, stream, lambda head: self._aggregate(stream, head, given, deadline, answer_by))
        self._aside.ask_partial(request, answer, self._time_s, deadline)

    async def _answer(self, request: Request, stream: Stream, aggregate: Callable[[Head], Reply]) -> None:
        async with self._gate:
            head = await self._engine.log.fetch_readable_head(stream)
            reply = await in_thread(lambda: aggregate(head))
        request.exchange.reply(reply)

    def _aggregate(self, stream: Stream, head: Head, given: Any, deadline: Deadline, answer_by: Deadline) -> Reply:
        from headrace.engine.search.aggregate import aggregate
        from headrace.reduce.request import read

        archive = self._engine.open_archive()
        defined = archive.defined(stream, head)
        asked = read(given, defined.definition.search)
        found = aggregate(archive, stream, head, defined, asked, deadline, answer_by)
        return Reply.json(200, _rendered(stream, asked, found))


def _rendered(stream: Stream, request: AggregateRequest, found: Aggregated) -> dict[str, Any]:
    from headrace.reduce.answer import iso

    return {
        "stream": stream.name,
        "rollup": request.aggregate.rollup.name,
        "from": iso(request.aggregate.start),
        "to": iso(request.aggregate.end),
        "interval": request.interval,
        "coverage": _coverage(stream, found),
        "buckets": found.buckets,
    }


def _coverage(stream: Stream, found: Aggregated) -> dict[str, Any]:
    tally = found.tally
    return {
        **asking.coverage(stream, found, visible=found.stop, complete=not found.missing.events),
        "used_rollups": found.used_rollups,
        "indexed_segments": tally.indexed_segments,
        "scanned_segments": tally.scanned_segments,
        "scanned_tail_docs": tally.scanned_tail_docs,
        "index_families_used": ["agg"] if found.used_rollups else [],
    }
