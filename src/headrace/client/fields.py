"""The fields of an event as a class declares them: annotations become types, defaults become defaults."""

from __future__ import annotations

import base64
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Union, get_args, get_origin

from headrace.client.requests import moment

_TYPES = {str: "str", int: "i64", float: "f64", bool: "bool", bytes: "bytes", datetime: "datetime"}
_MISSING = object()


def fields(declared: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a class, its bases included, as a registration writes it; ``names`` are those around the class."""
    try:
        hints = typing.get_type_hints(declared, localns=dict(names))
    except NameError as reason:
        raise TypeError(f"{declared.__name__}: {reason}") from reason
    _check_rest(declared, hints)
    return {
        name: _field(f"{declared.__name__}.{name}", hint, getattr(declared, name, _MISSING))
        for name, hint in hints.items()
        if hint is not ClassVar and get_origin(hint) is not ClassVar
    }


def _check_rest(declared: type, hints: Mapping[str, Any]) -> None:
    """Refuse what looks like a field and would be left out."""
    for name, value in vars(declared).items():
        special = name.startswith("__") or callable(value) or isinstance(value, property | classmethod | staticmethod)
        if name not in hints and not special:
            raise TypeError(f"{declared.__name__}.{name} has no type; write {name}: {type(value).__name__} = {value!r}")


def _field(place: str, hint: Any, default: Any) -> Any:
    inner, required = _unwrapped(hint)
    kind = _TYPES.get(inner) if isinstance(inner, type) else None
    if kind is None:
        known = ", ".join(kind.__name__ for kind in _TYPES)
        raise TypeError(f"{place}: {_named(hint)} is not a type of fields; these are: {known}, each also with None")
    if default is _MISSING or (default is None and not required):
        return kind if required else {"type": kind, "required": False}
    return {"type": kind, "required": required, "default": _value(place, inner, default)}


def _unwrapped(hint: Any) -> tuple[Any, bool]:
    """The type of a field, and whether it must be there."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [part for part in get_args(hint) if part is not types.NoneType]
        if len(rest) == 1:
            return rest[0], False
    return hint, True


def _value(place: str, kind: type, value: Any) -> Any:
    """A default as JSON has it."""
    fits = (
        type(value) is kind or (kind is float and type(value) is int) or (isinstance(value, kind) and kind is not int)
    )
    if not fits:
        raise TypeError(f"{place}: the default {value!r} is not of type {kind.__name__}")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return moment(value) if isinstance(value, datetime) else value


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
