"""From a schema to its shape: unsupported keywords are kept as facts, so the shape may hold more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from headrace.deadline import check_deadline
from headrace.schema.canonical import exactly, value_text
from headrace.schema.shape.algebra import Alternatives, meet_all, member
from headrace.schema.shape.model import (
    ANY_NUMBER,
    ANYTHING,
    INTEGRAL,
    NOTHING,
    SPELLED,
    Alternative,
    Array,
    Boolean,
    Bound,
    Facts,
    Member,
    Null,
    Number,
    Object,
    Shape,
    Text,
    alternatives_of_values,
    narrow,
    with_facts,
)
from headrace.schema.shape.source import Dialect, Source

_SOMETIMES = ("anyOf", "oneOf", "if", "not", "dependentSchemas", "dependencies")


class Evaluated(NamedTuple):
    """The names and patterns that are evaluated for certain; ``certain`` where there cannot be more."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    everything: bool = False
    certain: bool = True

    def __or__(self, other: object) -> Evaluated:
        assert isinstance(other, Evaluated)
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            self.everything or other.everything,
            self.certain and other.certain,
        )


def evaluated(source: Source, above: Facts = frozenset()) -> Evaluated:
    """The members that a schema evaluates, apart from its own ``unevaluatedProperties``."""
    keywords, fact = source.keywords(), source.fact
    if fact in above:
        return Evaluated(certain=False)
    evaluated_names = Evaluated(
        frozenset(keywords.get("properties", ())),
        frozenset(keywords.get("patternProperties", ())),
        "additionalProperties" in keywords or (bool(above) and "unevaluatedProperties" in keywords),
        not any(name in keywords for name in _SOMETIMES),
    )
    for schema in keywords.get("allOf", ()):
        evaluated_names |= evaluated(source.at(schema), above | {fact})
    if "$ref" in keywords:
        target = source.root.resolve(keywords["$ref"])
        evaluated_names |= evaluated(target, above | {fact}) if target else Evaluated(certain=False)
    return evaluated_names


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
            return _number(source, SPELLED if source.root.dialect is Dialect.DRAFT4 else INTEGRAL)
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
    """Both limits; in draft 4 the second only tells whether the first is exclusive."""
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
        declared_members = evaluated(source)
        if declared_members.certain and not declared_members.everything:
            rest = shape_of(source.at(keywords["unevaluatedProperties"]))
            members = {name: Member(ANYTHING) for name in sorted(declared_members.names)} | members
            patterns = dict.fromkeys(sorted(declared_members.patterns), ANYTHING) | patterns
    low, high = int(keywords.get("minProperties", 0)), _limit(keywords, "maxProperties")
    declared = Object(members=members, patterns=patterns, rest=rest, low=low, high=high)
    return require_members(declared, keywords.get("required", ()))


def require_members(alternative: Object, names: Iterable[str]) -> Object:
    """The objects that hold all of the names."""
    required = {name: Member(member(alternative, name).shape, True) for name in names}
    return narrow(alternative, members={**alternative.members, **required})


class Elements(NamedTuple):
    """The schemas of the first elements of an array, and of the others."""

    prefix: list[Any]
    rest: Any


def elements(source: Source) -> Elements:
    """The schemas of the elements of an array, in whatever keywords its draft has."""
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


GROUPS = (
    ("not",),
    ("oneOf",),
    ("anyOf",),
    ("if", "then", "else"),
    ("contains", "minContains", "maxContains"),
    ("propertyNames",),
    ("dependentSchemas",),
    ("dependentRequired",),
    ("dependencies",),
    ("contentEncoding",),
    ("contentMediaType",),
)
"""Keywords that are kept as facts, each with those that belong to it."""


def shape_of(source: Source) -> Shape:
    """The shape of a schema, read at first use."""
    source = source.follow()
    if source.root.plain and not source.keywords():
        return NOTHING if source.schema is False else ANYTHING
    cached = source.root.shapes.get(id(source.schema))
    if cached is None:
        key = frozenset((source.fact,))
        cached = (source.schema, Shape.later(key, lambda: read(source), key))
        source.root.shapes[id(source.schema)] = cached
    return cached[1]


def group(source: Source, names: tuple[str, ...]) -> str:
    """The fact that some keywords of a schema make by themselves."""
    keywords = source.keywords()
    return source.at({name: keywords[name] for name in names if name in keywords}).fact


def read(source: Source, above: Facts = frozenset()) -> Alternatives:
    """The values that a schema admits; ``above`` are schemas being read for the same value, to end recursion."""
    check_deadline()
    source = source.follow()
    if not source.root.plain:
        return _add_facts(ANYTHING.alternatives, frozenset((source.fact,)))
    if source.schema is False:
        return ()
    keywords, fact = source.keywords(), source.fact
    if not keywords or fact in above:
        return ANYTHING.alternatives
    types = keywords.get("type", EVERY)
    names = (
        [types] if isinstance(types, str) else [name for name in types if name != "integer" or "number" not in types]
    )
    alternatives: Alternatives = tuple(alternative_of(name, source, shape_of) for name in names)
    for further_alternatives in _keyword_alternatives(source, above | {fact}):
        alternatives = meet_all(alternatives, further_alternatives)
    return _add_facts(
        alternatives, frozenset((fact, *(group(source, names) for names in GROUPS if names[0] in keywords)))
    )


def _add_facts(alternatives: Alternatives, facts: Facts) -> Alternatives:
    return tuple(with_facts(alternative, facts) for alternative in alternatives)


def _keyword_alternatives(source: Source, above: Facts) -> Iterator[Alternatives]:
    """The alternatives that each keyword about values of every kind admits."""
    keywords = source.keywords()
    if "enum" in keywords:
        yield alternatives_of_values(keywords["enum"])
    if "const" in keywords:
        yield alternatives_of_values([keywords["const"]])
    if "$ref" in keywords and (target := source.root.resolve(keywords["$ref"])):
        yield read(target, above)
    for schema in keywords.get("allOf", ()):
        yield read(source.at(schema), above)
    for name in ("anyOf", "oneOf"):
        if name in keywords:
            yield tuple(alternative for schema in keywords[name] for alternative in read(source.at(schema), above))
    if "if" in keywords and "else" in keywords:
        passed = meet_all(read(source.at(keywords["if"]), above), read(source.at(keywords.get("then", True)), above))
        yield passed + read(source.at(keywords["else"]), above)
    for name in ("dependentRequired", "dependencies"):
        for trigger, needed in keywords.get(name, {}).items():
            if isinstance(needed, list):
                yield _dependent_objects(trigger, needed)
    if (
        isinstance(barred := keywords.get("not"), dict)
        and barred.keys() == {"required"}
        and len(barred["required"]) == 1
    ):
        yield _objects([_objects_without(barred["required"][0])])


def _dependent_objects(trigger: str, needed: list[str]) -> Alternatives:
    """Objects without the trigger, or with it and all that it needs."""
    return _objects([_objects_without(trigger), require_members(Object(rest=ANYTHING), [trigger, *needed])])


def _objects_without(name: str) -> Object:
    return Object(members={name: Member(NOTHING)}, rest=ANYTHING)


def _objects(objects: Iterable[Object]) -> Alternatives:
    """These objects, and all values that are no objects."""
    return (*(alternative for alternative in ANYTHING.alternatives if not isinstance(alternative, Object)), *objects)
