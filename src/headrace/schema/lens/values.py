"""Lazily decoded JSON values: containers are opened only where needed, and what stays closed keeps its bytes.

A value is the bytes it was spelled with, until a step goes through it: then it becomes a dict or a list of such values,
in place. A value is held in a *slot*, a container and a key, so a whole document is a value like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.entries import BLANKS, split_at_commas
from headrace.schema.pointer import Pointer

Raw = msgspec.Raw
Container = dict[str, "Value"] | list["Value"]
Value = Raw | dict[str, "Value"] | list["Value"]

#: The container of a value and its key: a dict and a name that may be absent, or a list and an index.
Slot = tuple[Any, Any]

_ENTRIES = msgspec.json.Decoder(list[Raw])
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_NAME = msgspec.json.Decoder(str)
_ENCODER = msgspec.json.Encoder()
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_MEMBER = re.compile(rb"[ \t\r\n]*(" + _STRING + rb")[ \t\r\n]*:")


class LensFailure(Exception):
    """A document that a lens cannot convert: by which lens, in which entry, at which op and pointer, and the reason."""

    def __init__(self, reason: str, pointer: Pointer = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pointer = pointer
        self.op: tuple[int, ...] = ()
        self.version: int | None = None
        self.entry: int | None = None

    def __str__(self) -> str:
        lens = "" if self.version is None else f"lens {self.version}, "
        location = "".join(f"/ops/{number}" for number in self.op)
        return f"{lens}{location or 'no op'}: {self.reason}" + (f" ({self.where})" if self.pointer else "")

    @property
    def where(self) -> str:
        """The pointer in the document, as text."""
        return pointers.text(self.pointer)


def encode_value(value: Any) -> Raw:
    """The value encoded as JSON again."""
    return value if type(value) is Raw else Raw(_ENCODER.encode(value))


def kind(value: Value) -> str:
    """``object``, ``array``, ``string``, ``number``, ``boolean`` or ``null``."""
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return _KINDS.get(memoryview(value)[0], "number")


_KINDS = {
    ord("{"): "object",
    ord("["): "array",
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}


def find_slot(holder: Any, key: Any, names: Pointer) -> Slot | None:
    """The slot that a pointer leads to, with containers opened on the path; None where there is none."""
    for name in names:
        container = open_container(holder, key)
        if container is None:
            return None
        if type(container) is dict:
            key = name
        else:
            key = pointers.index(name)
            if key is None or key >= len(container):
                return None
        holder = container
    return holder, key


def find_value_slot(holder: Any, key: Any, names: Pointer) -> Slot | None:
    """The same, where there is a value; null is one."""
    slot = find_slot(holder, key, names)
    return slot if slot is not None and (type(slot[0]) is list or slot[1] in slot[0]) else None


def open_container(holder: Any, key: Any) -> Any:
    """The container in a slot, opened in place, or None where there is none."""
    value = holder.get(key) if type(holder) is dict else holder[key]
    if type(value) is Raw:
        value = _open(value)
        if value is not None:
            holder[key] = value
    return value


def _open(value: Raw) -> Container | None:
    first = memoryview(value)[0]
    try:
        if first == 0x7B:
            return _MEMBERS.decode(value)  # type: ignore[return-value]
        return _ENTRIES.decode(value) if first == 0x5B else None  # type: ignore[return-value]
    except RecursionError:
        # How deep the decoder goes depends on who calls it, and what was taken must be read back.
        inside = bytes(value)[1:-1]
        return dict(_members(inside)) if first == 0x7B else list(split_at_commas(inside))


def _members(joined: bytes) -> Iterator[tuple[str, Raw]]:
    for piece in split_at_commas(joined):
        text = bytes(piece)
        name = _MEMBER.match(text)
        assert name is not None, "an object has members only"
        yield _NAME.decode(name[1]), Raw(text[name.end() :].strip(BLANKS))
