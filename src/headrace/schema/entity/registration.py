"""A registration as it is sent: a type, a version, a definition and its merge policies."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.schema.entity import definition, names, semver
from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.problem import INVALID, MISSING, Notice, Place, Problem
from headrace.schema.entity.shape import Reader, choice, flag, members, text

VERSION_INVALID = "version_invalid"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a registration asks for; whose a user's schema is, only the server knows."""

    schema: Schema
    activate: bool = False
    force: bool = False
    dry_run: bool = False
    notices: tuple[Notice, ...] = ()


def read(payload: Any, guard: bool = False) -> Registration | list[Problem]:
    """A registration, or all that is wrong with it; ``guard`` refuses odd names unless the payload forces them."""
    problems: list[Problem] = []
    place = Place((), problems)
    found = members(payload, _READERS, place, required=("entity_type", "schema_version"))
    given = payload if isinstance(payload, dict) else {}
    read_as = _documents(given, place)
    noted = _name(found, guard, place)
    scope = scope_of(found, place)
    if problems or read_as is None:
        return problems
    schema = Schema(
        entity_type=names.normalised(found["entity_type"]),
        schema_version=found["schema_version"],
        schema_definition=read_as.definition,
        reducer_config=read_as.reducer_config,
        scope=scope,
        metadata=found.get("metadata", {}),
    )
    flags = {name: found.get(name, False) for name in ("activate", "force", "dry_run")}
    return Registration(schema=schema, notices=(*noted, *read_as.notices), **flags)


def _documents(given: dict[str, Any], place: Place) -> definition.Read | None:
    """The definition and the configuration; where one is missing, only that is told of it."""
    wanted = ("schema_definition", "reducer_config")
    missing = [name for name in wanted if given.get(name) is None]
    for name in missing:
        place.at(name).refuse(MISSING, f"{name} is missing")
    aside: list[Problem] = []
    defined, configured = (place.at(name)._replace(problems=aside) for name in wanted)
    read_as = definition.read(given.get(wanted[0]), given.get(wanted[1]), defined, configured)
    absent = {f"/{name}" for name in missing}
    place.problems.extend(problem for problem in aside if problem.path not in absent)
    return read_as


def _name(found: dict[str, Any], guard: bool, place: Place) -> list[Notice]:
    """What is worth knowing about the name; what speaks against it is a problem where names are guarded."""
    given = found.get("entity_type", "")
    if not given:
        return []
    against = names.guarded(names.normalised(given))
    if guard and not found.get("force", False):
        for notice in against:
            place.at("entity_type").refuse(notice.code, notice.message)
        against = []
    return [*against, *names.linted(given)]


def scope_of(found: dict[str, Any], place: Place) -> Any:
    """The scope, which can be said in two ways."""
    specific = found.get("user_specific")
    scope = found.get("scope", "user" if specific else "global")
    if specific is not None and specific != (scope == "user"):
        place.at("user_specific").refuse(INVALID, f"user_specific contradicts scope {scope}")
    return scope


def read_version(given: Any, place: Place) -> str:
    """A version in its one spelling."""
    version = semver.parse(given)
    if version is None:
        place.refuse(VERSION_INVALID, f"{given!r} is no version such as 1.0 or 1.0.0")
    return str(version)


def read_metadata(given: Any, place: Place) -> dict[str, Any]:
    """An object of anything."""
    if not isinstance(given, dict):
        place.refuse(INVALID, "metadata is an object")
        return {}
    return given


def _as_given(given: Any, _: Place) -> Any:
    return given


_READERS: dict[str, Reader] = {
    "entity_type": text,
    "schema_version": read_version,
    "schema_definition": _as_given,
    "reducer_config": _as_given,
    "scope": choice("global", "user"),
    "user_specific": flag,
    "metadata": read_metadata,
    "activate": flag,
    "force": flag,
    "dry_run": flag,
}
