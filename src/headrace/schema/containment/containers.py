"""Keywords that speak of objects and of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.schema.containment.check import Check, Gap, ProofLocation, Rule, describe_alternative
from headrace.schema.shape.join import element, member, vacant
from headrace.schema.shape.meet import apart, narrowest
from headrace.schema.shape.model import Alternative, Array, Boolean, Member, Number, Object, Shape, Text, narrow
from headrace.schema.shape.read import Evaluated, elements, evaluated, require_members, shape_of
from headrace.schema.shape.source import Source

_FEW = 16


def reference_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``$ref``."""
    if source.root.resolve(value) is None:
        yield place.gap("the reference cannot be followed")
    else:
        yield from check.alternative(one, source.at({"$ref": value}), place)


def all_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``allOf``."""
    for position, schema in enumerate(value):
        yield from check.alternative(one, source.at(schema), place.under(str(position)))


def any_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``anyOf``: each part of the values in one of the branches."""
    for part in _parts(one, value):
        if not any(check.holds(part, source.at(schema), place) for schema in value):
            yield place.gap(
                f"the new schema wants one of {len(value)} alternatives, and it may fit none",
                describe_alternative(part),
            )


def one_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``oneOf``: each part of the values in one of the branches and outside all others."""
    branches = [source.at(schema) for schema in value]
    for part in _parts(one, value):
        fitting = [branch for branch in branches if not apart(part, shape_of(branch))]
        if len(fitting) != 1 or not check.holds(part, fitting[0], place):
            yield place.gap(
                f"the new schema wants exactly one of {len(value)} alternatives", describe_alternative(part)
            )


def _parts(one: Alternative, branches: list[Any]) -> list[Alternative]:
    """The values one by one where they are few; objects by a member that the branches tell apart."""
    match one:
        case Boolean(values=values):
            return [narrow(one, values=frozenset((value,))) for value in sorted(values)]
        case Number(values=frozenset() as texts) | Text(values=frozenset() as texts) if len(texts) <= _FEW:
            return [narrow(one, values=frozenset((text,))) for text in sorted(texts)]
        case Object(members=members):
            for name, known in members.items():
                told = any(isinstance(branch, dict) and name in branch.get("properties", {}) for branch in branches)
                cases = _cases(known.shape) if known.required and told else []
                if len(cases) > 1:
                    return [narrow(one, members={**members, name: Member(Shape((case,)), True)}) for case in cases]
    return [one]


def _cases(shape: Shape) -> list[Alternative]:
    cases = [part for one in shape.alternatives for part in _parts(one, [])]
    return cases if len(cases) <= _FEW else []


def not_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``not``."""
    if not apart(one, shape_of(source.at(value))):
        yield place.gap("the new schema excludes such values", describe_alternative(one))


def if_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``if``, ``then``, ``else``: by showing which one counts, or both."""
    keywords = source.keywords()
    then, otherwise = source.at(keywords.get("then", True)), source.at(keywords.get("else", True))
    for part in _parts(one, [value]):
        if apart(part, shape_of(source.at(value))):
            yield from check.alternative(part, otherwise, place.under("else"))
        elif check.holds(part, source.at(value), place):
            yield from check.alternative(part, then, place.under("then"))
        else:
            yield from check.alternative(part, then, place.under("then"))
            yield from check.alternative(part, otherwise, place.under("else"))


APPLICATOR_RULES: dict[str, Rule] = {
    "$ref": reference_rule,
    "allOf": all_rule,
    "anyOf": any_rule,
    "oneOf": one_rule,
    "not": not_rule,
    "if": if_rule,
}


def required_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``required``."""
    for name in value if isinstance(one, Object) else ():
        assert isinstance(one, Object)
        if not member(one, name).required:
            yield Gap((*place.value, name), place.schema, "it may be missing; the new schema requires it")


def properties_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``properties``."""
    for name, schema in value.items() if isinstance(one, Object) else ():
        assert isinstance(one, Object)
        yield from check.shape(member(one, name).shape, source.at(schema), place.inside(name, name))


def patterns_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``patternProperties``: under a pattern that was there before, only what stood there can match."""
    for pattern, schema in value.items() if isinstance(one, Object) else ():
        assert isinstance(one, Object)
        inner = source.at(schema)
        for name, known in one.members.items():
            if check.may_match(pattern, name):
                yield from check.shape(known.shape, inner, place.inside(name, pattern))
        before = [one.patterns[pattern]] if pattern in one.patterns else [one.rest, *one.patterns.values()]
        for shape in before:
            yield from check.shape(shape, inner, place.inside("*", pattern))


def additional_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``additionalProperties``."""
    keywords = source.keywords()
    spoken = Evaluated(frozenset(keywords.get("properties", ())), frozenset(keywords.get("patternProperties", ())))
    yield from _remaining(check, one, spoken, source.at(value), place)


def unevaluated_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``unevaluatedProperties``, with no regard to what other alternatives may speak of."""
    spoken = evaluated(source)
    if not spoken.everything:
        yield from _remaining(check, one, spoken, source.at(value), place)


def _remaining(check: Check, one: Alternative, spoken: Evaluated, inner: Source, place: ProofLocation) -> Iterator[Gap]:
    """What the schema does not speak of must be valid under another one."""
    if not isinstance(one, Object):
        return
    for name, known in one.members.items():
        if name not in spoken.names and not any(check.does_match(pattern, name) for pattern in spoken.patterns):
            yield from check.shape(known.shape, inner, place.inside(name))
    others = [shape for pattern, shape in one.patterns.items() if pattern not in spoken.patterns]
    for shape in [*others, one.rest]:
        yield from check.shape(shape, inner, place.inside("*"))


