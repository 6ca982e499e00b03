"""Fields of an event source that are taken from the events of a stream, followed from schema version to version.

A pointer is bound to the version of the schema in which it was registered. Lenses carry it forward: a field that is
renamed is still found. Where a lens makes other values of a field, it has other values from the next version on; where
a lens removes it, or no lens leads on, it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.descriptor.nodes import UNFIT, Event, EventField, Type, coerce_value
from headrace.schema.lens.carry import Carried, CarryEffect, Reader, may_read
from headrace.schema.lens.chain import Crossings
from headrace.schema.pointer import Pointer
from headrace.schema.registry import Registry
from headrace.schema.shape.edit import value_at
from headrace.schema.shape.model import Alternative, Boolean, Number, Text
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root


class StreamBinding(msgspec.Struct, frozen=True):
    """The life of the stream that a source is bound to, and the schema version in which each pointer was registered."""

    incarnation: str
    versions: dict[str, int] = {}


class TypeReader(Reader, frozen=True):
    """Reads values of one type of fields."""

    flattens = False
    type: Type

    def values(self, value: Any) -> list[Any]:
        """The value as rows hold it."""
        held = coerce_value(value, self.type)
        return [] if value is None or held is UNFIT else [held]

    def reads(self, alternative: Alternative) -> bool:
        """Whether values of one kind may be of the type."""
        match alternative:
            case Boolean():
                return self.type == "bool"
            case Number():
                return self.type in ("i64", "f64")
            case Text():
                return self.type in ("str", "bytes", "datetime")
        return False


class FieldPath(NamedTuple):
    """Where a field is in each schema version from the one on in which it is bound."""

    pointers: Mapping[int, Pointer]
    #: The versions whose lenses have made other values of it.
    changes: tuple[int, ...] = ()
    #: The version from which on no event has it, and the lens operation that removes it.
    lost_in: int | None = None
    op: str = ""

    def at(self, version: int) -> Pointer | None:
        """Where it is in a version; None where it is lost."""
        if self.lost_in is not None and version >= self.lost_in:
            return None
        return self.pointers.get(version, self.pointers[min(self.pointers)])


def pointer_of(name: str, field: EventField) -> Pointer:
    """The pointer of a field as it is registered."""
    return (name,) if field.pointer is None else pointers.parse(field.pointer) or (name,)


def follow_fields(registry: Registry, event: Event, versions: Mapping[str, int]) -> dict[str, FieldPath]:
    """The path of every field of a source through the versions of its stream."""
    crossings = Crossings(registry)
    return {
        name: _follow(registry, crossings, pointer_of(name, field), TypeReader(field.type), max(versions[name], 1))
        for name, field in event.schema.items()
    }


def _follow(registry: Registry, crossings: Crossings, start: Pointer, reader: Reader, bound: int) -> FieldPath:
    path: dict[int, Pointer] = {bound: start}
    changes: list[int] = []
    for version in range(bound, registry.current_version):
        carried = _carry(registry, crossings, version, path[version], reader)
        if carried is None or carried.effect is CarryEffect.LOST:
            return FieldPath(path, tuple(changes), version + 1, "" if carried is None else carried.op)
        if carried.effect is CarryEffect.CHANGED:
            changes.append(version + 1)
        path[version + 1] = carried.pointer
    return FieldPath(path, tuple(changes))


def _carry(registry: Registry, crossings: Crossings, version: int, pointer: Pointer, reader: Reader) -> Carried | None:
    """A pointer in the next version; None where no lens leads there."""
    return crossings[version].carry(pointer, reader) if version in registry.lenses else None


def never_holds(registry: Registry, pointer: Pointer, kind: Type) -> bool:
    """Whether no event of the newest version has a value of a type at a pointer."""
    if not registry.current_version:
        return False
    return not may_read(value_at(shape_of(Root(registry.current_schema).source), pointer), TypeReader(kind))
