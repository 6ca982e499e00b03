"""Events as typed columns: one row per event, exactly the values that the reference finds in the promoted event.

A row is odd where columns cannot hold its values, or where the event has no newest form; it has no values here, and
answers about it come from the event itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.deadline import Deadline
from headrace.extract import scalars
from headrace.extract.raw_values import FEW, SourceTexts, elements, read_sources, unwrap
from headrace.extract.scalars import Pieces, Reader, floats, pieces
from headrace.extract.texts import Column, Flags, Numbers, Texts, valid
from headrace.query.definition import Definition, Sources, decode_exact
from headrace.query.search import Binding, Field, Kind
from headrace.query.values import Canonical, lower, values, words
from headrace.reduce import parts
from headrace.reduce.parts import GREATEST_COUNT, TYPES, read_parts

#: A text field with more values or words in one event makes it odd: positions of words could not tell them apart.
MAX_VALUES = 2_048
MAX_WORDS = 2**20

#: Arrays in arrays are opened so many times for all events at once; what is still one then is rare.
_LEVELS = 3


class RowValues(NamedTuple):
    """Values, each with the row that it belongs to, ascending."""

    rows: Numbers
    values: Column


class WantedColumn(NamedTuple):
    """A column to extract: its field, its native reader, and what is stored of a canonical value."""

    name: str
    field: Field
    type: Any
    read: Reader
    keep: Callable[[Any], Any]

    def extract(self, pieces: Pieces, rows: Numbers, irregular_rows: Flags) -> RowValues:
        """The values in JSON texts that lie at the field in these rows; rows that columns cannot hold are made odd."""
        has_value, native, doubtful = self.read(pieces)
        places, made = np.flatnonzero(has_value), native
        if doubtful.any():
            others, more = self._doubtful(pieces.texts.column, np.flatnonzero(doubtful), rows, irregular_rows)
            both = np.concatenate([places, others])
            order = np.argsort(both, kind="stable")
            places, made = both[order], pa.concat_arrays([native, more]).take(pa.array(order))
        values = RowValues(rows[places], made)
        if self.read is scalars.spaced:
            irregular_rows |= _crowded_rows(values, len(irregular_rows))
        return values

    def _doubtful(self, texts: Column, places: Numbers, rows: Numbers, irregular_rows: Flags) -> tuple[Numbers, Column]:
        """The values in the JSON texts at some places, and the place of each."""
        distinct = texts.take(pa.array(places)).dictionary_encode()
        kept_values = [self._reference(text) for text in distinct.dictionary.to_pylist()]
        codes = distinct.indices.to_numpy()
        irregular_rows[rows[places[np.array([kept is None for kept in kept_values])[codes]]]] = True
        lengths = np.array([len(kept or ()) for kept in kept_values])
        repeated = lengths[codes]
        begins = np.repeat((np.cumsum(lengths) - lengths)[codes], repeated)
        offsets = np.arange(len(begins)) - np.repeat(np.cumsum(repeated) - repeated, repeated)
        flat = pa.array(chain.from_iterable(kept or () for kept in kept_values), self.type)
        return np.repeat(places, repeated), flat.take(pa.array(begins + offsets))

    def _reference(self, text: str) -> list[Any] | None:
        """What is kept of the values in a JSON text, or None where a column cannot hold them."""
        try:
            field_values = values(self.field, decode_exact(text.encode()))
        except (ValueError, RecursionError):
            return None
        return [self.keep(value) for value in field_values] if _fit(self.field.kind, field_values) else None


def wanted_columns(field: Field, *, contains: bool) -> list[WantedColumn]:
    """The columns of a field; ``contains`` is set if substrings of its values are searched."""
    name, root = field.name, msgspec.structs.replace(field, bindings=(Binding(1, ()),))
    match field.kind:
        case Kind.TEXT:
            spaced = WantedColumn(f"w.{name}", root, pa.string(), scalars.spaced, _space_words)
            lowered = WantedColumn(f"f.{name}", root, pa.string(), scalars.lowered, lower)
            return [spaced, lowered] if contains else [spaced]
        case Kind.KEYWORD:
            reader = scalars.lowered if field.lowercase else scalars.strings
            return [WantedColumn(f"f.{name}", root, pa.string(), reader, _same)]
    return [WantedColumn(f"f.{name}", root, *_TYPED[field.kind], _same)]


_TYPED: dict[Kind, tuple[Any, Reader]] = {
    Kind.INTEGER: (pa.int64(), scalars.integers),
    Kind.FLOAT: (pa.float64(), scalars.floats),
    Kind.DATE: (pa.int64(), scalars.dates),
    Kind.BOOL: (pa.bool_(), scalars.bools),
}


def _same(value: Any) -> Any:
    return value


def _space_words(text: str) -> str:
    word_list = words(text)
    return f" {' '.join(word_list)} " if word_list else " "


def _fit(kind: Kind, canonical_values: list[Canonical]) -> bool:
    if kind in {Kind.INTEGER, Kind.DATE}:
        return all(-(2**63) <= value < 2**63 for value in canonical_values if not isinstance(value, str))
    return True


def _crowded_rows(spaced: RowValues, count: int) -> Flags:
    """The rows, of so many, that have more values or words than positions can number."""
    texts = Texts(spaced.values)
    crowded: Flags = np.bincount(spaced.rows, minlength=count) > MAX_VALUES
    if np.bincount(spaced.rows, texts.lengths).max(initial=0) > MAX_WORDS:
        blanks = texts.count(texts.data == ord(" "))
        crowded |= np.bincount(spaced.rows, blanks - 1, minlength=count) > MAX_WORDS
    return crowded


def inside_arrays(texts: Column, rows: Numbers, few: int, *, exact: bool) -> tuple[Column, Numbers]:
    """JSON texts and their rows, with the elements of arrays in the place of arrays."""
    for _ in range(_LEVELS):
        arrays = Texts(texts).first() == ord("[")
        if not arrays.any():
            break
        inner, lengths = elements(texts.filter(pa.array(arrays)), few, exact=exact)
        counts = np.ones(len(texts), np.int64)
        counts[arrays] = lengths
        ends = np.cumsum(counts)
        places = np.full(ends[-1], -1)
        places[ends[~arrays] - 1] = np.flatnonzero(~arrays)
        places[places < 0] = len(texts) + np.arange(len(inner))
        rows, texts = np.repeat(rows, counts), pa.concat_arrays([texts, inner]).take(pa.array(places))
        rows, texts = rows[valid(texts)], texts.drop_null()
    return texts, rows


_Doubles = NDArray[np.float64]


def summaries(texts: Mapping[str, Column], irregular_rows: Flags) -> dict[str, Column]:
    """The column of each part, from the JSON texts of the parts; odd rows have no values."""
    count, total, least, greatest = (_numbers(texts[part]) for part in ("count", "sum", "min", "max"))
    is_count = (count >= 0) & (count <= GREATEST_COUNT) & (np.floor(count) == count)
    some = is_count & (count > 0) & ~(np.isnan(total) | np.isnan(least) | np.isnan(greatest)) & ~irregular_rows
    is_summary = some | (is_count & (count == 0) & ~irregular_rows)
    made = {
        "count": pa.array(np.where(is_summary, count, 0).astype(np.int64), mask=~is_summary),
        "sum": pa.array(total, mask=~some),
        "min": pa.array(least, mask=~some),
        "max": pa.array(greatest, mask=~some),
    }
    return made | {"histogram": _histograms(texts.get("histogram", pa.nulls(len(irregular_rows), pa.string())), some)}


def _numbers(texts: Column) -> _Doubles:
    """The numbers among JSON texts, and what is none as NaN."""
    numbers = np.full(len(texts), np.nan)
    has_number, values, _ = floats(pieces(texts.drop_null()))
    numbers[np.flatnonzero(valid(texts))[has_number]] = values.to_numpy()
    return numbers


def _histograms(texts: Column, rows: Flags) -> Column:
    distinct = texts.dictionary_encode()
    histograms = [_histogram(text) for text in distinct.dictionary.to_pylist()]
    every = pa.array(histograms, TYPES["histogram"]).take(distinct.indices)
    return every.take(pa.array(np.arange(len(rows)), mask=~rows))


def _histogram(text: str) -> list[tuple[int, int]] | None:
    try:
        summary = read_parts(1, 0, 0, 0, decode_exact(text.encode()))
    except RecursionError:
        return None
    return None if summary is None or summary.histogram is None else list(summary.histogram.items())


#: So many events, or so much of them, are worked on at once, that what is made of them on the way stays small.
_ROWS, _BYTES = 65_536, 32 * 1024 * 1024


class _Slice(NamedTuple):
    """What was found in some events: which are odd, the values of fields, and the columns of summaries."""

    irregular_rows: Flags
    values: list[RowValues]
    summaries: dict[str, Column]


class Extractor:
    """Makes the columns of one definition; may be used from several threads."""

    def __init__(self, definition: Definition, *, few: int = FEW) -> None:
        """``few`` events are opened one by one, more of them by DuckDB."""
        self._definition = definition
        self._few = few
        self._wanted = [
            wanted_columns(field, contains=definition.is_contained(field.name))
            for field in definition.search.fields.values()
        ]
        fields = [_unwrap_all(sources) for sources in definition.sources.values()]
        self._sources: list[Sources] = [*fields, *definition.parts.values()]
        kinds = [field.kind for field in definition.search.fields.values()]
        self._exact = [kind in {Kind.INTEGER, Kind.DATE} for kind in kinds] + [False] * len(definition.parts)

    def columns(self, batch: pa.RecordBatch | pa.Table, deadline: Deadline | None = None) -> pa.Table:
        """The columns table of segment rows, whatever their versions; raises Cancelled after the deadline."""
        table = pa.table(batch)
        starts = _starts(table)
        slices = [self._read(table.slice(start, starts.step), deadline) for start in starts]
        irregular_rows = np.concatenate([part.irregular_rows for part in slices])
        made = {"seq": table.column("seq"), "odd": pa.array(irregular_rows), "key": table.column("key")}
        for number, want in enumerate(want for group in self._wanted for want in group):
            rows = [part.values[number].rows + start for start, part in zip(starts, slices, strict=True)]
            values = pa.concat_arrays([part.values[number].values for part in slices])
            made[want.name] = _column(RowValues(np.concatenate(rows), values), irregular_rows)
        for name in slices[0].summaries:
            made[name] = pa.concat_arrays([part.summaries[name] for part in slices])
        return pa.table(made)

    def _read(self, events: pa.Table, deadline: Deadline | None) -> _Slice:
        texts, irregular_rows = self._taken(events)
        row_values: list[RowValues] = []
        for column, group, exact in zip(texts, self._wanted, self._exact, strict=False):
            if deadline is not None:
                deadline.require()
            singles, rows = inside_arrays(column.drop_null(), np.flatnonzero(valid(column)), self._few, exact=exact)
            json_pieces = pieces(singles)
            row_values += [want.extract(json_pieces, rows, irregular_rows) for want in group]
        return _Slice(irregular_rows, row_values, self._summaries(texts[len(self._wanted) :], irregular_rows))

    def _summaries(self, texts: list[Column], irregular_rows: Flags) -> dict[str, Column]:
        by_measure: dict[tuple[str, str], dict[str, Column]] = {}
        for (rollup, measure, part), column in zip(self._definition.parts, texts, strict=True):
            by_measure.setdefault((rollup, measure), {})[part] = column
        return {
            parts.column(*names, part): column
            for names, part_texts in by_measure.items()
            for part, column in summaries(part_texts, irregular_rows).items()
        }

    def _taken(self, events: pa.Table) -> SourceTexts:
        """The JSON texts at every source."""
        payloads, versions = events.column("payload"), events.column("version").to_numpy()
        if not len(versions):
            return self._of_version(payloads, self._definition.current_version)
        edges = [0, *(np.flatnonzero(np.diff(versions)) + 1), len(versions)]
        runs = [self._of_version(payloads[start:stop], int(versions[start])) for start, stop in pairwise(edges)]
        if len(runs) == 1:
            return runs[0]
        texts = [pa.concat_arrays(columns) for columns in zip(*(run.texts for run in runs), strict=True)]
        return SourceTexts(texts, np.concatenate([run.irregular_rows for run in runs]))

    def _of_version(self, payloads: Column, stored_version: int) -> SourceTexts:
        version = max(stored_version, 1)  # events from before the first schema fit it
        if not self._definition.oldest_version <= version <= self._definition.current_version:
            nothing = pa.nulls(len(payloads), pa.string())
            return SourceTexts([nothing] * len(self._sources), np.ones(len(payloads), np.bool_))
        sources = [by_version[version] for by_version in self._sources]
        promote = partial(self._definition.promote, version=version)
        return read_sources(payloads, sources, promote, self._few, self._exact)


def _starts(events: pa.Table) -> range:
    """Where slices begin, all of one length, and as few as the limits allow."""
    slices = max(1, -(-events.num_rows // _ROWS), -(-events.nbytes // _BYTES))
    return range(0, max(1, events.num_rows), max(1, -(-events.num_rows // slices)))


def _unwrap_all(sources: Sources) -> Sources:
    return {version: unwrap(source) for version, source in sources.items()}


def _column(row_values: RowValues, irregular_rows: Flags) -> Column:
    """Values as a column: of lists if any row that is not odd has several, else of single ones."""
    rows, values = row_values
    if irregular_rows.any():
        rows, values = rows[~irregular_rows[rows]], values.filter(pa.array(~irregular_rows[rows]))
    if (rows[1:] == rows[:-1]).any():
        counts = np.bincount(rows, minlength=len(irregular_rows))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))
    if len(rows) == len(irregular_rows):
        return values
    places = np.full(len(irregular_rows), -1)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))
