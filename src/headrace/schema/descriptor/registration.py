"""Read a registration stage by stage: removed features first, then the structure.

Problems of a single well-formed descriptor are collected here, where its path is known, and reported by
``validate`` later: until then an ``InvalidNode`` stands in for its node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from headrace.operators.catalogue import ALIASES, DECLARATIONS
from headrace.operators.declaration import REQUIRED
from headrace.schema.descriptor.check import build_node
from headrace.schema.descriptor.nodes import FOREVER, Node
from headrace.schema.descriptor.structure import INVALID, ParsedDescriptor, check_keys, is_integer, parse_descriptor
from headrace.schema.descriptor.validate import InvalidNode, make_invalid_node
from headrace.schema.problem import DottedLocation, RequestProblem

KINDS = ("event", "derivation", "table")

_JOINS = ("feature_removed_no_joins_v0", "events are not joined; derive from one upstream")
_UNIONS = ("feature_removed_no_unions_v0", "events are not united; derive from one upstream")
_REMOVED = {"join": _JOINS, "joins": _JOINS, "union": _UNIONS, "unions": _UNIONS}
_EVENT_TIME = (
    "unknown_field_event_time_v0",
    "there is no event_time_field: name the field that has the time of events with timestamp_field",
)
_DELAY = (
    "unknown_field_tolerate_delay_v0",
    "no delay is waited for: events count by their timestamp_field, and until they are later than late_after",
)
_LEGACY = {"event_time_field": _EVENT_TIME, "tolerate_delay_ms": _DELAY, "tolerate_delay": _DELAY}


def check_removed_features(descriptors: list[Any], location: DottedLocation) -> None:
    """Record a problem for every member of a payload that this server removed or never supported."""
    for number, descriptor in enumerate(descriptors):
        if isinstance(descriptor, dict):
            _check_descriptor(descriptor, location.at(number))


def _check_descriptor(raw: dict[str, Any], location: DottedLocation) -> None:
    for key, refusal in _LEGACY.items():
        if key in raw:
            location.at(key).refuse(*refusal)
    kind = raw.get("kind")
    if isinstance(kind, str) and kind in _REMOVED:
        location.at("kind").refuse(*_REMOVED[kind])
    elif isinstance(kind, str) and kind not in KINDS:
        reason = f"there are no nodes of kind {kind!r}, only {', '.join(KINDS)}"
        location.at("kind").refuse("unsupported_node_kind", reason)
    ops = raw.get("ops")
    for number, op in enumerate(ops if isinstance(ops, list) else []):
        name = op.get("op") if isinstance(op, dict) else None
        if isinstance(name, str) and name in _REMOVED:
            location.at("ops").at(number).refuse(*_REMOVED[name])
    for feature, at in find_features(raw, location):
        _check_feature(feature, at)


def find_features(raw: dict[str, Any], location: DottedLocation) -> Iterator[tuple[dict[str, Any], DottedLocation]]:
    """Return the features of a descriptor in either of its two forms."""
    agg_locations = [(raw.get("agg"), location.at("agg"))]
    ops = raw.get("ops")
    for number, op in enumerate(ops if isinstance(ops, list) else []):
        if isinstance(op, dict) and op.get("op") == "group_by":
            agg_locations.append((op.get("agg"), location.at("ops").at(number).at("agg")))
    for agg, at in agg_locations:
        for name, feature in agg.items() if isinstance(agg, dict) else ():
            if isinstance(feature, dict):
                yield feature, at.at(name)


def _check_feature(raw: dict[str, Any], location: DottedLocation) -> None:
    params = raw.get("params", {})
    name = raw.get("op")
    if not isinstance(params, dict) or not isinstance(name, str):
        return
    window = params.get("window", params.get("window_ms"))
    if isinstance(window, dict) or any(key.startswith("session") for key in params):
        reason = "there are no session windows; a window is a duration"
        location.at("params").refuse("session_windows_not_supported_in_v0", reason)
        return
    operator = DECLARATIONS.get(ALIASES.get(name, name))
    if operator is None or not operator.bound or window not in (None, FOREVER):
        return
    bound = operator.params[operator.bound]
    if bound.default is REQUIRED and params.get(operator.bound) is None:
        reason = f"{name} keeps as much as it is told; say how much with {operator.bound}"
        location.at("params").refuse("unbounded_op_in_lifetime_mode", reason)


MAX_DESCRIPTORS = 1_000

_KEYS = ("descriptors", "nodes", "force", "dry_run", "backfill", "app", "expected_version", "cascade")
_APP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed registration; its nodes are in the order of the payload."""

    nodes: dict[str, Node]
    force: bool = False
    dry_run: bool = False
    backfill: bool | None = None
    app: str = "default"
    expected_version: int | None = None
    cascade: bool = False


