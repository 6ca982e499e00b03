"""The first look at a payload, before its shape is judged: what was asked for that there is not, by its own code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.schema.descriptor.durations import FOREVER
from headrace.schema.descriptor.operators import ALIASES, OPERATORS, REQUIRED
from headrace.schema.descriptor.problem import Place

KINDS = ("event", "derivation", "table")

_JOINS = ("feature_removed_no_joins_v0", "events are not joined; derive from one upstream")
_UNIONS = ("feature_removed_no_unions_v0", "events are not united; derive from one upstream")
_REMOVED = {"join": _JOINS, "joins": _JOINS, "union": _UNIONS, "unions": _UNIONS}
_EVENT_TIME = ("unknown_field_event_time_v0", "time is the time of the append; there is no other")
_DELAY = ("unknown_field_tolerate_delay_v0", "time is the time of the append; nothing comes late")
_LEGACY = {"event_time_field": _EVENT_TIME, "tolerate_delay_ms": _DELAY, "tolerate_delay": _DELAY}


def look(descriptors: list[Any], place: Place) -> None:
    """Note what is refused whatever else a payload says."""
    for number, descriptor in enumerate(descriptors):
        if isinstance(descriptor, dict):
            _descriptor(descriptor, place.at(number))


def _descriptor(given: dict[str, Any], place: Place) -> None:
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
    for feature, at in features(given, place):
        _feature(feature, at)


def features(given: dict[str, Any], place: Place) -> Iterator[tuple[dict[str, Any], Place]]:
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


def _feature(given: dict[str, Any], place: Place) -> None:
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
