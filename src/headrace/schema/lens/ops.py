"""The eleven operations of a lens, as frozen values.

Each has a reader in `document`, runs in `forward` and `backward`, is proven in `walk`, and moves pointers in `pullback`
and `carry`. A conversion of text, such as lower case, is no operation but a builtin of `convert` (`conversions`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from headrace.schema.pointer import Pointer

Scalar = str | int | float | bool | None


class Transform(msgspec.Struct, frozen=True):
    """How a value is converted: by a table from the text of the value, or by a function we know."""

    builtin: str | None = None
    table: dict[str, Scalar] | None = None
    default: Scalar | msgspec.UnsetType = msgspec.UNSET


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One step; an optional one is skipped where its source is absent."""

    name: ClassVar[str]
    optional: bool = False


class Rename(Op, frozen=True):
    """Move a value."""

    name = "rename"
    source: Pointer
    target: Pointer


class Copy(Op, frozen=True):
    """Copy a value."""

    name = "copy"
    source: Pointer
    target: Pointer


class Add(Op, frozen=True):
    """Add a value; with ``overwrite`` there may be one already, which it replaces."""

    name = "add"
    path: Pointer
    schema: Any
    default: Any = msgspec.UNSET
    overwrite: bool = False


class Remove(Op, frozen=True):
    """Remove a value; its schema and default are what a reader of the older version gets."""

    name = "remove"
    path: Pointer
    schema: Any
    default: Any = msgspec.UNSET


class Hoist(Op, frozen=True):
    """Move or copy a member of an object out of it."""

    name = "hoist"
    host: Pointer
    member: str
    target: Pointer
    remove_from_host: bool = True


class Plunge(Op, frozen=True):
    """Move or copy a value into an object, which is made where it is missing."""

    name = "plunge"
    source: Pointer
    host: Pointer
    member: str
    create_host: bool = True
    remove_from_source: bool = True


class Wrap(Op, frozen=True):
    """x becomes [x]."""

    name = "wrap"
    path: Pointer


class Head(Op, frozen=True):
    """[x, …] becomes x."""

    name = "head"
    path: Pointer


class Convert(Op, frozen=True):
    """A value of one type becomes one of another."""

    name = "convert"
    path: Pointer
    from_type: str
    to_type: str
    forward: Transform
    backward: Transform


class In(Op, frozen=True):
    """Steps inside an object."""

    name = "in"
    path: Pointer
    ops: tuple[Op, ...]


class Map(Op, frozen=True):
    """Steps inside each element of an array."""

    name = "map"
    path: Pointer
    ops: tuple[Op, ...]


class Lens(msgspec.Struct, frozen=True):
    """The ops that lead from one schema version to the next."""

    schema: str
    source: int
    target: int
    ops: tuple[Op, ...]
    description: str | None = None
