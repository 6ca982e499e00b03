"""Reading a stream: catch-up slices, and the start of the live modes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import NamedTuple
from urllib.parse import quote

from headrace.engine.assembly import Engine
from headrace.engine.entities.kind import EntityKind
from headrace.engine.features.registry import EVENTS
from headrace.engine.log.expiry import expires
from headrace.engine.log.read import Slice
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.tiers import Cold
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, HeadraceError, OffsetGone
from headrace.format import offset as offsets
from headrace.query.deadline import Cancelled, Deadline
from headrace.query.filter import Filter, Filtered, Limits
from headrace.query.request import query
from headrace.reduce.features.view import Derived
from headrace.schema.entries import entries_of
from headrace.server.http import parameters
from headrace.server.http.auth import ENTITY_STREAM_PREFIX, LOCAL
from headrace.server.http.background import PARTIAL_ANSWER_SHARE, BackgroundRequests
from headrace.server.http.compression import ReplyCompressor, accepted_encoding
from headrace.server.http.exchange import Exchange, Headers, Reply, unexpected_failure
from headrace.server.http.request import Request
from headrace.server.routes.live_reads import LongPoll, SseRenderer, SseSubscriber
from headrace.types import OCTETS, Piece, parse_timestamp_us, rfc3339

#: Answers that threads have found, and that are kept for who asked.
_ANSWERS = 64


class FilteredReads:
    """Reads filters, and finds what they let through."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = Limits(engine.config.limits.read_bytes, engine.config.limits.filter_scan_bytes)
        self._time_s = engine.config.server.resolver_timeout_s * PARTIAL_ANSWER_SHARE
        self._found: dict[Hashable, Filtered] = {}

    def read(self, stream: Stream, text: str, asker: object) -> Filter:
        """A filter that the stream can answer, for someone who asks."""
        if not stream.is_json:
            raise BadRequest(f"filter needs a JSON stream; this one holds {stream.content_type}", field="filter")
        if not text.strip():
            raise BadRequest("filter: it is empty", field="filter")
        defined = self._engine.coverage.defined(stream)
        if defined is None:
            raise BadRequest("this stream has no search fields to filter by; see _schema", field="filter")
        return Filter(text, query(text, defined.definition.search, field="filter", mode="filter"), asker)

    def find(
        self, stream: Stream, head: Head, position: int, asked: Filter, key: str | None, version: int | None
    ) -> Filtered:
        """The events from a position on that match; raises Cold until a thread has looked."""
        # What was found for another may be older than what this one has seen acknowledged.
        mark = (asked.asker, stream.id, position, asked.text, key, version)
        found = self._found.pop(mark, None)
        if found is not None:
            return found
        deadline = Deadline(self._time_s)
        raise Cold(lambda: self._look(mark, stream, head, position, asked, key, version, deadline), deadline)

    def headers(self, found: Filtered) -> Headers:
        """What is said about a read that ended because it had looked at enough, or because its time was over."""
        if found.timed_out:
            return {"stream-filter-timed-out": "true", "cache-control": "no-store"}
        if not found.limit_reached:
            return {}
        return {
            "stream-filter-scan-limit-reached": "true",
            "stream-filter-scan-limit-bytes": str(self._limits.scan_bytes),
            "stream-filter-scanned-bytes": str(found.scanned_bytes),
        }

    def _look(
        self,
        mark: Hashable,
        stream: Stream,
        head: Head,
        position: int,
        asked: Filter,
        key: str | None,
        version: int | None,
        deadline: Deadline,
    ) -> None:
        from headrace.engine.search.filtered_read import filtered

        archive = self._engine.open_archive()
        defined = archive.defined(stream, head)
        assert head.registry is not None, "what is defined stands in the registry"
        view = head.registry.view(version)
        found = filtered(archive, stream, head, defined, position, asked, key, view, self._limits, deadline)
        self._found[mark] = found
        for abandoned in list(self._found)[:-_ANSWERS]:
            self._found.pop(abandoned, None)


CATCH_UP, LONG_POLL, SSE = "", "long-poll", "sse"
_LIVE = {"": CATCH_UP, "false": CATCH_UP, "0": CATCH_UP, "true": LONG_POLL, "1": LONG_POLL, "long-poll": LONG_POLL}
_LIVE["sse"] = SSE
#: Payload of a source that one answer is derived from.
_DERIVED_BYTES = 256 * 1024
_FOREVER = "immutable, max-age=31536000"


class ReadRequest(NamedTuple):
    """What a GET asks of a stream."""

    stream: Stream
    position: int
    key: str | None
    format: str
    is_now: bool
    is_real: bool  # a minted offset was given, so that the start of the slice can never mean anything else
    version: int | None = None  # the schema version asked for; None is the current one
    filter: Filter | None = None
    derived: Derived | None = None


