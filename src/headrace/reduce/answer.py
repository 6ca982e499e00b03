"""The answer of a rollup: buckets of time, their groups, the finished measures of each."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.deadline import Deadline, OutOfTime
from headrace.query.search import Rollup, Search
from headrace.reduce import reference
from headrace.reduce.finishing import Answer, finished, states
from headrace.reduce.keys import narrowed, project, projected
from headrace.reduce.limits import GroupLimits, require_groups
from headrace.reduce.measures import reducers
from headrace.reduce.reference import Groups, merge_into
from headrace.reduce.rollup import Span, merge
from headrace.reduce.state import PANES

#: The start of a pane, and the key of a group.
Place = tuple[int, str]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Beyond any pane, and within 64 bits.
_FAR = 2**62
#: So many rows of states are merged together at least, and so many documents are lifted together.
_PENDING_ROWS, _DOCUMENTS = 65_536, 1_000
#: States are merged, however few, where they take this share of the memory that all groups may take.
_PENDING_SHARE = 0.25
#: So many rows of states are finished between two looks at the deadline.
_FINISHED_ROWS = 2_048
_ORDER, _KEY = ("pane", "key", "measure"), PANES.get_field_index("key")
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


class Finished(NamedTuple):
    """Buckets whose groups are JSON already, and whether there was time for all groups."""

    buckets: list[dict[str, Any]]
    is_complete: bool


class Buckets:
    """The buckets of an answer while events are added to them: the states of groups, within limits.

    A group counts once in every bucket. Whatever would go over a limit raises TooManyGroups; what cannot be added
    before the deadline raises OutOfTime.
    """

    def __init__(self, asked: Aggregate, search: Search, limits: GroupLimits, deadline: Deadline) -> None:
        self._asked, self._search, self._limits, self._deadline = asked, search, limits, deadline
        self._narrowed = asked.narrowed()
        self._merged = PANES.empty_table()
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
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

    def finish(self) -> Finished:
        """The buckets that are not empty, in order; groups by the text of their keys, measures by name.

        Groups are finished and encoded some at a time, as far as the time goes.
        """
        encoder, buckets = msgspec.json.Encoder(), dict[int, list[msgspec.Raw]]()
        try:
            self._merge()
            self._lift()
            for count, ((pane, key), measures) in enumerate(self._groups(), 1):
                require_groups(count, self._limits.groups)
                group = encoder.encode({"key": msgspec.Raw(key.encode()), "measures": measures})
                buckets.setdefault(pane, []).append(msgspec.Raw(group))
            is_complete = True
        except OutOfTime:
            is_complete = False
        interval = self._asked.interval
        return Finished(
            [{"start": iso(at), "end": iso(at + interval), "groups": groups} for at, groups in buckets.items()],
            is_complete,
        )

    def _groups(self) -> Iterator[tuple[Place, dict[str, Answer]]]:
        """The finished measures of all groups, in order."""
        finish = {name: reducer.finish for name, reducer in reducers(self._asked.rollup, self._search).items()}
        odd = ((place, None) for place in sorted(self._odd))
        for place, measures in heapq.merge(self._merged_groups(), odd, key=itemgetter(0)):
            if measures is not None:
                yield place, measures
            else:
                yield place, {name: finish[name](state) for name, state in sorted(self._odd[place].items())}

    def _merged_groups(self) -> Iterator[tuple[Place, dict[str, Answer]]]:
        """The same of groups whose events all are in panes; the states of others go to those of documents."""
        for place, rows in groupby(self._finished_rows(), key=itemgetter(0)):
            if place in self._odd:
                merged = {measure: next(states(table.slice(at, 1))) for _, measure, _, table, at in rows}
                merge_into(self._odd, place, merged)
            else:
                yield place, {measure: answer for _, measure, answer, _, _ in rows}

    def _finished_rows(self) -> Iterator[tuple[Place, str, Answer, pa.Table, int]]:
        """What is answered of every row of merged states, and where the row is: by place, then by measure."""
        key = projected(self._merged.column("key"), self._narrowed.rollup, self._asked.group_by)
        merged = self._merged.set_column(_KEY, PANES.field(_KEY), key).combine_chunks()
        order = pc.sort_indices(merged.select(_ORDER), [(name, "ascending") for name in _ORDER])
        for start in range(0, len(order), _FINISHED_ROWS):
            self._deadline.check()
            rows = merged.take(order.slice(start, _FINISHED_ROWS))
            columns = (rows.column(name).to_pylist() for name in _ORDER)
            answers = finished(rows, self._asked.rollup, self._search)
            for at, (pane, text, measure, answer) in enumerate(zip(*columns, answers, strict=True)):
                yield (pane, text), measure, answer, rows, at

    def _add(self, panes: pa.Table, rows: pc.Expression) -> None:
        rollup, interval = self._asked.rollup.name, self._asked.interval
        rows &= (pc.field("rollup") == rollup) & (pc.field("interval") == interval)
        rows &= pc.field("measure").isin(_measures(self._asked))
        chosen = narrowed(panes.filter(rows), self._asked.rollup, self._asked.group_by)
        self._pending.append(chosen)
        self._pending_rows += chosen.num_rows
        self._pending_bytes += chosen.nbytes
        are_many = self._pending_rows > max(_PENDING_ROWS, self._merged.num_rows)
        if are_many or self._pending_bytes > self._limits.bytes * _PENDING_SHARE:
            self._merge()

    def _merge(self) -> None:
        """Merge what was added, so that there is one row for every group and measure."""
        if self._pending_rows:
            self._merged = merge([self._merged, *self._pending], self._deadline)
            self._require(self._merged.num_rows // len(_measures(self._asked)))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

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
