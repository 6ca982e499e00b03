"""The usual spellings of ISO 8601 moments, all at once; whatever is not usual is left to ``query.values``.

Usual is a date and a time down to seconds, a fraction of at most nine digits, and ``Z``, an offset or nothing. Bytes
are looked at by their distance from the beginning or the end of a text, which has quotes around it.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.extract.texts import Bytes, Flags, Numbers, Texts

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
            found = self._data[begins[rows] + digit] - ord("0")
            self.fits[rows] &= found <= 9
            if digit <= 3:
                millis[rows] += found.astype(np.int64) * 10 ** (3 - digit)
        return millis

    def _two(self, places: Numbers, rows: Numbers) -> _Digits:
        """The number that two digits are; what is no digit does not fit."""
        tens, ones = self._data[places] - ord("0"), self._data[places + 1] - ord("0")
        self.fits[rows] &= (tens <= 9) & (ones <= 9)
        return tens.astype(np.int32) * 10 + ones


def _rows(chosen: Flags) -> Numbers | slice:
    """The chosen rows; all of them are quicker to reach as a slice."""
    return slice(None) if chosen.all() else np.flatnonzero(chosen)


def _is_any(found: NDArray[np.uint8], marks: bytes) -> Flags:
    fits = np.zeros(len(found), np.bool_)
    for mark in marks:
        fits |= found == mark
    return fits


def _is_leap(year: _Digits) -> Flags:
    leap: Flags = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return leap


def _days(year: _Digits, month: Bytes, day: Bytes) -> Numbers:
    """Days from 1970-01-01 in the proleptic Gregorian calendar."""
    shifted = year - (month <= 2)
    days = shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + _DAYS_BEFORE[month] + day
    return days.astype(np.int64) - 719_469