class ReadRoute:
    """Answers GET on ``/v1/stream/{name}``."""

    def __init__(self, engine: Engine, encoder: ReplyCompressor, gate: Gate) -> None:
        self.engine = engine
        self.encoder = encoder
        self._gate = gate
        self._background = BackgroundRequests(engine.writer.damage)
        self._filters = FilteredReads(engine)
        self.events = SseRenderer(self)
        self._log = engine.log
        self._config = engine.config.server
        self._budget = engine.config.limits.read_bytes

    def get(self, request: Request) -> None:
        """Read once, or stay at the tail."""
        name = request.target.name
        derived = self.engine.features.current.derived(name)
        stream = self._log.find(name if derived is None else EVENTS + derived.root)
        request.principal.require("read", name)
        if stream.ttl_s is not None:
            self._log.catalog.note_access(stream)
        live = _mode(request.query)
        wait_s = parameters.wait_s(request.query, self._config.long_poll_s, self._config.max_long_poll_s)
        question = self._question(stream, request, live)
        if derived is not None:
            question = _derived(question, derived)
        if live == SSE:
            SseSubscriber(self, question, request, self._config.sse_lifetime_s).start()
        elif live == LONG_POLL:
            LongPoll(self, question, request, wait_s).start()
        else:
            self._catch_up(question, request)

    def thaw(
        self,
        exchange: Exchange,
        look: Callable[[], None],
        go_on: Callable[[], None],
        give_up: Callable[[HeadraceError], None],
    ) -> None:
        """Let a thread find what a waiting reader needs and is not at hand, then go on with it."""

        async def thawed() -> None:
            try:
                async with self._gate:
                    await asyncio.to_thread(look)
                go_on()
            except Cancelled:
                pass  # nobody waits for it any more
            except HeadraceError as reason:
                give_up(reason)
            except Exception as reason:
                give_up(unexpected_failure(self.engine.writer.damage, reason, exchange.request_id))

        self._background.spawn(thawed())

    def find(self, question: ReadRequest, position: int, head: Head) -> Slice | Filtered:
        """The entries from a position on that fit one answer."""
        if position < head.first_seq:
            earliest = question.stream.offset_at(head.first_seq)
            raise OffsetGone("the entries here are no longer retained", earliest_offset=earliest)
        if question.version is None and head.registry is not None:
            position = max(position, head.registry.readable_from)
        if question.filter is not None:
            asked = question.filter
            return self._filters.find(question.stream, head, position, asked, question.key, question.version)
        derived = question.derived
        budget = self._budget if derived is None else min(self._budget, _DERIVED_BYTES)
        found = self._log.read(
            question.stream, head, position, budget=budget, key=question.key, version=question.version
        )
        return found if derived is None else Slice(derived.turned(found.parts), found.position)

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

    def _catch_up(self, question: ReadRequest, request: Request) -> None:
        head = self._log.readable_head(question.stream)
        found: Slice | Filtered = Slice([], head.next_seq)
        if not question.is_now:
            found = self.find(question, question.position, head)
        headers = self.headers(question, head, found.position)
        if question.version is None and head.registry is not None and question.position < head.registry.readable_from:
            headers["stream-earliest-offset"] = question.stream.offset_at(head.registry.readable_from)
        if isinstance(found, Filtered):
            headers |= self._filters.headers(found)
        if question.is_now:
            headers["cache-control"] = "no-store"
        else:
            scope = "" if request.principal is LOCAL else "private, "
            headers.setdefault("cache-control", scope + _lifetime(question, found.position, head))
            headers["etag"] = etag(question, found.position, head)
            if matches(request.headers.get(b"if-none-match"), headers["etag"]):
                del headers["content-type"]
                request.exchange.reply(Reply(304, headers))
                return
        reply = Reply(200, headers, self.render(question, found.parts))
        self.encoder.send(request, reply, accepted_encoding(request.headers))

    def headers(self, question: ReadRequest, head: Head, position: int) -> Headers:
        """The headers that say where a slice ends and where the stream does."""
        stream = question.stream
        headers = {
            # Entries of a JSON stream one after another are not a JSON document.
            "content-type": OCTETS if stream.is_json and question.format == "raw" else stream.content_type,
            "stream-next-offset": stream.offset_at(position),
            "stream-end-offset": stream.offset_at(head.next_seq),
        }
        if position >= head.next_seq:
            headers["stream-up-to-date"] = "true"
            if head.closed:
                headers["stream-closed"] = "true"
        if stream.deadline_us is not None:
            headers["stream-expires-at"] = rfc3339(stream.deadline_us)
        return headers

    def _question(self, stream: Stream, request: Request, live: str) -> ReadRequest:
        query, head = request.query, self._log.readable_head(stream)
        key = request.target.key if request.target.key is not None else query.get("key")
        since_us = parse_timestamp_us(query["since"], "since") if "since" in query else None
        asked = None
        if "filter" in query:
            if live == SSE:
                raise BadRequest("a filter cannot be followed with live=sse; use live=long-poll", field="filter")
            # What a thread has found by another revision's fields is no answer to this one.
            asked = self._filters.read(stream, query["filter"], (request.exchange, _revision(head)))
        given = query.get("offset")
        is_now = given == "now"
        is_real = False
        if is_now:
            position = head.next_seq
        elif given is not None:
            place = parameters.offset(given)
            position, is_real = stream.locate(place, head), place.position > 0
        elif since_us is not None:
            position = self._log.seek(stream, since_us)
        elif live:
            raise BadRequest("a live read needs an offset", field="offset")
        else:
            position = head.first_seq
        wanted, version = _format(stream, query), _version(head, query)
        return ReadRequest(stream, position, key or None, wanted, is_now, is_real, version, asked)


