"""A companion in memory, of events that no file covers yet, with the same look-ups as one in files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.format.companion.layout import KEYS, LIMITS, CompanionInfo
from headrace.format.companion.postings import PostingRun, TableRun, one_array
from headrace.format.companion.reader import ColumnGroup, CompanionReader
from headrace.format.companion.tables import zone

_ROWS = LIMITS.rows


class Tables(NamedTuple):
    """Everything a companion in memory answers from: columns, postings by field, panes by rollup and interval."""

    columns: Any
    postings: Mapping[str, Any]
    panes: Mapping[tuple[str, int], Any]

    @property
    def bytes(self) -> int:
        """The memory of all tables."""
        return sum(int(table.nbytes) for table in (self.columns, *self.postings.values(), *self.panes.values()))


class MemoryCompanion(CompanionReader):
    """Stored columns in a table; the postings of a field and the panes of a rollup are made on first use.

    It may be used from several threads.
    """

    def __init__(
        self,
        info: CompanionInfo,
        columns: Any,
        *,
        postings: Callable[[str], Any],
        panes: Callable[[str, int], Any] = lambda _rollup, _interval: None,
    ) -> None:
        super().__init__(info)
        if columns.num_rows != info.count:
            raise ValueError(f"a companion of {info.count} events cannot have {columns.num_rows} rows")
        self._columns = columns
        self._postings, self._panes = postings, panes
        self._lock = threading.Lock()
        self._made: dict[object, Any] = {}

    @classmethod
    def complete(cls, info: CompanionInfo, tables: Tables) -> MemoryCompanion:
        """A companion whose tables have all been made; panes of other intervals are not held."""

        def panes(rollup: str, interval: int) -> Any:
            return tables.panes.get((rollup, interval))

        return cls(info, tables.columns, postings=tables.postings.__getitem__, panes=panes)

    def tables(self, panes: Iterable[tuple[str, int]]) -> Tables:
        """All of its tables, with the panes of these rollups and intervals; those not made yet are made now."""
        names = [name for name, shape in self.info.fields.items() if shape.indexed]
        return Tables(
            self._columns,
            {name: self._run(name).table for name in [*names, *([KEYS] if self.info.keys else [])]},
            {name: made for name in panes if (made := self._pane_table(*name)) is not None},
        )

    @property
    def bytes(self) -> int:
        """About how much memory its tables take; what is made later is estimated to take as much again."""
        return 2 * int(self._columns.nbytes)

    def column(self, name: str, group: int) -> Any:
        """A stored column of one row group."""
        column = self._stored_column(name)
        return column.slice(group * _ROWS, _ROWS)

    def groups(self, name: str) -> Sequence[ColumnGroup]:
        """The row groups of a stored column."""
        column = self._stored_column(name)

        def make() -> list[ColumnGroup]:
            pieces = [column.slice(start, _ROWS) for start in range(0, len(column), _ROWS)]
            starts = range(0, len(column), _ROWS)
            return [
                ColumnGroup(start, start + len(piece), *zone(piece))
                for start, piece in zip(starts, pieces, strict=True)
            ]

        groups: list[ColumnGroup] = self._once(("groups", name), make)
        return groups

    def panes(self, rollup: str, interval: int) -> Iterator[Any] | None:
        """The panes of a rollup with this interval, or None where they are not held."""
        made = self._pane_table(rollup, interval)
        return None if made is None else iter([made])

    def _pane_table(self, rollup: str, interval: int) -> Any:
        if rollup not in self.info.rollups:
            return None
        return self._once(("panes", rollup, interval), lambda: self._panes(rollup, interval))

    def _runs(
        self, field: str, low: str, beyond: Callable[[str], bool], *, exact: bool = False
    ) -> Iterator[PostingRun]:
        yield self._run(field)

    def _run(self, field: str) -> TableRun:
        run: TableRun = self._once(("postings", field), lambda: TableRun(self._postings(field)))
        return run

    def _stored_column(self, name: str) -> Any:
        return self._once(("column", name), lambda: one_array(self._columns.column(name)))

    def _once(self, name: object, make: Callable[[], Any]) -> Any:
        """The value of this name, made once; two threads that are first together may both make it."""
        with self._lock:
            if name in self._made:
                return self._made[name]
        made = make()
        with self._lock:
            return self._made.setdefault(name, made)
