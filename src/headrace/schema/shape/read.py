"""From a schema to its shape: what we do not understand is left out, so the shape holds more, and kept as a fact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.deadline import check_deadline
from headrace.schema.shape.exact import listed
from headrace.schema.shape.kinds import EVERY, alternative_of, requiring
from headrace.schema.shape.meet import Alternatives, meet_all
from headrace.schema.shape.model import ANYTHING, NOTHING, Facts, Member, Object, Shape, knowing
from headrace.schema.shape.source import Source

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
"""Keywords that are remembered as they stand, together with those they need."""


def shape_of(source: Source) -> Shape:
    """The shape of a schema, read when somebody looks."""
    source = source.follow()
    if source.root.plain and not source.keywords():
        return NOTHING if source.schema is False else ANYTHING
    known = source.root.shapes.get(id(source.schema))
    if known is None:
        key = frozenset((source.fact,))
        known = (source.schema, Shape.later(key, lambda: read(source), key))
        source.root.shapes[id(source.schema)] = known
    return known[1]


def group(source: Source, names: tuple[str, ...]) -> str:
    """The fact that some keywords of a schema make by themselves."""
    keywords = source.keywords()
    return source.at({name: keywords[name] for name in names if name in keywords}).fact


def read(source: Source, above: Facts = frozenset()) -> Alternatives:
    """What a schema admits; ``above`` are the schemas being read for the same value, which end a circle."""
    check_deadline()
    source = source.follow()
    if not source.root.plain:
        return _known(ANYTHING.alternatives, frozenset((source.fact,)))
    if source.schema is False:
        return ()
    keywords, fact = source.keywords(), source.fact
    if not keywords or fact in above:
        return ANYTHING.alternatives
    types = keywords.get("type", EVERY)
    names = (
        [types] if isinstance(types, str) else [name for name in types if name != "integer" or "number" not in types]
    )
    found: Alternatives = tuple(alternative_of(name, source, shape_of) for name in names)
    for more in _further(source, above | {fact}):
        found = meet_all(found, more)
    return _known(found, frozenset((fact, *(group(source, names) for names in GROUPS if names[0] in keywords))))


def _known(alternatives: Alternatives, facts: Facts) -> Alternatives:
    return tuple(knowing(one, facts) for one in alternatives)


def _further(source: Source, above: Facts) -> Iterator[Alternatives]:
    """What each of the keywords that speak of values of every kind admits."""
    keywords = source.keywords()
    if "enum" in keywords:
        yield listed(keywords["enum"])
    if "const" in keywords:
        yield listed([keywords["const"]])
    if "$ref" in keywords and (target := source.root.resolve(keywords["$ref"])):
        yield read(target, above)
    for schema in keywords.get("allOf", ()):
        yield read(source.at(schema), above)
    for name in ("anyOf", "oneOf"):
        if name in keywords:
            yield tuple(one for schema in keywords[name] for one in read(source.at(schema), above))
    if "if" in keywords and "else" in keywords:
        passed = meet_all(read(source.at(keywords["if"]), above), read(source.at(keywords.get("then", True)), above))
        yield passed + read(source.at(keywords["else"]), above)
    for name in ("dependentRequired", "dependencies"):
        for trigger, needed in keywords.get(name, {}).items():
            if isinstance(needed, list):
                yield _dependent(trigger, needed)
    if (
        isinstance(barred := keywords.get("not"), dict)
        and barred.keys() == {"required"}
        and len(barred["required"]) == 1
    ):
        yield _objects([_lacking(barred["required"][0])])


def _dependent(trigger: str, needed: list[str]) -> Alternatives:
    """Objects without the trigger, or with it and all that it needs."""
    return _objects([_lacking(trigger), requiring(Object(rest=ANYTHING), [trigger, *needed])])


def _lacking(name: str) -> Object:
    return Object(members={name: Member(NOTHING)}, rest=ANYTHING)


def _objects(objects: Iterable[Object]) -> Alternatives:
    """Some objects, and everything that is none."""
    return (*(one for one in ANYTHING.alternatives if not isinstance(one, Object)), *objects)
