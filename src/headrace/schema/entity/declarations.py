"""What a definition declares about its fields: identity, time, references, warnings; all of it about fields it has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from headrace.schema.entity.names import normalised
from headrace.schema.entity.nodes import OPT_OUT, Composite, ReferenceField, StoreWarning, TemporalField
from headrace.schema.entity.problem import DANGLING, INVALID, Place
from headrace.schema.entity.shape import Reader, choice, distinct, flag, listed, members, share, text

IDENTITY_MISSING = "identity_missing"
IDENTITY_INCOHERENT = "identity_incoherent"
UNSUPPORTED = "unsupported_option"

#: Promises that nobody here would keep, so none of them is taken.
_UNSUPPORTED = ("person_data", "lawful_basis_field", "provenance_field", "derived_entities")


def _unsupported(_: Any, place: Place) -> None:
    place.refuse(UNSUPPORTED, f"{place.path[-1]} is not supported: what it asks for would not be done")


def _alias(given: Any, place: Place) -> str:
    return normalised(text(given, place))


def _rule(given: Any, place: Place) -> Any:
    if not isinstance(given, dict):
        return text(given, place)
    found = members(given, {"composite": distinct}, place, required=("composite",))
    if found.get("composite") == ():
        place.at("composite").refuse(INVALID, "there is at least one field")
    return Composite(found.get("composite", ()))


def _temporal(given: Any, place: Place) -> Any:
    if isinstance(given, str):
        return TemporalField(given)
    found = members(given, {"field": text, "event_type": text}, place, required=("field",))
    return TemporalField(found.get("field", ""), found.get("event_type"))


def _reference(given: Any, place: Place) -> Any:
    required = ("field", "target_entity_type")
    readers: dict[str, Reader] = {"field": text, "target_entity_type": _alias, "relationship_type": text}
    found = members(given, {**readers, "resolve_target": flag}, place, required)
    return ReferenceField(**{"field": "", "target_entity_type": "", **found})


def _store_warning(given: Any, place: Place) -> Any:
    readers: dict[str, Reader] = {"code": text, "fields": distinct, "message": text}
    found = members(given, readers, place, required=tuple(readers))
    return StoreWarning(**{"code": "", "fields": (), "message": "", **found})


read_rules = listed(_rule)

READERS: dict[str, Reader] = {
    "canonical_name_fields": read_rules,
    "identity_opt_out": choice(OPT_OUT),
    "canonical_name_strict": flag,
    "name_collision_policy": choice("merge", "warn", "reject"),
    "temporal_fields": listed(_temporal),
    "reference_fields": listed(_reference),
    "aliases": listed(_alias),
    "query_synonyms": listed(text),
    "identity_search_fields": distinct,
    "content_field": text,
    "store_warnings": listed(_store_warning),
    "constraint_violation_policy": choice("reject", "warn"),
    "duplicate_detection_fields": distinct,
    "duplicate_detection_threshold": share,
    "agent_instructions": text,
    **dict.fromkeys(_UNSUPPORTED, _unsupported),
}


def check_names(found: dict[str, Any], names: Collection[str], place: Place) -> None:
    """Note every declaration about a field that there is not."""
    for name, where in _mentioned(found, place):
        if name and name not in names:
            where.refuse(DANGLING, f"there is no field {name!r}")


def check_identity(found: dict[str, Any], place: Place) -> None:
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


def _mentioned(found: dict[str, Any], place: Place) -> Iterator[tuple[str, Place]]:
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
