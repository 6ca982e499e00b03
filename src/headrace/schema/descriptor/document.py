"""A registration as it is sent, read stage by stage: the first look, then the shape.

What is wrong with a single descriptor of the right shape is noted here, where its path is known, and said by
``validate`` in its turn: until then an ``InvalidNode`` stands in the place of its node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.schema.descriptor.check import build_node
from headrace.schema.descriptor.nodes import Node
from headrace.schema.descriptor.operators import ALIASES, OPERATORS, REQUIRED
from headrace.schema.descriptor.order import InvalidNode, make_invalid_node
from headrace.schema.descriptor.problem import DescriptorLocation, DescriptorProblem
from headrace.schema.descriptor.structure import INVALID, ParsedDescriptor, check_keys, is_integer, parse_descriptor
from headrace.schema.descriptor.values import FOREVER

KINDS = ("event", "derivation", "table")

_JOINS = ("feature_removed_no_joins_v0", "events are not joined; derive from one upstream")
_UNIONS = ("feature_removed_no_unions_v0", "events are not united; derive from one upstream")
_REMOVED = {"join": _JOINS, "joins": _JOINS, "union": _UNIONS, "unions": _UNIONS}
_EVENT_TIME = ("unknown_field_event_time_v0", "time is the time of the append; there is no other")
_DELAY = ("unknown_field_tolerate_delay_v0", "time is the time of the append; nothing comes late")
_LEGACY = {"event_time_field": _EVENT_TIME, "tolerate_delay_ms": _DELAY, "tolerate_delay": _DELAY}


def check_removed_features(descriptors: list[Any], place: DescriptorLocation) -> None:
    """Note what is refused whatever else a payload says."""
    for number, descriptor in enumerate(descriptors):
        if isinstance(descriptor, dict):
            _descriptor(descriptor, place.at(number))


def _descriptor(given: dict[str, Any], place: DescriptorLocation) -> None:
    for key, refusal in _LEGACY.items():
        if key in given:
            place.at(key).refuse(*refusal)
    kind = given.get("kind")
    if isinstance(kind, str) and kind in _REMOVED:
        place.at("kind").refuse(*_REMOVED[kind])
    elif isinstance(kind, str) and kind not in KINDS:
        reason = f"there are no nodes of kind {kind!r}, only {', '.join(KINDS)}"
        place.at("kind").refuse("unsupported_node_kind", reason)
    ops = given.get("ops")
    for number, op in enumerate(ops if isinstance(ops, list) else []):
        name = op.get("op") if isinstance(op, dict) else None
        if isinstance(name, str) and name in _REMOVED:
            place.at("ops").at(number).refuse(*_REMOVED[name])
    for feature, at in find_features(given, place):
        _feature(feature, at)


def find_features(
    given: dict[str, Any], place: DescriptorLocation
) -> Iterator[tuple[dict[str, Any], DescriptorLocation]]:
    """The features of a descriptor, in whichever of its shapes."""
    found = [(given.get("agg"), place.at("agg"))]
    ops = given.get("ops")
    for number, op in enumerate(ops if isinstance(ops, list) else []):
        if isinstance(op, dict) and op.get("op") == "group_by":
            found.append((op.get("agg"), place.at("ops").at(number).at("agg")))
    for agg, at in found:
        for name, feature in agg.items() if isinstance(agg, dict) else ():
            if isinstance(feature, dict):
                yield feature, at.at(name)


def _feature(given: dict[str, Any], place: DescriptorLocation) -> None:
    params = given.get("params", {})
    name = given.get("op")
    if not isinstance(params, dict) or not isinstance(name, str):
        return
    window = params.get("window", params.get("window_ms"))
    if isinstance(window, dict) or any(key.startswith("session") for key in params):
        reason = "there are no session windows; a window is a duration"
        place.at("params").refuse("session_windows_not_supported_in_v0", reason)
        return
    operator = OPERATORS.get(ALIASES.get(name, name))
    if operator is None or not operator.bound or window not in (None, FOREVER):
        return
    bound = operator.params[operator.bound]
    if bound.default is REQUIRED and params.get(operator.bound) is None:
        reason = f"{name} keeps as much as it is told; say how much with {operator.bound}"
        place.at("params").refuse("unbounded_op_in_lifetime_mode", reason)


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


def read(payload: Any) -> Registration | list[DescriptorProblem]:
    """A registration, or all problems of the first stage that finds any."""
    if not isinstance(payload, dict):
        return [DescriptorProblem(INVALID, "", "a registration is an object with descriptors")]
    problems: list[DescriptorProblem] = []
    listed = "nodes" if "nodes" in payload and "descriptors" not in payload else "descriptors"
    descriptors = payload.get(listed)
    if isinstance(descriptors, list):
        check_removed_features(descriptors, DescriptorLocation("descriptors", problems))
    if problems:
        return problems
    shapes = _shapes(payload, listed, DescriptorLocation("", problems))
    return problems or _built(payload, shapes)


def _shapes(payload: dict[str, Any], listed: str, place: DescriptorLocation) -> list[ParsedDescriptor | None]:
    check_keys(payload, _KEYS, place)
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
    return [
        parse_descriptor(descriptor, place.at("descriptors").at(number))
        for number, descriptor in enumerate(descriptors)
    ]


def _built(payload: dict[str, Any], shapes: list[ParsedDescriptor | None]) -> Registration:
    nodes: dict[str, Node] = {}
    for number, shape in enumerate(shapes):
        assert shape is not None, "a descriptor without problems has a shape"
        place = DescriptorLocation("descriptors", []).at(number)
        if shape.name in nodes:
            first = list(nodes).index(shape.name)
            place.at("name").refuse("duplicate_name", f"{shape.name!r} is the name of descriptors[{first}] already")
            # No name has a blank, so this one takes nobody's place.
            nodes[f"{shape.name} {number}"] = InvalidNode(
                shape.name, shape.name, of="event", problems=tuple(place.problems)
            )
            continue
        node = build_node(shape, place)
        nodes[shape.name] = node if not place.problems else make_invalid_node(shape, tuple(place.problems))
    flags = {name: payload[name] for name in _KEYS[2:] if payload.get(name) is not None}
    return Registration(nodes=nodes, **flags)
