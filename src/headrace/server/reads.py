"""Reading a stream: catch-up slices, and the start of the live modes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from headrace.engine.assembly import Engine
from headrace.engine.entities.kind import EntityKind
from headrace.engine.features.registry import EVENTS
from headrace.engine.log.expiry import expires
from headrace.engine.log.read import Slice
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, HeadraceError, OffsetGone
from headrace.format import offset as offsets
from headrace.query.deadline import Cancelled
from headrace.query.filter import Filter, Filtered
from headrace.reduce.features.events import DerivedEvents
from headrace.schema.entries import entries_of
from headrace.server import values
from headrace.server.aside import Aside
from headrace.server.auth import LOCAL, SHARED
from headrace.server.encoding import Encoder, accepted
from headrace.server.exchange import Exchange, Headers, Reply, Request
from headrace.server.failures import unexpected
from headrace.server.filters import Filters
from headrace.server.live import Events, LongPoll, Subscriber
from headrace.types import OCTETS, Piece, parse_timestamp_us, rfc3339

CATCH_UP, LONG_POLL, SSE = "", "long-poll", "sse"
_LIVE = {"": CATCH_UP, "false": CATCH_UP, "0": CATCH_UP, "true": LONG_POLL, "1": LONG_POLL, "long-poll": LONG_POLL}
_LIVE["sse"] = SSE
#: Payload of a source that one answer is derived from.
_DERIVED_BYTES = 256 * 1024
_FOREVER = "immutable, max-age=31536000"


class Question(NamedTuple):
    """What a GET asks of a stream."""

    stream: Stream
    position: int
    key: str | None
    format: str
    is_now: bool
    is_real: bool  # a minted offset was given, so that the start of the slice can never mean anything else
    version: int | None = None  # the schema version asked for; None is the current one
    filter: Filter | None = None
    derived: DerivedEvents | None = None


class Reads:
    """Answers GET on ``/v1/stream/{name}``."""

    def __init__(self, engine: Engine, encoder: Encoder, gate: Gate) -> None:
        self.engine = engine
        self.encoder = encoder
        self._gate = gate
        self._aside = Aside(engine.writer.damage)
        self._filters = Filters(engine)
        self.events = Events(self)
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
        wait_s = values.wait_s(request.query, self._config.long_poll_s, self._config.max_long_poll_s)
        question = self._question(stream, request, live)
        if derived is not None:
            question = _derived(question, derived)
        if live == SSE:
            Subscriber(self, question, request, self._config.sse_lifetime_s).start()
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
                give_up(unexpected(self.engine.writer.damage, reason, exchange.request_id))

        self._aside.keep(thawed())

    def find(self, question: Question, position: int, head: Head) -> Slice | Filtered:
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
    def render(question: Question, parts: list[Piece]) -> bytes:
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

    def _catch_up(self, question: Question, request: Request) -> None:
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
        self.encoder.send(request, reply, accepted(request.headers))

    def headers(self, question: Question, head: Head, position: int) -> Headers:
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

    def _question(self, stream: Stream, request: Request, live: str) -> Question:
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
            place = values.offset(given)
            position, is_real = stream.locate(place, head), place.position > 0
        elif since_us is not None:
            position = self._log.seek(stream, since_us)
        elif live:
            raise BadRequest("a live read needs an offset", field="offset")
        else:
            position = head.first_seq
        wanted, version = _format(stream, query), _version(head, query)
        return Question(stream, position, key or None, wanted, is_now, is_real, version, asked)


def _derived(question: Question, derived: DerivedEvents) -> Question:
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
    version = values.whole(wanted, "schema_version")
    if not 1 <= version <= newest:
        raise BadRequest(f"schema_version {version} is none of 1 to {newest}", field="schema_version")
    return version


def _revision(head: Head) -> int:
    return 0 if head.registry is None else head.registry.revision


def _lifetime(question: Question, position: int, head: Head) -> str:
    """How long a slice may be kept: for ever only where no entry, expiry, erasure or declaration can change it."""
    may_grow = not question.is_real or (position >= head.next_seq and not head.closed)
    if may_grow or expires(question.stream, head) or question.stream.name.startswith(SHARED):
        return "no-cache"
    follows_schema = head.registry is not None and head.registry.version and question.version is None
    if follows_schema or question.filter is not None:
        return "max-age=60"
    return _FOREVER


def etag(question: Question, position: int, head: Head) -> str:
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
