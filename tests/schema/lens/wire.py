"""Lens documents in few words, and what the steps of a lens make of a document."""

from __future__ import annotations

from typing import Any

from headrace.schema.lens.document import parse
from headrace.schema.lens.forward import Steps, run
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.values import Raw, encode_value


def lens_of(version: int, ops: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of a lens."""
    return {"apiVersion": "durable.lens/v1", "schema": "s", "from": version, "to": version + 1, "ops": ops}


def lens(*ops: dict[str, Any], version: int = 1) -> Lens:
    """A lens of ops that are known to be right."""
    parsed = parse(lens_of(version, list(ops)))
    assert isinstance(parsed, Lens), parsed
    return parsed


def through(steps: Steps, document: bytes) -> bytes:
    """What steps make of a document."""
    holder: list[Any] = [Raw(document)]
    run(steps, holder, 0)
    return bytes(encode_value(holder[0]))


def convert(path: str, table: dict[str, Any], **more: Any) -> dict[str, Any]:
    back = {str(value): text for text, value in table.items()}
    types = {"fromType": "string", "toType": "string"}
    return {"op": "convert", "path": path, **types, "forward": {"map": table}, "backward": {"map": back}, **more}


def rename(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"op": "rename", "from": source, "to": target, **more}


def copy(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"op": "copy", "from": source, "to": target, **more}


def add(path: str, default: Any, **more: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "schema": True, "default": default, **more}


def remove(path: str, **more: Any) -> dict[str, Any]:
    return {"op": "remove", "path": path, "schema": True, **more}


def hoist(host: str, name: str, target: str, **more: Any) -> dict[str, Any]:
    return {"op": "hoist", "host": host, "name": name, "to": target, **more}


def plunge(source: str, host: str, name: str, **more: Any) -> dict[str, Any]:
    return {"op": "plunge", "from": source, "host": host, "name": name, **more}


def wrap(path: str, **more: Any) -> dict[str, Any]:
    return {"op": "wrap", "path": path, "mode": "singleton", **more}


def head(path: str, **more: Any) -> dict[str, Any]:
    return {"op": "head", "path": path, **more}


def within(path: str, *ops: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"op": "in", "path": path, "ops": list(ops), **more}


def each(path: str, *ops: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"op": "map", "path": path, "ops": list(ops), **more}
