"""States as columns, which Catalyst merges by its own aggregates: sums, extremes, pooled moments, unions of sketches.

An operator's state is made of *parts*, each of which is a column or a few. How parts of one kind become one is the
business of their columns' aggregates, and no operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from headrace.operators.sketches import KLL_K
from headrace.operators.state_bytes import pack, unpack_all

_HALF = 32
_LOW = (1 << _HALF) - 1
#: The moments of two sets of values, as in ``moments.merge_moments``.
_POOLED = (
    "(a, b) -> if(a is null, b, array(a[0] + b[0], a[1] + (b[1] - a[1]) * (b[0] / (a[0] + b[0])), "
    "a[2] + b[2] + (b[1] - a[1]) * (b[1] - a[1]) * (a[0] * b[0] / (a[0] + b[0]))))"
)


class Column(NamedTuple):
    """A column: its type as Spark spells it, and the aggregate that reduces it."""

    type: str
    aggregate: str
    #: Whether the aggregate holds more than a number, which makes those beside it slower.
    gathers: bool = False


def _moments(name: str) -> Column:
    return Column("array<double>", f"reduce(collect_list({name}), cast(null as array<double>), {_POOLED})", True)


def _if_any(name: str, aggregate: str) -> Column:
    return Column("binary", f"if(count({name}) = 0, null, {aggregate})", True)


#: Every column that a part of a state can be.
COLUMNS = {
    "n": Column("bigint", "sum(n)"),
    "m": Column("bigint", "sum(m)"),
    # An integer in two halves, so that their sums do not overflow.
    "high": Column("bigint", "sum(high)"),
    "low": Column("bigint", "sum(low)"),
    "total": Column("double", "sum(total)"),
    "least": Column("bigint", "min(least)"),
    "greatest": Column("bigint", "max(greatest)"),
    "lower": Column("double", "min(lower)"),
    "upper": Column("double", "max(upper)"),
    "earliest": Column("bigint", "min(earliest)"),
    "latest": Column("bigint", "max(latest)"),
    "late": Column("bigint", "sum(late)"),
    "moments": _moments("moments"),
    "others": _moments("others"),
    # What is kept as it is until it is enough for a sketch.
    "exact": _if_any("exact", "collect_list(exact)"),
    "different": _if_any("different", "hll_union_agg(different)"),
    "numbers": _if_any("numbers", f"kll_merge_agg_double(numbers, {KLL_K})"),
}

Values: TypeAlias = Sequence[Any]


class StatePart(NamedTuple):
    """A part of many states: its columns, how its values are split into them, and how they are joined again."""

    columns: tuple[str, ...]
    split: Callable[[Values], Sequence[Values]]
    join: Callable[..., Values]


def plain(name: str) -> StatePart:
    """What a column holds as it is: an integer of 64 bits, or a sketch."""
    return StatePart((name,), lambda values: (values,), lambda column: column)


def double(name: str) -> StatePart:
    """A double."""
    return StatePart((name,), lambda values: ([float(value) for value in values],), lambda column: column)


def pooled(name: str) -> StatePart:
    """Number, mean and squared deviations."""
    return StatePart((name,), _doubles, lambda rows: [[int(n), mean, rest] for n, mean, rest in rows])


def _doubles(values: Values) -> Sequence[Values]:
    """Lists of doubles, also where a value that is alone is kept as the integer that it is."""
    return ([[float(number) for number in numbers] for numbers in values],)


def _halves(values: Values) -> Sequence[Values]:
    integers = [None if type(value) is float else value for value in values]
    return (
        [None if value is None else value >> _HALF for value in integers],
        [None if value is None else value & _LOW for value in integers],
        [value if type(value) is float else None for value in values],
    )


def _sums(high: Values, low: Values, total: Values) -> Values:
    return [
        rest if upper is None else (upper << _HALF) + lower + (0 if rest is None else rest)
        for upper, lower, rest in zip(high, low, total, strict=True)
    ]


def _unpack_lists(packed_lists: Values) -> Values:
    unpacked = iter(unpack_all([packed for values in packed_lists for packed in values or ()]))
    return [list(islice(unpacked, len(values or ()))) for values in packed_lists]


#: A sum of integers: exact, or a double where it was stored as one, being too great.
INTEGERS = StatePart(("high", "low", "total"), _halves, _sums)

#: Values or numbers that are kept as they are; merged, those of every part.
EXACT = StatePart(("exact",), lambda values: ([pack(value) if value else None for value in values],), _unpack_lists)


class Parts:
    """What the states of an operator are made of."""

    def __init__(
        self,
        *parts: StatePart,
        apart: Callable[[Any], Sequence[Any]] = lambda state: state,
        together: Callable[..., Any] = lambda *values: [*values],
    ) -> None:
        """``apart`` and ``together`` convert a state to its parts and back; by default it is the list of them."""
        self._parts, self._apart, self._together = parts, apart, together
        self.columns = tuple(name for part in parts for name in part.columns)
        self.gathers = any(COLUMNS[name].gathers for name in self.columns)

    def explode(self, states: Values) -> Sequence[Values]:
        """The columns of many states, a row for each."""
        apart = list(zip(*map(self._apart, states), strict=True)) or [()] * len(self._parts)
        split = (part.split(values) for part, values in zip(self._parts, apart, strict=True))
        return [column for columns in split for column in columns]

    def implode(self, columns: Sequence[Values]) -> list[Any]:
        """The states of many rows."""
        remaining = iter(columns)
        joined = (part.join(*islice(remaining, len(part.columns))) for part in self._parts)
        return list(map(self._together, *joined))


class Alone(Parts):
    """States that are one part as it is."""

    def __init__(self, part: StatePart) -> None:
        super().__init__(part)
        self._part = part

    def explode(self, states: Values) -> Sequence[Values]:
        """The columns of many states."""
        return self._part.split(states)

    def implode(self, columns: Sequence[Values]) -> list[Any]:
        """The states of many rows."""
        return list(self._part.join(*columns))


EARLIEST, LATEST = Alone(plain("earliest")), Alone(plain("latest"))
