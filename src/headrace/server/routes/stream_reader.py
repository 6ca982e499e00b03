"""The common parts of all reads of a stream: the request, the entries of the answer, and their headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import NamedTuple

from headrace.deadline import Cancelled, Deadline
from headrace.engine.assembly import Engine
from headrace.engine.log.read import ReadSlice
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, HeadraceError, OffsetGone
from headrace.query.filter import Filter, Filtered, Limits
from headrace.query.request import query
from headrace.reduce.features.events import DerivedEvents
from headrace.schema.entries import entries_of
from headrace.server.http.background import PARTIAL_ANSWER_SHARE, BackgroundRequests
from headrace.server.http.compression import ReplyCompressor
from headrace.server.http.exchange import Exchange, Headers, unexpected_failure
from headrace.types import OCTETS, Piece, rfc3339

#: Answers that threads have found, and that are kept for who asked.
_ANSWERS = 64


class FilteredReads:
    """Parses filters, and finds the events that match them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = Limits(engine.config.limits.read_bytes, engine.config.limits.filter_scan_bytes)
        self._time_s = engine.config.server.resolver_timeout_s * PARTIAL_ANSWER_SHARE
        self._filtered: dict[Hashable, Filtered] = {}

    def read(self, stream: Stream, text: str, asker: object) -> Filter:
        """The parsed filter; refuses fields that the stream cannot be filtered by."""
        if not stream.is_json:
            raise BadRequest(f"filter needs a JSON stream; this one holds {stream.content_type}", field="filter")
        if not text.strip():
            raise BadRequest("filter: it is empty", field="filter")
        defined = self._engine.coverage.defined(stream)
        if defined is None:
            raise BadRequest("this stream has no search fields to filter by; see _schema", field="filter")
        return Filter(text, query(text, defined.definition.search, field="filter", mode="filter"), asker)

    def find(
        self, stream: Stream, head: Head, position: int, filter: Filter, key: str | None, version: int | None
    ) -> Filtered:
        """The events from a position on that match; raises NeedsFetch until a thread has found them."""
        # What was found for another may be older than what this one has seen acknowledged.
        mark = (filter.asker, stream.id, position, filter.text, key, version)
        answer = self._filtered.pop(mark, None)
        if answer is not None:
            return answer
        deadline = Deadline(self._time_s)
        raise NeedsFetch(
            lambda: self._find_in_thread(mark, stream, head, position, filter, key, version, deadline), deadline
        )

    def headers(self, answer: Filtered) -> Headers:
        """The headers of a read that ended at its scan limit, or at its deadline."""
        if answer.timed_out:
            return {"stream-filter-timed-out": "true", "cache-control": "no-store"}
        if not answer.limit_reached:
            return {}
        return {
            "stream-filter-scan-limit-reached": "true",
            "stream-filter-scan-limit-bytes": str(self._limits.scan_bytes),
            "stream-filter-scanned-bytes": str(answer.scanned_bytes),
        }

    def _find_in_thread(
        self,
        mark: Hashable,
        stream: Stream,
        head: Head,
        position: int,
        filter: Filter,
        key: str | None,
        version: int | None,
        deadline: Deadline,
    ) -> None:
        from headrace.engine.search.filtered_read import filtered  # loads DuckDB, which takes long

        archive = self._engine.caches.archive()
        defined = archive.defined(stream, head)
        assert head.registry is not None, "what is defined stands in the registry"
        view = head.registry.view(version)
        answer = filtered(archive, stream, head, defined, position, filter, key, view, self._limits, deadline)
        self._filtered[mark] = answer
        for abandoned in list(self._filtered)[:-_ANSWERS]:
            self._filtered.pop(abandoned, None)


#: Payload of a source that one answer is derived from.
_DERIVED_BYTES = 256 * 1024


