"""A registration as it is sent, read stage by stage: the first look, then the shape.

What is wrong with a single descriptor of the right shape is noted here, where its path is known, and said by
``validate`` in its turn: until then an ``Unfit`` stands in the place of its node.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headrace.schema.descriptor import prelude
from headrace.schema.descriptor.check import built
from headrace.schema.descriptor.nodes import Node
from headrace.schema.descriptor.problem import Place, Problem
from headrace.schema.descriptor.structure import INVALID, Shaped, is_integer, known, shaped
from headrace.schema.descriptor.unfit import Unfit, unfit

MOST_DESCRIPTORS = 1_000

_KEYS = ("descriptors", "nodes", "force", "dry_run", "backfill", "app", "expected_version", "cascade")
_APP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a registration asks for; its nodes are in the order of the payload."""

    nodes: dict[str, Node]
    force: bool = False
    dry_run: bool = False
    backfill: bool | None = None
    app: str = "default"
    expected_version: int | None = None
    cascade: bool = False


def read(payload: Any) -> Registration | list[Problem]:
    """A registration, or all problems of the first stage that finds any."""
    if not isinstance(payload, dict):
        return [Problem(INVALID, "", "a registration is an object with descriptors")]
    problems: list[Problem] = []
    listed = "nodes" if "nodes" in payload and "descriptors" not in payload else "descriptors"
    descriptors = payload.get(listed)
    if isinstance(descriptors, list):
        prelude.look(descriptors, Place("descriptors", problems))
    if problems:
        return problems
    shapes = _shapes(payload, listed, Place("", problems))
    return problems or _built(payload, shapes)


def _shapes(payload: dict[str, Any], listed: str, place: Place) -> list[Shaped | None]:
    known(payload, _KEYS, place)
    if "nodes" in payload and listed != "nodes":
        place.at("nodes").refuse(INVALID, "nodes is another name of descriptors; give one of them")
    for flag in ("force", "dry_run", "cascade"):
        if not isinstance(payload.get(flag, False), bool):
            place.at(flag).refuse(INVALID, f"{flag} is true or false")
    if not isinstance(payload.get("backfill"), bool | None):
        place.at("backfill").refuse(INVALID, "backfill is true, false or null")
    app = payload.get("app", "default")
    if not isinstance(app, str) or _APP.fullmatch(app) is None:
        place.at("app").refuse(INVALID, "app is a name of letters, digits, _, . and -")
    version = payload.get("expected_version")
    if version is not None and not (is_integer(version) and version >= 0):
        place.at("expected_version").refuse(INVALID, "expected_version is a version of the registry")
    descriptors = payload.get(listed)
    if not isinstance(descriptors, list) or len(descriptors) > MOST_DESCRIPTORS:
        place.at("descriptors").refuse(INVALID, f"there is a list of up to {MOST_DESCRIPTORS} descriptors")
        return []
    return [shaped(descriptor, place.at("descriptors").at(number)) for number, descriptor in enumerate(descriptors)]


def _built(payload: dict[str, Any], shapes: list[Shaped | None]) -> Registration:
    nodes: dict[str, Node] = {}
    for number, shape in enumerate(shapes):
        assert shape is not None, "a descriptor without problems has a shape"
        place = Place("descriptors", []).at(number)
        if shape.name in nodes:
            first = list(nodes).index(shape.name)
            place.at("name").refuse("duplicate_name", f"{shape.name!r} is the name of descriptors[{first}] already")
            # No name has a blank, so this one takes nobody's place.
            nodes[f"{shape.name} {number}"] = Unfit(shape.name, shape.name, of="event", problems=tuple(place.problems))
            continue
        node = built(shape, place)
        nodes[shape.name] = node if not place.problems else unfit(shape, tuple(place.problems))
    flags = {name: payload[name] for name in _KEYS[2:] if payload.get(name) is not None}
    return Registration(nodes=nodes, **flags)
