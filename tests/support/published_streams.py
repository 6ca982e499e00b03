"""Two published streams that other tools read: what was appended to them, and the files that hold it."""

from __future__ import annotations

from headrace.schema.registry import KeySetting
from headrace.schema.update import SchemaUpdate
from headrace.types import JSON, OCTETS
from support.engine_rig import START_US, Rig, array
from support.stored_objects import files

_TEXT = {"type": "string"}
_SHAPES = [
    {"type": "object", "properties": {"user": _TEXT}, "required": ["user"], "additionalProperties": False},
    {"type": "object", "properties": {"user": _TEXT, "note": _TEXT}, "additionalProperties": False},
]
_LATER_US = START_US + 1_500_000

COLUMNS = ("seq", "append_time", "key", "version", "first", "payload")
#: The entries of ``orders``, times in microseconds.
ORDERS = [
    (0, START_US, "ann", 1, True, '{"user":"ann"}'),
    (1, START_US, "béa", 1, False, '{"user":"béa"}'),
    (2, START_US, "ann", 1, False, '{"user":"ann"}'),
    *((3 + n, _LATER_US, "cy", 2, True, f'{{"user":"cy","note":"n{n}"}}') for n in range(4)),
]
ORDERS_BY_USER = [("ann", 2), ("béa", 1), ("cy", 4)]
#: The entries of ``raw``.
RAW = [(0, START_US, None, 0, True, b"\x00\xff"), (1, START_US, "k", 0, True, b"plain")]


def orders(rig: Rig) -> list[str]:
    """A JSON stream of two schema versions with keys of its own; it takes more than one file of an engine that seals
    four rows."""
    stream = rig.create("orders", JSON)
    rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(schema=_SHAPES[0], routing_key=KeySetting("/user", False))))
    rig.append("orders", array({"user": "ann"}, {"user": "béa"}, {"user": "ann"}))
    rig.clock.us = _LATER_US
    rig.run(rig.engine.schemas.apply(stream, SchemaUpdate(schema=_SHAPES[1])))
    for number in range(4):
        rig.append("orders", array({"user": "cy", "note": f"n{number}"}))
    rig.publish("orders")
    found = files(rig, "orders")
    assert len(found) == 2
    return found


def raw(rig: Rig) -> list[str]:
    """A stream of bytes."""
    rig.create("raw", OCTETS, b"\x00\xff")
    rig.append("raw", b"plain", key="k")
    rig.publish("raw")
    return files(rig, "raw")
