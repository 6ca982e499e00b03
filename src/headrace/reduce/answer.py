"""The answer of a rollup: buckets of time, their groups, the finished measures of each."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.deadline import Deadline, OutOfTime
from headrace.query import predicate
from headrace.query.search import Rollup, Search
from headrace.query.values import values
from headrace.reduce.groups import GroupLimits, key, narrow_panes, project, project_keys, require_groups
from headrace.reduce.measures import Answer, states_of
from headrace.reduce.rollup import FARTHEST, Span, merge_panes, reducers
from headrace.reduce.state import PANES, STATE, State, merge_states

#: The state of every measure by the start of its pane and the key of its group.
Groups = dict[tuple[int, str], dict[str, State]]


def lift(
    documents: Iterable[Any], rollup: Rollup, search: Search, interval: int, *, spans: Sequence[Span] | None = None
) -> Groups:
    """The panes of some events of the newest shape, of any size of number; only those with a time in the spans."""
    measures = reducers(rollup, search)
    groups: Groups = {}
    for time, key_, document in _select_events(documents, rollup, search):
        if spans is None or any(start <= time < end for start, end in spans):
            lifted = {name: reducer.lift(document, time) for name, reducer in measures.items()}
            merge_into(groups, (time // interval * interval, key_), lifted)
    return groups


def merge_into(groups: Groups, group: tuple[int, str], states: dict[str, State]) -> None:
    """Add states to a group."""
    merged = groups.setdefault(group, {})
    for name, state in states.items():
        merged[name] = merge_states(merged[name], state) if name in merged else state


def _select_events(documents: Iterable[Any], rollup: Rollup, search: Search) -> Iterator[tuple[int, str, Any]]:
    """The events that count in a rollup, with their time and the key of their group."""
    matches = predicate.compile(rollup.include, search) if rollup.include else lambda _: True
    dimensions = [search[name] for name in rollup.dimensions]
    for document in documents:
        times = values(search[rollup.timestamp], document)
        dimension_values = [values(field, document) for field in dimensions]
        if len(times) == 1 and all(len(field_values) <= 1 for field_values in dimension_values) and matches(document):
            time = int(times[0])
            if -FARTHEST <= time <= FARTHEST:
                yield (
                    time,
                    key([each[0] if each else None for each in dimension_values]),
                    document,
                )


def finish_panes(panes: pa.Table, rollup: Rollup, search: Search) -> list[Answer]:
    """The answer of every row of merged panes, in the order of the rows."""
    answers: list[Answer] = [{}] * panes.num_rows
    for name, reducer in reducers(rollup, search).items():
        rows = pc.indices_nonzero(pc.equal(panes.column("measure"), name))
        measure_answers = reducer.finish_columns(panes.select(STATE.names).take(rows))
        for row, answer in zip(rows.to_pylist(), measure_answers, strict=True):
            answers[row] = answer
    return answers


#: The start of a pane, and the key of a group.
GroupKey = tuple[int, str]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Beyond any pane, and within 64 bits.
_FAR = 2**62
#: So many rows of states are merged together at least, and so many documents are lifted together.
_PENDING_ROWS, _DOCUMENTS = 65_536, 1_000
#: States are merged, however few, where they take this share of the memory that all groups may take.
_PENDING_SHARE = 0.25
#: So many rows of states are finished between two checks of the deadline.
_FINISHED_ROWS = 2_048
_ORDER, _KEY = ("pane", "key", "measure"), PANES.get_field_index("key")
_CYCLE = timedelta(days=146_097) // timedelta(milliseconds=1)


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """A query of a rollup: panes of one of its lengths in ``[start, end)``, by some dimensions, some measures."""

    rollup: Rollup
    interval: int
    start: int
    end: int
    group_by: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()

    @property
    def covered_span(self) -> Span:
        """The part that whole panes cover; empty where its end is not after its start."""
        return -(-self.start // self.interval) * self.interval, self.end // self.interval * self.interval

    @property
    def edges(self) -> list[Span]:
        """The parts that only parts of panes cover."""
        first, last = self.covered_span
        if first >= last:
            return [(self.start, self.end)]
        return [span for span in ((self.start, first), (last, self.end)) if span[0] < span[1]]

    def narrowed(self) -> Aggregate:
        """The same query of a rollup with only the dimensions and measures that it uses."""
        rollup = self.rollup
        dimensions = tuple(name for name in rollup.dimensions if name in self.group_by)
        measures = {name: rollup.measures[name] for name in self.measures or rollup.measures}
        return msgspec.structs.replace(
            self, rollup=msgspec.structs.replace(rollup, dimensions=dimensions, measures=measures)
        )


class FinishedBuckets(NamedTuple):
    """Buckets whose groups are JSON already, and whether there was time for all groups."""

    buckets: list[dict[str, Any]]
    is_complete: bool


class Buckets:
    """The buckets of an answer while events are added to them: the states of groups, within limits.

    A group counts once in every bucket. Whatever would go over a limit raises TooManyGroups; what cannot be added
    before the deadline raises OutOfTime.
    """

    def __init__(self, aggregate: Aggregate, search: Search, limits: GroupLimits, deadline: Deadline) -> None:
        self._aggregate, self._search, self._limits, self._deadline = aggregate, search, limits, deadline
        self._narrowed = aggregate.narrowed()
        self._merged = PANES.empty_table()
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._documents: list[Any] = []
        self._document_groups: Groups = {}

    def add_history(self, panes: pa.Table) -> None:
        """Add panes of all events, those that lie within the covered span."""
        first, last = (max(-_FAR, min(time, _FAR)) for time in self._aggregate.covered_span)
        self._add(panes, (pc.field("pane") >= first) & (pc.field("pane") < last))

    def add(self, panes: pa.Table) -> None:
        """Add panes whose events all lie within the requested range."""
        self._add(panes, pc.scalar(True))

    def add_document(self, document: Any) -> None:
        """Add an event that is in no pane."""
        self._documents.append(document)
        if len(self._documents) >= _DOCUMENTS:
            self._lift()

    def finish(self) -> FinishedBuckets:
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
        interval = self._aggregate.interval
        return FinishedBuckets(
            [{"start": iso(at), "end": iso(at + interval), "groups": groups} for at, groups in buckets.items()],
            is_complete,
        )

    def _groups(self) -> Iterator[tuple[GroupKey, dict[str, Answer]]]:
        """The finished measures of all groups, in order."""
        finish = {name: reducer.finish for name, reducer in reducers(self._aggregate.rollup, self._search).items()}
        from_documents = ((group, None) for group in sorted(self._document_groups))
        for group, measures in heapq.merge(self._merged_groups(), from_documents, key=itemgetter(0)):
            if measures is not None:
                yield group, measures
            else:
                yield group, {name: finish[name](state) for name, state in sorted(self._document_groups[group].items())}

    def _merged_groups(self) -> Iterator[tuple[GroupKey, dict[str, Answer]]]:
        """The same of groups whose events all are in panes; the states of others go to those of documents."""
        for group, rows in groupby(self._finished_rows(), key=itemgetter(0)):
            if group in self._document_groups:
                merged = {measure: next(iter(states_of(table.slice(at, 1)))) for _, measure, _, table, at in rows}
                merge_into(self._document_groups, group, merged)
            else:
                yield group, {measure: answer for _, measure, answer, _, _ in rows}

    def _finished_rows(self) -> Iterator[tuple[GroupKey, str, Answer, pa.Table, int]]:
        """What is answered of every row of merged states, and where the row is: by place, then by measure."""
        key = project_keys(self._merged.column("key"), self._narrowed.rollup, self._aggregate.group_by)
        merged = self._merged.set_column(_KEY, PANES.field(_KEY), key).combine_chunks()
        order = pc.sort_indices(merged.select(_ORDER), [(name, "ascending") for name in _ORDER])
        for start in range(0, len(order), _FINISHED_ROWS):
            self._deadline.check()
            rows = merged.take(order.slice(start, _FINISHED_ROWS))
            columns = (rows.column(name).to_pylist() for name in _ORDER)
            answers = finish_panes(rows, self._aggregate.rollup, self._search)
            for at, (pane, text, measure, answer) in enumerate(zip(*columns, answers, strict=True)):
                yield (pane, text), measure, answer, rows, at

    def _add(self, panes: pa.Table, rows: pc.Expression) -> None:
        rollup, interval = self._aggregate.rollup.name, self._aggregate.interval
        rows &= (pc.field("rollup") == rollup) & (pc.field("interval") == interval)
        rows &= pc.field("measure").isin(_measures(self._aggregate))
        chosen = narrow_panes(panes.filter(rows), self._aggregate.rollup, self._aggregate.group_by)
        self._pending.append(chosen)
        self._pending_rows += chosen.num_rows
        self._pending_bytes += chosen.nbytes
        are_many = self._pending_rows > max(_PENDING_ROWS, self._merged.num_rows)
        if are_many or self._pending_bytes > self._limits.bytes * _PENDING_SHARE:
            self._merge()

    def _merge(self) -> None:
        """Merge what was added, so that there is one row for every group and measure."""
        if self._pending_rows:
            self._merged = merge_panes([self._merged, *self._pending], self._deadline)
            self._require(self._merged.num_rows // len(_measures(self._aggregate)))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _lift(self) -> None:
        aggregate = self._aggregate
        spans = [(aggregate.start, aggregate.end)]
        lifted = lift(self._documents, aggregate.rollup, self._search, aggregate.interval, spans=spans)
        for (pane, dimension_key), states in lifted.items():
            group = pane, project(dimension_key, aggregate.rollup, aggregate.group_by)
            merge_into(self._document_groups, group, {name: states[name] for name in _measures(aggregate)})
        self._documents.clear()
        self._require(len(self._document_groups))

    def _require(self, groups: int) -> None:
        self._limits.require(groups, self._merged.nbytes)


def iso(millis: int) -> str:
    """A moment in ISO 8601, to the millisecond; years beyond four digits have a sign and six."""
    cycles, remaining_millis = divmod(millis, _CYCLE)
    moment = _EPOCH + timedelta(milliseconds=remaining_millis)
    year = moment.year + 400 * cycles
    years = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+07d}"
    return f"{years}{moment:-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _measures(aggregate: Aggregate) -> list[str]:
    return sorted(aggregate.measures or aggregate.rollup.measures)
