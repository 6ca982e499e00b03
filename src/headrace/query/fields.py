"""The ``search`` document of a registry: read completely, or refused with everything that is wrong with it.

What the peer accepts is accepted, even a capability without effect. What could only be a mistake is refused: a
capability that is neither true nor false, an alias that hides a field, a default field that holds no strings.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from headrace.query import declaration, rollups
from headrace.query.declaration import Declared
from headrace.query.part import Part
from headrace.query.search import STRINGS, DefaultField, Kind, Search
from headrace.schema.problem import Problem

#: Names that a query reads as questions. A field that was stored with one is asked by its name in quotes.
RESERVED = frozenset({"has", "contains"})

_KEYS = frozenset(
    {"profile", "primaryTimestampField", "defaultFields", "containsDefaultFields", "aliases", "fields", "rollups"}
)


def parse(given: Any, *, current_version: int) -> Search | list[Problem]:
    """The search configuration of a stream at this schema version, or every problem with it."""
    document = Part(given)
    if not document.knows(_KEYS):
        return document.problems
    declared = declaration.read(document["fields"], current_version)
    search = Search(
        document=copy.deepcopy(given),
        primary_timestamp=_primary_timestamp(document["primaryTimestampField"], declared),
        fields={name: field for name, field in declared.items() if field},
        aliases=_aliases(document["aliases"], declared),
        default_fields=_default_fields(document["defaultFields"], declared),
        contains_default_fields=_contains_default_fields(document["containsDefaultFields"], declared),
        rollups={},
        profile=document["profile"].text() if document["profile"].is_given else None,
    )
    search = msgspec.structs.replace(search, rollups=rollups.read(document["rollups"], search, declared))
    return document.problems or search


def reserved(given: Any, stored: Any) -> list[Problem]:
    """The fields and aliases of a document that are new, and whose names mean something else in a query."""
    document = Part(given)
    for member in ("fields", "aliases"):
        names = RESERVED & {*(given.get(member) or ())} - {*((stored or {}).get(member) or ())}
        for name in sorted(names):
            document[member][name].note(f"{name}: asks something else in a query; choose another name")
    return document.problems


def dump(search: Search) -> dict[str, Any]:
    """The document that gave this configuration, as it was given."""
    return copy.deepcopy(search.document)


def _primary_timestamp(part: Part, declared: Declared) -> str:
    field = declared.named_by(part)
    if field and field.kind is not Kind.DATE:
        part.note(f"{field.name} is no date field")
    return field.name if field else ""


def _aliases(part: Part, declared: Declared) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for alias, target in part.named() if part.is_given else ():
        field = declared.named_by(target)
        if alias in declared and alias != target.value:
            target.note(f"{alias!r} hides the field of that name")
        if field:
            aliases[alias] = field.name
    return aliases


def _default_fields(part: Part, declared: Declared) -> tuple[DefaultField, ...]:
    defaults: list[DefaultField] = []
    for element in part.elements() if part.is_given else ():
        if element.knows({"field", "boost"}):
            name = _string_field(element["field"], declared)
            boost = element["boost"].positive() if element["boost"].is_given else 1.0
            defaults += [DefaultField(name, boost)] if name and boost else []
    return tuple(defaults)


def _contains_default_fields(part: Part, declared: Declared) -> tuple[str, ...]:
    names = [_string_field(element, declared) for element in (part.elements() if part.is_given else ())]
    return tuple(name for name in names if name)


def _string_field(part: Part, declared: Declared) -> str | None:
    field = declared.named_by(part)
    if field and field.kind not in STRINGS:
        part.note(f"{field.name} is {field.kind}; only keyword and text fields can be default fields")
        return None
    return field.name if field else None
