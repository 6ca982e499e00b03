"""What the keywords of one schema say of values of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace.schema.shape.canonical import exactly, value_text
from headrace.schema.shape.dialect import Dialect
from headrace.schema.shape.evaluated import evaluated
from headrace.schema.shape.join import member
from headrace.schema.shape.model import (
    ANY_NUMBER,
    ANYTHING,
    SPELLED,
    WHOLE,
    Alternative,
    Array,
    Boolean,
    Bound,
    Member,
    Null,
    Number,
    Object,
    Shape,
    Text,
    narrowed,
)
from headrace.schema.shape.source import Source

Reader = Callable[[Source], Shape]

EVERY = ("null", "boolean", "number", "string", "object", "array")
"""The kinds a value may be of."""


def alternative_of(kind: str, source: Source, shape_of: Reader) -> Alternative:
    """The values of a kind that the schema's own keywords admit; an integer is a kind of number."""
    match kind:
        case "null":
            return Null()
        case "boolean":
            return Boolean()
        case "number":
            return _number(source, ANY_NUMBER)
        case "integer":
            return _number(source, SPELLED if source.root.dialect is Dialect.DRAFT4 else WHOLE)
        case "string":
            return _text(source.keywords())
        case "object":
            return _object(source, shape_of)
    return _array(source, shape_of)


def _number(source: Source, integer: int) -> Number:
    keywords = source.keywords()
    multiple = keywords.get("multipleOf")
    return Number(
        integer=integer,
        low=lower_bound(keywords),
        high=upper_bound(keywords),
        multiples=frozenset() if multiple is None else frozenset((value_text(multiple),)),
    )


def lower_bound(keywords: dict[str, Any]) -> Bound | None:
    """Where the numbers begin."""
    bounds = _bounds(keywords, "minimum", "exclusiveMinimum")
    return max(bounds, key=lambda bound: (bound.value, bound.exclusive), default=None)


def upper_bound(keywords: dict[str, Any]) -> Bound | None:
    """Where the numbers end."""
    bounds = _bounds(keywords, "maximum", "exclusiveMaximum")
    return min(bounds, key=lambda bound: (bound.value, not bound.exclusive), default=None)


def _bounds(keywords: dict[str, Any], plain: str, exclusive: str) -> list[Bound]:
    """Both limits; in draft 4 the second only says how the first is meant."""
    limit, strict = keywords.get(plain), keywords.get(exclusive)
    if isinstance(strict, bool):
        return [] if limit is None else [Bound(exactly(limit), strict)]
    bounds = [] if limit is None else [Bound(exactly(limit))]
    return bounds if strict is None else [*bounds, Bound(exactly(strict), True)]


def _text(keywords: dict[str, Any]) -> Text:
    return Text(
        low=int(keywords.get("minLength", 0)),
        high=_limit(keywords, "maxLength"),
        patterns=frozenset((keywords["pattern"],)) if "pattern" in keywords else frozenset(),
        formats=frozenset((keywords["format"],)) if "format" in keywords else frozenset(),
    )


def _limit(keywords: dict[str, Any], name: str) -> int | None:
    return int(keywords[name]) if name in keywords else None


def _object(source: Source, shape_of: Reader) -> Object:
    keywords = source.keywords()
    members = {name: Member(shape_of(source.at(schema))) for name, schema in keywords.get("properties", {}).items()}
    patterns = {name: shape_of(source.at(schema)) for name, schema in keywords.get("patternProperties", {}).items()}
    rest = ANYTHING
    if "additionalProperties" in keywords:
        rest = shape_of(source.at(keywords["additionalProperties"]))
    elif "unevaluatedProperties" in keywords:
        spoken = evaluated(source)
        if spoken.certain and not spoken.everything:
            rest = shape_of(source.at(keywords["unevaluatedProperties"]))
            members = {name: Member(ANYTHING) for name in sorted(spoken.names)} | members
            patterns = dict.fromkeys(sorted(spoken.patterns), ANYTHING) | patterns
    low, high = int(keywords.get("minProperties", 0)), _limit(keywords, "maxProperties")
    known = Object(members=members, patterns=patterns, rest=rest, low=low, high=high)
    return requiring(known, keywords.get("required", ()))


def requiring(alternative: Object, names: Iterable[str]) -> Object:
    """The objects that hold all of the names."""
    required = {name: Member(member(alternative, name).shape, True) for name in names}
    return narrowed(alternative, members={**alternative.members, **required})


class Elements(NamedTuple):
    """The schemas of the first elements of an array, and of the others."""

    prefix: list[Any]
    rest: Any


def elements(source: Source) -> Elements:
    """What a schema says of the elements of an array, whatever its draft calls it."""
    keywords = source.keywords()
    items = keywords.get("items", True)
    if source.root.dialect is Dialect.DRAFT2020:
        return Elements(keywords.get("prefixItems", []), items)
    return Elements(items, keywords.get("additionalItems", True)) if isinstance(items, list) else Elements([], items)


def _array(source: Source, shape_of: Reader) -> Array:
    keywords = source.keywords()
    prefix, rest = elements(source)
    needed = int(keywords.get("minContains", 1)) if "contains" in keywords else 0
    return Array(
        prefix=tuple(shape_of(source.at(schema)) for schema in prefix),
        rest=shape_of(source.at(rest)),
        low=max(int(keywords.get("minItems", 0)), needed),
        high=_limit(keywords, "maxItems"),
        unique=keywords.get("uniqueItems") is True,
    )
