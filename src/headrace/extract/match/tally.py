"""What an answer took: counts and times, as the coverage of a search reports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import msgspec


class Tally(msgspec.Struct):
    """Sums over one answer; times are in milliseconds."""

    indexed_segments: int = 0
    indexed_segment_time_ms: float = 0
    fts_section_get_ms: float = 0
    fts_decode_ms: float = 0
    scanned_segments: int = 0
    scanned_segment_time_ms: float = 0
    scanned_tail_docs: int = 0
    scanned_tail_time_ms: float = 0
    exact_candidate_time_ms: float = 0
    candidate_doc_ids: int = 0
    decoded_records: int = 0
    json_parse_time_ms: float = 0
    sort_time_ms: float = 0
    #: The greatest primary time in ms of all events that were looked at.
    latest_ms: int | None = None

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add what the block takes to one of the times."""
        began = perf_counter()
        try:
            yield
        finally:
            self.add(name, began)

    def add(self, name: str, began: float) -> None:
        """Add what has passed since a reading of the performance counter to one of the times."""
        setattr(self, name, getattr(self, name) + (perf_counter() - began) * 1000)

    def seen_until(self, times: tuple[int, int] | None) -> None:
        """Events of these primary times were looked at."""
        if times is not None:
            self.latest_ms = times[1] if self.latest_ms is None else max(self.latest_ms, times[1])
