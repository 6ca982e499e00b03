"""The shape of values as they were seen, as a type that admits values like them and no others.

Whoever decodes into it knows every name in what comes out. Structures are spelled in the order of their fields, which
is the order in which the names were seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.schema.structures import Unsayable

#: Types of more names, or of deeper ones, are unsayable: they take long to make.
MOST_NAMES = 300
MOST_DEPTH = 12

_SCALAR = str | int | float | bool | None


class Shape:
    """What was seen at one place: scalars in any case, objects with these members, arrays of such elements."""

    __slots__ = ("_elements", "members")

    def __init__(self) -> None:
        self.members: dict[str, Shape] | None = None
        self._elements: Shape | None = None

    def learn(self, value: Any, depth: int = 0) -> None:
        """Admit a value too."""
        if depth > MOST_DEPTH:
            raise Unsayable
        if type(value) is dict:
            if len(value.keys() | (self.members or {})) > MOST_NAMES:
                raise Unsayable
            self.members = _merged(self.members or {}, value)
            for name, member in value.items():
                self.members[name].learn(member, depth + 1)
        elif type(value) is list:
            self._elements = self._elements or Shape()
            for element in value:
                self._elements.learn(element, depth + 1)

    def names(self) -> Iterator[str]:
        """The names of all members, at any depth."""
        for name, member in (self.members or {}).items():
            yield name
            yield from member.names()
        if self._elements is not None:
            yield from self._elements.names()

    def type(self) -> Any:
        """The type of what was seen."""
        made: Any = _SCALAR
        if self.members is not None:
            members = enumerate(self.members.items())
            made |= structure(
                "Object", {name: (f"m{n}", shape.type() | UnsetType, UNSET) for n, (name, shape) in members}
            )
        if self._elements is not None:
            made |= list[self._elements.type()]  # type: ignore[misc]
        return made


def structure(title: str, fields: dict[str, tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """A structure whose fields have other names in JSON; what is missing or as it is by default is not spelled."""
    renamed = {field: name for name, (field, _, _) in fields.items()}
    try:
        return msgspec.defstruct(
            title, [*fields.values()], rename=renamed, forbid_unknown_fields=True, omit_defaults=True, gc=False
        )
    except ValueError as reason:  # a name that no field can have
        raise Unsayable from reason


def _merged(known: dict[str, Shape], value: dict[str, Any]) -> dict[str, Shape]:
    """The members that are known and those of a value, in an order in which the value has its own."""
    names, at = [*known], 0
    for name in value:
        place = names.index(name) if name in known else -1
        if place < at:
            if place >= 0:
                names.remove(name)
                at -= 1
            names.insert(at, name)
            place = at
        at = place + 1
    return {name: known.get(name) or Shape() for name in names}
