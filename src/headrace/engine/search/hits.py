"""What a search has found, and what it has not looked at."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.engine.search.documents import Promoted
from headrace.extract.match.tally import Tally


class Hit(NamedTuple):
    """An event that was found, with its place in the order as on the wire; no score where the order asks for none."""

    seq: int
    score: float | None
    sort: list[Any]
    event: Promoted


class Missing(NamedTuple):
    """Events that were not looked at: how many, how many of them in the log, in how many segments, since when."""

    events: int = 0
    log_rows: int = 0
    segments: int = 0
    since_us: int | None = None


class SearchHits(NamedTuple):
    """The answer to a search among the events from ``start`` to ``stop``; from ``visible`` on it left them out.

    ``total`` is the number of all matches, None where they were not counted. ``last`` is the place of the last hit of
    a full page, on the wire.
    """

    start: int
    stop: int
    hits: list[Hit]
    last: list[Any] | None
    total: int | None
    timed_out: bool
    visible: int
    missing: Missing
    tally: Tally
    peak_hits_held: int = 0
    fetched_bytes: int = 0
    families: tuple[str, ...] = ()
