"""The routing key of each entry, by a pointer into it.

Only the path to the key is decoded, as nested structs of one member each. Entries that do not fit them, with an array
on the path or a key that is no string, are walked step by step.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace import decoding
from headrace.schema import pointer
from headrace.schema.entries import TOO_DEEP, Failure, entries_of
from headrace.schema.pointer import Pointer

#: A routing key in UTF-8.
MAX_KEY_BYTES = 512
#: So many failures are named, of one append.
MAX_FAILURES = 20

_MISSING = "routing key missing"
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_NOTHING = msgspec.Raw()


class RoutingKey:
    """Where the routing key of an entry is, and whether there must be one; compiled once."""

    def __init__(self, path: Pointer, required: bool) -> None:
        self.path = path
        self.required = required
        self._text = pointer.text(path)
        self._decoder = _decoder(path)

    def keys(self, joined: bytes) -> tuple[list[str | None], list[Failure]]:
        """The key of each entry, of entries joined by commas; and failures of the first entries with invalid keys.

        Without the key an entry has None. A key is a string of 1 to 512 bytes: neither null nor an empty string is one.
        """
        keys = self._decode_keys(b"[" + joined + b"]")
        return self._walk_keys(joined) if keys is None else (keys, [])

    def _decode_keys(self, body: bytes) -> list[str | None] | None:
        """The keys, if all entries have the usual form and all keys are valid; else None."""
        try:
            keys = self._decoder.decode(body)
        except (msgspec.ValidationError, RecursionError):
            return None
        for _ in self.path:
            keys = [step if step is UNSET else step.member for step in keys]
        if UNSET in keys:
            return None if self.required else [None if key is UNSET else key for key in keys]
        return keys  # type: ignore[no-any-return]

    def _walk_keys(self, joined: bytes) -> tuple[list[str | None], list[Failure]]:
        """The same, step by step and with reasons."""
        keys: list[str | None] = []
        failures = []
        for index, entry in enumerate(entries_of(joined)):
            key, reason = self._key_of(entry)
            keys.append(key)
            if reason:
                failures.append(Failure(index, "" if reason is TOO_DEEP else self._text, reason))
        return keys, failures[:MAX_FAILURES]

    def _key_of(self, value: bytes | msgspec.Raw) -> tuple[str | None, str]:
        try:
            for name in self.path:
                value = _step(value, name)
        except RecursionError:
            return None, TOO_DEEP
        spelled = bytes(value)
        if not spelled:
            return None, _MISSING if self.required else ""
        if spelled[:1] != b'"':
            return None, "routing key must be string"
        key = _STRING.decode(spelled)
        if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
            return None, f"routing key must have 1 to {MAX_KEY_BYTES} bytes"
        return key, ""


def _decoder(path: Pointer) -> msgspec.json.Decoder[Any]:
    """A decoder of entries that decodes only the path to the key, and fails on any unusual entry."""
    way: Any = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_BYTES // 4)]
    for name in reversed(path):
        try:
            way = msgspec.defstruct("Step", [("member", way | UnsetType, UNSET)], rename={"member": name}, gc=False)
        except ValueError:  # a name that the library cannot look for
            return msgspec.json.Decoder(list[UnsetType])
    return decoding.make_decoder(list[way])


def _step(value: bytes | msgspec.Raw, name: str) -> msgspec.Raw:
    """The member or element of a value; empty where it has none."""
    spelled = bytes(value)
    if spelled[:1] == b"{":
        return _MEMBERS.decode(spelled).get(name, _NOTHING)
    index = pointer.index(name)
    if spelled[:1] == b"[" and index is not None and index < len(elements := _ENTRIES.decode(spelled)):
        return elements[index]
    return _NOTHING