class ReadRequest(NamedTuple):
    """The parameters of a GET on a stream."""

    stream: Stream
    position: int
    key: str | None
    format: str
    is_now: bool
    is_real: bool  # a minted offset was given, so that the start of the slice can never mean anything else
    version: int | None = None  # the schema version asked for; None is the current one
    filter: Filter | None = None
    derived: DerivedEvents | None = None
    #: Entries from this position on are left out.
    before: int | None = None
    #: The newest entries were asked for, which begin at ``position``.
    is_last: bool = False

    def bounded(self, head: Head) -> Head:
        """The head as if the stream ended where the read ends."""
        if self.before is None or self.before >= head.next_seq:
            return head
        bounded = head.copy()  # where entries lie is known by the newest head alone
        bounded.next_seq, bounded.closed = self.before, False
        return bounded


class StreamReader:
    """Finds and renders entries of a stream, for one answer or for readers that stay at its tail."""

    def __init__(self, engine: Engine, compressor: ReplyCompressor, gate: Gate) -> None:
        self.engine = engine
        self.compressor = compressor
        self.filters = FilteredReads(engine)
        self._gate = gate
        self._background = BackgroundRequests(engine.writer.damage)
        self._log = engine.log
        self._budget = engine.config.limits.read_bytes

    def run_in_thread(
        self,
        exchange: Exchange,
        find: Callable[[], None],
        go_on: Callable[[], None],
        give_up: Callable[[HeadraceError], None],
    ) -> None:
        """Load in a thread what a waiting reader needs, then continue with it."""

        async def work_in_thread() -> None:
            try:
                async with self._gate:
                    await asyncio.to_thread(find)
                go_on()
            except Cancelled:
                pass  # nobody waits for it any more
            except HeadraceError as reason:
                give_up(reason)
            except Exception as reason:
                give_up(unexpected_failure(self.engine.writer.damage, reason, exchange.request_id))

        self._background.spawn(work_in_thread())

    def find(self, question: ReadRequest, position: int, head: Head) -> ReadSlice | Filtered:
        """The entries from a position on that fit one answer."""
        if position < head.first_seq:
            earliest = question.stream.offset_at(head.first_seq)
            raise OffsetGone("the entries here are no longer retained", earliest_offset=earliest)
        if question.version is None and head.registry is not None:
            position = max(position, head.registry.readable_from)
        if question.filter is not None:
            filter = question.filter
            return self.filters.find(question.stream, head, position, filter, question.key, question.version)
        derived = question.derived
        budget = self._budget if derived is None else min(self._budget, _DERIVED_BYTES)
        entries = self._log.read(
            question.stream,
            head,
            position,
            budget=budget,
            key=question.key,
            version=question.version,
            waits=question.is_last,
        )
        return entries if derived is None else ReadSlice(derived.turned(entries.parts), entries.position)

    @staticmethod
    def render(question: ReadRequest, parts: list[Piece]) -> bytes:
        """Payload parts as one body, copied once."""
        if question.format == "json":
            if not parts:
                return b"[]"
            pieces: list[Piece] = [b","] * (2 * len(parts) + 1)
            pieces[0], pieces[1::2], pieces[-1] = b"[", parts, b"]"
            return b"".join(pieces)
        if question.stream.is_json:
            return b"".join(b"".join(entries_of(part)) for part in parts)
        return b"".join(parts)

    def headers(self, question: ReadRequest, head: Head, position: int) -> Headers:
        """The headers with the end of a slice and the end of the stream."""
        stream = question.stream
        headers = {
            # Entries of a JSON stream one after another are not a JSON document.
            "content-type": OCTETS if stream.is_json and question.format == "raw" else stream.content_type,
            "stream-next-offset": stream.offset_at(position),
            "stream-end-offset": stream.offset_at(head.next_seq),
        }
        if question.is_last:
            headers["stream-start-offset"] = stream.offset_at(question.position)
        if position >= head.next_seq:
            headers["stream-up-to-date"] = "true"
            if head.closed:
                headers["stream-closed"] = "true"
        if stream.deadline_us is not None:
            headers["stream-expires-at"] = rfc3339(stream.deadline_us)
        return headers
