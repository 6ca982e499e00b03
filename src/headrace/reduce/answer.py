"""The answer of a rollup: buckets of time, their groups, the finished measures of each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.query.search import Rollup, Search
from headrace.reduce import reference
from headrace.reduce.finishing import Answer, finished, states
from headrace.reduce.keys import narrowed, project, projected
from headrace.reduce.limits import GroupLimits
from headrace.reduce.measures import reducers
from headrace.reduce.reference import Groups, merge_into
from headrace.reduce.rollup import Span, merge
from headrace.reduce.state import PANES

#: What is answered of every measure, by the start of a pane and the key of a group.
Answers = dict[tuple[int, str], dict[str, Answer]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Beyond any pane, and within 64 bits.
_FAR = 2**62
#: So many rows of states are merged together at least, and so many documents are lifted together.
_PENDING_ROWS, _DOCUMENTS = 65_536, 1_000
_CYCLE = timedelta(days=146_097) // timedelta(milliseconds=1)


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a rollup: panes of one of its lengths in ``[start, end)``, by some dimensions, some measures."""

    rollup: Rollup
    interval: int
    start: int
    end: int
    group_by: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()

    @property
    def whole(self) -> Span:
        """The part that whole panes cover; empty where its end is not after its start."""
        return -(-self.start // self.interval) * self.interval, self.end // self.interval * self.interval

    @property
    def edges(self) -> list[Span]:
        """The parts that only parts of panes cover."""
        first, last = self.whole
        if first >= last:
            return [(self.start, self.end)]
        return [span for span in ((self.start, first), (last, self.end)) if span[0] < span[1]]

    def narrowed(self) -> Aggregate:
        """The same with a rollup that has nothing else than what is asked for."""
        rollup = self.rollup
        dimensions = tuple(name for name in rollup.dimensions if name in self.group_by)
        measures = {name: rollup.measures[name] for name in self.measures or rollup.measures}
        return msgspec.structs.replace(
            self, rollup=msgspec.structs.replace(rollup, dimensions=dimensions, measures=measures)
        )


class Buckets:
    """The buckets of an answer while events are added to them: the states of groups, within limits.

    A group counts once in every bucket. Whatever would go over a limit raises TooManyGroups.
    """

    def __init__(self, asked: Aggregate, search: Search, limits: GroupLimits) -> None:
        self._asked, self._search, self._limits = asked, search, limits
        self._narrowed = asked.narrowed()
        self._merged = PANES.empty_table()
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._documents: list[Any] = []
        self._odd: Groups = {}

    def add_history(self, panes: pa.Table) -> None:
        """Add those panes that lie wholly inside what is asked for, of panes of all events."""
        first, last = (max(-_FAR, min(time, _FAR)) for time in self._asked.whole)
        self._add(panes, (pc.field("pane") >= first) & (pc.field("pane") < last))

    def add(self, panes: pa.Table) -> None:
        """Add panes of events that lie inside: of the edges, or of whatever was asked for."""
        self._add(panes, pc.scalar(True))

    def add_document(self, document: Any) -> None:
        """Add an event that is in no pane."""
        self._documents.append(document)
        if len(self._documents) >= _DOCUMENTS:
            self._lift()

    def finish(self) -> list[dict[str, Any]]:
        """The buckets that are not empty, in order; groups by the text of their keys, measures by name."""
        self._merge()
        self._lift()
        at = PANES.get_field_index("key")
        key = projected(self._merged.column("key"), self._narrowed.rollup, self._asked.group_by)
        merged = self._merged.set_column(at, PANES.field(at), key)
        groups = _answers(self._asked, self._search, merged, self._odd)
        self._require(len(groups))
        return list(_spelled(self._asked, groups))

    def _add(self, panes: pa.Table, rows: pc.Expression) -> None:
        rollup, interval = self._asked.rollup.name, self._asked.interval
        rows &= (pc.field("rollup") == rollup) & (pc.field("interval") == interval)
        rows &= pc.field("measure").isin(_measures(self._asked))
        chosen = narrowed(panes.filter(rows), self._asked.rollup, self._asked.group_by)
        self._pending.append(chosen)
        self._pending_rows += chosen.num_rows
        if self._pending_rows > max(_PENDING_ROWS, self._merged.num_rows):
            self._merge()

    def _merge(self) -> None:
        """Merge what was added, so that there is one row for every group and measure."""
        if self._pending_rows:
            self._merged = merge([self._merged, *self._pending])
            self._require(self._merged.num_rows // len(_measures(self._asked)))
        self._pending, self._pending_rows = [], 0

    def _lift(self) -> None:
        asked = self._asked
        spans = [(asked.start, asked.end)]
        lifted = reference.lift(self._documents, asked.rollup, self._search, asked.interval, spans=spans)
        for (pane, key), given in lifted.items():
            place = pane, project(key, asked.rollup, asked.group_by)
            merge_into(self._odd, place, {name: given[name] for name in _measures(asked)})
        self._documents.clear()
        self._require(len(self._odd))

    def _require(self, groups: int) -> None:
        self._limits.require(groups, self._merged.nbytes)


def iso(millis: int) -> str:
    """A moment in ISO 8601, to the millisecond; years beyond four digits have a sign and six."""
    cycles, within = divmod(millis, _CYCLE)
    moment = _EPOCH + timedelta(milliseconds=within)
    year = moment.year + 400 * cycles
    years = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+07d}"
    return f"{years}{moment:-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _measures(asked: Aggregate) -> list[str]:
    return sorted(asked.measures or asked.rollup.measures)


def _answers(asked: Aggregate, search: Search, merged: pa.Table, odd: Groups) -> Answers:
    """The finished measures by pane and projected key."""
    groups: Answers = {}
    columns = [merged.column(name).to_pylist() for name in ("pane", "key", "measure")]
    for pane, key, measure, answer in zip(*columns, finished(merged, asked.rollup, search), strict=True):
        groups.setdefault((pane, key), {})[measure] = answer
    return {**groups, **_finished_together(asked, search, merged, odd)} if odd else groups


def _finished_together(asked: Aggregate, search: Search, merged: pa.Table, odd: Groups) -> Answers:
    """The answers of groups that have events in no pane."""
    finish = {name: reducer.finish for name, reducer in reducers(asked.rollup, search).items()}
    columns = [merged.column(name).to_pylist() for name in ("pane", "key", "measure")]
    for row, (pane, key, measure) in enumerate(zip(*columns, strict=True)):
        if (pane, key) in odd:
            merge_into(odd, (pane, key), {measure: next(states(merged.slice(row, 1)))})
    return {place: {name: finish[name](state) for name, state in sorted(given.items())} for place, given in odd.items()}


def _spelled(asked: Aggregate, groups: Answers) -> Iterator[dict[str, Any]]:
    decoded, moment = cache(msgspec.json.decode), cache(iso)
    for pane, places in groupby(sorted(groups), key=lambda place: place[0]):
        found = [{"key": decoded(place[1]), "measures": groups[place]} for place in places]
        yield {"start": moment(pane), "end": moment(pane + asked.interval), "groups": found}
