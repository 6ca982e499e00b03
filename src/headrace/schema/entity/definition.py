"""A definition as it is sent, read: its shape, its fields, and what it declares about them; every problem at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, get_args

from headrace.schema.entity.fields import read_fields
from headrace.schema.entity.names import normalise_type_name
from headrace.schema.entity.nodes import (
    OPT_OUT,
    SOURCE_KINDS,
    Composite,
    Definition,
    Policy,
    ReducerConfig,
    ReferenceField,
    StoreWarning,
    Strategy,
    TemporalField,
    TieBreaker,
)
from headrace.schema.entity.problem import (
    DANGLING,
    INVALID,
    Location,
    Notice,
    Reader,
    choice_reader,
    list_reader,
    read_boolean,
    read_distinct_texts,
    read_fraction,
    read_members,
    read_text,
)

IDENTITY_MISSING = "identity_missing"
IDENTITY_INCOHERENT = "identity_incoherent"
UNSUPPORTED = "unsupported_option"

#: Promises that nobody here would keep, so none of them is taken.
_UNSUPPORTED = ("person_data", "lawful_basis_field", "provenance_field", "derived_entities")


def _unsupported(_: Any, place: Location) -> None:
    place.refuse(UNSUPPORTED, f"{place.path[-1]} is not supported: what it asks for would not be done")


def _alias(given: Any, place: Location) -> str:
    return normalise_type_name(read_text(given, place))


def _rule(given: Any, place: Location) -> Any:
    if not isinstance(given, dict):
        return read_text(given, place)
    found = read_members(given, {"composite": read_distinct_texts}, place, required=("composite",))
    if found.get("composite") == ():
        place.at("composite").refuse(INVALID, "there is at least one field")
    return Composite(found.get("composite", ()))


def _temporal(given: Any, place: Location) -> Any:
    if isinstance(given, str):
        return TemporalField(given)
    found = read_members(given, {"field": read_text, "event_type": read_text}, place, required=("field",))
    return TemporalField(found.get("field", ""), found.get("event_type"))


def _reference(given: Any, place: Location) -> Any:
    required = ("field", "target_entity_type")
    readers: dict[str, Reader] = {"field": read_text, "target_entity_type": _alias, "relationship_type": read_text}
    found = read_members(given, {**readers, "resolve_target": read_boolean}, place, required)
    return ReferenceField(**{"field": "", "target_entity_type": "", **found})


def _store_warning(given: Any, place: Location) -> Any:
    readers: dict[str, Reader] = {"code": read_text, "fields": read_distinct_texts, "message": read_text}
    found = read_members(given, readers, place, required=tuple(readers))
    return StoreWarning(**{"code": "", "fields": (), "message": "", **found})


read_rules = list_reader(_rule)

READERS: dict[str, Reader] = {
    "canonical_name_fields": read_rules,
    "identity_opt_out": choice_reader(OPT_OUT),
    "canonical_name_strict": read_boolean,
    "name_collision_policy": choice_reader("merge", "warn", "reject"),
    "temporal_fields": list_reader(_temporal),
    "reference_fields": list_reader(_reference),
    "aliases": list_reader(_alias),
    "query_synonyms": list_reader(read_text),
    "identity_search_fields": read_distinct_texts,
    "content_field": read_text,
    "store_warnings": list_reader(_store_warning),
    "constraint_violation_policy": choice_reader("reject", "warn"),
    "duplicate_detection_fields": read_distinct_texts,
    "duplicate_detection_threshold": read_fraction,
    "agent_instructions": read_text,
    **dict.fromkeys(_UNSUPPORTED, _unsupported),
}


def check_names(found: dict[str, Any], names: Collection[str], place: Location) -> None:
    """Note every declaration about a field that there is not."""
    for name, where in _mentioned(found, place):
        if name and name not in names:
            where.refuse(DANGLING, f"there is no field {name!r}")


def check_identity(found: dict[str, Any], place: Location) -> None:
    """Note what does not go together; the policy for names that exist needs a rule that makes names."""
    ruled, opted = bool(found.get("canonical_name_fields")), "identity_opt_out" in found
    policy = found.get("name_collision_policy", "merge")
    if not ruled and not opted:
        message = f"give canonical_name_fields, or identity_opt_out: {OPT_OUT}"
        place.at("canonical_name_fields").refuse(IDENTITY_MISSING, message)
    if policy in ("warn", "reject") and opted:
        message = f"{policy} is not possible with identity_opt_out"
        place.at("name_collision_policy").refuse(IDENTITY_INCOHERENT, message)
    elif policy == "reject" and not ruled:
        place.at("name_collision_policy").refuse(IDENTITY_INCOHERENT, "reject needs canonical_name_fields")
    if found.get("canonical_name_strict") and not ruled:
        place.at("canonical_name_strict").refuse(IDENTITY_INCOHERENT, "strict needs canonical_name_fields")


def _mentioned(found: dict[str, Any], place: Location) -> Iterator[tuple[str, Location]]:
    """Every field that is named, and where."""
    for number, rule in enumerate(found.get("canonical_name_fields", ())):
        where = place.at("canonical_name_fields").at(number)
        if isinstance(rule, Composite):
            yield from ((name, where.at("composite").at(part)) for part, name in enumerate(rule.composite))
        else:
            yield rule, where
    for option in ("temporal_fields", "reference_fields"):
        for number, declared in enumerate(found.get(option, ())):
            yield declared.field, place.at(option).at(number).at("field")
    for option in ("identity_search_fields", "duplicate_detection_fields"):
        for number, name in enumerate(found.get(option, ())):
            yield name, place.at(option).at(number)
    for number, warning in enumerate(found.get("store_warnings", ())):
        where = place.at("store_warnings").at(number).at("fields")
        yield from ((name, where.at(part)) for part, name in enumerate(warning.fields))
    if "content_field" in found:
        yield found["content_field"], place.at("content_field")


UNKNOWN_STRATEGY = "unknown_strategy"
UNKNOWN_TIE_BREAKER = "unknown_tie_breaker"
UNKNOWN_SOURCE_KIND = "unknown_source_kind"

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
TIE_BREAKERS: tuple[TieBreaker, ...] = get_args(TieBreaker)


def read_config(given: Any, names: Collection[str] | None, place: Location) -> ReducerConfig | None:
    """The configuration for fields of these names, if they are known, or None where problems were noted."""
    before = len(place.problems)
    readers = {"merge_policies": _policies, "observation_source_priority": _kinds}
    found = read_members(given, readers, place, required=("merge_policies",))
    for name in found.get("merge_policies", ()):
        if names is not None and name not in names:
            place.at("merge_policies").at(name).refuse(DANGLING, f"there is no field {name!r}")
    return ReducerConfig(**found) if len(place.problems) == before else None


def read_strategy(given: Any, place: Location) -> Any:
    """One of the strategies."""
    if given not in STRATEGIES:
        place.refuse(UNKNOWN_STRATEGY, f"{given!r} is no strategy; there are {', '.join(STRATEGIES)}")
    return given


def read_tie_breaker(given: Any, place: Location) -> Any:
    """One of the tie breakers."""
    if given not in TIE_BREAKERS:
        place.refuse(UNKNOWN_TIE_BREAKER, f"{given!r} is no tie breaker; there are {', '.join(TIE_BREAKERS)}")
    return given


def _policies(given: Any, place: Location) -> dict[str, Policy]:
    if not isinstance(given, dict):
        place.refuse(INVALID, "merge_policies is an object from fields to policies")
        return {}
    found = {}
    for name, policy in given.items():
        read = read_members(
            policy, {"strategy": read_strategy, "tie_breaker": read_tie_breaker}, place.at(name), ("strategy",)
        )
        found[name] = Policy(read.get("strategy", "last_write"), read.get("tie_breaker", "observed_at"))
    return found


def _kinds(given: Any, place: Location) -> tuple[str, ...]:
    found = read_distinct_texts(given, place)
    for number, kind in enumerate(found):
        if kind and kind not in SOURCE_KINDS:
            message = f"{kind!r} is no kind of source; there are {', '.join(SOURCE_KINDS)}"
            place.at(number).refuse(UNKNOWN_SOURCE_KIND, message)
    return found


IMPLIED = Notice(
    "IDENTITY_OPT_OUT_IMPLIED",
    f"the definition has no canonical_name_fields: it means identity_opt_out: {OPT_OUT}, and names are guessed",
)


class ParsedDefinition(NamedTuple):
    """A definition with its configuration, and what is worth knowing about them."""

    definition: Definition
    reducer_config: ReducerConfig
    notices: list[Notice]


def read(definition: Any, config: Any, defined: Location, configured: Location) -> ParsedDefinition | None:
    """A definition and its configuration, or None where problems were noted at their places."""
    notices: list[Notice] = []
    if isinstance(definition, dict) and definition.keys() == {"fields"}:
        definition = {**definition, "identity_opt_out": OPT_OUT}
        notices.append(IMPLIED)
    found = read_members(definition, {"fields": read_fields, **READERS}, defined, required=("fields",))
    names = _names(definition)
    if names is not None:
        check_names(found, names, defined)
    if isinstance(definition, dict):
        check_identity(found, defined)
    reducer = read_config(config, names, configured)
    if defined.problems or reducer is None:
        return None
    made = Definition(**found)
    return ParsedDefinition(made, reducer, [*notices, *_odd(made, reducer)])


def _names(definition: Any) -> list[str] | None:
    """The names that fields were given, even where the fields have problems; None where there are no fields at all."""
    fields = definition.get("fields") if isinstance(definition, dict) else None
    return list(fields) if isinstance(fields, dict) else None


def _odd(definition: Definition, reducer: ReducerConfig) -> list[Notice]:
    """Policies that make lists of what is no array."""
    odd = tuple(
        name
        for name, policy in reducer.merge_policies.items()
        if policy.strategy == "merge_array" and definition.fields[name].type != "array"
    )
    message = "merge_array shows a list, though the type of the field is another"
    return [Notice("MERGE_ARRAY_OF_SCALARS", message, odd)] if odd else []
