"""A registration as it is sent: a type, a version, a definition and its merge policies."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from headrace.schema.canonical import plain
from headrace.schema.entity import definition, names
from headrace.schema.entity.definition import read_rules, read_strategy, read_tie_breaker
from headrace.schema.entity.names import is_field_name
from headrace.schema.entity.nodes import Notice, Policy, Schema
from headrace.schema.entity.readers import (
    INVALID,
    MISSING,
    Reader,
    choice_reader,
    list_reader,
    read_boolean,
    read_converter,
    read_distinct_texts,
    read_field,
    read_members,
    read_text,
    read_type,
)
from headrace.schema.entity.update import Addition, ConverterAddition, TypeUpdate
from headrace.schema.entity.versions import parse_version
from headrace.schema.problem import Location, RequestProblem

VERSION_INVALID = "version_invalid"


class TypeRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A request to register a schema; the server fills in the user of a user-specific schema."""

    schema: Schema
    activate: bool = False
    force: bool = False
    dry_run: bool = False
    notices: tuple[Notice, ...] = ()


def read_registration(payload: Any, guard: bool = False) -> TypeRegistration | list[RequestProblem]:
    """A registration, or every problem with it; ``guard`` refuses dubious names unless the payload forces them."""
    problems: list[RequestProblem] = []
    location = Location("", problems)
    parsed = read_members(payload, _READERS, location, required=("entity_type", "schema_version"))
    document = payload if isinstance(payload, dict) else {}
    parsed_definition = _read_definition(document, location)
    name_notices = _check_name(parsed, guard, location)
    scope = scope_of(parsed, location)
    if problems or parsed_definition is None:
        return problems
    schema = Schema(
        entity_type=names.normalise_type_name(parsed["entity_type"]),
        schema_version=parsed["schema_version"],
        schema_definition=parsed_definition.definition,
        reducer_config=parsed_definition.reducer_config,
        scope=scope,
        metadata=parsed.get("metadata", {}),
    )
    flags = {name: parsed.get(name, False) for name in ("activate", "force", "dry_run")}
    return TypeRegistration(schema=schema, notices=(*name_notices, *parsed_definition.notices), **flags)


def _read_definition(document: dict[str, Any], location: Location) -> definition.ParsedDefinition | None:
    """The definition and the configuration; for one that is missing, no other problem is reported."""
    required = ("schema_definition", "reducer_config")
    missing = [name for name in required if document.get(name) is None]
    for name in missing:
        location.at(name).refuse(MISSING, f"{name} is missing")
    definition_problems: list[RequestProblem] = []
    definition_location, config_location = (
        location.at(name)._replace(problems=definition_problems) for name in required
    )
    parsed_definition = definition.read(
        document.get(required[0]), document.get(required[1]), definition_location, config_location
    )
    absent = {f"/{name}" for name in missing}
    location.problems.extend(problem for problem in definition_problems if problem.path not in absent)
    return parsed_definition


def _check_name(parsed: dict[str, Any], guard: bool, location: Location) -> list[Notice]:
    """Notices about the name; with ``guard``, those that speak against it become problems."""
    raw_name = parsed.get("entity_type", "")
    if not raw_name:
        return []
    objections = names.check_type_name(names.normalise_type_name(raw_name))
    if guard and not parsed.get("force", False):
        for notice in objections:
            location.at("entity_type").refuse(notice.code, notice.message)
        objections = []
    return [*objections, *names.lint_type_name(raw_name)]


def scope_of(parsed: dict[str, Any], location: Location) -> Any:
    """The scope, which is given as ``scope`` or as ``user_specific``."""
    specific = parsed.get("user_specific")
    scope = parsed.get("scope", "user" if specific else "global")
    if specific is not None and specific != (scope == "user"):
        location.at("user_specific").refuse(INVALID, f"user_specific contradicts scope {scope}")
    return scope


def read_version(raw: Any, location: Location) -> str:
    """A version in its canonical spelling."""
    version = parse_version(raw)
    if version is None:
        location.refuse(VERSION_INVALID, f"{raw!r} is no version such as 1.0 or 1.0.0")
    return str(version)


def read_metadata(raw: Any, location: Location) -> dict[str, Any]:
    """An object of anything."""
    if not isinstance(raw, dict):
        location.refuse(INVALID, "metadata is an object")
        return {}
    return raw


