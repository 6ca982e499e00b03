"""``GET /v1/stream/{name}/_details``: everything about one stream, and the wait until that changes."""

from __future__ import annotations

from typing import Any

from headrace.engine.assembly import Engine
from headrace.engine.holdings import Holdings, companion_cache_bytes, holdings
from headrace.engine.log.stream import Stream
from headrace.engine.registry.schemas import Schemas as Registries
from headrace.engine.search.index_status import IndexStatus
from headrace.format.object_names import name_hash
from headrace.profiles import table
from headrace.server.routes import index_status
from headrace.server.routes.watched import WatchableDocument
from headrace.storage.objects import Verb
from headrace.types import NEVER_US, rfc3339

_VERBS: dict[str, Verb] = {"puts": "put", "gets": "get", "heads": "head", "lists": "list", "deletes": "delete"}
_READS = ("gets", "heads", "lists")
_FAMILIES = ("exact", "col", "fts", "agg", "mblk")


class DetailsRoute(WatchableDocument):
    """Answers requests for the details of a stream."""

    kind = "details"

    def describe(self, stream: Stream) -> dict[str, Any]:
        """The whole document, but for what is shared with other streams."""
        return describe_details(self.engine, stream)

    def completed(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with a number that other streams change all the time."""
        document["storage"]["local_storage"]["sqlite_shared_total_bytes"] = str(self.engine.held_bytes())
        return document


def describe_details(engine: Engine, stream: Stream) -> dict[str, Any]:
    """The whole document, but for what is shared with other streams."""
    held, status = holdings(engine, stream), engine.indexes.status(stream)
    return {
        "stream": _summary(stream, held),
        "profile": table.load(stream.profile).resource(),
        "schema": Registries.registry(stream).dump(),
        "emptied_fields": _emptied_fields(stream),
        "index_status": index_status.describe_index_status(stream, held, status),
        "storage": _storage(held, status, companion_cache_bytes(engine, stream)),
        "object_store_requests": _requests(engine, stream),
    }


def _emptied_fields(stream: Stream) -> list[dict[str, Any]]:
    registry = stream.head.registry
    return [] if registry is None else [field.dump() for field in registry.emptied_fields]


def _summary(stream: Stream, held: Holdings) -> dict[str, Any]:
    head, through = stream.head, str(held.published_until - 1)
    profile = table.load(stream.profile)
    observability = profile.observability(stream.name)
    return {
        "name": stream.name,
        "content_type": stream.content_type,
        "profile": profile.name,
        **({} if observability is None else {"observability": observability}),
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


def _storage(held: Holdings, status: IndexStatus, companion_cache: int) -> dict[str, Any]:
    shares = status.sizes
    return {
        "object_storage": {
            "total_bytes": str(held.segment_bytes + shares.total + held.manifest_bytes),
            "segments_bytes": str(held.segment_bytes),
            "indexes_bytes": str(shares.total),
            "manifest_and_meta_bytes": str(held.manifest_bytes),
            "manifest_bytes": str(held.manifest_bytes),
            # The registry is a part of the manifest.
            "schema_registry_bytes": "0",
            "segment_object_count": held.segments,
            # These are parts of segments and companions, and have no objects of their own.
            "routing_index_object_count": 0,
            "routing_lexicon_object_count": 0,
            "exact_index_object_count": 0,
            "bundled_companion_object_count": status.objects,
        },
        "local_storage": {
            "total_bytes": str(held.log.bytes + held.cached_bytes + companion_cache),
            "wal_retained_bytes": str(held.log.bytes),
            "pending_tail_bytes": str(held.pending.bytes),
            "pending_sealed_segment_bytes": "0",
            "segment_cache_bytes": str(held.cached_bytes),
            "routing_index_cache_bytes": "0",
            "exact_index_cache_bytes": "0",
            "lexicon_index_cache_bytes": "0",
            "companion_cache_bytes": str(companion_cache),
        },
        "companion_families": {f"{family}_bytes": str(shares.families[family]) for family in _FAMILIES},
    }


def _requests(engine: Engine, stream: Stream) -> dict[str, Any]:
    """How many requests this stream sent to the object store, since the start or since its counts were evicted."""
    counted = engine.objects.requests.of(name_hash(stream.name))
    artifacts = sorted({artifact for artifact, _ in counted})
    rows = {name: {verb: counted.get((name, key), 0) for verb, key in _VERBS.items()} for name in artifacts}
    totals = {verb: sum(row[verb] for row in rows.values()) for verb in _VERBS}
    return {**_counts(totals), "by_artifact": [{"artifact": name, **_counts(row)} for name, row in rows.items()]}


def _counts(row: dict[str, int]) -> dict[str, str]:
    reads = sum(row[verb] for verb in _READS)
    return {**{verb: str(count) for verb, count in row.items()}, "reads": str(reads)}
