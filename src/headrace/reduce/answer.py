"""The answer of a rollup: buckets of time, their groups, the finished measures of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from headrace.reduce.keys import project, projected
from headrace.reduce.measures import reducers
from headrace.reduce.reference import Groups, merge_into
from headrace.reduce.rollup import Span, merge
from headrace.reduce.state import PANES

#: What is answered of every measure, by the start of a pane and the key of a group.
Answers = dict[tuple[int, str], dict[str, Answer]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Beyond any pane, and within 64 bits.
_FAR = 2**62
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


def buckets(
    asked: Aggregate,
    search: Search,
    *,
    history: Sequence[pa.Table] = (),
    more: Sequence[pa.Table] = (),
    documents: Iterable[Any] = (),
) -> list[dict[str, Any]]:
    """The buckets that are not empty, in order; groups by the text of their keys, measures by name.

    ``history`` are panes of all events: those that lie wholly inside are used. ``more`` are panes of events that lie
    inside: of the edges, or of whatever was asked for. ``documents`` are events that are in no pane.
    """
    merged = _merged(asked, _selected(asked, history, more))
    groups = _answers(asked, search, merged, _odd(asked, search, documents))
    return list(_spelled(asked, groups))


def iso(millis: int) -> str:
    """A moment in ISO 8601, to the millisecond; years beyond four digits have a sign and six."""
    cycles, within = divmod(millis, _CYCLE)
    moment = _EPOCH + timedelta(milliseconds=within)
    year = moment.year + 400 * cycles
    years = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+07d}"
    return f"{years}{moment:-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _measures(asked: Aggregate) -> list[str]:
    return sorted(asked.measures or asked.rollup.measures)


def _selected(asked: Aggregate, history: Sequence[pa.Table], more: Sequence[pa.Table]) -> list[pa.Table]:
    rows = (pc.field("rollup") == asked.rollup.name) & (pc.field("interval") == asked.interval)
    rows &= pc.field("measure").isin(_measures(asked))
    first, last = (max(-_FAR, min(time, _FAR)) for time in asked.whole)
    inside = rows & (pc.field("pane") >= first) & (pc.field("pane") < last)
    return [*(table.filter(inside) for table in history), *(table.filter(rows) for table in more)]


def _odd(asked: Aggregate, search: Search, documents: Iterable[Any]) -> Groups:
    """The states of events that are in no pane, by pane and projected key."""
    groups: Groups = {}
    lifted = reference.lift(documents, asked.rollup, search, asked.interval, spans=[(asked.start, asked.end)])
    for (pane, key), given in lifted.items():
        place = pane, project(key, asked.rollup, asked.group_by)
        merge_into(groups, place, {name: given[name] for name in _measures(asked)})
    return groups


def _merged(asked: Aggregate, tables: list[pa.Table]) -> pa.Table:
    """One row for every pane, projected key and measure, in order."""
    together = pa.concat_tables([PANES.empty_table(), *tables])
    at = together.schema.get_field_index("key")
    key = projected(together.column("key"), asked.rollup, asked.group_by)
    return merge([together.set_column(at, together.schema.field(at), key)])


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
