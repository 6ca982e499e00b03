"""Folds many events into tails as columns: decoded once for all tails, then folded to packed rows for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.engine.derive.generation import Generation
from headrace.format.state_file import PackedColumns
from headrace.reduce.states.definition import Columns, EventRun, NotColumnar, Shapes

#: Fewer events are folded one by one.
MIN_COLUMN_EVENTS = 1024
#: The most events that are folded together, and about the most of their payload.
_MAX_EVENTS, _MAX_BYTES = 65_536, 24 * 1024 * 1024

#: Makes columns of the events of a stream for definitions over it.
ColumnsOf = Callable[[Any, Sequence[Any]], Columns]


class TailMark(NamedTuple):
    """A tail as it was at a moment."""

    tail: Generation
    defined: Any
    number: int
    position: int

    @classmethod
    def of(cls, tail: Generation) -> TailMark:
        """A tail as it is."""
        return cls(tail, tail.defined, tail.number, tail.position)


class NewRows(NamedTuple):
    """The rows of the events that a tail lacked at a moment, up to a position."""

    before: TailMark
    end: int
    rows: PackedColumns

    def add_to_tail(self) -> None:
        """Add the rows to the tail if it is still as it was."""
        tail = self.before.tail
        if TailMark.of(tail) == self.before:
            tail.add_rows(self.rows, self.end)


def prepare_rows(
    runs: Iterable[EventRun],
    shapes: Shapes,
    tails: Sequence[TailMark],
    columns_of: ColumnsOf,
    should_continue: Callable[[], bool],
) -> list[NewRows]:
    """Make rows of the first events for tails, which may be read meanwhile.

    Where it is stopped, there are none; where events are no columns, NotColumnar is raised.
    """
    made, together = list[NewRows](), next(slices(runs))
    end = together[-1].first_seq + len(together[-1].times_us)
    columns = columns_of(shapes, [tail.defined for tail in tails])
    for run in together:
        columns.add(run)
        if not should_continue():
            return []
    for tail in tails:
        if tail.position < end:
            made.append(NewRows(tail, end, columns.fold(tail.defined, tail.position)))
        if not should_continue():
            return []
    return made


def fold_runs(
    runs: Sequence[EventRun],
    shapes: Shapes,
    tails: Sequence[Generation],
    columns_of: ColumnsOf | None,
    should_continue: Callable[[], bool],
) -> None:
    """Fold events into tails that nobody reads meanwhile, as columns if that can be, until it is stopped."""
    if columns_of is not None:
        with suppress(NotColumnar):
            made = prepare_rows(runs, shapes, list(map(TailMark.of, tails)), columns_of, should_continue)
            for rows in made:
                rows.add_to_tail()
                rows.before.tail.fold.merge_rows(lambda: not should_continue())
            return
    for run in runs:
        for seq, at, event in shapes.decode_run(run):
            for tail in tails:
                tail.add(seq, at, event)
        if not should_continue():
            return


def slices(runs: Iterable[EventRun]) -> Iterator[list[EventRun]]:
    """Runs of events, as many together as are folded as columns at once."""
    together, count, size = list[EventRun](), 0, 0
    for run in runs:
        if together and (count + len(run.times_us) > _MAX_EVENTS or size + len(run.body) > _MAX_BYTES):
            yield together
            together, count, size = [], 0, 0
        together.append(run)
        count += len(run.times_us)
        size += len(run.body)
    if together:
        yield together
