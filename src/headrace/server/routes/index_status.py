"""``GET /v1/stream/{name}/_index_status``: how far the indexes of a stream are, and the wait until that changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from headrace.engine.derive.work_overview import LOCAL_WORKER
from headrace.engine.holdings import Holdings, holdings
from headrace.engine.log.stream import Stream
from headrace.engine.search.index_status import CoveredSegments, Index, IndexStatus
from headrace.profiles import table
from headrace.server.http.request import Request
from headrace.server.http.route import READ, route
from headrace.server.http.wire import Digits, NonNegative, When
from headrace.server.routes.watched import WatchableDocument, watching
from headrace.storage.work import DoneRow
from headrace.types import NEVER_US, rfc3339


class IndexedSegments(Struct):
    """The number of segments."""

    total_count: NonNegative
    uploaded_count: NonNegative


class ManifestStatus(Struct, kw_only=True):
    """The manifest that lists what is published."""

    generation: NonNegative
    uploaded_generation: NonNegative
    last_uploaded_at: When | None
    last_uploaded_etag: str | None
    last_uploaded_size_bytes: Digits | None


class KeyIndexStatus(Struct, kw_only=True):
    """Where keys are: filters and bounds in the segments themselves, which have no bytes and runs of their own."""

    configured: bool
    indexed_segment_count: NonNegative
    lag_segments: NonNegative
    lag_ms: Digits | None
    bytes_at_rest: Digits
    object_count: NonNegative
    active_run_count: NonNegative
    retired_run_count: NonNegative
    fully_indexed_uploaded_segments: bool
    updated_at: When | None


class LexiconStatus(Struct, kw_only=True):
    """Which keys there are: the lexicons of companions."""

    configured: bool
    indexed_segment_count: NonNegative
    active_run_count: NonNegative
    retired_run_count: NonNegative
    lag_segments: NonNegative
    lag_ms: Digits | None
    bytes_at_rest: Digits
    object_count: NonNegative
    fully_indexed_uploaded_segments: bool
    updated_at: When | None


class ExactIndexStatus(Struct, kw_only=True):
    """The values of one field."""

    name: str
    kind: str
    indexed_segment_count: NonNegative
    active_run_count: NonNegative
    retired_run_count: NonNegative
    lag_segments: NonNegative
    lag_ms: Digits | None
    bytes_at_rest: Digits
    object_count: NonNegative
    fully_indexed_uploaded_segments: bool
    updated_at: When | None
    stale_configuration: bool


class CompanionStatus(Struct):
    """The companions of a stream, all together."""

    object_count: NonNegative
    bytes_at_rest: Digits
    fully_indexed_uploaded_segments: bool


class SearchFamilyStatus(Struct, kw_only=True):
    """One family of sections of companions."""

    family: Literal["exact", "col", "fts", "agg"]
    fields: list[str]
    plan_generation: NonNegative
    covered_segment_count: NonNegative
    contiguous_covered_segment_count: NonNegative
    stale_segment_count: NonNegative
    lag_segments: NonNegative
    lag_ms: Digits | None
    bytes_at_rest: Digits
    object_count: NonNegative
    fully_indexed_uploaded_segments: bool
    updated_at: When | None


class DoneUnits(Struct, kw_only=True):
    """How many units of a job a worker has done; `local` is the server itself."""

    worker: str
    local: bool
    job: str
    units: NonNegative


class IndexStatusAnswer(Struct, kw_only=True):
    """The progress of the indexes of a stream."""

    stream: str
    profile: str
    desired_index_plan_generation: NonNegative
    segments: IndexedSegments
    manifest: ManifestStatus
    routing_key_index: KeyIndexStatus
    routing_key_lexicon: LexiconStatus
    exact_indexes: list[ExactIndexStatus]
    bundled_companions: CompanionStatus
    search_families: list[SearchFamilyStatus]
    done: list[DoneUnits]


class IndexStatusRoute(WatchableDocument):
    """Answers requests for the indexes of a stream."""

    kind = "index_status"

    @route(
        "GET",
        "/v1/stream/{name}/_index_status",
        "status_stream",
        "How far the [indexes](#index-status) of a stream are, now or once that differs from what the caller has",
        READ,
        **watching("index_status", IndexStatusAnswer),
    )
    def get(self, request: Request) -> None:
        """GET ``_index_status``."""
        self.answer(request)

    def describe(self, stream: Stream) -> IndexStatusAnswer:
        """The whole document."""
        done = self.engine.work.workers.done_of(stream.id)
        return describe_index_status(stream, holdings(self.engine, stream), self.engine.indexes.status(stream), done)


def describe_index_status(
    stream: Stream, held: Holdings, status: IndexStatus, done: Iterable[DoneRow]
) -> IndexStatusAnswer:
    """Describe the progress of the indexes of a stream."""
    facts = _StatusFacts(stream, held)
    return IndexStatusAnswer(
        stream=stream.name,
        profile=table.load(stream.profile).name,
        desired_index_plan_generation=status.generation,
        # A segment counts once it is in the store: none is sealed and waits.
        segments=IndexedSegments(status.segments, status.segments),
        manifest=ManifestStatus(
            generation=held.generation,
            uploaded_generation=held.generation,
            last_uploaded_at=rfc3339(held.published_us) if held.generation else None,
            last_uploaded_etag=None,
            last_uploaded_size_bytes=str(held.manifest_bytes) if held.manifest_bytes else None,
        ),
        routing_key_index=facts.key_index(status),
        routing_key_lexicon=facts.lexicon(status),
        exact_indexes=[facts.exact(index) for index in status.exact],
        bundled_companions=CompanionStatus(status.objects, str(status.sizes.total), status.is_complete),
        search_families=[facts.family(index, status.generation) for index in status.families],
        done=[
            DoneUnits(worker=row.worker, local=row.worker == LOCAL_WORKER, job=row.job, units=row.units) for row in done
        ],
    )


class _StatusFacts:
    """The facts of the indexes of one stream."""

    def __init__(self, stream: Stream, held: Holdings) -> None:
        registry = stream.head.registry
        self._is_keyed = registry is not None and registry.has_routing_key
        self._last_us = stream.head.last_us
        self._held = held

    def key_index(self, status: IndexStatus) -> KeyIndexStatus:
        """The index of keys in the segments."""
        covered = status.everything if self._is_keyed else CoveredSegments()
        return KeyIndexStatus(
            configured=self._is_keyed,
            indexed_segment_count=covered.segments,
            lag_segments=0,
            lag_ms=self._lag_ms(covered),
            bytes_at_rest="0",
            object_count=0,
            active_run_count=0,
            retired_run_count=0,
            fully_indexed_uploaded_segments=True,
            updated_at=self._updated_at(covered.segments),
        )

    def lexicon(self, status: IndexStatus) -> LexiconStatus:
        """The lexicons of companions, which have one even where no event has a key."""
        index = status.lexicon
        if not self._is_keyed:
            index = index._replace(covered=CoveredSegments(), behind=0, bytes=0, objects=0, active=0, retired=0)
        return LexiconStatus(configured=self._is_keyed, **self._runs(index))

    def exact(self, index: Index) -> ExactIndexStatus:
        """The index of one field."""
        return ExactIndexStatus(
            name=index.name, kind=index.kind, **self._runs(index), stale_configuration=index.is_stale
        )

    def family(self, index: Index, generation: int) -> SearchFamilyStatus:
        """One family of sections of companions."""
        return SearchFamilyStatus(
            family=index.name,  # type: ignore[arg-type]  # of the four families
            fields=list(index.fields),
            plan_generation=generation,
            covered_segment_count=index.covered.segments,
            contiguous_covered_segment_count=index.covered.contiguous,
            stale_segment_count=index.outdated,
            **self._facts(index),
        )

    def _runs(self, index: Index) -> dict[str, Any]:
        return {
            "indexed_segment_count": index.covered.segments,
            "active_run_count": index.active,
            "retired_run_count": index.retired,
            **self._facts(index),
        }

    def _facts(self, index: Index) -> dict[str, Any]:
        return {
            "lag_segments": index.behind,
            "lag_ms": self._lag_ms(index.covered),
            "bytes_at_rest": str(index.bytes),
            "object_count": index.objects,
            "fully_indexed_uploaded_segments": not index.behind,
            "updated_at": self._updated_at(index.active),
        }

    def _lag_ms(self, covered: CoveredSegments) -> str | None:
        """From the last event up to which nothing is left out to the last of all."""
        if covered.last_us is None or self._last_us == NEVER_US:
            return None
        return str(max(0, self._last_us - covered.last_us) // 1000)

    def _updated_at(self, count: int) -> str | None:
        """When the manifest was written that lists them."""
        return rfc3339(self._held.published_us) if count and self._held.generation else None
