"""Read a definition from a request: its structure, its fields and its declarations; all problems are collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, get_args

from headrace.schema.entity.names import is_field_name, normalise_type_name
from headrace.schema.entity.nodes import (
    OPT_OUT,
    SOURCE_KINDS,
    TYPES,
    Composite,
    Definition,
    Field,
    Notice,
    Policy,
    ReducerConfig,
    ReferenceField,
    Schema,
    StoreWarning,
    Strategy,
    TemporalField,
    TieBreaker,
    Type,
)
from headrace.schema.entity.readers import (
    DANGLING,
    INVALID,
    MAX_FIELDS,
    Reader,
    choice_reader,
    coded_choice_reader,
    list_reader,
    read_boolean,
    read_distinct_texts,
    read_fields,
    read_fraction,
    read_members,
    read_text,
)
from headrace.schema.entity.sources import find_fault
from headrace.schema.entity.values import is_iso, type_of
from headrace.schema.problem import Location

IDENTITY_MISSING = "identity_missing"
IDENTITY_INCOHERENT = "identity_incoherent"
UNSUPPORTED = "unsupported_option"

#: Options that have no implementation, and are refused rather than ignored.
_UNSUPPORTED = ("person_data", "lawful_basis_field", "provenance_field", "derived_entities")


def _refuse_unsupported(_: Any, location: Location) -> None:
    location.refuse(
        UNSUPPORTED, f"{location.path.rpartition('/')[2]} is not supported: what it asks for would not be done"
    )


def _read_alias(raw: Any, location: Location) -> str:
    return normalise_type_name(read_text(raw, location))


def _read_rule(raw: Any, location: Location) -> Any:
    if not isinstance(raw, dict):
        return read_text(raw, location)
    parsed = read_members(raw, {"composite": read_distinct_texts}, location, required=("composite",))
    if parsed.get("composite") == ():
        location.at("composite").refuse(INVALID, "there is at least one field")
    return Composite(parsed.get("composite", ()))


def _read_temporal_field(raw: Any, location: Location) -> Any:
    if isinstance(raw, str):
        return TemporalField(raw)
    parsed = read_members(raw, {"field": read_text, "event_type": read_text}, location, required=("field",))
    return TemporalField(parsed.get("field", ""), parsed.get("event_type"))


def _read_reference_field(raw: Any, location: Location) -> Any:
    required = ("field", "target_entity_type")
    readers: dict[str, Reader] = {"field": read_text, "target_entity_type": _read_alias, "relationship_type": read_text}
    parsed = read_members(raw, {**readers, "resolve_target": read_boolean}, location, required)
    return ReferenceField(**{"field": "", "target_entity_type": "", **parsed})


def _read_store_warning(raw: Any, location: Location) -> Any:
    readers: dict[str, Reader] = {"code": read_text, "fields": read_distinct_texts, "message": read_text}
    parsed = read_members(raw, readers, location, required=tuple(readers))
    return StoreWarning(**{"code": "", "fields": (), "message": "", **parsed})


read_rules = list_reader(_read_rule)

READERS: dict[str, Reader] = {
    "canonical_name_fields": read_rules,
    "identity_opt_out": choice_reader(OPT_OUT),
    "canonical_name_strict": read_boolean,
    "name_collision_policy": choice_reader("merge", "warn", "reject"),
    "temporal_fields": list_reader(_read_temporal_field),
    "reference_fields": list_reader(_read_reference_field),
    "aliases": list_reader(_read_alias),
    "query_synonyms": list_reader(read_text),
    "identity_search_fields": read_distinct_texts,
    "content_field": read_text,
    "store_warnings": list_reader(_read_store_warning),
    "constraint_violation_policy": choice_reader("reject", "warn"),
    "duplicate_detection_fields": read_distinct_texts,
    "duplicate_detection_threshold": read_fraction,
    "agent_instructions": read_text,
    **dict.fromkeys(_UNSUPPORTED, _refuse_unsupported),
}


def check_names(parsed: dict[str, Any], names: Collection[str], location: Location) -> None:
    """Note every declaration about a field that does not exist."""
    for name, where in _mentioned_fields(parsed, location):
        if name and name not in names:
            where.refuse(DANGLING, f"there is no field {name!r}")


def check_identity(parsed: dict[str, Any], location: Location) -> None:
    """Note contradictions between the identity rule, the opt-out and the name collision policy."""
    has_rule, has_opted_out = bool(parsed.get("canonical_name_fields")), "identity_opt_out" in parsed
    policy = parsed.get("name_collision_policy", "merge")
    if not has_rule and not has_opted_out:
        message = f"give canonical_name_fields, or identity_opt_out: {OPT_OUT}"
        location.at("canonical_name_fields").refuse(IDENTITY_MISSING, message)
    if policy in ("warn", "reject") and has_opted_out:
        message = f"{policy} is not possible with identity_opt_out"
        location.at("name_collision_policy").refuse(IDENTITY_INCOHERENT, message)
    elif policy == "reject" and not has_rule:
        location.at("name_collision_policy").refuse(IDENTITY_INCOHERENT, "reject needs canonical_name_fields")
    if parsed.get("canonical_name_strict") and not has_rule:
        location.at("canonical_name_strict").refuse(IDENTITY_INCOHERENT, "strict needs canonical_name_fields")


def _mentioned_fields(parsed: dict[str, Any], location: Location) -> Iterator[tuple[str, Location]]:
    """Every field that a declaration names, with the location of the name."""
    for number, rule in enumerate(parsed.get("canonical_name_fields", ())):
        inner_location = location.at("canonical_name_fields").at(number)
        if isinstance(rule, Composite):
            yield from ((name, inner_location.at("composite").at(part)) for part, name in enumerate(rule.composite))
        else:
            yield rule, inner_location
    for option in ("temporal_fields", "reference_fields"):
        for number, declared in enumerate(parsed.get(option, ())):
            yield declared.field, location.at(option).at(number).at("field")
    for option in ("identity_search_fields", "duplicate_detection_fields"):
        for number, name in enumerate(parsed.get(option, ())):
            yield name, location.at(option).at(number)
    for number, warning in enumerate(parsed.get("store_warnings", ())):
        inner_location = location.at("store_warnings").at(number).at("fields")
        yield from ((name, inner_location.at(part)) for part, name in enumerate(warning.fields))
    if "content_field" in parsed:
        yield parsed["content_field"], location.at("content_field")


UNKNOWN_STRATEGY = "unknown_strategy"
UNKNOWN_TIE_BREAKER = "unknown_tie_breaker"
UNKNOWN_SOURCE_KIND = "unknown_source_kind"

#: How many sources a configuration may name, and how much one of them may count.
MAX_SOURCES, MAX_PRIORITY = 1_000, 2**31 - 1

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
TIE_BREAKERS: tuple[TieBreaker, ...] = get_args(TieBreaker)


def read_config(raw: Any, names: Collection[str] | None, location: Location) -> ReducerConfig | None:
    """The configuration, or None where problems were noted; ``names`` are those of the fields, if known."""
    before = len(location.problems)
    readers = {
        "merge_policies": _read_policies,
        "observation_source_priority": _read_source_kinds,
        "source_priorities": _read_source_priorities,
    }
    parsed = read_members(raw, readers, location, required=("merge_policies",))
    for name in parsed.get("merge_policies", ()):
        if names is not None and name not in names:
            location.at("merge_policies").at(name).refuse(DANGLING, f"there is no field {name!r}")
    return ReducerConfig(**parsed) if len(location.problems) == before else None


read_strategy = coded_choice_reader(UNKNOWN_STRATEGY, "strategy", STRATEGIES)
read_tie_breaker = coded_choice_reader(UNKNOWN_TIE_BREAKER, "tie breaker", TIE_BREAKERS)


def _read_policies(raw: Any, location: Location) -> dict[str, Policy]:
    if not isinstance(raw, dict):
        location.refuse(INVALID, "merge_policies is an object from fields to policies")
        return {}
    policies = {}
    for name, policy in raw.items():
        policy_members = read_members(
            policy, {"strategy": read_strategy, "tie_breaker": read_tie_breaker}, location.at(name), ("strategy",)
        )
        policies[name] = Policy(
            policy_members.get("strategy", "last_write"), policy_members.get("tie_breaker", "observed_at")
        )
    return policies


def _read_source_kinds(raw: Any, location: Location) -> tuple[str, ...]:
    source_kinds = read_distinct_texts(raw, location)
    for number, kind in enumerate(source_kinds):
        if kind and kind not in SOURCE_KINDS:
            message = f"{kind!r} is no kind of source; there are {', '.join(SOURCE_KINDS)}"
            location.at(number).refuse(UNKNOWN_SOURCE_KIND, message)
    return source_kinds


def _read_source_priorities(raw: Any, location: Location) -> dict[str, int]:
    if not isinstance(raw, dict) or len(raw) > MAX_SOURCES:
        location.refuse(INVALID, f"this is an object from at most {MAX_SOURCES} names of sources to priorities")
        return {}
    for name, priority in raw.items():
        if (fault := find_fault(name)) is not None:
            location.at(name).refuse(INVALID, f"the name of a source {fault}")
        if type(priority) is not int or abs(priority) > MAX_PRIORITY:
            location.at(name).refuse(INVALID, f"a priority is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return dict(raw)


IMPLIED = Notice(
    "IDENTITY_OPT_OUT_IMPLIED",
    f"the definition has no canonical_name_fields: it means identity_opt_out: {OPT_OUT}, and names are guessed",
)


class ParsedDefinition(NamedTuple):
    """A definition with its configuration, and notices about them."""

    definition: Definition
    reducer_config: ReducerConfig
    notices: list[Notice]


def read(
    raw_definition: Any, raw_config: Any, definition_location: Location, config_location: Location
) -> ParsedDefinition | None:
    """A definition and its configuration, or None where problems were noted at their locations."""
    notices: list[Notice] = []
    if isinstance(raw_definition, dict) and raw_definition.keys() == {"fields"}:
        raw_definition = {**raw_definition, "identity_opt_out": OPT_OUT}
        notices.append(IMPLIED)
    parsed = read_members(raw_definition, {"fields": read_fields, **READERS}, definition_location, required=("fields",))
    names = _field_names(raw_definition)
    if names is not None:
        check_names(parsed, names, definition_location)
    if isinstance(raw_definition, dict):
        check_identity(parsed, definition_location)
    reducer = read_config(raw_config, names, config_location)
    if definition_location.problems or reducer is None:
        return None
    definition = Definition(**parsed)
    return ParsedDefinition(definition, reducer, [*notices, *_merged_scalar_notices(definition, reducer)])


def _field_names(definition: Any) -> list[str] | None:
    """The names of the fields, even where the fields have problems; None where there is no object of fields."""
    fields = definition.get("fields") if isinstance(definition, dict) else None
    return list(fields) if isinstance(fields, dict) else None


def _merged_scalar_notices(definition: Definition, reducer: ReducerConfig) -> list[Notice]:
    """A notice about fields with the policy ``merge_array`` whose type is not an array."""
    fields = tuple(
        name
        for name, policy in reducer.merge_policies.items()
        if policy.strategy == "merge_array" and definition.fields[name].type != "array"
    )
    message = "merge_array shows a list, though the type of the field is another"
    return [Notice("MERGE_ARRAY_OF_SCALARS", message, fields)] if fields else []


#: How many entities are used to infer a schema.
MAX_ROWS = 100


def infer_schema(entity_type: str, rows: Iterable[Mapping[str, Any]]) -> Schema | None:
    """A schema of optional fields, each of the type that most values have; None where there are no values."""
    kinds: dict[str, Counter[Type]] = {}
    for row in islice(rows, MAX_ROWS):
        for name, value in row.items():
            if (value_type := _infer_value_type(value)) is not None and is_field_name(name):
                kinds.setdefault(name, Counter())[value_type] += 1
    fields = {name: Field(_most_common_type(counts)) for name, counts in islice(kinds.items(), MAX_FIELDS)}
    if not fields:
        return None
    return Schema(
        entity_type=entity_type,
        schema_version="1.0.0",
        schema_definition=Definition(fields=fields, identity_opt_out=OPT_OUT),
        reducer_config=ReducerConfig({}),
    )


def _infer_value_type(value: Any) -> Type | None:
    return "date" if isinstance(value, str) and is_iso(value) else type_of(value)


def _most_common_type(counts: Counter[Type]) -> Type:
    """The type of most values; dates count as texts where there are other texts."""
    if counts["string"]:
        counts["string"] += counts.pop("date", 0)
    return max(TYPES, key=lambda name: counts[name])
