"""Requests for searches, aggregates and routing keys, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypedDict, Unpack

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.frames import Row, Tabular, event_row
from headrace.client.json_values import moment, to_json
from headrace.client.requests import Moment, Request, check_options, stream_path, with_query
from headrace.errors import TimedOut
from headrace.types import JSON

#: What a search covered; ``complete`` says whether that is everything.
Coverage = dict[str, Any]


class SearchOptions(TypedDict, total=False):
    """Options of a search, by the names of the protocol."""

    sort: Sequence[str]
    size: int
    search_after: Sequence[Any] | None
    track_total_hits: bool
    snippets: bool
    timeout_ms: float


class AggregateOptions(TypedDict, total=False):
    """Options of an aggregate, by the names of the protocol."""

    q: str | None
    group_by: Sequence[str]
    measures: Sequence[str]


class Hit(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """A matching event: its offset, its score, its sort values, and the event itself."""

    offset: str
    score: float | None
    sort: list[Any]
    fields: dict[str, Any]
    raw: msgspec.Raw = msgspec.field(name="source")
    snippets: dict[str, str] = {}

    @cached_property
    def source(self) -> Any:
        """The event, decoded; ``raw`` is how it was spelled."""
        return answers.decode_events(b"[" + bytes(self.raw) + b"]")[0]


class Total(msgspec.Struct, frozen=True):
    """How many events match: just so many (``eq``), or at least so many (``gte``)."""

    value: int
    relation: str


class SearchResult(msgspec.Struct, Tabular, frozen=True):
    """One page of hits; the next one begins after ``next_search_after``, and None says that there is none."""

    stream: str
    snapshot_end_offset: str
    took_ms: int
    timed_out: bool
    timeout_ms: int
    coverage: Coverage
    total: Total
    hits: list[Hit]
    next_search_after: list[Any] | None

    @property
    def complete(self) -> bool:
        """Whether every event that could be on this page was searched."""
        return bool(self.coverage["complete"])

    def rows(self) -> list[Row]:
        """The events found, with their offset and score as ``_offset`` and ``_score``."""
        return [{"_offset": hit.offset, "_score": hit.score, **event_row(hit.source)} for hit in self.hits]


class Group(msgspec.Struct, frozen=True):
    """The events of a bucket that share the values of ``key``, and what was measured of them."""

    key: dict[str, Any]
    measures: dict[str, dict[str, Any]]


class Bucket(msgspec.Struct, frozen=True):
    """A pane of time that has events, and its groups."""

    start: str
    end: str
    groups: list[Group]


class AggregateResult(msgspec.Struct, Tabular, frozen=True):
    """The buckets of a rollup that are not empty, in order."""

    stream: str
    rollup: str
    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    interval: str
    coverage: Coverage
    buckets: list[Bucket]

    @property
    def complete(self) -> bool:
        """Whether every event was counted."""
        return bool(self.coverage["complete"])

    def rows(self) -> list[Row]:
        """A row for each bucket and group: its times, its key, and its measures, such as ``latency.p95``."""
        return [
            {"start": bucket.start, "end": bucket.end, **group.key, **_statistics(group)}
            for bucket in self.buckets
            for group in bucket.groups
        ]


def _statistics(group: Group) -> Row:
    """What was measured, by the name of the measure, and of the statistic where there are several."""
    return {
        name if len(statistics) == 1 else f"{name}.{statistic}": value
        for name, statistics in group.measures.items()
        for statistic, value in statistics.items()
    }


class _Keys(msgspec.Struct):
    coverage: Coverage
    keys: list[str]
    next_after: str | None


def search(name: str, q: str, **options: Unpack[SearchOptions]) -> Request:
    """POST: one page of the events that match."""
    check_options(SearchOptions, options)
    return _post(f"{stream_path(name)}/_search", {"q": q, **options})


def aggregate(
    name: str, rollup: str, start: Moment, end: Moment, interval: str, **options: Unpack[AggregateOptions]
) -> Request:
    """POST: the buckets of a rollup from ``start`` up to ``end``."""
    check_options(AggregateOptions, options)
    span = {"from": moment(start), "to": moment(end), "interval": interval}
    # No measures are all of them; to the server an empty list is a mistake.
    options_sent = {option: value for option, value in options.items() if value}
    return _post(f"{stream_path(name)}/_aggregate", {"rollup": rollup, **span, **options_sent})


def routing_keys(name: str, after: str, limit: int | None) -> Request:
    """GET: one page of routing keys in order."""
    query = {"after": after or None, "limit": None if limit is None else str(limit)}
    return Request("GET", with_query(f"{stream_path(name)}/_routing_keys", query))


def read_routing_keys(answer: Answer) -> tuple[list[str], str | None]:
    """A page of routing keys, and after which the next begins; raises where some may be missing."""
    page = answer.decode(_Keys)
    if not page.coverage["complete"]:
        raise TimedOut("the server had no time to look for all routing keys", coverage=page.coverage)
    return page.keys, page.next_after


class Paging:
    """A search page by page, up to the last hit, or to a page that could not be completed."""

    def __init__(self, name: str, q: str, options: SearchOptions) -> None:
        self.ended = False
        self._name = name
        self._q = q
        self._options = options

    def request(self) -> Request:
        """The next request."""
        return search(self._name, self._q, **self._options)

    def accept(self, answer: Answer) -> SearchResult:
        """The page that the answer brought."""
        page = answer.decode(SearchResult)
        # What was not looked at may belong before what comes next.
        self.ended = page.next_search_after is None or page.timed_out
        # Once is enough: the others would count the same.
        self._options = {**self._options, "search_after": page.next_search_after, "track_total_hits": False}
        return page


def _post(target: str, body: dict[str, Any]) -> Request:
    return Request("POST", target, {"content-type": JSON}, to_json(body), changes=False)
