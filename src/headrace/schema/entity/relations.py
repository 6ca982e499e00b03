"""Dated events and links to other entities, from the values of an entity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.schema.entity.identity import entity_id, name_part
from headrace.schema.entity.nodes import Definition

#: The relationship of a reference that names none.
REFERS_TO = "REFERS_TO"


class Moment(NamedTuple):
    """An event in the life of an entity: which field dates it, what it is, and when."""

    field: str
    event_type: str
    at: str


class Link(NamedTuple):
    """A reference to another entity: the value that names it, and the id that an entity of this name has."""

    field: str
    relationship_type: str
    target_entity_type: str
    value: Any
    target_id: str


def find_moments(definition: Definition, fields: Mapping[str, Any]) -> list[Moment]:
    """One moment for each dated value, in the order of the declarations."""
    return [
        Moment(declared.field, declared.event_type or declared.field, value)
        for declared in definition.temporal_fields
        for value in _each(fields.get(declared.field))
        if isinstance(value, str)
    ]


def find_links(definition: Definition, fields: Mapping[str, Any], tenant: str) -> list[Link]:
    """One link for each value that names an entity; an id stands for itself."""
    links = []
    for declared in definition.reference_fields:
        for value in _each(fields.get(declared.field)):
            name = name_part(value)
            if name is not None:
                target = declared.target_entity_type
                is_entity_id = isinstance(value, str) and value.startswith("ent_")
                identifier = value if is_entity_id else entity_id(tenant, f"{target}:{name}")
                links.append(Link(declared.field, declared.relationship_type or REFERS_TO, target, value, identifier))
    return links


def _each(value: Any) -> Iterator[Any]:
    """The elements of a list, or the value; nothing for null."""
    if isinstance(value, list):
        yield from (element for element in value if element is not None)
    elif value is not None:
        yield value
