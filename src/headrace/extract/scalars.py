"""JSON texts of single values as typed values, all at once, where they are spelled as most are.

Each reader says for which texts it has found the value, what these values are, and for which it is in doubt: those are
left to ``query.values``. What is neither has no value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extract import letters
from headrace.extract.moments import moments
from headrace.extract.texts import Bytes, Column, Flags, Texts

#: A whole number of so many characters is an int64.
_SURELY_INT64 = 18


def _marks(given: bytes) -> Flags:
    """A table of bytes: which of them are among these."""
    table = np.zeros(256, np.bool_)
    table[list(given)] = True
    return table


_NUMBER, _STRING = _marks(b"-0123456789"), _marks(b'"')
_STRINGS = _marks(b'"[')
_TYPED = _marks(b'-0123456789"[')
_NUMBER_OR_ARRAY, _FRACTION = _marks(b"-0123456789["), _marks(b".eE")
_CLOSE_READ = _marks(b"-0123456789[{")

_STRING_LIST = msgspec.json.Decoder(list[str])


class Pieces(NamedTuple):
    """JSON texts, their first bytes, and the same texts with the escapes of strings resolved."""

    texts: Texts
    first: Bytes
    resolved: Texts


class Read(NamedTuple):
    """What a reader found: values for the flagged texts, in their order; and the texts it is in doubt about."""

    found: Flags
    values: Column
    doubtful: Flags


Reader = Callable[[Pieces], Read]


def pieces(column: Column) -> Pieces:
    """The JSON texts of a column without nulls."""
    texts = Texts(column)
    first = texts.first()
    escaped = texts.where(texts.data == ord("\\"))
    escaped &= first == ord('"')
    return Pieces(texts, first, _resolved(texts, escaped) if escaped.any() else texts)


def _resolved(texts: Texts, escaped: Flags) -> Texts:
    strings = texts.chosen(escaped).column
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(strings)], pa.int32()), strings), ",")[0]
    plain = pa.array(_STRING_LIST.decode(b"[" + joined.as_buffer().to_pybytes() + b"]"), pa.string())
    quoted = pc.binary_join_element_wise('"', plain, '"', "")
    return Texts(pc.replace_with_mask(texts.column, pa.array(escaped), quoted))


def integers(pieces: Pieces) -> Read:
    """Whole numbers; in doubt about long ones, fractions and strings."""
    plain = _plain_integers(pieces)
    return Read(plain, pieces.texts.chosen(plain).column.cast(pa.int64()), _TYPED[pieces.first] & ~plain)


def floats(pieces: Pieces) -> Read:
    """Finite numbers; in doubt about strings."""
    found = _NUMBER[pieces.first]
    numbers = pieces.texts.chosen(found).column.cast(pa.float64()).to_numpy() + 0.0  # -0.0 becomes 0.0
    finite = np.isfinite(numbers)
    found[found] = finite
    return Read(found, pa.array(numbers[finite]), _STRINGS[pieces.first])


def dates(pieces: Pieces) -> Read:
    """Whole numbers and usual moments; in doubt about other numbers and strings."""
    numbers, strings = _plain_integers(pieces), _STRING[pieces.first]
    usual, found = moments(pieces.texts.chosen(strings))
    millis = np.zeros(len(numbers), np.int64)
    millis[numbers] = pieces.texts.chosen(numbers).column.cast(pa.int64()).to_numpy()
    millis[np.flatnonzero(strings)[usual]] = found
    plain = numbers.copy()
    plain[strings] = usual
    return Read(plain, pa.array(millis[plain]), _TYPED[pieces.first] & ~plain)


def bools(pieces: Pieces) -> Read:
    """``true`` and ``false``; in doubt about strings."""
    true = pieces.first == ord("t")
    found = true | (pieces.first == ord("f"))
    return Read(found, pa.array(true[found]), _STRINGS[pieces.first])


def strings(pieces: Pieces) -> Read:
    """Strings as they are."""
    return _of_strings(pieces, letters.unquoted)


def lowered(pieces: Pieces) -> Read:
    """Strings in lower case."""
    return _of_strings(pieces, letters.lowered)


def spaced(pieces: Pieces) -> Read:
    """The words of strings between blanks."""
    return _of_strings(pieces, letters.spaced)


def _of_strings(pieces: Pieces, read: Callable[[Texts], Column]) -> Read:
    found = _STRING[pieces.first]
    return Read(found, read(pieces.resolved.chosen(found)), pieces.first == ord("["))


def _plain_integers(pieces: Pieces) -> Flags:
    return _whole(pieces.texts, pieces.first) & (pieces.texts.lengths <= _SURELY_INT64)


def _whole(texts: Texts, first: Bytes) -> Flags:
    """The numbers that have digits only, and maybe a sign."""
    whole = _NUMBER[first]
    if whole.any():
        whole &= texts.count((texts.data < ord("0")) | (texts.data > ord("9"))) == (first == ord("-"))
    return whole


def may_be_rounded(texts: Texts) -> Flags:
    """The JSON texts that may hold a number with a fraction or an exponent."""
    rounded = _NUMBER_OR_ARRAY[texts.first()]
    if not rounded.any():
        return rounded
    data = texts.data.tobytes()
    if not any(mark in data for mark in (b".", b"e", b"E")):
        return np.zeros(len(texts), np.bool_)
    return rounded & texts.where(_FRACTION[texts.data])


def is_spelled_alike(texts: Texts) -> Flags:
    """The JSON texts that any decoder understands alike: no containers, no numbers with a fraction or an exponent."""
    first = texts.first()
    return _whole(texts, first) | ~_CLOSE_READ[first]
