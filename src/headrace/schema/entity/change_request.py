"""An update as it is sent, read; every problem at once."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.schema.entity.declarations import read_rules
from headrace.schema.entity.fields import is_name, read_converter, read_field, read_type
from headrace.schema.entity.nodes import Policy
from headrace.schema.entity.policies import read_strategy, read_tie_breaker
from headrace.schema.entity.problem import INVALID, Place, Problem
from headrace.schema.entity.registration import read_metadata, read_version, scope_of
from headrace.schema.entity.shape import Reader, choice, distinct, flag, listed, members, text
from headrace.schema.entity.update import Addition, ConverterAddition, Update

#: The members of an added field that are those of any field.
_OPTIONS = ("required", "validator", "preserveCase", "description", "converters", "constraints", "sensitivity_class")


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An update, and what else its sender wants."""

    update: Update
    scope: str = "global"
    activate: bool = True
    migrate_existing: bool = False
    migrate_user_id: str | None = None
    force: bool = False
    dry_run: bool = False


def read(payload: Any) -> ChangeRequest | list[Problem]:
    """An update of a type, or all that is wrong with its shape."""
    problems: list[Problem] = []
    place = Place((), problems)
    found = members(payload, _READERS, place)
    scope = scope_of(found, place)
    _once(found.get("fields_to_add", ()), place.at("fields_to_add"))
    if problems:
        return problems
    update = Update(**{name: found[name] for name in Update.__struct_fields__ if name in found})
    wishes = ("activate", "migrate_existing", "migrate_user_id", "force", "dry_run")
    return ChangeRequest(update=update, scope=scope, **{name: found[name] for name in wishes if name in found})


def _once(additions: tuple[Addition | None, ...], place: Place) -> None:
    names = [None if addition is None else addition.name for addition in additions]
    for number, name in enumerate(names):
        if name is not None and name in names[:number]:
            place.at(number).at("field_name").refuse(INVALID, f"{name!r} is to be added already")


def _addition(given: Any, place: Place) -> Addition | None:
    before = len(place.problems)
    found = members(given, _ADDITION, place, required=("field_name", "field_type"))
    if len(place.problems) > before:
        return None
    field = read_field(
        {"type": found["field_type"], **{name: given[name] for name in _OPTIONS if name in given}}, place
    )
    policy = Policy(found.get("reducer_strategy", "last_write"), found.get("tie_breaker", "observed_at"))
    return None if field is None else Addition(found["field_name"], field, policy)


def _converter(given: Any, place: Place) -> ConverterAddition | None:
    readers: dict[str, Reader] = {"field_name": text, "converter": read_converter}
    found = members(given, readers, place, required=("field_name", "converter"))
    if found.get("converter") is None:
        return None
    return ConverterAddition(found.get("field_name", ""), found["converter"])


def _name(given: Any, place: Place) -> str:
    if not is_name(given):
        place.refuse(INVALID, f"{given!r} cannot be the name of a field")
    return str(given)


def _later(given: Any, _: Place) -> Any:
    """What is read with the whole field."""
    return given


_ADDITION: dict[str, Reader] = {
    "field_name": _name,
    "field_type": read_type,
    "reducer_strategy": read_strategy,
    "tie_breaker": read_tie_breaker,
    **dict.fromkeys(_OPTIONS, _later),
}
_READERS: dict[str, Reader] = {
    "fields_to_add": listed(_addition),
    "fields_to_remove": distinct,
    "converters_to_add": listed(_converter),
    "canonical_name_fields": read_rules,
    "schema_version": read_version,
    "metadata": read_metadata,
    "scope": choice("global", "user"),
    "user_specific": flag,
    "activate": flag,
    "migrate_existing": flag,
    "migrate_user_id": text,
    "force": flag,
    "dry_run": flag,
}
