"""``GET /v1/stream/{name}/_details``: everything about one stream, and the wait until that changes."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from headrace.engine.assembly import Engine
from headrace.engine.holdings import Holdings, companion_cache_bytes, holdings
from headrace.engine.log.stream import Stream
from headrace.engine.registry.schemas import Schemas as Registries
from headrace.engine.search.index_status import IndexStatus
from headrace.format.object_names import name_hash
from headrace.profiles import table
from headrace.server.http.request import Request
from headrace.server.http.route import READ, route
from headrace.server.http.wire import Digits, NonNegative, Object, Pointer, When, fill
from headrace.server.routes.index_status import IndexStatusAnswer, describe_index_status
from headrace.server.routes.profiles import ProfileDocument
from headrace.server.routes.schemas import SchemaRegistry
from headrace.server.routes.stream_list import Through
from headrace.server.routes.watched import WatchableDocument, watching
from headrace.storage.objects import Verb
from headrace.types import NEVER_US, rfc3339

_VERBS: dict[str, Verb] = {"puts": "put", "gets": "get", "heads": "head", "lists": "list", "deletes": "delete"}
_READS = ("gets", "heads", "lists")
_FAMILIES = ("exact", "col", "fts", "agg", "mblk")


class StreamEpoch(Struct):
    """An epoch of offsets of a stream, and the position after which they have it."""

    epoch: NonNegative
    after: Digits


class StreamSummary(Struct, kw_only=True):
    """A stream with what it holds; sequence numbers, counts of rows and of bytes are decimal text."""

    name: str
    content_type: str
    profile: str
    observability: Object | UnsetType = UNSET
    created_at: When
    updated_at: When
    expires_at: When | None
    ttl_seconds: NonNegative | None
    stream_seq: str | None
    closed: bool
    epoch: NonNegative
    #: All epochs that its offsets have, those of the streams that it is a fork of first.
    epochs: list[StreamEpoch]
    next_offset: Digits
    sealed_through: Through
    uploaded_through: Through
    segment_count: NonNegative
    uploaded_segment_count: NonNegative
    pending_rows: Digits
    pending_bytes: Digits
    total_size_bytes: Digits
    wal_rows: Digits
    wal_bytes: Digits
    last_append_at: When | None
    last_segment_cut_at: When | None


class ObjectStorageSummary(Struct, kw_only=True):
    """The objects of a stream in the object store."""

    total_bytes: Digits
    segments_bytes: Digits
    indexes_bytes: Digits
    manifest_and_meta_bytes: Digits
    manifest_bytes: Digits
    schema_registry_bytes: Digits
    segment_object_count: NonNegative
    routing_index_object_count: NonNegative
    routing_lexicon_object_count: NonNegative
    exact_index_object_count: NonNegative
    bundled_companion_object_count: NonNegative


class LocalStorageSummary(Struct, kw_only=True):
    """The files of a stream on the disk of the server; the database is shared with other streams."""

    total_bytes: Digits
    wal_retained_bytes: Digits
    pending_tail_bytes: Digits
    pending_sealed_segment_bytes: Digits
    segment_cache_bytes: Digits
    routing_index_cache_bytes: Digits
    exact_index_cache_bytes: Digits
    lexicon_index_cache_bytes: Digits
    companion_cache_bytes: Digits
    #: Set last: it is no part of the tag.
    sqlite_shared_total_bytes: Digits | UnsetType


class CompanionFamilySizes(Struct):
    """The bytes of companions by what they are for."""

    exact_bytes: Digits
    col_bytes: Digits
    fts_bytes: Digits
    agg_bytes: Digits
    mblk_bytes: Digits


class StorageSummary(Struct):
    """Where the bytes of a stream are."""

    object_storage: ObjectStorageSummary
    local_storage: LocalStorageSummary
    companion_families: CompanionFamilySizes


class ArtifactRequests(Struct, kw_only=True):
    """The number of requests to the object store for one kind of object."""

    artifact: str
    puts: Digits
    gets: Digits
    heads: Digits
    lists: Digits
    deletes: Digits
    reads: Digits


class StoreRequests(Struct, kw_only=True):
    """The number of requests of a stream to the object store, since the start or since its counts were evicted."""

    puts: Digits
    gets: Digits
    heads: Digits
    lists: Digits
    deletes: Digits
    reads: Digits
    by_artifact: list[ArtifactRequests]


class FieldBinding(Struct, rename="camel"):
    """Where a search field is, from a version on."""

    version: NonNegative
    json_pointer: Pointer


class EmptiedFieldSummary(Struct):
    """A search field that finds nothing in events of a version and those after it."""

    field: str
    from_version: NonNegative
    binding: FieldBinding


class StreamDetails(Struct, kw_only=True):
    """Everything about a stream."""

    stream: StreamSummary
    profile: ProfileDocument
    schema: SchemaRegistry
    emptied_fields: list[EmptiedFieldSummary]
    index_status: IndexStatusAnswer
    storage: StorageSummary
    object_store_requests: StoreRequests


class DetailsRoute(WatchableDocument):
    """Answers requests for the details of a stream."""

    kind = "details"

    @route(
        "GET",
        "/v1/stream/{name}/_details",
        "detail_stream",
        "[Everything](#details) about a stream, now or once it differs from what the caller has",
        READ,
        **watching("details", StreamDetails),
    )
    def get(self, request: Request) -> None:
        """GET ``_details``."""
        self.answer(request)

    def describe(self, stream: Stream) -> StreamDetails:
        """The whole document, but for what is shared with other streams."""
        return describe_details(self.engine, stream)

    def completed(self, document: Struct) -> Struct:
        """The document with a number that other streams change all the time."""
        assert isinstance(document, StreamDetails)
        document.storage.local_storage.sqlite_shared_total_bytes = str(self.engine.held_bytes())
        return document


def describe_details(engine: Engine, stream: Stream) -> StreamDetails:
    """The whole document, but for what is shared with other streams."""
    held, status = holdings(engine, stream), engine.indexes.status(stream)
    return StreamDetails(
        stream=_summary(stream, held),
        profile=fill(ProfileDocument, table.load(stream.profile).resource()),
        schema=fill(SchemaRegistry, Registries.registry(stream).dump()),
        emptied_fields=_emptied_fields(stream),
        index_status=describe_index_status(stream, held, status, engine.work.workers.done_of(stream.id)),
        storage=_storage(held, status, companion_cache_bytes(engine, stream)),
        object_store_requests=_requests(engine, stream),
    )


def _emptied_fields(stream: Stream) -> list[EmptiedFieldSummary]:
    registry = stream.head.registry
    return [] if registry is None else [fill(EmptiedFieldSummary, field.dump()) for field in registry.emptied_fields]


def _summary(stream: Stream, held: Holdings) -> StreamSummary:
    head, through = stream.head, str(held.published_until - 1)
    profile = table.load(stream.profile)
    observability = profile.observability(stream.name)
    return StreamSummary(
        name=stream.name,
        content_type=stream.content_type,
        profile=profile.name,
        observability=UNSET if observability is None else observability,
        created_at=rfc3339(stream.created_us),
        updated_at=rfc3339(held.updated_us),
        expires_at=None if stream.deadline_us is None else rfc3339(stream.deadline_us),
        ttl_seconds=stream.ttl_s,
        stream_seq=head.stream_seq,
        closed=head.closed,
        epoch=stream.epochs[-1][0],
        epochs=[StreamEpoch(epoch, str(first)) for epoch, first in stream.epochs],
        next_offset=str(head.next_seq),
        # A segment counts once it is in the store: none is sealed and waits.
        sealed_through=through,
        uploaded_through=through,
        segment_count=held.segments,
        uploaded_segment_count=held.segments,
        pending_rows=str(held.pending.entries),
        pending_bytes=str(held.pending.bytes),
        total_size_bytes=str(head.bytes - head.first_bytes),
        wal_rows=str(held.log.entries),
        wal_bytes=str(held.log.bytes),
        last_append_at=None if head.last_us == NEVER_US else rfc3339(head.last_us),
        last_segment_cut_at=rfc3339(held.published_us) if held.segments else None,
    )


def _storage(held: Holdings, status: IndexStatus, companion_cache: int) -> StorageSummary:
    shares = status.sizes
    return StorageSummary(
        ObjectStorageSummary(
            total_bytes=str(held.segment_bytes + shares.total + held.manifest_bytes),
            segments_bytes=str(held.segment_bytes),
            indexes_bytes=str(shares.total),
            manifest_and_meta_bytes=str(held.manifest_bytes),
            manifest_bytes=str(held.manifest_bytes),
            # The registry is a part of the manifest.
            schema_registry_bytes="0",
            segment_object_count=held.segments,
            # These are parts of segments and companions, and have no objects of their own.
            routing_index_object_count=0,
            routing_lexicon_object_count=0,
            exact_index_object_count=0,
            bundled_companion_object_count=status.objects,
        ),
        LocalStorageSummary(
            total_bytes=str(held.log.bytes + held.cached_bytes + companion_cache),
            wal_retained_bytes=str(held.log.bytes),
            pending_tail_bytes=str(held.pending.bytes),
            pending_sealed_segment_bytes="0",
            segment_cache_bytes=str(held.cached_bytes),
            routing_index_cache_bytes="0",
            exact_index_cache_bytes="0",
            lexicon_index_cache_bytes="0",
            companion_cache_bytes=str(companion_cache),
            sqlite_shared_total_bytes=UNSET,
        ),
        CompanionFamilySizes(**{f"{family}_bytes": str(shares.families[family]) for family in _FAMILIES}),
    )


def _requests(engine: Engine, stream: Stream) -> StoreRequests:
    counted = engine.objects.requests.of(name_hash(stream.name))
    artifacts = sorted({artifact for artifact, _ in counted})
    rows = {name: {verb: counted.get((name, key), 0) for verb, key in _VERBS.items()} for name in artifacts}
    totals = {verb: sum(row[verb] for row in rows.values()) for verb in _VERBS}
    by_artifact = [ArtifactRequests(artifact=name, **_counts(row)) for name, row in rows.items()]
    return StoreRequests(**_counts(totals), by_artifact=by_artifact)


def _counts(row: dict[str, int]) -> dict[str, str]:
    reads = sum(row[verb] for verb in _READS)
    return {**{verb: str(count) for verb, count in row.items()}, "reads": str(reads)}
