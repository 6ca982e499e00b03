"""A shape is a set of JSON values: alternatives of one kind each, read lazily from a schema.

A shape read from a schema holds every value the schema admits, perhaps more, never fewer. The shape of values that are
known exactly lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from headrace.deadline import check_deadline
from headrace.schema.canonical import number_of, value_text

Facts = frozenset[str]


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one kind; the facts are schemas that all of them are valid under."""

    kind: ClassVar[str]
    facts: Facts = frozenset()


class Null(Alternative, frozen=True, kw_only=True):
    """The null."""

    kind = "null"


class Boolean(Alternative, frozen=True, kw_only=True):
    """Some of the two truth values."""

    kind = "boolean"
    values: frozenset[bool] = frozenset((True, False))


class Bound(NamedTuple):
    """An end of a range of numbers."""

    value: int | Decimal
    exclusive: bool = False


ANY_NUMBER, INTEGRAL, SPELLED = range(3)
"""How much of an integer a number is: 1.0 is whole, and only 1 is spelled as one, which draft 4 asks for."""


class Number(Alternative, frozen=True, kw_only=True):
    """Numbers in a range, or the ones whose texts are listed."""

    kind = "number"
    integer: int = ANY_NUMBER
    low: Bound | None = None
    high: Bound | None = None
    multiples: frozenset[str] = frozenset()
    values: frozenset[str] | None = None


class Text(Alternative, frozen=True, kw_only=True):
    """Strings of a length, matching patterns and formats, or the ones listed."""

    kind = "string"
    low: int = 0
    high: int | None = None
    patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    values: frozenset[str] | None = None


class Shape:
    """A set of JSON values.

    Where it was only read from schemas, ``key`` holds their facts and says it all. Shapes that are not looked at yet
    are compared by their ``identity``.
    """

    __slots__ = ("_alternatives", "_read", "identity", "key")

    def __init__(self, alternatives: tuple[Alternative, ...]) -> None:
        self._alternatives: tuple[Alternative, ...] | None = alternatives
        self._read: Callable[[], tuple[Alternative, ...]] | None = None
        self.key: Facts | None = None
        self.identity: Hashable = None

    @classmethod
    def later(cls, identity: Hashable, read: Callable[[], tuple[Alternative, ...]], key: Facts | None = None) -> Shape:
        """A shape that is read at first use."""
        shape = cls(())
        shape._alternatives, shape._read, shape.identity, shape.key = None, read, identity, key
        return shape

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """What a value may be."""
        if self._alternatives is None:
            assert self._read is not None
            self._alternatives = self._read()
        return self._alternatives

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        if self is other:
            return True
        if self.identity is not None or other.identity is not None:
            return self.identity == other.identity
        check_deadline()
        return self.alternatives == other.alternatives

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shape({self._alternatives if self.identity is None else self.identity})"


class Member(NamedTuple):
    """What an object may hold under a name, and whether it always does."""

    shape: Shape
    required: bool = False


class Object(Alternative, frozen=True, kw_only=True):
    """Objects: known names, names by pattern, and the rest."""

    kind = "object"
    members: Mapping[str, Member] = {}
    patterns: Mapping[str, Shape] = {}
    rest: Shape
    low: int = 0
    high: int | None = None


class Array(Alternative, frozen=True, kw_only=True):
    """Arrays: the first elements, and the rest."""

    kind = "array"
    prefix: tuple[Shape, ...] = ()
    rest: Shape
    low: int = 0
    high: int | None = None
    unique: bool = False


NOTHING = Shape(())
"""No value at all."""
ANYTHING: Shape = Shape.later(
    frozenset(),
    lambda: (Null(), Boolean(), Number(), Text(), Object(rest=ANYTHING), Array(rest=ANYTHING)),
    key=frozenset(),
)
"""Every value."""

A = TypeVar("A", bound=Alternative)


def with_facts(alternative: A, facts: Facts) -> A:
    """The same values, known to be valid under more schemas."""
    return msgspec.structs.replace(alternative, facts=alternative.facts | facts)


def replace_values(alternative: A, **fields: Any) -> A:
    """Other values made of these: the facts about the old ones are dropped."""
    return msgspec.structs.replace(alternative, facts=frozenset(), **fields)


def narrow(alternative: A, **fields: Any) -> A:
    """A subset of the values, which keeps their facts."""
    return msgspec.structs.replace(alternative, **fields)


def alternatives_of_values(values: Iterable[Any]) -> tuple[Alternative, ...]:
    """The values that equal one of these: one alternative for each kind of scalar, one for each container."""
    value_list = list(values)
    numbers = {value_text(value) for value in value_list if _is_number(value)}
    return (
        *_scalars(value_list),
        *_numbers({text for text in numbers if not is_integral(text)}, ANY_NUMBER),
        *_numbers({text for text in numbers if is_integral(text)}, INTEGRAL),
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


def is_integral(text: str) -> bool:
    """Whether a text is the spelling of an integral number."""
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