def _derived(question: ReadRequest, derived: Derived) -> ReadRequest:
    """A question to the source of a derived event; what speaks of its own schema cannot be asked of a view."""
    for field, given in (("filter", question.filter), ("schema_version", question.version)):
        if given is not None:
            raise BadRequest(f"{field} cannot be asked of a derived event; ask its source", field=field)
    return question._replace(derived=derived)


def _mode(query: dict[str, str]) -> str:
    mode = _LIVE.get(query.get("live", ""))
    if mode is None:
        raise BadRequest(f"live: {query['live']!r} is none of false, true, long-poll, sse", field="live")
    return mode


def _format(stream: Stream, query: dict[str, str]) -> str:
    wanted = query.get("format", "json" if stream.is_json else "raw")
    if wanted not in ("json", "raw"):
        raise BadRequest(f"format: {wanted!r} is neither raw nor json", field="format")
    if wanted == "json" and not stream.is_json:
        raise BadRequest(f"format=json needs a JSON stream; this one holds {stream.content_type}", field="format")
    return wanted


def _version(head: Head, query: dict[str, str]) -> int | None:
    """The schema version asked for."""
    wanted = query.get("schema_version")
    if wanted is None:
        return None
    newest = 0 if head.registry is None else head.registry.version
    if not newest:
        raise BadRequest("this stream has no schema, and so no versions of it", field="schema_version")
    version = parameters.whole_number(wanted, "schema_version")
    if not 1 <= version <= newest:
        raise BadRequest(f"schema_version {version} is none of 1 to {newest}", field="schema_version")
    return version


def _revision(head: Head) -> int:
    return 0 if head.registry is None else head.registry.revision


def _lifetime(question: ReadRequest, position: int, head: Head) -> str:
    """How long a slice may be kept: for ever only where no entry, expiry, erasure or declaration can change it."""
    may_grow = not question.is_real or (position >= head.next_seq and not head.closed)
    if may_grow or expires(question.stream, head) or question.stream.name.startswith(ENTITY_STREAM_PREFIX):
        return "no-cache"
    follows_schema = head.registry is not None and head.registry.version and question.version is None
    if follows_schema or question.filter is not None:
        return "max-age=60"
    return _FOREVER


def etag(question: ReadRequest, position: int, head: Head) -> str:
    """A weak tag that changes with data, erasures, its shape, what a filter means, closing, and another life."""
    stream = question.stream
    start = stream.offset_at(question.position) if question.is_real else offsets.START
    closed = ":c" if head.closed and position >= head.next_seq else ""
    key = quote(question.key or "", safe="")
    asked = "" if question.filter is None else f"{quote(question.filter.text, safe='')}@{_revision(head)}"
    at = f"{start}:{stream.offset_at(position)}"
    version = question.version or (0 if head.registry is None else head.registry.version)
    view = "" if question.derived is None else f":of={question.derived.name}.{question.derived.version}"
    seen = f"life={stream.id}.{question.position}:v={version}{view}{_changes(head)}{closed}"
    return f'W/"slice:{at}:key={key}:fmt={question.format}:filter={asked}:{seen}"'


def _changes(head: Head) -> str:
    """What changes with every erasure, in a stream of entities: the same offsets may have other entries since."""
    kind = None if head.registry is None else head.registry.kind
    return f":change={kind.number}" if isinstance(kind, EntityKind) else ""


def matches(if_none_match: bytes | None, tag: str) -> bool:
    """Whether the caller already has what this tag names."""
    if if_none_match is None:
        return False
    candidates = [part.strip() for part in if_none_match.decode("latin-1").split(",")]
    return "*" in candidates or tag.removeprefix("W/") in (part.removeprefix("W/") for part in candidates)
