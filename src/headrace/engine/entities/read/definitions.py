"""Finding out how entity types are defined now."""

from __future__ import annotations

from collections.abc import Collection

from headrace.engine.entities.entity_type import ENTITIES, EntityType
from headrace.errors import UnknownEntityType
from headrace.reduce.policies.definition import TypeDefinition
from headrace.storage.database import Connection
from headrace.storage.entity_types import EntityChanges, SchemaRegistry

#: Types by name, each with the number of its last change.
Known = dict[str, tuple[int, TypeDefinition]]


def defined_of(kind: EntityType) -> TypeDefinition:
    """A type as it is now."""
    configs = {name: kind.config(name) for name in kind.lives()}
    return TypeDefinition(kind.entity_type, ENTITIES + kind.entity_type, configs, kind.undone)


class TypeDefinitions:
    """The entity types that hold as of one change, read through one connection."""

    def __init__(self, connection: Connection, version: int, cache: Known | None = None) -> None:
        """``known`` are types that were read before: those that have not changed since are not read again."""
        self._connection, self._registry = connection, SchemaRegistry(connection)
        self.version = version
        self._known: Known = {} if cache is None else cache

    @classmethod
    def read(cls, connection: Connection) -> TypeDefinitions:
        """The types as they are stored."""
        return cls(connection, EntityChanges(connection).newest())

    @property
    def streams(self) -> Collection[str]:
        """The streams of all types."""
        return [ENTITIES + name for name in self._registry.types()]

    def names_over(self, stream: str) -> tuple[str, ...]:
        """The type that a stream holds observations of."""
        name = stream.removeprefix(ENTITIES)
        return (name,) if self.stream_of(name) == stream else ()

    def stream_of(self, name: str) -> str | None:
        """The stream of a type; None where there is none of this name."""
        return ENTITIES + name if self._registry.knows(name) else None

    def defined(self, name: str) -> TypeDefinition:
        """A type by its name."""
        number, cached = EntityChanges(self._connection).newest_of(name), self._known.get(name)
        if cached is None or cached[0] != number:
            if not self._registry.knows(name):
                raise UnknownEntityType("there is no entity type of this name", entity_type=name)
            cached = self._known[name] = number, defined_of(EntityType.load(self._connection, name))
        return cached[1]
