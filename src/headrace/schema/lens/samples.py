"""A few values of a shape: the plainest, the fullest, and the ones at the edges.

They are guesses, for whoever tries them: a pattern or a keyword that a shape leaves out may still exclude them.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from typing import Any

from headrace.deadline import check_deadline
from headrace.schema.containment.scalars import highest, lowest
from headrace.schema.lens.image import finite
from headrace.schema.shape.canonical import json_number, value_text
from headrace.schema.shape.join import member, unnamed
from headrace.schema.shape.model import WHOLE, Alternative, Array, Number, Object, Shape, Text
from headrace.schema.shape.places import element, vacant

_DEPTH = 6
_MOST = 40
_TEXTS = (
    "x",
    "X",
    "",
    "0",
    "1",
    "12",
    "abc",
    "a-b",
    "a_b",
    "2024-02-29",
    "00000000-0000-4000-8000-000000000000",
    "a@b.example",
)
_TIMES = (
    "2024-02-29T12:00:00Z",
    "0000-01-01T00:00:00+23:59",
    "2016-12-31T23:59:60Z",
    "9999-12-31T23:59:59.999999-23:59",
)


def documents(shape: Shape, names: list[str]) -> Iterator[Any]:
    """Values of a shape, plain ones first; open objects also hold the given names."""
    for one in shape.alternatives:
        yield from _values(one, names, _DEPTH)


def _samples(shape: Shape, names: list[str], depth: int) -> list[Any]:
    """Some values, in turn from each alternative."""
    if depth == 0:
        return []
    turns = [_values(one, names, depth) for one in shape.alternatives]
    found: list[Any] = []
    while turns and len(found) < _MOST:
        alive = []
        for values in turns:
            for value in islice(values, 1):
                check_deadline()
                found.append(value)
                alive.append(values)
        turns = alive
    return found


def _values(one: Alternative, names: list[str], depth: int) -> Iterator[Any]:
    check_deadline()
    known = finite(one)
    if known is not None:
        yield from (float(value) if isinstance(value, Decimal) else value for value in known)
    elif isinstance(one, Number):
        yield from _numbers(one)
    elif isinstance(one, Text):
        yield from _texts(one)
    elif isinstance(one, Object):
        yield from _objects(one, names, depth)
    elif isinstance(one, Array):
        yield from _arrays(one, names, depth)


def _numbers(number: Number) -> Iterator[int | float]:
    low, high = lowest(number), highest(number)
    ends = [json_number(value_text(bound.value)) for bound in (low, high) if bound is not None]
    near = [end + step for end in ends for step in (0, 1, -1)]
    for guess in dict.fromkeys([0, 1, *near, -1, 7, 10**18, *([] if number.integer >= WHOLE else [0.5, -1.5])]):
        if (low is None or guess >= low.value) and (high is None or guess <= high.value):
            yield guess


def _texts(text: Text) -> Iterator[str]:
    if text.formats:
        yield from _TIMES
    yield from (guess for guess in _TEXTS if _fits(text, guess))
    yield "a" * text.low
    if text.high is not None and text.high <= 10_000:
        yield "a" * text.high


def _fits(text: Text, guess: str) -> bool:
    return len(guess) >= text.low and (text.high is None or len(guess) <= text.high)


def _objects(one: Object, names: list[str], depth: int) -> Iterator[dict[str, Any]]:
    """The least, the most, and either with one member changed, left out or added."""
    choices = {name: _samples(known.shape, names, depth - 1) for name, known in one.members.items()}
    least = {name: choices[name][0] for name, known in one.members.items() if known.required and choices[name]}
    most = {name: values[0] for name, values in choices.items() if values}
    yield least
    yield most
    for name, values in choices.items():
        if name in most and not one.members[name].required:
            yield {other: value for other, value in most.items() if other != name}
        for value in values:
            yield {**least, name: value}
            yield {**most, name: value}
    extra = [] if vacant(unnamed(one)) else _samples(member(one, "").shape, names, min(depth - 1, 2))
    for name in names:
        if name not in one.members:
            yield from ({**least, name: value} for value in extra)


def _arrays(one: Array, names: list[str], depth: int) -> Iterator[list[Any]]:
    """Short ones: all elements the plainest, all different, and each of them changed."""
    count = len(one.prefix) if one.high is None else min(len(one.prefix), one.high)
    for length in sorted({one.low, one.low + 1, one.low + 2, count, count + 1}):
        choices = [_samples(element(one, position).shape, names, depth - 1) for position in range(min(length, _MOST))]
        if not all(choices):
            continue
        first = [values[0] for values in choices]
        yield first
        yield [values[position % len(values)] for position, values in enumerate(choices)]
        for position, values in enumerate(choices):
            yield from ([*first[:position], value, *first[position + 1 :]] for value in values[1:])
