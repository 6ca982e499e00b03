"""``GET /v1/stream/{name}/_index_status``: how far the indexes of a stream are, and the wait until that changes."""

from __future__ import annotations

from typing import Any

from headrace.engine.holdings import Holdings, holdings
from headrace.engine.log.stream import Stream
from headrace.engine.search.index_status import CoveredSegments, Index, IndexStatus
from headrace.profiles import table
from headrace.server.routes.watched import WatchableDocument
from headrace.types import NEVER_US, rfc3339


class IndexStatusRoute(WatchableDocument):
    """Answers requests for the indexes of a stream."""

    kind = "index_status"

    def describe(self, stream: Stream) -> dict[str, Any]:
        """The whole document."""
        return describe_index_status(stream, holdings(self.engine, stream), self.engine.indexes.status(stream))


def describe_index_status(stream: Stream, held: Holdings, status: IndexStatus) -> dict[str, Any]:
    """How the indexes of a stream stand."""
    wording = _StatusWords(stream, held)
    return {
        "stream": stream.name,
        "profile": table.load(stream.profile).name,
        "desired_index_plan_generation": status.generation,
        # A segment counts once it is in the store: none is sealed and waits.
        "segments": {"total_count": status.segments, "uploaded_count": status.segments},
        "manifest": {
            "generation": held.generation,
            "uploaded_generation": held.generation,
            "last_uploaded_at": rfc3339(held.published_us) if held.generation else None,
            "last_uploaded_etag": None,
            "last_uploaded_size_bytes": str(held.manifest_bytes) if held.manifest_bytes else None,
        },
        "routing_key_index": wording.key_index(status),
        "routing_key_lexicon": wording.lexicon(status),
        "exact_indexes": [wording.exact(index) for index in status.exact],
        "bundled_companions": {
            "object_count": status.objects,
            "bytes_at_rest": str(status.sizes.total),
            "fully_indexed_uploaded_segments": status.is_complete,
        },
        "search_families": [wording.family(index, status.generation) for index in status.families],
    }


class _StatusWords:
    """Puts indexes of one stream into words."""

    def __init__(self, stream: Stream, held: Holdings) -> None:
        registry = stream.head.registry
        self._is_keyed = registry is not None and registry.has_routing_key
        self._last_us = stream.head.last_us
        self._held = held

    def key_index(self, status: IndexStatus) -> dict[str, Any]:
        """Where keys are: filters and bounds in the segments themselves, which have no bytes and runs of their own."""
        covered = status.everything if self._is_keyed else CoveredSegments()
        return {
            "configured": self._is_keyed,
            "indexed_segment_count": covered.segments,
            "lag_segments": 0,
            "lag_ms": self._lag_ms(covered),
            "bytes_at_rest": "0",
            "object_count": 0,
            "active_run_count": 0,
            "retired_run_count": 0,
            "fully_indexed_uploaded_segments": True,
            "updated_at": self._updated_at(covered.segments),
        }

    def lexicon(self, status: IndexStatus) -> dict[str, Any]:
        """Which keys there are: the lexicons of companions. They have one even where no event has a key."""
        index = status.lexicon
        if not self._is_keyed:
            index = index._replace(covered=CoveredSegments(), behind=0, bytes=0, objects=0, active=0, retired=0)
        return {"configured": self._is_keyed, **self._runs(index)}

    def exact(self, index: Index) -> dict[str, Any]:
        """The values of one field."""
        facts = {"name": index.name, "kind": index.kind, **self._runs(index)}
        return {**facts, "stale_configuration": index.is_stale}

    def family(self, index: Index, generation: int) -> dict[str, Any]:
        """One family of sections of companions."""
        return {
            "family": index.name,
            "fields": list(index.fields),
            "plan_generation": generation,
            "covered_segment_count": index.covered.segments,
            "contiguous_covered_segment_count": index.covered.contiguous,
            "stale_segment_count": index.outdated,
            **self._facts(index),
        }

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
