"""JSON texts of single values as typed values, all at once, where they are spelled as most are.

Each reader says for which texts it has found the value, what these values are, and for which it is in doubt: those are
left to ``query.values``. What is neither has no value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.extract.texts import Bytes, Column, Flags, Numbers, Texts, column_of, sum_runs
from headrace.query import values

_BLANK = ord(" ")
_UTF_32 = "utf-32-le"
# Between them lie the halves of surrogate pairs, which are no characters.
_CHARACTERS = (range(0xD800), range(0xE000, 0x110000))
_Characters = NDArray[np.uint32]
_Kernel = Callable[[Texts], Column]


def unquote_texts(texts: Texts) -> Column:
    """Texts as they are."""
    return _inside(texts.column)


def lower_texts(texts: Texts) -> Column:
    """Texts in lower case."""
    return _inside(_by_script(texts, lambda plain: pc.ascii_lower(plain.column), _lower))


def space_texts(texts: Texts) -> Column:
    """The words of texts in lower case, with one blank before, between and after; the quotes become those."""
    return _by_script(texts, _spaced_ascii, _space)


def _inside(column: Column) -> Column:
    return pc.binary_slice(column.cast(pa.binary()), 1, -1).view(pa.string())


def _by_script(texts: Texts, ascii_only: _Kernel, any_script: _Kernel) -> Column:
    """What the first makes of texts that are pure ASCII, and the second of others."""
    if texts.data.max(initial=0) < 128:
        return ascii_only(texts)
    beyond = texts.where(texts.data > 127)
    both = pa.concat_arrays([ascii_only(texts.chosen(~beyond)), any_script(texts.chosen(beyond))])
    places = np.empty(len(texts), np.int64)
    places[np.concatenate([np.flatnonzero(~beyond), np.flatnonzero(beyond)])] = np.arange(len(texts))
    return both.take(pa.array(places))


def _spaced_ascii(texts: Texts) -> Column:
    data = _ascii_words(Texts(pc.ascii_lower(texts.column)).data)
    kept = _single_blanks(data == _BLANK, texts.starts)
    return column_of(data, texts.lengths) if kept.all() else column_of(data[kept], texts.count(kept))


def _ascii_words(lowered: Bytes) -> Bytes:
    """Bytes with a blank for what belongs to no word; sums and products of bytes are quicker here than choices."""
    belongs = lowered - np.uint8(ord("a")) < 26
    belongs |= lowered - np.uint8(ord("0")) < 10
    from_blank: Bytes = (lowered - np.uint8(_BLANK)) * belongs.view(np.uint8)
    return from_blank + np.uint8(_BLANK)


def _space(texts: Texts) -> Column:
    characters, starts = _decode_characters(texts)
    folded = _words()[characters]
    kept = _single_blanks(folded == _BLANK, starts)
    return _encode_characters(folded[kept], sum_runs(kept.view(np.uint8), starts))


def _lower(texts: Texts) -> Column:
    characters, starts = _decode_characters(texts)
    return _encode_characters(_lower_case()[characters], np.diff(starts, append=len(characters)))


def _single_blanks(blank: Flags, starts: Numbers) -> Flags:
    """Everything but blanks after blanks in the same text."""
    kept = np.ones(len(blank), np.bool_)
    np.logical_and(blank[1:], blank[:-1], out=kept[1:])
    np.logical_not(kept[1:], out=kept[1:])
    kept[starts] = True
    return kept


def _decode_characters(texts: Texts) -> tuple[_Characters, Numbers]:
    """All characters, and where each text begins among them."""
    lengths = texts.count((texts.data & 0xC0) != 0x80)
    return _characters(texts.data.tobytes().decode()), np.cumsum(lengths, dtype=np.int64) - lengths


def _encode_characters(characters: _Characters, lengths: NDArray[np.integer]) -> Column:
    """The texts of these lengths."""
    sizes: Bytes = 1 + (characters > 0x7F).view(np.uint8) + (characters > 0x7FF) + (characters > 0xFFFF)
    data = np.frombuffer(characters.tobytes().decode(_UTF_32).encode(), np.uint8)
    return column_of(data, sum_runs(sizes, np.cumsum(lengths, dtype=np.int64) - lengths))


def _characters(text: str) -> _Characters:
    return np.frombuffer(text.encode(_UTF_32), np.uint32)


@cache
def _lower_case() -> _Characters:
    """Every character in lower case."""
    table = np.zeros(0x110000, np.uint32)
    for part in _CHARACTERS:
        table[part.start : part.stop] = _characters(values.lower("".join(map(chr, part))))
    return table


@cache
def _words() -> _Characters:
    """Every character in lower case, and a blank for what belongs to no word."""
    belongs = np.zeros(0x110000, np.bool_)
    for part in _CHARACTERS:
        belongs[_characters("".join(values.words(" ".join(map(chr, part)))))] = True
    return np.where(belongs[_lower_case()], _lower_case(), np.uint32(_BLANK))


_SHORTEST, _LONGEST = 19, 19 + 1 + 9 + 6
_DIGITS = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]
_MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.uint8)
# Years begin in March here, so leap days come last.
_DAYS_BEFORE = np.array([0, 306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275], np.int32)
_Digits = NDArray[np.int32]


def moments(texts: Texts) -> tuple[Flags, Numbers]:
    """Which quoted texts are usual moments, and the milliseconds since 1970 of those."""
    inside = texts.lengths - 2
    rows = np.flatnonzero((inside >= _SHORTEST) & (inside <= _LONGEST))
    usual = np.zeros(len(texts), np.bool_)
    if not len(rows):
        return usual, np.zeros(0, np.int64)
    reading = _Reading(texts, rows)
    seconds, zone = reading.seconds(), reading.zone()
    millis = seconds * 1000 - zone * 60_000 + reading.fraction()
    usual[rows] = reading.fits
    return usual, millis[reading.fits]


class _Reading:
    """Texts that may be usual moments; ``fits`` says which of them still are, as far as was read."""

    def __init__(self, texts: Texts, rows: Numbers) -> None:
        self._data = texts.data
        self._starts, self._ends = texts.starts[rows] + 1, texts.ends[rows] - 1
        self.fits = np.ones(len(rows), np.bool_)
        self._zone_length = np.zeros(len(rows), np.int64)

    def seconds(self) -> Numbers:
        """Seconds since 1970, of the first 19 characters."""
        letters = sliding_window_view(self._data, _SHORTEST)[self._starts].T.copy()
        for at, mark in ((4, b"-"), (7, b"-"), (10, b"Tt "), (13, b":"), (16, b":")):
            self.fits &= _is_any(letters[at], mark)
        digits = letters[_DIGITS] - np.uint8(ord("0"))
        self.fits &= (digits <= 9).all(axis=0)
        century, in_century, month, day, hour, minute, second = digits[::2] * np.uint8(10) + digits[1::2]
        year = century * np.int32(100) + in_century
        self.fits &= (year >= 1) & (month >= 1) & (month <= 12)
        month = np.minimum(month, 12)
        self.fits &= (day >= 1) & (day <= _MONTH_DAYS[month]) & (hour <= 23) & (minute <= 59) & (second <= 59)
        leap = np.flatnonzero((month == 2) & (day == 29))
        self.fits[leap] &= _is_leap(year[leap])
        of_day: _Digits = hour * np.int32(3600) + minute * np.int32(60) + second
        return _days(year, month, day) * 86_400 + of_day

    def zone(self) -> Numbers:
        """How many minutes ahead of UTC the clock was."""
        last, sign = self._data[self._ends - 1], self._data[self._ends - 6]
        ends_in_z = _is_any(last, b"Zz")
        has_offset = ~ends_in_z & _is_any(sign, b"+-") & (self._ends - self._starts >= _SHORTEST + 6)
        self._zone_length = ends_in_z + has_offset * 6
        ahead = np.zeros(len(self.fits), np.int64)
        rows = np.flatnonzero(has_offset)
        begins = self._ends[rows] - 5
        hours, minutes = self._two(begins, rows), self._two(begins + 3, rows)
        self.fits[rows] &= (self._data[begins + 2] == ord(":")) & (hours <= 23) & (minutes <= 59)
        ahead[rows] = np.where(sign[rows] == ord("-"), -1, 1) * (hours * 60 + minutes)
        return ahead

    def fraction(self) -> Numbers:
        """The milliseconds that the fraction of a second has, rounded down."""
        begins = self._starts + 19
        length = self._ends - self._zone_length - begins
        millis = np.zeros(len(begins), np.int64)
        self.fits &= (length != 1) & (length <= 10)
        some = _rows(length > 1)
        self.fits[some] &= self._data[begins[some]] == ord(".")
        for digit in range(1, int(min(length.max(initial=0), 10))):
            rows = _rows(length > digit)
            digits = self._data[begins[rows] + digit] - ord("0")
            self.fits[rows] &= digits <= 9
            if digit <= 3:
                millis[rows] += digits.astype(np.int64) * 10 ** (3 - digit)
        return millis

    def _two(self, places: Numbers, rows: Numbers) -> _Digits:
        """The number that two digits are; what is no digit does not fit."""
        tens, ones = self._data[places] - ord("0"), self._data[places + 1] - ord("0")
        self.fits[rows] &= (tens <= 9) & (ones <= 9)
        return tens.astype(np.int32) * 10 + ones


def _rows(chosen: Flags) -> Numbers | slice:
    """The chosen rows; all of them are quicker to reach as a slice."""
    return slice(None) if chosen.all() else np.flatnonzero(chosen)


def _is_any(letters: NDArray[np.uint8], marks: bytes) -> Flags:
    fits = np.zeros(len(letters), np.bool_)
    for mark in marks:
        fits |= letters == mark
    return fits


def _is_leap(year: _Digits) -> Flags:
    leap: Flags = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return leap


def _days(year: _Digits, month: Bytes, day: Bytes) -> Numbers:
    """Days from 1970-01-01 in the proleptic Gregorian calendar."""
    shifted = year - (month <= 2)
    days = shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + _DAYS_BEFORE[month] + day
    return days.astype(np.int64) - 719_469


#: A whole number of so many characters is an int64.
_SURELY_INT64 = 18


def _marks(characters: bytes) -> Flags:
    """A table of bytes: which of them are among these."""
    table = np.zeros(256, np.bool_)
    table[list(characters)] = True
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


class ReadValues(NamedTuple):
    """What a reader found: values for the flagged texts, in their order; and the texts it is in doubt about."""

    has_value: Flags
    values: Column
    doubtful: Flags


Reader = Callable[[Pieces], ReadValues]


def pieces(column: Column) -> Pieces:
    """The JSON texts of a column without nulls."""
    texts = Texts(column)
    first = texts.first()
    escaped = texts.where(texts.data == ord("\\"))
    escaped &= first == ord('"')
    return Pieces(texts, first, _resolve_escapes(texts, escaped) if escaped.any() else texts)


def _resolve_escapes(texts: Texts, escaped: Flags) -> Texts:
    strings = texts.chosen(escaped).column
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(strings)], pa.int32()), strings), ",")[0]
    plain = pa.array(_STRING_LIST.decode(b"[" + joined.as_buffer().to_pybytes() + b"]"), pa.string())
    quoted = pc.binary_join_element_wise('"', plain, '"', "")
    return Texts(pc.replace_with_mask(texts.column, pa.array(escaped), quoted))


def integers(pieces: Pieces) -> ReadValues:
    """Whole numbers; in doubt about long ones, fractions and strings."""
    plain = _plain_integers(pieces)
    return ReadValues(plain, pieces.texts.chosen(plain).column.cast(pa.int64()), _TYPED[pieces.first] & ~plain)


def floats(pieces: Pieces) -> ReadValues:
    """Finite numbers; in doubt about strings."""
    is_number = _NUMBER[pieces.first]
    numbers = pieces.texts.chosen(is_number).column.cast(pa.float64()).to_numpy() + 0.0  # -0.0 becomes 0.0
    finite = np.isfinite(numbers)
    is_number[is_number] = finite
    return ReadValues(is_number, pa.array(numbers[finite]), _STRINGS[pieces.first])


def dates(pieces: Pieces) -> ReadValues:
    """Whole numbers and usual moments; in doubt about other numbers and strings."""
    numbers, strings = _plain_integers(pieces), _STRING[pieces.first]
    usual, moment_millis = moments(pieces.texts.chosen(strings))
    millis = np.zeros(len(numbers), np.int64)
    millis[numbers] = pieces.texts.chosen(numbers).column.cast(pa.int64()).to_numpy()
    millis[np.flatnonzero(strings)[usual]] = moment_millis
    plain = numbers.copy()
    plain[strings] = usual
    return ReadValues(plain, pa.array(millis[plain]), _TYPED[pieces.first] & ~plain)


def bools(pieces: Pieces) -> ReadValues:
    """``true`` and ``false``; in doubt about strings."""
    true = pieces.first == ord("t")
    is_boolean = true | (pieces.first == ord("f"))
    return ReadValues(is_boolean, pa.array(true[is_boolean]), _STRINGS[pieces.first])


def strings(pieces: Pieces) -> ReadValues:
    """Strings as they are."""
    return _of_strings(pieces, unquote_texts)


def lowered(pieces: Pieces) -> ReadValues:
    """Strings in lower case."""
    return _of_strings(pieces, lower_texts)


def spaced(pieces: Pieces) -> ReadValues:
    """The words of strings between blanks."""
    return _of_strings(pieces, space_texts)


def _of_strings(pieces: Pieces, read: Callable[[Texts], Column]) -> ReadValues:
    is_string = _STRING[pieces.first]
    return ReadValues(is_string, read(pieces.resolved.chosen(is_string)), pieces.first == ord("["))


def _plain_integers(pieces: Pieces) -> Flags:
    return _is_integer(pieces.texts, pieces.first) & (pieces.texts.lengths <= _SURELY_INT64)


def _is_integer(texts: Texts, first: Bytes) -> Flags:
    """The numbers that have digits only, and maybe a sign."""
    is_integer = _NUMBER[first]
    if is_integer.any():
        is_integer &= texts.count((texts.data < ord("0")) | (texts.data > ord("9"))) == (first == ord("-"))
    return is_integer


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
    return _is_integer(texts, first) | ~_CLOSE_READ[first]