def _pass_through(raw: Any, _: Location) -> Any:
    """Leave a member as it is; it is read later, together with others."""
    return raw


_READERS: dict[str, Reader] = {
    "entity_type": read_text,
    "schema_version": read_version,
    "schema_definition": _pass_through,
    "reducer_config": _pass_through,
    "scope": choice_reader("global", "user"),
    "user_specific": read_boolean,
    "metadata": read_metadata,
    "activate": read_boolean,
    "force": read_boolean,
    "dry_run": read_boolean,
}


def path(schema: Schema) -> str:
    """The path of the file of a version; schemas of users have directories of their own."""
    owner = "" if schema.user_id is None else f"users/{quote(schema.user_id, safe='').replace('.', '%2E')}/"
    return f"schema_snapshots/{owner}{schema.entity_type}/v{schema.schema_version}.json"


def export(schema: Schema) -> bytes:
    """The file of a version: members sorted, whole numbers without a fraction, a line feed at the end."""
    document = {name: value for name, value in schema.dump().items() if value is not None}
    return msgspec.json.format(msgspec.json.encode(plain(document), order="sorted"), indent=2) + b"\n"


#: The members of an added field that are those of any field.
_OPTIONS = ("required", "validator", "preserveCase", "description", "converters", "constraints", "sensitivity_class")


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An update of a type, with the options of the request."""

    update: TypeUpdate
    scope: str = "global"
    activate: bool = True
    migrate_existing: bool = False
    migrate_user_id: str | None = None
    force: bool = False
    dry_run: bool = False


def read_change_request(payload: Any) -> ChangeRequest | list[RequestProblem]:
    """An update of a type, or every problem with its structure."""
    problems: list[RequestProblem] = []
    location = Location("", problems)
    parsed = read_members(payload, _CHANGE_REQUEST_READERS, location)
    scope = scope_of(parsed, location)
    _check_distinct_names(parsed.get("fields_to_add", ()), location.at("fields_to_add"))
    if problems:
        return problems
    update = TypeUpdate(**{name: parsed[name] for name in TypeUpdate.__struct_fields__ if name in parsed})
    options = ("activate", "migrate_existing", "migrate_user_id", "force", "dry_run")
    return ChangeRequest(update=update, scope=scope, **{name: parsed[name] for name in options if name in parsed})


def _check_distinct_names(additions: tuple[Addition | None, ...], location: Location) -> None:
    names = [None if addition is None else addition.name for addition in additions]
    for number, name in enumerate(names):
        if name is not None and name in names[:number]:
            location.at(number).at("field_name").refuse(INVALID, f"{name!r} is to be added already")


def _read_addition(raw: Any, location: Location) -> Addition | None:
    before = len(location.problems)
    parsed = read_members(raw, _ADDITION, location, required=("field_name", "field_type"))
    if len(location.problems) > before:
        return None
    field = read_field(
        {"type": parsed["field_type"], **{name: raw[name] for name in _OPTIONS if name in raw}}, location
    )
    policy = Policy(parsed.get("reducer_strategy", "last_write"), parsed.get("tie_breaker", "observed_at"))
    return None if field is None else Addition(parsed["field_name"], field, policy)


def _read_converter_addition(raw: Any, location: Location) -> ConverterAddition | None:
    readers: dict[str, Reader] = {"field_name": read_text, "converter": read_converter}
    parsed = read_members(raw, readers, location, required=("field_name", "converter"))
    if parsed.get("converter") is None:
        return None
    return ConverterAddition(parsed.get("field_name", ""), parsed["converter"])


def _read_field_name(raw: Any, location: Location) -> str:
    if not is_field_name(raw):
        location.refuse(INVALID, f"{raw!r} cannot be the name of a field")
    return str(raw)


_ADDITION: dict[str, Reader] = {
    "field_name": _read_field_name,
    "field_type": read_type,
    "reducer_strategy": read_strategy,
    "tie_breaker": read_tie_breaker,
    **dict.fromkeys(_OPTIONS, _pass_through),
}
_CHANGE_REQUEST_READERS: dict[str, Reader] = {
    "fields_to_add": list_reader(_read_addition),
    "fields_to_remove": read_distinct_texts,
    "converters_to_add": list_reader(_read_converter_addition),
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
