"""Rules of keywords about objects and arrays, and of those that apply other schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.schema.containment.check import Check, Gap, ProofLocation, Rule, describe_alternative
from headrace.schema.shape.algebra import apart, element, member, narrowest, vacant
from headrace.schema.shape.model import Alternative, Array, Boolean, Member, Number, Object, Shape, Text, narrow
from headrace.schema.shape.read import Evaluated, elements, evaluated, require_members, shape_of
from headrace.schema.shape.source import Source

_FEW = 16


def reference_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``$ref``."""
    if source.root.resolve(value) is None:
        yield location.gap("the reference cannot be followed")
    else:
        yield from check.alternative(alternative, source.at({"$ref": value}), location)


def all_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``allOf``."""
    for position, schema in enumerate(value):
        yield from check.alternative(alternative, source.at(schema), location.under(str(position)))


def any_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``anyOf``: each part of the values in one of the branches."""
    for part in _split_alternative(alternative, value):
        if not any(check.holds(part, source.at(schema), location) for schema in value):
            yield location.gap(
                f"the new schema wants one of {len(value)} alternatives, and it may fit none",
                describe_alternative(part),
            )


def one_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``oneOf``: each part of the values in one of the branches and outside all others."""
    branches = [source.at(schema) for schema in value]
    for part in _split_alternative(alternative, value):
        fitting = [branch for branch in branches if not apart(part, shape_of(branch))]
        if len(fitting) != 1 or not check.holds(part, fitting[0], location):
            yield location.gap(
                f"the new schema wants exactly one of {len(value)} alternatives", describe_alternative(part)
            )


def _split_alternative(alternative: Alternative, branches: list[Any]) -> list[Alternative]:
    """The values one by one where they are few; objects split by a member by which the branches differ."""
    match alternative:
        case Boolean(values=values):
            return [narrow(alternative, values=frozenset((value,))) for value in sorted(values)]
        case Number(values=frozenset() as texts) | Text(values=frozenset() as texts) if len(texts) <= _FEW:
            return [narrow(alternative, values=frozenset((text,))) for text in sorted(texts)]
        case Object(members=members):
            for name, object_member in members.items():
                is_distinguishing = any(
                    isinstance(branch, dict) and name in branch.get("properties", {}) for branch in branches
                )
                cases = _cases(object_member.shape) if object_member.required and is_distinguishing else []
                if len(cases) > 1:
                    return [
                        narrow(alternative, members={**members, name: Member(Shape((case,)), True)}) for case in cases
                    ]
    return [alternative]


def _cases(shape: Shape) -> list[Alternative]:
    cases = [part for alternative in shape.alternatives for part in _split_alternative(alternative, [])]
    return cases if len(cases) <= _FEW else []


def not_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``not``."""
    if not apart(alternative, shape_of(source.at(value))):
        yield location.gap("the new schema excludes such values", describe_alternative(alternative))


def if_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``if``, ``then``, ``else``: the branch that is shown to apply, or both."""
    keywords = source.keywords()
    then, otherwise = source.at(keywords.get("then", True)), source.at(keywords.get("else", True))
    for part in _split_alternative(alternative, [value]):
        if apart(part, shape_of(source.at(value))):
            yield from check.alternative(part, otherwise, location.under("else"))
        elif check.holds(part, source.at(value), location):
            yield from check.alternative(part, then, location.under("then"))
        else:
            yield from check.alternative(part, then, location.under("then"))
            yield from check.alternative(part, otherwise, location.under("else"))


APPLICATOR_RULES: dict[str, Rule] = {
    "$ref": reference_rule,
    "allOf": all_rule,
    "anyOf": any_rule,
    "oneOf": one_rule,
    "not": not_rule,
    "if": if_rule,
}


def required_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``required``."""
    for name in value if isinstance(alternative, Object) else ():
        assert isinstance(alternative, Object)
        if not member(alternative, name).required:
            yield Gap((*location.value, name), location.schema, "it may be missing; the new schema requires it")


def properties_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``properties``."""
    for name, schema in value.items() if isinstance(alternative, Object) else ():
        assert isinstance(alternative, Object)
        yield from check.shape(member(alternative, name).shape, source.at(schema), location.inside(name, name))


def patterns_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``patternProperties``: names that match a pattern of the old schema have its shape."""
    for pattern, schema in value.items() if isinstance(alternative, Object) else ():
        assert isinstance(alternative, Object)
        inner = source.at(schema)
        for name, object_member in alternative.members.items():
            if check.may_match(pattern, name):
                yield from check.shape(object_member.shape, inner, location.inside(name, pattern))
        before = (
            [alternative.patterns[pattern]]
            if pattern in alternative.patterns
            else [alternative.rest, *alternative.patterns.values()]
        )
        for shape in before:
            yield from check.shape(shape, inner, location.inside("*", pattern))


def additional_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``additionalProperties``."""
    keywords = source.keywords()
    evaluated_members = Evaluated(
        frozenset(keywords.get("properties", ())), frozenset(keywords.get("patternProperties", ()))
    )
    yield from _check_remaining(check, alternative, evaluated_members, source.at(value), location)


def unevaluated_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``unevaluatedProperties``, without the members that other alternatives may evaluate."""
    evaluated_members = evaluated(source)
    if not evaluated_members.everything:
        yield from _check_remaining(check, alternative, evaluated_members, source.at(value), location)