def names_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``propertyNames``, where all names are known."""
    if not isinstance(one, Object):
        return
    if not all(map(vacant, (one.rest, *one.patterns.values()))):
        yield place.gap("it may hold members of any name")
    names = frozenset(name for name, known in one.members.items() if not vacant(known.shape))
    if names:
        yield from check.alternative(Text(values=names), source.at(value), place)


def count_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``minProperties`` and ``maxProperties``."""
    if not isinstance(one, Object):
        return
    if place.schema[-1] == "minProperties":
        if max(one.low, sum(known.required for known in one.members.values())) < value:
            yield place.gap(f"it may have fewer than {value} members")
        return
    possible = sum(not vacant(known.shape) for known in one.members.values())
    closed = all(map(vacant, (one.rest, *one.patterns.values())))
    if not (one.high is not None and one.high <= value) and not (closed and possible <= value):
        yield place.gap(f"it may have more than {value} members")


def dependent_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``dependentRequired``, ``dependentSchemas`` and ``dependencies``."""
    for trigger, needed in value.items() if isinstance(one, Object) else ():
        assert isinstance(one, Object)
        if vacant(member(one, trigger).shape):
            continue
        schema = {"required": needed} if isinstance(needed, list) else needed
        yield from check.alternative(require_members(one, [trigger]), source.at(schema), place.under(trigger))


def elements_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``items``, ``prefixItems`` and ``additionalItems``: whichever comes first speaks for all."""
    spelled = [name for name in ("items", "prefixItems", "additionalItems") if name in source.keywords()]
    if isinstance(one, Array) and place.schema[-1] == spelled[0]:
        prefix, rest = elements(source)
        yield from _each(check, one, prefix, source, place)
        yield from _after(check, one, len(prefix), source.at(rest), place)


def _each(check: Check, one: Array, prefix: list[Any], source: Source, place: ProofLocation) -> Iterator[Gap]:
    for position, schema in enumerate(prefix):
        shape = element(one, position).shape
        yield from check.shape(shape, source.at(schema), place.inside(str(position), str(position)))


def _after(check: Check, one: Array, start: int, inner: Source, place: ProofLocation) -> Iterator[Gap]:
    for position in range(start, len(one.prefix)):
        yield from check.shape(element(one, position).shape, inner, place.inside(str(position)))
    yield from check.shape(element(one, max(start, len(one.prefix))).shape, inner, place.inside("*"))


def unevaluated_items_rule(
    check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation
) -> Iterator[Gap]:
    """``unevaluatedItems``, with no regard to what other schemas may speak of."""
    prefix, _ = elements(source)
    spoken = "additionalItems" if isinstance(source.keywords().get("items"), list) else "items"
    if isinstance(one, Array) and spoken not in source.keywords():
        yield from _after(check, one, len(prefix), source.at(value), place)


def length_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``minItems`` and ``maxItems``."""
    if not isinstance(one, Array):
        return
    if place.schema[-1] == "minItems":
        if one.low < value:
            yield place.gap(f"it may have fewer than {value} elements")
    elif (longest := most_elements(one)) is None or longest > value:
        yield place.gap(f"it may have more than {value} elements")


def most_elements(one: Array) -> int | None:
    """How many elements an array can have."""
    if vacant(one.rest):
        return narrowest(len(one.prefix), one.high)
    return one.high


def unique_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``uniqueItems``."""
    if value is not True or not isinstance(one, Array) or one.unique:
        return
    if (longest := most_elements(one)) is None or longest > 1:
        yield place.gap("it may hold an element twice")


def contains_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``contains``: where every element does, or enough of the first ones."""
    if not isinstance(one, Array):
        return
    keywords = source.keywords()
    needed, most = keywords.get("minContains", 1), keywords.get("maxContains")
    inner = source.at(value)

    def counts(shape: Shape, name: str) -> bool:
        return not check.shape(shape, inner, place.inside(name))

    sure = sum(counts(element(one, position).shape, str(position)) for position in range(min(one.low, len(one.prefix))))
    if one.low > len(one.prefix) and counts(one.rest, "*"):
        sure += one.low - len(one.prefix)
    if sure < needed:
        yield place.gap(f"nothing shows that it holds {needed} such elements")
    if most is not None and ((longest := most_elements(one)) is None or longest > most):
        yield place.gap(f"it may hold more than {most} such elements")


CONTAINER_RULES: dict[str, Rule] = {
    "required": required_rule,
    "properties": properties_rule,
    "patternProperties": patterns_rule,
    "additionalProperties": additional_rule,
    "unevaluatedProperties": unevaluated_rule,
    "propertyNames": names_rule,
    "minProperties": count_rule,
    "maxProperties": count_rule,
    "dependentRequired": dependent_rule,
    "dependentSchemas": dependent_rule,
    "dependencies": dependent_rule,
    "items": elements_rule,
    "prefixItems": elements_rule,
    "additionalItems": elements_rule,
    "unevaluatedItems": unevaluated_items_rule,
    "minItems": length_rule,
    "maxItems": length_rule,
    "uniqueItems": unique_rule,
    "contains": contains_rule,
}
