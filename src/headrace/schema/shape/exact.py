"""Shapes of values that are known exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

from headrace.schema.canonical import number_of, value_text
from headrace.schema.shape.model import (
    ANY_NUMBER,
    NOTHING,
    SPELLED,
    WHOLE,
    Alternative,
    Array,
    Boolean,
    Member,
    Null,
    Number,
    Object,
    Shape,
    Text,
)


def alternatives_of_values(values: Iterable[Any]) -> tuple[Alternative, ...]:
    """The values that equal one of these: one alternative for each kind of scalar, one for each container."""
    value_list = list(values)
    numbers = {value_text(value) for value in value_list if _is_number(value)}
    return (
        *_scalars(value_list),
        *_numbers({text for text in numbers if not is_whole(text)}, ANY_NUMBER),
        *_numbers({text for text in numbers if is_whole(text)}, WHOLE),
        *(
            _container(value, lambda item: Shape(alternatives_of_values([item])))
            for value in value_list
            if isinstance(value, dict | list)
        ),
    )


def shape_of_values(values: Iterable[Any]) -> Shape:
    """The shape of values as a lens writes them: an integer is spelled as one."""
    value_list = list(values)
    integers = [value for value in value_list if _is_number(value) and isinstance(value, int)]
    others = [value for value in value_list if isinstance(value, str | bool | float | Decimal | None)]
    containers = (
        _container(value, lambda item: shape_of_values([item]))
        for value in value_list
        if isinstance(value, dict | list)
    )
    return Shape((*_numbers(set(map(value_text, integers)), SPELLED), *alternatives_of_values(others), *containers))


def is_whole(text: str) -> bool:
    """Whether the text of a number stands for an integer."""
    return isinstance(number_of(text), int)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _scalars(values: list[Any]) -> Iterator[Alternative]:
    if None in values:
        yield Null()
    if booleans := frozenset(value for value in values if isinstance(value, bool)):
        yield Boolean(values=booleans)
    if texts := frozenset(value for value in values if isinstance(value, str)):
        yield Text(values=texts)


def _numbers(texts: set[str], integer: int) -> Iterator[Alternative]:
    if texts:
        yield Number(values=frozenset(texts), integer=integer)


def _container(value: Any, shape_of: Callable[[Any], Shape]) -> Alternative:
    if isinstance(value, dict):
        return Object(members={name: Member(shape_of(item), True) for name, item in value.items()}, rest=NOTHING)
    elements = tuple(map(shape_of, value))
    return Array(prefix=elements, rest=NOTHING, low=len(elements), high=len(elements))
