"""Events as typed columns: one row per event, exactly the values that the reference finds in the promoted event.

A row is odd where columns cannot hold its values, or where the event has no newest form; it has no values here, and
whoever answers from columns asks the event itself.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.deadline import Deadline
from headrace.extract.raw import FEW
from headrace.extract.reading import Values, inside_arrays, wants
from headrace.extract.scalars import pieces
from headrace.extract.sources import Taken, at_sources, unwrapped
from headrace.extract.summaries import summaries
from headrace.extract.texts import Column, Flags, valid
from headrace.query.definition import Definition, Sources
from headrace.query.search import Kind
from headrace.reduce import parts

#: So many events, or so much of them, are worked on at once, that what is made of them on the way stays small.
_ROWS, _BYTES = 65_536, 32 * 1024 * 1024


class _Slice(NamedTuple):
    """What was found in some events: which are odd, the values of fields, and the columns of summaries."""

    odd: Flags
    values: list[Values]
    summaries: dict[str, Column]


class Extractor:
    """Makes the columns of one definition; may be used from several threads."""

    def __init__(self, definition: Definition, *, few: int = FEW) -> None:
        """``few`` events are opened one by one, more of them by DuckDB."""
        self._definition = definition
        self._few = few
        self._wanted = [
            wants(field, contains=definition.is_contained(field.name)) for field in definition.search.fields.values()
        ]
        fields = [_unwrapped(sources) for sources in definition.sources.values()]
        self._sources: list[Sources] = [*fields, *definition.parts.values()]
        kinds = [field.kind for field in definition.search.fields.values()]
        self._exact = [kind in {Kind.INTEGER, Kind.DATE} for kind in kinds] + [False] * len(definition.parts)

    def columns(self, batch: pa.RecordBatch | pa.Table, deadline: Deadline | None = None) -> pa.Table:
        """The columns table of segment rows, whatever their versions; raises Cancelled where nobody waits for them."""
        table = pa.table(batch)
        starts = _starts(table)
        slices = [self._read(table.slice(start, starts.step), deadline) for start in starts]
        odd = np.concatenate([part.odd for part in slices])
        made = {"seq": table.column("seq"), "odd": pa.array(odd), "key": table.column("key")}
        for number, want in enumerate(want for group in self._wanted for want in group):
            rows = [part.values[number].rows + start for start, part in zip(starts, slices, strict=True)]
            values = pa.concat_arrays([part.values[number].values for part in slices])
            made[want.name] = _column(Values(np.concatenate(rows), values), odd)
        for name in slices[0].summaries:
            made[name] = pa.concat_arrays([part.summaries[name] for part in slices])
        return pa.table(made)

    def _read(self, events: pa.Table, deadline: Deadline | None) -> _Slice:
        texts, odd = self._taken(events)
        found: list[Values] = []
        for column, group, exact in zip(texts, self._wanted, self._exact, strict=False):
            if deadline is not None:
                deadline.require()
            singles, rows = inside_arrays(column.drop_null(), np.flatnonzero(valid(column)), self._few, exact=exact)
            given = pieces(singles)
            found += [want.found(given, rows, odd) for want in group]
        return _Slice(odd, found, self._summaries(texts[len(self._wanted) :], odd))

    def _summaries(self, texts: list[Column], odd: Flags) -> dict[str, Column]:
        by_measure: dict[tuple[str, str], dict[str, Column]] = {}
        for (rollup, measure, part), column in zip(self._definition.parts, texts, strict=True):
            by_measure.setdefault((rollup, measure), {})[part] = column
        return {
            parts.column(*names, part): column
            for names, given in by_measure.items()
            for part, column in summaries(given, odd).items()
        }

    def _taken(self, events: pa.Table) -> Taken:
        """The JSON texts at every source."""
        payloads, versions = events.column("payload"), events.column("version").to_numpy()
        if not len(versions):
            return self._of_version(payloads, self._definition.current_version)
        edges = [0, *(np.flatnonzero(np.diff(versions)) + 1), len(versions)]
        runs = [self._of_version(payloads[start:stop], int(versions[start])) for start, stop in pairwise(edges)]
        if len(runs) == 1:
            return runs[0]
        texts = [pa.concat_arrays(columns) for columns in zip(*(run.texts for run in runs), strict=True)]
        return Taken(texts, np.concatenate([run.odd for run in runs]))

    def _of_version(self, payloads: Column, version: int) -> Taken:
        if not self._definition.oldest_version <= version <= self._definition.current_version:
            nothing = pa.nulls(len(payloads), pa.string())
            return Taken([nothing] * len(self._sources), np.ones(len(payloads), np.bool_))
        sources = [known[version] for known in self._sources]
        promote = partial(self._definition.promote, version=version)
        return at_sources(payloads, sources, promote, self._few, self._exact)


def _starts(events: pa.Table) -> range:
    """Where slices begin, all of one length: each has a cost of its own."""
    slices = max(1, -(-events.num_rows // _ROWS), -(-events.nbytes // _BYTES))
    return range(0, max(1, events.num_rows), max(1, -(-events.num_rows // slices)))


def _unwrapped(sources: Sources) -> Sources:
    return {version: unwrapped(source) for version, source in sources.items()}


def _column(found: Values, odd: Flags) -> Column:
    """Values as a column: of lists if any row that is not odd has several, else of single ones."""
    rows, values = found
    if odd.any():
        rows, values = rows[~odd[rows]], values.filter(pa.array(~odd[rows]))
    if (rows[1:] == rows[:-1]).any():
        counts = np.bincount(rows, minlength=len(odd))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))
    if len(rows) == len(odd):
        return values
    places = np.full(len(odd), -1)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))
