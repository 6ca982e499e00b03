"""``GET /v1/stream/{name}/_details``: everything about one stream, and the wait until that changes."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, NamedTuple

import msgspec

from headrace.engine.details import Holdings, holdings
from headrace.engine.engine import Engine
from headrace.engine.schemas import Schemas as Registries
from headrace.engine.stream import Head, Stream
from headrace.errors import BadRequest, HeadraceError
from headrace.format.manifest import name_hash
from headrace.server import values
from headrace.server.exchange import JSON_TYPE, Reply, Request
from headrace.server.reads import matches
from headrace.storage.objects.requests import Verb
from headrace.types import NEVER_US, rfc3339

PROFILE_VERSION = "durable.streams/profile/v1"
WAIT_S = 3.0
#: Appends wake who waits at once; other changes are found by looking.
LOOK_S = 0.25
_LIVE = {"": False, "false": False, "0": False, "true": True, "1": True, "long-poll": True}
_PARAMETERS = ("live", "timeout", "timeout_ms")
_VERBS: dict[str, Verb] = {"puts": "put", "gets": "get", "heads": "head", "lists": "list", "deletes": "delete"}
_READS = ("gets", "heads", "lists")


class Rendered(NamedTuple):
    """A stream's details as of one head."""

    head: Head
    tag: str
    body: bytes


class Details:
    """Answers requests for the details of a stream."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rendered: dict[Stream, Rendered] = {}
        self._waiting: dict[DetailsWait, None] = {}
        self._is_looking = False

    def get(self, request: Request) -> None:
        """Answer at once, or with ``live`` when the caller's tag no longer fits."""
        stream = self.engine.log.find(request.target.name)
        request.principal.require("read", stream.name)
        for name in request.query:
            if name not in _PARAMETERS:
                raise BadRequest(f"there is no parameter {name} here", field=name)
        live = _LIVE.get(request.query.get("live", ""))
        if live is None:
            raise BadRequest(f"live: {request.query['live']!r} is none of false, true, long-poll", field="live")
        wait_s = values.wait_s(request.query, WAIT_S, self.engine.config.server.max_long_poll_s)
        reply = self.answer(request)
        if live and reply.status == 304:
            DetailsWait(self, stream, request).start(wait_s)
        else:
            request.exchange.reply(reply)

    def answer(self, request: Request) -> Reply:
        """The details as they are now, or 304 where the caller has them."""
        found = self._render(self.engine.log.find(request.target.name))
        headers = {"cache-control": "no-store", "etag": found.tag}
        if matches(request.headers.get(b"if-none-match"), found.tag):
            return Reply(304, headers)
        return Reply(200, {"content-type": JSON_TYPE, **headers}, found.body)

    def park(self, wait: DetailsWait) -> None:
        """Look after a wait from now on."""
        self._waiting[wait] = None
        if not self._is_looking:
            self._look_later()

    def release(self, wait: DetailsWait) -> None:
        """Look after a wait no more."""
        self._waiting.pop(wait, None)

    def _look(self) -> None:
        for wait in [wait for wait in self._waiting if wait.stream.head is not wait.seen]:
            wait.wake()
        self._look_later()

    def _look_later(self) -> None:
        self._is_looking = bool(self._waiting)
        if self._waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _render(self, stream: Stream) -> Rendered:
        """Within one turn of the loop, all who wait for a stream share what was found."""
        known = self._rendered.get(stream)
        if known is not None and known.head is stream.head:
            return known
        if not self._rendered:
            asyncio.get_running_loop().call_soon(self._rendered.clear)
        head, document = stream.head, describe(self.engine, stream)
        digest = hashlib.sha1(msgspec.json.encode(document), usedforsecurity=False).hexdigest()
        # Other streams change this number all the time, so that it is no part of the tag.
        document["storage"]["local_storage"]["sqlite_shared_total_bytes"] = str(self.engine.held_bytes())
        found = Rendered(head, f'W/"details:{digest}"', msgspec.json.encode(document))
        self._rendered[stream] = found
        return found


