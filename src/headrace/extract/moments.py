"""The usual spellings of ISO 8601 moments, all at once; whatever is not usual is left to ``query.values``.

Usual is a date and a time down to seconds, a fraction of at most nine digits, and ``Z``, an offset or nothing. Bytes
are looked at by their distance from the beginning or the end of a text, which has quotes around it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.extract.texts import Flags, Numbers, Texts

_SHORTEST, _LONGEST = 19, 19 + 1 + 9 + 6
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_Digits = NDArray[np.int32]


def moments(texts: Texts) -> tuple[Flags, Numbers]:
    """Which quoted texts are usual moments, and the milliseconds since 1970 of those."""
    inside = texts.lengths - 2
    rows = np.flatnonzero((inside >= _SHORTEST) & (inside <= _LONGEST))
    reading = _Reading(texts, rows)
    seconds, zone = reading.seconds(), reading.zone()
    millis = seconds * 1000 - zone * 60_000 + reading.fraction()
    usual = np.zeros(len(texts), np.bool_)
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
        for at, mark in ((4, b"-"), (7, b"-"), (10, b"Tt "), (13, b":"), (16, b":")):
            self.fits &= _is_any(self._data[self._starts + at], mark)
        year = self._two(self._starts) * 100 + self._two(self._starts + 2)
        month, day = self._two(self._starts + 5), self._two(self._starts + 8)
        hour, minute, second = (self._two(self._starts + at) for at in (11, 14, 17))
        leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
        last = _MONTH_DAYS[np.clip(month, 0, 12)] + (leap & (month == 2))
        self.fits &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
        self.fits &= (hour <= 23) & (minute <= 59) & (second <= 59)
        return _days(year, month, day) * 86_400 + (hour * 3600 + minute * 60 + second)

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
        some = np.flatnonzero(length > 1)
        self.fits[some] &= self._data[begins[some]] == ord(".")
        for digit in range(1, int(min(length.max(initial=0), 10))):
            rows = np.flatnonzero(length > digit)
            found = self._data[begins[rows] + digit] - ord("0")
            self.fits[rows] &= found <= 9
            if digit <= 3:
                millis[rows] += found.astype(np.int64) * 10 ** (3 - digit)
        return millis

    def _two(self, places: Numbers, rows: Numbers | slice = slice(None)) -> _Digits:
        """The number that two digits are; what is no digit does not fit."""
        tens, ones = self._data[places] - ord("0"), self._data[places + 1] - ord("0")
        self.fits[rows] &= (tens <= 9) & (ones <= 9)
        return tens.astype(np.int32) * 10 + ones


def _is_any(found: NDArray[np.uint8], marks: bytes) -> Flags:
    fits = np.zeros(len(found), np.bool_)
    for mark in marks:
        fits |= found == mark
    return fits


def _days(year: _Digits, month: _Digits, day: _Digits) -> Numbers:
    """Days from 1970-01-01 in the proleptic Gregorian calendar; years begin in March here, so leap days come last."""
    shifted = year - (month <= 2)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = shifted.astype(np.int64) * 365 + shifted // 4 - shifted // 100 + shifted // 400 + of_year
    return days - 719_468