def read_registration(payload: Any) -> Registration | list[RequestProblem]:
    """Parse a registration; raises with all problems of the first stage that finds any."""
    if not isinstance(payload, dict):
        return [RequestProblem(INVALID, "", "a registration is an object with descriptors")]
    problems: list[RequestProblem] = []
    member = "nodes" if "nodes" in payload and "descriptors" not in payload else "descriptors"
    descriptors = payload.get(member)
    if isinstance(descriptors, list):
        check_removed_features(descriptors, DottedLocation("descriptors", problems))
    if problems:
        return problems
    shapes = _parse_descriptors(payload, member, DottedLocation("", problems))
    return problems or _build_registration(payload, shapes)


def _parse_descriptors(payload: dict[str, Any], member: str, location: DottedLocation) -> list[ParsedDescriptor | None]:
    check_keys(payload, _KEYS, location)
    if "nodes" in payload and member != "nodes":
        location.at("nodes").refuse(INVALID, "nodes is another name of descriptors; give one of them")
    for flag in ("force", "dry_run", "cascade"):
        if not isinstance(payload.get(flag, False), bool):
            location.at(flag).refuse(INVALID, f"{flag} is true or false")
    if not isinstance(payload.get("backfill"), bool | None):
        location.at("backfill").refuse(INVALID, "backfill is true, false or null")
    app = payload.get("app", "default")
    if not isinstance(app, str) or _APP.fullmatch(app) is None:
        location.at("app").refuse(INVALID, "app is a name of letters, digits, _, . and -")
    version = payload.get("expected_version")
    if version is not None and not (is_integer(version) and version >= 0):
        location.at("expected_version").refuse(INVALID, "expected_version is a version of the registry")
    descriptors = payload.get(member)
    if not isinstance(descriptors, list) or len(descriptors) > MAX_DESCRIPTORS:
        location.at("descriptors").refuse(INVALID, f"there is a list of up to {MAX_DESCRIPTORS} descriptors")
        return []
    return [
        parse_descriptor(descriptor, location.at("descriptors").at(number))
        for number, descriptor in enumerate(descriptors)
    ]


def _build_registration(payload: dict[str, Any], shapes: list[ParsedDescriptor | None]) -> Registration:
    nodes: dict[str, Node] = {}
    for number, shape in enumerate(shapes):
        assert shape is not None, "a descriptor without problems has a shape"
        location = DottedLocation("descriptors", []).at(number)
        if shape.name in nodes:
            first = list(nodes).index(shape.name)
            location.at("name").refuse("duplicate_name", f"{shape.name!r} is the name of descriptors[{first}] already")
            # No name has a blank, so this key cannot clash.
            nodes[f"{shape.name} {number}"] = InvalidNode(
                shape.name, shape.name, of="event", problems=tuple(location.problems)
            )
            continue
        node = build_node(shape, location)
        nodes[shape.name] = node if not location.problems else make_invalid_node(shape, tuple(location.problems))
    flags = {name: payload[name] for name in _KEYS[2:] if payload.get(name) is not None}
    return Registration(nodes=nodes, **flags)


Status = Literal["ok", "conflict", "invalid"]


class RegistrationResponse(msgspec.Struct, frozen=True):
    """The answer to a registration, applied or refused."""

    status: Status
    registry_version: int
    added: list[str] = []
    removed: list[str] = []
    changed: list[dict[str, Any]] = []
    #: What happens to features and streams: the rest of the diff.
    features: list[dict[str, Any]] = []
    streams: list[dict[str, Any]] = []
    #: Why it is refused, or would be without force.
    errors: list[RequestProblem] = []
    refused: bool = False

    @property
    def http_status(self) -> int:
        """200, or the status of the refusal."""
        return 200 if not self.refused else 409 if self.status == "conflict" else 400

    def body(self) -> dict[str, Any]:
        """The JSON body of the response."""
        answer: dict[str, Any] = {
            "status": self.status,
            "registry_version": self.registry_version,
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "plan": {"features": self.features, "streams": self.streams},
        }
        errors = [problem._asdict() for problem in self.errors]
        if errors and self.refused:
            first = self.errors[0]
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            answer["error"] = {"code": first.code, "message": first.message + more, "errors": errors}
        elif errors:
            answer["plan"]["refusals"] = errors
        return answer
