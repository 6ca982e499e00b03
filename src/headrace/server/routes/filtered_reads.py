"""``filter=``: reads of the events that match, found by a thread and then answered like any other slice."""

from __future__ import annotations

from collections.abc import Hashable

from headrace.engine.assembly import Engine
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.tiers import Cold
from headrace.errors import BadRequest
from headrace.query.deadline import Deadline
from headrace.query.filter import Filter, Filtered, Limits
from headrace.query.request import query
from headrace.server.http.background import PARTIAL_ANSWER_SHARE
from headrace.server.http.exchange import Headers

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
