"""An aggregate over all events of a stream: panes where they were computed ahead, columns for the rest.

Panes answer for whole panes of companions that are wholly retained, where no query narrows the events, or one does that
only asks for values of dimensions. Events at the edges of the range, those that other queries choose, and those of
companions that retention has cut into are reduced from columns; odd rows from their documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.deadline import Deadline, OutOfTime
from headrace.engine.log.stream import Head, Stream
from headrace.engine.search.archive import Archive, IndexedRange, SearchSnapshot
from headrace.engine.search.companion_coverage import SearchDefinition
from headrace.engine.search.scan import Documents, Missing, Scan
from headrace.extract.match.evaluate import Evaluator, query_fields
from headrace.extract.match.selection import Window, rows_in_window
from headrace.extract.match.tally import Tally
from headrace.format.companion import tables
from headrace.format.companion.layout import PartName
from headrace.format.companion.memory import MemoryCompanion
from headrace.format.companion.reader import ColumnGroup, CompanionReader
from headrace.query import predicate
from headrace.query.search import SummaryParts
from headrace.query.values import values
from headrace.reduce import parts
from headrace.reduce.answer import Buckets
from headrace.reduce.groups import filter_panes, narrow_panes, wanted_values
from headrace.reduce.request import AggregateRequest
from headrace.reduce.rollup import Span, include_queries, panes

Spans = tuple[Span, ...]

_PARTS: tuple[PartName, ...] = ("columns", "postings", "panes")
#: Rows whose columns are reduced together.
_REDUCED_ROWS = 65_536


class Aggregated(NamedTuple):
    """The buckets of the events from ``start`` to ``stop``, and what was left out."""

    start: int
    stop: int
    buckets: list[dict[str, Any]]
    missing: Missing
    tally: Tally
    used_rollups: bool


def aggregate(
    archive: Archive,
    stream: Stream,
    head: Head,
    defined: SearchDefinition,
    request: AggregateRequest,
    deadline: Deadline,
    answer_by: Deadline | None = None,
) -> Aggregated:
    """Compute what a request asks for, as of a head, from events that are read before the deadline.

    Groups are finished until ``answer_by``, or else the same deadline; those left then are missing in the answer.
    """
    answer_by = answer_by or deadline
    return archive.answer(
        stream, head, defined, lambda snapshot: _Aggregate(snapshot, request, deadline, answer_by).run()
    )


class _Aggregate:
    """One aggregate over one snapshot."""

    def __init__(
        self, snapshot: SearchSnapshot, request: AggregateRequest, deadline: Deadline, answer_by: Deadline
    ) -> None:
        self._snapshot, self._deadline, self._answer_by = snapshot, deadline, answer_by
        # Only the measures that are asked for are computed; which events count depends on all dimensions of the rollup.
        self._narrowed, self._where = request.aggregate.narrowed(), request.where
        self._search = snapshot.defined.definition.search
        self._full_rollup, self._rollup = request.aggregate.rollup, self._narrowed.rollup
        self._trees = include_queries(self._rollup)
        self._wanted = None if self._where is None else wanted_values(self._where, self._full_rollup, self._search)
        self._matches = predicate.compile(self._where, self._search) if self._where is not None else lambda _: True
        self._tally = Tally()
        self._documents = Documents(snapshot, self._tally)
        self._scan = Scan(snapshot, self._tally, backward=True, is_needed=lambda *_: True, parts=_PARTS)
        self._group_limits = snapshot.archive.group_limits
        self._buckets = Buckets(self._narrowed, self._search, self._group_limits, answer_by)
        self._pending: dict[Spans, list[pa.Table]] = {}
        self._used_rollups = False
        #: Whether there was no time to reduce all columns that were gathered.
        self._is_cut = False

    def run(self) -> Aggregated:
        """Scan all events until the deadline, the newest first."""
        ranges = self._snapshot.covered_ranges(self._fields(), [self._rollup.name])
        self._scan.count(self._scan.visit(ranges[::-1], self._deadline, self._visit))
        with suppress(OutOfTime):
            for spans in self._pending:
                self._reduce(spans)
        finished = self._buckets.finish()
        if self._is_cut or not finished.is_complete:
            self._scan.skip_all()
        snapshot, missing = self._snapshot, self._scan.missing(len(self._documents.unreadable))
        return Aggregated(snapshot.start, snapshot.stop, finished.buckets, missing, self._tally, self._used_rollups)

    def _fields(self) -> set[str]:
        """Every field that a query or a measure reads."""
        trees = [*self._trees, *([] if self._where is None else [self._where])]
        queried = {name for tree in trees for name in query_fields(tree, self._search)}
        return self._columns() | set(self._full_rollup.dimensions) | queried

    def _columns(self) -> set[str]:
        """The fields whose columns are reduced."""
        measured = (name for measure in self._rollup.measures.values() for name in measure.fields)
        return {self._rollup.timestamp, *self._rollup.dimensions, *measured}

    def _visit(self, piece: IndexedRange, _: Deadline) -> None:
        companion = piece.companion
        spans: Spans = ((self._narrowed.start, self._narrowed.end),)
        is_complete = (piece.start, piece.stop) == (companion.first_seq, companion.end_seq)
        if is_complete and (self._where is None or self._wanted is not None):
            ahead = companion.panes(self._full_rollup.name, self._narrowed.interval)
            if ahead is not None:
                self._add_history(ahead)
                self._used_rollups |= not isinstance(companion, MemoryCompanion)
                spans = tuple(self._narrowed.edges)
        self._gather(piece, spans)
        first = companion.first_seq
        for row in rows_in_window(companion.irregular_rows(), piece.start - first, piece.stop - first).tolist():
            self._deadline.check()
            event = self._documents.get(piece.start + row)
            if event is not None and self._counts(document := event.document()):
                self._buckets.add_document(document)

    def _add_history(self, tables: Iterator[pa.Table]) -> None:
        """Add the panes of a companion that may be inside the requested range."""
        for table in tables:
            self._deadline.check()
            if table.num_rows and table.column("pane")[0].as_py() >= self._narrowed.end:
                return  # they are sorted by time
            wanted = table if self._wanted is None else filter_panes(table, self._wanted)
            self._buckets.add_history(narrow_panes(wanted, self._full_rollup, self._rollup.dimensions))

    def _counts(self, document: Any) -> bool:
        """Whether an event matches, and has no two values of a dimension."""
        dimensions = (self._search[name] for name in self._full_rollup.dimensions)
        return self._matches(document) and all(len(values(field, document)) <= 1 for field in dimensions)

    def _gather(self, piece: IndexedRange, spans: Spans) -> None:
        """Gather the columns of events whose time may be in the spans; many companions are reduced together."""
        evaluator = Evaluator(piece.companion, self._search, self._tally)
        first, pending = piece.companion.first_seq, self._pending.setdefault(spans, [])
        groups = evaluator.columns.touching(f"f.{self._rollup.timestamp}", piece.start - first, piece.stop - first)
        for number, group in groups if spans else ():
            self._deadline.check()
            if _may_hold(group, spans):
                window = Window(max(group.start, piece.start - first), min(group.stop, piece.stop - first))
                table = self._table(evaluator, number, group, window)
                pending += [table] if table.num_rows else []
            if sum(table.num_rows for table in pending) >= _REDUCED_ROWS:
                self._reduce(spans)

    def _reduce(self, spans: Spans) -> None:
        """Reduce the gathered columns to panes."""
        if not self._pending[spans]:
            return
        columns, intervals = tables.concat(self._pending[spans]), [self._narrowed.interval]
        self._pending[spans].clear()
        query_columns = {tree: f"t.{at}" for at, tree in enumerate(self._trees)}
        try:
            self._answer_by.check()
            reduced = panes(
                columns,
                self._rollup,
                self._search,
                intervals=intervals,
                spans=spans,
                query_columns=query_columns,
                max_groups=self._group_limits.groups,
                deadline=self._answer_by,
            )
            self._buckets.add(reduced)
        except OutOfTime:
            self._is_cut = True
            raise

    def _table(self, evaluator: Evaluator, number: int, group: ColumnGroup, window: Window) -> pa.Table:
        """The columns that are reduced, of the rows of one row group that match the query."""
        names = [*(f"f.{name}" for name in sorted(self._columns())), *self._parts()]
        others = self._many(evaluator.companion)
        start = window.start - group.start
        made = {
            name: evaluator.companion.column(name, number).slice(start, window.count)
            for name in dict.fromkeys([*names, *others])
        }
        for at, tree in enumerate(self._trees):
            made[f"t.{at}"] = pa.array(evaluator.select(tree, window).mask())
        table = pa.table(made)
        if self._where is not None:
            table = table.filter(pa.array(evaluator.select(self._where, window).mask()))
        for name in others:
            table = table.filter(pc.fill_null(pc.less_equal(pc.list_value_length(table[name]), 1), True))
        return table.select([*names, *(f"t.{at}" for at, _ in enumerate(self._trees))])

    def _many(self, companion: CompanionReader) -> list[str]:
        """The columns of the rollup's other dimensions that may have several values."""
        left = [name for name in self._full_rollup.dimensions if name not in self._rollup.dimensions]
        return [f"f.{name}" for name in left if companion.fields[name].many]

    def _parts(self) -> list[str]:
        """The columns that measures read and that are no fields."""
        return [
            parts.column(self._rollup.name, name, part)
            for name, measure in self._rollup.measures.items()
            if isinstance(measure, SummaryParts)
            for part in parts.TYPES
        ]


def _may_hold(group: ColumnGroup, spans: Spans) -> bool:
    """Whether events of a row group may have a time in the spans."""
    if group.least is None or group.greatest is None:
        return group.nulls < group.stop - group.start
    return any(group.least < end and start <= group.greatest for start, end in spans)