class DetailsWait:
    """One GET that waits until a stream's details differ from those the caller has."""

    def __init__(self, details: Details, stream: Stream, request: Request) -> None:
        self.stream = stream
        self.seen = stream.head
        self._details = details
        self._request = request
        self._timer: asyncio.TimerHandle | None = None

    def start(self, wait_s: float) -> None:
        """Wait, unless too many do."""
        self._details.engine.tail.watch(self.stream, self)
        self._details.park(self)
        self._request.exchange.parked = True
        self._request.exchange.on_gone = self._leave
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)

    def wake(self) -> None:
        """The stream moved; what is shown of it may not have."""
        self.seen = self.stream.head
        reply = self._reply()
        if reply.status != 304:
            self._finish(reply)

    def end(self) -> None:
        """The time ran out, or the server stops."""
        self._finish(self._reply())

    def _reply(self) -> Reply:
        try:
            return self._details.answer(self._request)
        except HeadraceError as refusal:
            return Reply.failure(refusal)

    def _finish(self, reply: Reply) -> None:
        self._leave()
        self._request.exchange.reply(reply)

    def _leave(self) -> None:
        self._details.engine.tail.leave(self.stream, self)
        self._details.release(self)
        self._request.exchange.on_gone = None
        if self._timer is not None:
            self._timer.cancel()


def describe(engine: Engine, stream: Stream) -> dict[str, Any]:
    """The whole document, but for what is shared with other streams."""
    held = holdings(engine, stream)
    return {
        "stream": _summary(stream, held),
        "profile": {"apiVersion": PROFILE_VERSION, "profile": {"kind": stream.profile}},
        "schema": Registries.registry(stream).dump(),
        "storage": _storage(held),
        "object_store_requests": _requests(engine, stream),
    }


def _summary(stream: Stream, held: Holdings) -> dict[str, Any]:
    head, through = stream.head, str(held.published_until - 1)
    return {
        "name": stream.name,
        "content_type": stream.content_type,
        "profile": stream.profile,
        "created_at": rfc3339(stream.created_us),
        "updated_at": rfc3339(held.updated_us),
        "expires_at": None if stream.deadline_us is None else rfc3339(stream.deadline_us),
        "ttl_seconds": stream.ttl_s,
        "stream_seq": head.stream_seq,
        "closed": head.closed,
        "epoch": stream.epochs[-1][0],
        "next_offset": str(head.next_seq),
        # A segment counts once it is in the store: none is sealed and waits.
        "sealed_through": through,
        "uploaded_through": through,
        "segment_count": held.segments,
        "uploaded_segment_count": held.segments,
        "pending_rows": str(held.pending.entries),
        "pending_bytes": str(held.pending.bytes),
        "total_size_bytes": str(head.bytes - head.first_bytes),
        "wal_rows": str(held.log.entries),
        "wal_bytes": str(held.log.bytes),
        "last_append_at": None if head.last_us == NEVER_US else rfc3339(head.last_us),
        "last_segment_cut_at": rfc3339(held.published_us) if held.segments else None,
    }


def _storage(held: Holdings) -> dict[str, Any]:
    return {
        "object_storage": {
            "total_bytes": str(held.segment_bytes + held.manifest_bytes),
            "segments_bytes": str(held.segment_bytes),
            "indexes_bytes": "0",
            "manifest_and_meta_bytes": str(held.manifest_bytes),
            "manifest_bytes": str(held.manifest_bytes),
            # The registry is a part of the manifest.
            "schema_registry_bytes": "0",
            "segment_object_count": held.segments,
            "routing_index_object_count": 0,
            "routing_lexicon_object_count": 0,
            "exact_index_object_count": 0,
            "bundled_companion_object_count": 0,
        },
        "local_storage": {
            "total_bytes": str(held.log.bytes + held.cached_bytes),
            "wal_retained_bytes": str(held.log.bytes),
            "pending_tail_bytes": str(held.pending.bytes),
            "pending_sealed_segment_bytes": "0",
            "segment_cache_bytes": str(held.cached_bytes),
            "routing_index_cache_bytes": "0",
            "exact_index_cache_bytes": "0",
            "lexicon_index_cache_bytes": "0",
            "companion_cache_bytes": "0",
        },
        "companion_families": {f"{family}_bytes": "0" for family in ("exact", "col", "fts", "agg", "mblk")},
    }


def _requests(engine: Engine, stream: Stream) -> dict[str, Any]:
    """How often the object store was asked for this stream, since the start or since others pushed the counts out."""
    counted = engine.objects.requests.of(name_hash(stream.name))
    artifacts = sorted({artifact for artifact, _ in counted})
    rows = {name: {verb: counted.get((name, key), 0) for verb, key in _VERBS.items()} for name in artifacts}
    totals = {verb: sum(row[verb] for row in rows.values()) for verb in _VERBS}
    return {**_counts(totals), "by_artifact": [{"artifact": name, **_counts(row)} for name, row in rows.items()]}


def _counts(row: dict[str, int]) -> dict[str, str]:
    reads = sum(row[verb] for verb in _READS)
    return {**{verb: str(count) for verb, count in row.items()}, "reads": str(reads)}
