"""The values of one field in all events: natively where the JSON text is plain, by ``query.values`` where it is not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.extract import scalars
from headrace.extract.raw import elements
from headrace.extract.scalars import Pieces, Reader
from headrace.extract.texts import Column, Flags, Numbers, Texts, valid
from headrace.query.definition import decoded
from headrace.query.search import Binding, Field, Kind
from headrace.query.values import Canonical, values
from headrace.query.words import lower, words

#: A text field with more values or words in one event makes it odd: positions of words could not tell them apart.
MOST_VALUES = 2_048
MOST_WORDS = 2**20

#: Arrays in arrays are opened so many times for all events at once; what is still one then is rare.
_LEVELS = 3


class Values(NamedTuple):
    """Values, each with the row that it belongs to, ascending."""

    rows: Numbers
    values: Column


class Want(NamedTuple):
    """A column that is wanted: of which field, natively read how, and what is kept of a canonical value."""

    name: str
    field: Field
    type: Any
    read: Reader
    keep: Callable[[Any], Any]

    def found(self, pieces: Pieces, rows: Numbers, odd: Flags) -> Values:
        """The values in JSON texts that lie at the field in these rows; rows that cannot be told are made odd."""
        found, native, doubtful = self.read(pieces)
        places, made = np.flatnonzero(found), native
        if doubtful.any():
            others, more = self._doubtful(pieces.texts.column, np.flatnonzero(doubtful), rows, odd)
            both = np.concatenate([places, others])
            order = np.argsort(both, kind="stable")
            places, made = both[order], pa.concat_arrays([native, more]).take(pa.array(order))
        values = Values(rows[places], made)
        if self.read is scalars.spaced:
            odd |= _crowded(values, len(odd))
        return values

    def _doubtful(self, texts: Column, places: Numbers, rows: Numbers, odd: Flags) -> tuple[Numbers, Column]:
        """The values in the JSON texts at some places, and the place of each."""
        known = texts.take(pa.array(places)).dictionary_encode()
        found = [self._reference(text) for text in known.dictionary.to_pylist()]
        codes = known.indices.to_numpy()
        odd[rows[places[np.array([given is None for given in found])[codes]]]] = True
        lengths = np.array([len(given or ()) for given in found])
        repeated = lengths[codes]
        begins = np.repeat((np.cumsum(lengths) - lengths)[codes], repeated)
        within = np.arange(len(begins)) - np.repeat(np.cumsum(repeated) - repeated, repeated)
        flat = pa.array(chain.from_iterable(given or () for given in found), self.type)
        return np.repeat(places, repeated), flat.take(pa.array(begins + within))

    def _reference(self, text: str) -> list[Any] | None:
        """What is kept of the values in a JSON text, or None where a column cannot hold them."""
        try:
            given = values(self.field, decoded(text.encode()))
        except (ValueError, RecursionError):
            return None
        return [self.keep(value) for value in given] if _fit(self.field.kind, given) else None


def wants(field: Field, *, contains: bool) -> list[Want]:
    """The columns of a field; ``contains`` says that parts of its values are looked for."""
    name, root = field.name, msgspec.structs.replace(field, bindings=(Binding(1, ()),))
    match field.kind:
        case Kind.TEXT:
            spaced = Want(f"w.{name}", root, pa.string(), scalars.spaced, _spaced)
            lowered = Want(f"f.{name}", root, pa.string(), scalars.lowered, lower)
            return [spaced, lowered] if contains else [spaced]
        case Kind.KEYWORD:
            reader = scalars.lowered if field.lowercase else scalars.strings
            return [Want(f"f.{name}", root, pa.string(), reader, _same)]
    return [Want(f"f.{name}", root, *_TYPED[field.kind], _same)]


_TYPED: dict[Kind, tuple[Any, Reader]] = {
    Kind.INTEGER: (pa.int64(), scalars.integers),
    Kind.FLOAT: (pa.float64(), scalars.floats),
    Kind.DATE: (pa.int64(), scalars.dates),
    Kind.BOOL: (pa.bool_(), scalars.bools),
}


def _same(value: Any) -> Any:
    return value


def _spaced(text: str) -> str:
    found = words(text)
    return f" {' '.join(found)} " if found else " "


def _fit(kind: Kind, given: list[Canonical]) -> bool:
    if kind in {Kind.INTEGER, Kind.DATE}:
        return all(-(2**63) <= value < 2**63 for value in given if not isinstance(value, str))
    return True


def _crowded(spaced: Values, count: int) -> Flags:
    """The rows, of so many, that have more values or words than can be told apart."""
    texts = Texts(spaced.values)
    crowded: Flags = np.bincount(spaced.rows, minlength=count) > MOST_VALUES
    if np.bincount(spaced.rows, texts.lengths).max(initial=0) > MOST_WORDS:
        blanks = texts.count(texts.data == ord(" "))
        crowded |= np.bincount(spaced.rows, blanks - 1, minlength=count) > MOST_WORDS
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
