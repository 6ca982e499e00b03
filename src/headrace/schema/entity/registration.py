"""A registration as it is sent: a type, a version, a definition and its merge policies."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from headrace.schema.canonical import plain
from headrace.schema.entity import definition, names, semver
from headrace.schema.entity.definition import read_rules, read_strategy, read_tie_breaker
from headrace.schema.entity.fields import is_name, read_converter, read_field, read_type
from headrace.schema.entity.nodes import Policy, Schema
from headrace.schema.entity.problem import (
    INVALID,
    MISSING,
    EntityProblem,
    Location,
    Notice,
    Reader,
    choice_reader,
    list_reader,
    read_boolean,
    read_distinct_texts,
    read_members,
    read_text,
)
from headrace.schema.entity.update import Addition, ConverterAddition, TypeUpdate

VERSION_INVALID = "version_invalid"


class TypeRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """What a registration asks for; whose a user's schema is, only the server knows."""

    schema: Schema
    activate: bool = False
    force: bool = False
    dry_run: bool = False
    notices: tuple[Notice, ...] = ()


def read_registration(payload: Any, guard: bool = False) -> TypeRegistration | list[EntityProblem]:
    """A registration, or all that is wrong with it; ``guard`` refuses odd names unless the payload forces them."""
    problems: list[EntityProblem] = []
    place = Location((), problems)
    found = read_members(payload, _READERS, place, required=("entity_type", "schema_version"))
    given = payload if isinstance(payload, dict) else {}
    read_as = _documents(given, place)
    noted = _name(found, guard, place)
    scope = scope_of(found, place)
    if problems or read_as is None:
        return problems
    schema = Schema(
        entity_type=names.normalise_type_name(found["entity_type"]),
        schema_version=found["schema_version"],
        schema_definition=read_as.definition,
        reducer_config=read_as.reducer_config,
        scope=scope,
        metadata=found.get("metadata", {}),
    )
    flags = {name: found.get(name, False) for name in ("activate", "force", "dry_run")}
    return TypeRegistration(schema=schema, notices=(*noted, *read_as.notices), **flags)


def _documents(given: dict[str, Any], place: Location) -> definition.ParsedDefinition | None:
    """The definition and the configuration; where one is missing, only that is told of it."""
    wanted = ("schema_definition", "reducer_config")
    missing = [name for name in wanted if given.get(name) is None]
    for name in missing:
        place.at(name).refuse(MISSING, f"{name} is missing")
    aside: list[EntityProblem] = []
    defined, configured = (place.at(name)._replace(problems=aside) for name in wanted)
    read_as = definition.read(given.get(wanted[0]), given.get(wanted[1]), defined, configured)
    absent = {f"/{name}" for name in missing}
    place.problems.extend(problem for problem in aside if problem.path not in absent)
    return read_as


def _name(found: dict[str, Any], guard: bool, place: Location) -> list[Notice]:
    """What is worth knowing about the name; what speaks against it is a problem where names are guarded."""
    given = found.get("entity_type", "")
    if not given:
        return []
    against = names.check_type_name(names.normalise_type_name(given))
    if guard and not found.get("force", False):
        for notice in against:
            place.at("entity_type").refuse(notice.code, notice.message)
        against = []
    return [*against, *names.lint_type_name(given)]


def scope_of(found: dict[str, Any], place: Location) -> Any:
    """The scope, which can be said in two ways."""
    specific = found.get("user_specific")
    scope = found.get("scope", "user" if specific else "global")
    if specific is not None and specific != (scope == "user"):
        place.at("user_specific").refuse(INVALID, f"user_specific contradicts scope {scope}")
    return scope


def read_version(given: Any, place: Location) -> str:
    """A version in its one spelling."""
    version = semver.parse(given)
    if version is None:
        place.refuse(VERSION_INVALID, f"{given!r} is no version such as 1.0 or 1.0.0")
    return str(version)


def read_metadata(given: Any, place: Location) -> dict[str, Any]:
    """An object of anything."""
    if not isinstance(given, dict):
        place.refuse(INVALID, "metadata is an object")
        return {}
    return given


def _as_given(given: Any, _: Location) -> Any:
    return given


