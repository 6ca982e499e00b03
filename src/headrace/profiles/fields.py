"""Search fields as the registries of profiles declare them, all in version 1."""

from __future__ import annotations

from typing import Any


def _bound(kind: str, pointer: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **more}


def keyword(pointer: str, *, lowercase: bool = False, aggregatable: bool = False) -> dict[str, Any]:
    """A word that is asked for as a whole or by how it begins."""
    more: dict[str, Any] = {"normalizer": "lowercase_v1"} if lowercase else {}
    more |= {"exact": True, "prefix": True, "exists": True, "sortable": True}
    return _bound("keyword", pointer, **more, **({"aggregatable": True} if aggregatable else {}))


def typed(kind: str, pointer: str) -> dict[str, Any]:
    """A date, a number or a flag, with all that can be asked of one."""
    return _bound(kind, pointer, exact=True, column=True, exists=True, sortable=True, aggregatable=True)


def text(pointer: str) -> dict[str, Any]:
    """Prose, with phrases."""
    return _bound("text", pointer, analyzer="unicode_word_v1", exists=True, positions=True)
