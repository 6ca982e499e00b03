"""The key of a table's row: the values of its fields, typed, as msgpack of a list.

An i64 is an integer however it was written (3.0 is 3), a datetime is its text in UTC; the other types are as
they are. Nothing is parsed from strings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.operators.operator import canonical
from headrace.schema.date_time import is_date_time
from headrace.schema.descriptor.nodes import Type

_ENCODE = msgspec.msgpack.Encoder().encode


class KeyEncoder:
    """Makes keys of rows and of what callers give."""

    def __init__(self, fields: Sequence[str], kinds: Sequence[Type]) -> None:
        self.fields = tuple(fields)
        self._kinds = tuple(kinds)
        #: Whether keys are one text as it is.
        self.is_text = len(fields) == 1 and kinds[0] in ("str", "bytes")
        self._plain = fields[0] if len(fields) == 1 and kinds[0] in ("str", "bool", "bytes") else None

    def of(self, row: Mapping[str, Any]) -> bytes | None:
        """The key of a row, or None where a part of it is null."""
        if self._plain is not None:
            value = row.get(self._plain)
            return None if value is None else _ENCODE([value])
        values = [row.get(name) for name in self.fields]
        if None in values:
            return None
        return _ENCODE([canonical(value, kind) for value, kind in zip(values, self._kinds, strict=True)])

    def from_caller(self, caller_key: Any) -> bytes | None:
        """The key that a caller gives, or None where it has another shape."""
        if not self.fields:
            return _ENCODE([]) if caller_key in ("", [], None) else None
        values = caller_key if isinstance(caller_key, list | tuple) else [caller_key]
        if len(values) != len(self.fields):
            return None
        if not all(_CHECKS[kind](value) for value, kind in zip(values, self._kinds, strict=True)):
            return None
        try:
            return _ENCODE([canonical(value, kind) for value, kind in zip(values, self._kinds, strict=True)])
        except UnicodeEncodeError:
            return None

    def shape(self) -> str:
        """A description of the keys that are accepted."""
        if not self.fields:
            return 'empty: "" or []'
        parts = ", ".join(f"{name} ({kind})" for name, kind in zip(self.fields, self._kinds, strict=True))
        return f"an array of {parts}" + (" or the value itself" if len(self.fields) == 1 else "")


def _is_i64(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer() and -(2.0**63) <= value < 2.0**63
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _moment(value: Any) -> bool:
    return isinstance(value, str) and is_date_time(value)


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_CHECKS: dict[Type, Callable[[Any], bool]] = {
    "str": _text,
    "bytes": _text,
    "datetime": _moment,
    "bool": _boolean,
    "i64": _is_i64,
    "f64": _number,
}
