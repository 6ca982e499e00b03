"""JSON Pointers (RFC 6901) as tuples of names."""

from __future__ import annotations

import re

Pointer = tuple[str, ...]

_SYNTAX = re.compile(r"(?:/(?:[^~/]|~[01])*)*", re.DOTALL)
_INDEX = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


def parse(text: str) -> Pointer | None:
    """The names a pointer goes through, or None where it is no pointer; ``""`` is the whole document."""
    if not _SYNTAX.fullmatch(text):
        return None
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in text.split("/")[1:])


def text(pointer: Pointer) -> str:
    """The spelling of a pointer."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in pointer)


def index(name: str) -> int | None:
    """The array index of a name, if it is one."""
    return int(name) if _INDEX.fullmatch(name) else None


def has_prefix(pointer: Pointer, base: Pointer) -> bool:
    """Whether a pointer leads to the value at a base or into it."""
    return pointer[: len(base)] == base