_READERS: dict[str, Reader] = {
    "entity_type": read_text,
    "schema_version": read_version,
    "schema_definition": _as_given,
    "reducer_config": _as_given,
    "scope": choice_reader("global", "user"),
    "user_specific": read_boolean,
    "metadata": read_metadata,
    "activate": read_boolean,
    "force": read_boolean,
    "dry_run": read_boolean,
}


def path(schema: Schema) -> str:
    """Where the file of a version lies; a user's schemas lie apart."""
    owner = "" if schema.user_id is None else f"users/{quote(schema.user_id, safe='').replace('.', '%2E')}/"
    return f"schema_snapshots/{owner}{schema.entity_type}/v{schema.schema_version}.json"


def export(schema: Schema) -> bytes:
    """The file of a version: members sorted, whole numbers without a fraction, a line feed at the end."""
    document = {name: value for name, value in schema.dump().items() if value is not None}
    return msgspec.json.format(msgspec.json.encode(plain(document), order="sorted"), indent=2) + b"\n"


#: The members of an added field that are those of any field.
_OPTIONS = ("required", "validator", "preserveCase", "description", "converters", "constraints", "sensitivity_class")


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An update, and what else its sender wants."""

    update: TypeUpdate
    scope: str = "global"
    activate: bool = True
    migrate_existing: bool = False
    migrate_user_id: str | None = None
    force: bool = False
    dry_run: bool = False


def read_change_request(payload: Any) -> ChangeRequest | list[EntityProblem]:
    """An update of a type, or all that is wrong with its shape."""
    problems: list[EntityProblem] = []
    place = Location((), problems)
    found = read_members(payload, _CHANGE_REQUEST_READERS, place)
    scope = scope_of(found, place)
    _once(found.get("fields_to_add", ()), place.at("fields_to_add"))
    if problems:
        return problems
    update = TypeUpdate(**{name: found[name] for name in TypeUpdate.__struct_fields__ if name in found})
    wishes = ("activate", "migrate_existing", "migrate_user_id", "force", "dry_run")
    return ChangeRequest(update=update, scope=scope, **{name: found[name] for name in wishes if name in found})


def _once(additions: tuple[Addition | None, ...], place: Location) -> None:
    names = [None if addition is None else addition.name for addition in additions]
    for number, name in enumerate(names):
        if name is not None and name in names[:number]:
            place.at(number).at("field_name").refuse(INVALID, f"{name!r} is to be added already")


def _addition(given: Any, place: Location) -> Addition | None:
    before = len(place.problems)
    found = read_members(given, _ADDITION, place, required=("field_name", "field_type"))
    if len(place.problems) > before:
        return None
    field = read_field(
        {"type": found["field_type"], **{name: given[name] for name in _OPTIONS if name in given}}, place
    )
    policy = Policy(found.get("reducer_strategy", "last_write"), found.get("tie_breaker", "observed_at"))
    return None if field is None else Addition(found["field_name"], field, policy)


def _converter(given: Any, place: Location) -> ConverterAddition | None:
    readers: dict[str, Reader] = {"field_name": read_text, "converter": read_converter}
    found = read_members(given, readers, place, required=("field_name", "converter"))
    if found.get("converter") is None:
        return None
    return ConverterAddition(found.get("field_name", ""), found["converter"])


def _change_request_name(given: Any, place: Location) -> str:
    if not is_name(given):
        place.refuse(INVALID, f"{given!r} cannot be the name of a field")
    return str(given)


def _later(given: Any, _: Location) -> Any:
    """What is read with the whole field."""
    return given


_ADDITION: dict[str, Reader] = {
    "field_name": _change_request_name,
    "field_type": read_type,
    "reducer_strategy": read_strategy,
    "tie_breaker": read_tie_breaker,
    **dict.fromkeys(_OPTIONS, _later),
}
_CHANGE_REQUEST_READERS: dict[str, Reader] = {
    "fields_to_add": list_reader(_addition),
    "fields_to_remove": read_distinct_texts,
    "converters_to_add": list_reader(_converter),
    "canonical_name_fields": read_rules,
    "schema_version": read_version,
    "metadata": read_metadata,
    "scope": choice_reader("global", "user"),
    "user_specific": read_boolean,
    "activate": read_boolean,
    "migrate_existing": read_boolean,
    "migrate_user_id": read_text,
    "force": read_boolean,
    "dry_run": read_boolean,
}
