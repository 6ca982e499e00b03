"""Versions of entity types as files, with the same bytes wherever and whenever they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.engine.entities.entity_type import schema_of
from headrace.schema.entity import registration
from headrace.storage.entity_types import SchemaRow


class File(NamedTuple):
    """Where a version lies, and what it says."""

    path: str
    content: bytes


def files(rows: Iterable[SchemaRow]) -> Iterator[File]:
    """The file of each version, in the order of their paths."""
    made = (schema_of(row) for row in rows)
    yield from sorted(File(registration.path(schema), registration.export(schema)) for schema in made)