def _check_remaining(
    check: Check, alternative: Alternative, evaluated_members: Evaluated, inner: Source, location: ProofLocation
) -> Iterator[Gap]:
    """Members that are not evaluated must be valid under a schema."""
    if not isinstance(alternative, Object):
        return
    for name, object_member in alternative.members.items():
        if name not in evaluated_members.names and not any(
            check.does_match(pattern, name) for pattern in evaluated_members.patterns
        ):
            yield from check.shape(object_member.shape, inner, location.inside(name))
    others = [shape for pattern, shape in alternative.patterns.items() if pattern not in evaluated_members.patterns]
    for shape in [*others, alternative.rest]:
        yield from check.shape(shape, inner, location.inside("*"))


def names_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``propertyNames``, where all names are known."""
    if not isinstance(alternative, Object):
        return
    if not all(map(vacant, (alternative.rest, *alternative.patterns.values()))):
        yield location.gap("it may hold members of any name")
    names = frozenset(name for name, object_member in alternative.members.items() if not vacant(object_member.shape))
    if names:
        yield from check.alternative(Text(values=names), source.at(value), location)


def count_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``minProperties`` and ``maxProperties``."""
    if not isinstance(alternative, Object):
        return
    if location.schema[-1] == "minProperties":
        if max(alternative.low, sum(object_member.required for object_member in alternative.members.values())) < value:
            yield location.gap(f"it may have fewer than {value} members")
        return
    possible = sum(not vacant(object_member.shape) for object_member in alternative.members.values())
    closed = all(map(vacant, (alternative.rest, *alternative.patterns.values())))
    if not (alternative.high is not None and alternative.high <= value) and not (closed and possible <= value):
        yield location.gap(f"it may have more than {value} members")


def dependent_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``dependentRequired``, ``dependentSchemas`` and ``dependencies``."""
    for trigger, needed in value.items() if isinstance(alternative, Object) else ():
        assert isinstance(alternative, Object)
        if vacant(member(alternative, trigger).shape):
            continue
        schema = {"required": needed} if isinstance(needed, list) else needed
        yield from check.alternative(
            require_members(alternative, [trigger]), source.at(schema), location.under(trigger)
        )


def elements_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``items``, ``prefixItems`` and ``additionalItems``, all checked at whichever comes first."""
    spelled = [name for name in ("items", "prefixItems", "additionalItems") if name in source.keywords()]
    if isinstance(alternative, Array) and location.schema[-1] == spelled[0]:
        prefix, rest = elements(source)
        yield from _check_prefix(check, alternative, prefix, source, location)
        yield from _check_rest(check, alternative, len(prefix), source.at(rest), location)


def _check_prefix(
    check: Check, array: Array, prefix: list[Any], source: Source, location: ProofLocation
) -> Iterator[Gap]:
    for position, schema in enumerate(prefix):
        shape = element(array, position).shape
        yield from check.shape(shape, source.at(schema), location.inside(str(position), str(position)))


def _check_rest(check: Check, array: Array, start: int, inner: Source, location: ProofLocation) -> Iterator[Gap]:
    for position in range(start, len(array.prefix)):
        yield from check.shape(element(array, position).shape, inner, location.inside(str(position)))
    yield from check.shape(element(array, max(start, len(array.prefix))).shape, inner, location.inside("*"))


def unevaluated_items_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``unevaluatedItems``, without the elements that other schemas may evaluate."""
    prefix, _ = elements(source)
    evaluated_members = "additionalItems" if isinstance(source.keywords().get("items"), list) else "items"
    if isinstance(alternative, Array) and evaluated_members not in source.keywords():
        yield from _check_rest(check, alternative, len(prefix), source.at(value), location)


def length_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``minItems`` and ``maxItems``."""
    if not isinstance(alternative, Array):
        return
    if location.schema[-1] == "minItems":
        if alternative.low < value:
            yield location.gap(f"it may have fewer than {value} elements")
    elif (longest := max_elements(alternative)) is None or longest > value:
        yield location.gap(f"it may have more than {value} elements")


def max_elements(array: Array) -> int | None:
    """How many elements an array can have."""
    if vacant(array.rest):
        return narrowest(len(array.prefix), array.high)
    return array.high


def unique_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``uniqueItems``."""
    if value is not True or not isinstance(alternative, Array) or alternative.unique:
        return
    if (longest := max_elements(alternative)) is None or longest > 1:
        yield location.gap("it may hold an element twice")


def contains_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``contains``: where every element does, or enough of the first ones."""
    if not isinstance(alternative, Array):
        return
    keywords = source.keywords()
    needed, max_count = keywords.get("minContains", 1), keywords.get("maxContains")
    inner = source.at(value)

    def counts(shape: Shape, name: str) -> bool:
        return not check.shape(shape, inner, location.inside(name))

    sure = sum(
        counts(element(alternative, position).shape, str(position))
        for position in range(min(alternative.low, len(alternative.prefix)))
    )
    if alternative.low > len(alternative.prefix) and counts(alternative.rest, "*"):
        sure += alternative.low - len(alternative.prefix)
    if sure < needed:
        yield location.gap(f"nothing shows that it holds {needed} such elements")
    if max_count is not None and ((longest := max_elements(alternative)) is None or longest > max_count):
        yield location.gap(f"it may hold more than {max_count} such elements")


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
