"""Build nodes from parsed descriptors, and check their names, types, keys, settings and steps; problems have paths."""

from __future__ import annotations

import re
from typing import Any, get_args

from headrace.operators.catalogue import ALIASES, DECLARATIONS
from headrace.operators.declaration import REQUIRED, Declaration, Parameter
from headrace.schema import pointer as pointers
from headrace.schema.descriptor.nodes import (
    FOREVER,
    UNFIT,
    Derivation,
    Event,
    EventField,
    Feature,
    Node,
    RowOp,
    Table,
    TimestampUnit,
    Type,
    coerce_value,
)
from headrace.schema.descriptor.structure import ParsedDescriptor, is_integer
from headrace.schema.expression import ExpressionError, parse, render
from headrace.schema.problem import DottedLocation
from headrace.types import parse_duration_ms

INVALID = "aggregation_invalid_param"

_ABSENT: Any = object()


def canonical_text(text: str, source: str) -> str:
    """The canonical spelling of an expression; one that cannot be parsed is returned as it is and refused later."""
    try:
        return render(parse(text, source))
    except ExpressionError:
        return text


def build_feature(raw: dict[str, Any], source: str, location: DottedLocation) -> Feature:
    """Build a feature; the return value is only valid if no problem was recorded."""
    name = ALIASES.get(raw["op"], raw["op"])
    operator = DECLARATIONS.get(name)
    if operator is None:
        location.at("op").refuse("unknown_op", f"there is no operator {raw['op']!r}")
        return Feature(name)
    raw_params = _normalise_params(raw.get("params", {}), operator, location.at("params"))
    params = {}
    for key, parameter in operator.params.items():
        value = _read_param(raw_params.pop(key, _ABSENT), key, parameter, source, location.at("params"))
        if value is not None:
            params[key] = value
    for key in raw_params:
        _refuse_unknown(key, raw_params[key], operator, location.at("params").at(key))
    _check_sub_window(params, location.at("params"))
    return Feature(name, params)


def _normalise_params(raw: dict[str, Any], operator: Declaration, location: DottedLocation) -> dict[str, Any]:
    """The parameters under their canonical names, durations as text; null counts as missing."""
    others = {alias: key for key, parameter in operator.params.items() for alias in parameter.aliases}
    params: dict[str, Any] = {}
    for key, value in raw.items():
        if value is None:
            continue
        plain = key.removesuffix("_ms")
        name = others.get(plain if plain in others else key, plain if plain in (*operator.params, "window") else key)
        if name in params:
            location.at(key).refuse(INVALID, f"{name} is there already")
        params[name] = f"{value}ms" if plain != key and is_integer(value) else value
    return params


def _refuse_unknown(key: str, value: Any, operator: Declaration, location: DottedLocation) -> None:
    if key != "window":
        location.refuse(INVALID, f"{operator.name} has no {key!r}, only {', '.join(operator.params)}")
    elif value != FOREVER:
        location.refuse("window_not_supported", f"{operator.name} has no window; it looks at the whole life of a key")


def _read_param(raw: Any, key: str, parameter: Parameter, source: str, location: DottedLocation) -> Any:
    """The value of a parameter; None where there is none."""
    here = location.at(key)
    if raw is _ABSENT or (key == "window" and raw == FOREVER):
        if parameter.default is REQUIRED:
            finite = " of finite length" if key == "window" else ""
            here.refuse(parameter.code, f"{key} must be given{finite}")
            return None
        return parameter.default
    match parameter.kind:
        case "field":
            return _read_text(raw, "the name of a field", here)
        case "where":
            text = _read_text(raw, "an expression", here)
            return None if text is None else canonical_text(text, source)
    try:
        return parameter.read(raw)
    except ValueError as reason:
        here.refuse(parameter.code, str(reason))
        return None


def _read_text(raw: Any, what: str, location: DottedLocation) -> str | None:
    if isinstance(raw, str):
        return raw
    location.refuse(INVALID, f"must be {what}")
    return None


def _check_sub_window(params: dict[str, Any], location: DottedLocation) -> None:
    window, part = params.get("window"), params.get("sub_window")
    if window is not None and part is not None and part > window:
        location.at("sub_window").refuse("aggregation_invalid_sub_window", "the sub_window is longer than the window")


MAX_KEYS = 16
#: Every field of type bytes needs a pattern, and a schema has a hundred.
MAX_BYTES_FIELDS = 100
COLD_AFTER_MS = (1_000, 31_536_000_000)
DEDUPE_WINDOW_MS = 86_400_000

TYPES: tuple[Type, ...] = get_args(Type)
STEPS = ("filter", "select", "drop", "rename", "with_columns", "map", "cast", "fillna")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = ("_beava_", "_headrace_")
_TIMES = ("event_time", "event_time_ms")
TIMESTAMP_UNITS: tuple[TimestampUnit, ...] = get_args(TimestampUnit)
_TARGETS = {"i64": "int", "f64": "float"}

INVALID_NODE = "validation_failed"


def build_node(descriptor: ParsedDescriptor, location: DottedLocation) -> Node:
    """Build the node of a descriptor; the return value is only valid if no problem was recorded."""
    check_name(descriptor.name, location.at("name"))
    if descriptor.name.startswith(_RESERVED):
        location.at("name").refuse(
            INVALID_NODE, f"names that begin with {descriptor.name.split('_')[1]!r} are reserved"
        )
    if descriptor.kind == "event":
        return _build_event(descriptor, location)
    upstream: str = descriptor.members["upstream"]
    ops = tuple(
        _build_op(op, upstream, location.at("ops").at(number))
        for number, op in enumerate(descriptor.members["ops"])
        if _is_step(op, location.at("ops").at(number))
    )
    if descriptor.kind == "derivation":
        return Derivation(descriptor.name, upstream, ops)
    return _build_table(descriptor, upstream, ops, location)


def check_name(name: str, location: DottedLocation) -> None:
    """Record a problem if a text is not a valid name."""
    if _NAME.fullmatch(name) is None:
        reason = f"{name[:140]!r} is no name: a letter or _, then letters, digits and _, at most 128 in all"
        location.refuse(INVALID_NODE, reason)


def is_name(text: str) -> bool:
    """Whether a text can be the name of a field."""
    return _NAME.fullmatch(text) is not None


def _build_event(descriptor: ParsedDescriptor, location: DottedLocation) -> Event:
    members = descriptor.members
    schema = {
        name: _build_field(name, field, location.at("schema").at(name), is_bound=members["stream"] is not None)
        for name, field in members["schema"].items()
    }
    if not schema:
        location.at("schema").refuse(INVALID_NODE, "an event has at least one field")
    if sum(field.type == "bytes" for field in schema.values()) > MAX_BYTES_FIELDS:
        location.at("schema").refuse(INVALID_NODE, f"an event has at most {MAX_BYTES_FIELDS} fields of type bytes")
    window = _read_dedupe_window(members, schema, location)
    _check_event_time(members, schema, location)
    _check_stream(members, schema, location)
    return Event(
        descriptor.name,
        schema,
        keep_events_for_ms=_read_setting_duration(
            members["keep_events_for"], location.at("keep_events_for"), may_last=True
        ),
        cold_after_ms=_read_cold_after(members["cold_after"], location.at("cold_after")),
        dedupe_key=members["dedupe_key"],
        dedupe_window_ms=window,
        timestamp_field=members["timestamp_field"],
        timestamp_unit=members["timestamp_unit"],
        late_after_ms=_read_setting_duration(members["late_after"], location.at("late_after")),
        stream=members["stream"],
    )


def _build_field(name: str, raw: dict[str, Any], location: DottedLocation, *, is_bound: bool) -> EventField:
    check_name(name, location)
    if name in _TIMES:
        location.refuse(
            "unknown_field_event_time_v0",
            f"{name} is reserved: give the field another name, and name that with timestamp_field",
        )
    kind = raw["type"]
    if kind not in TYPES:
        location.refuse("unknown_field_type", f"there is no type {kind!r}, only {', '.join(TYPES)}")
        return EventField("str")
    default = raw.get("default")
    if default is not None:
        default = coerce_value(default, kind)
        if default is UNFIT:
            location.at("default").refuse("schema_mismatch", f"the default is no {kind}")
    pointer = raw.get("pointer")
    return EventField(kind, raw.get("required", True), default, None if is_bound and pointer == f"/{name}" else pointer)


def _read_setting_duration(raw: str | None, location: DottedLocation, *, may_last: bool = False) -> int | None:
    if raw is None or (may_last and raw == FOREVER):
        return None
    duration_ms = parse_duration_ms(raw)
    if duration_ms is None:
        also = f", or {FOREVER!r}" if may_last else ""
        location.refuse(INVALID_NODE, f"{raw!r} is no duration such as 500ms, 15s, 30m, 24h or 7d{also}")
    return duration_ms


def _read_cold_after(raw: str | None, location: DottedLocation) -> int | None:
    duration_ms = _read_setting_duration(raw, location)
    min_ms, max_ms = COLD_AFTER_MS
    if duration_ms is not None and not min_ms <= duration_ms <= max_ms:
        location.refuse(INVALID_NODE, "cold_after lies between 1s and 365d")
    return duration_ms


def _read_dedupe_window(members: dict[str, Any], schema: dict[str, EventField], location: DottedLocation) -> int | None:
    key, window = members["dedupe_key"], members["dedupe_window"]
    window_ms = _read_setting_duration(window, location.at("dedupe_window"))
    if key is None:
        if window is not None:
            location.at("dedupe_window").refuse(INVALID_NODE, "a dedupe_window needs a dedupe_key")
        return None
    if key not in schema:
        location.at("dedupe_key").refuse("unknown_field_reference", f"{key!r} is no field of this event")
    return DEDUPE_WINDOW_MS if window is None else window_ms


def _check_event_time(members: dict[str, Any], schema: dict[str, EventField], location: DottedLocation) -> None:
    name, unit = members["timestamp_field"], members["timestamp_unit"]
    if unit is not None and unit not in TIMESTAMP_UNITS:
        location.at("timestamp_unit").refuse(INVALID_NODE, f"{unit!r} is no unit, only {', '.join(TIMESTAMP_UNITS)}")
    if name is None:
        for member in ("timestamp_unit", "late_after"):
            if members[member] is not None:
                location.at(member).refuse(INVALID_NODE, f"{member} needs a timestamp_field")
        return
    if members["cold_after"] is not None:
        reason = "an event that comes late would restart what others count: leave out cold_after or timestamp_field"
        location.at("cold_after").refuse("cold_after_needs_append_time", reason)
    here, field = location.at("timestamp_field"), schema.get(name)
    if field is None:
        here.refuse("unknown_field_reference", f"{name!r} is no field of this event")
    elif field.type not in ("datetime", "i64"):
        here.refuse("schema_mismatch", f"event time is a datetime or an i64, and {name!r} is {field.type}")
    elif not field.required or field.default is not None:
        here.refuse(INVALID_NODE, f"every event has its own time: make {name!r} required, without a default")
    elif field.type == "i64" and unit is None:
        reason = f"{name!r} is i64: say in which unit it counts since 1970: {', '.join(TIMESTAMP_UNITS)}"
        location.at("timestamp_unit").refuse(INVALID_NODE, reason)
    elif field.type == "datetime" and unit is not None:
        location.at("timestamp_unit").refuse(INVALID_NODE, f"{name!r} is a datetime, which has no unit: leave it out")


#: Settings of events that are pushed, and why a source that is bound to a stream does not have them.
_PUSHED_ONLY = {
    "dedupe_key": (
        "dedupe_key_needs_push",
        "the stream is written by others, and every event of it counts: leave out dedupe_key",
    ),
    "keep_events_for": (
        "keep_events_for_needs_push",
        "how long events are kept is a setting of the stream: leave out keep_events_for",
    ),
}


def _check_stream(members: dict[str, Any], schema: dict[str, EventField], location: DottedLocation) -> None:
    if members["stream"] is not None:
        if not members["stream"]:
            location.at("stream").refuse(INVALID_NODE, "stream is the name of a stream that is there")
        for member, (code, reason) in _PUSHED_ONLY.items():
            if members[member] is not None:
                location.at(member).refuse(code, reason)
        for name, field in schema.items():
            if field.pointer is not None and not pointers.parse(field.pointer):
                here = location.at("schema").at(name).at("pointer")
                here.refuse(INVALID_NODE, f"{field.pointer!r} is no JSON Pointer to a member, such as /user/id")
        return
    for name, field in schema.items():
        if field.pointer is not None:
            reason = "a pointer leads into the events of another stream: name it with stream, or leave out the pointer"
            location.at("schema").at(name).at("pointer").refuse(INVALID_NODE, reason)


def _is_step(raw: dict[str, Any], location: DottedLocation) -> bool:
    if raw["op"] in STEPS:
        return True
    location.at("op").refuse("unknown_op", f"there is no step {raw['op']!r}, only {', '.join(STEPS)}")
    return False


def _build_op(raw: dict[str, Any], upstream: str, location: DottedLocation) -> RowOp:
    match raw["op"]:
        case "filter":
            return RowOp("filter", expr=canonical_text(raw["expr"], upstream))
        case "select" | "drop" as name:
            return RowOp(name, fields=tuple(sorted(set(raw["fields"]))))
        case "rename":
            for old, new in raw["mapping"].items():
                check_name(new, location.at("mapping").at(old))
            return RowOp("rename", mapping=dict(raw["mapping"]))
        case "with_columns" | "map":
            for name in raw["exprs"]:
                check_name(name, location.at("exprs").at(name))
            exprs = {name: canonical_text(text, upstream) for name, text in raw["exprs"].items()}
            return RowOp("with_columns", exprs=exprs)
        case "cast":
            return RowOp("cast", type_map={name: _TARGETS.get(to, to) for name, to in raw["type_map"].items()})
    return RowOp("fillna", defaults=dict(raw["defaults"]))


def _build_table(
    descriptor: ParsedDescriptor, upstream: str, ops: tuple[RowOp, ...], location: DottedLocation
) -> Table:
    key: list[str] = descriptor.members["key"]
    key_location, agg_location = location._replace(path=descriptor.key), location._replace(path=descriptor.agg)
    if len(key) > MAX_KEYS:
        key_location.refuse("table_key_invalid", f"a key has at most {MAX_KEYS} fields")
    for number, name in enumerate(key):
        if name in key[:number]:
            key_location.at(number).refuse("table_key_invalid", f"{name!r} is in the key already")
    features = {}
    for name, feature in descriptor.members["agg"].items():
        check_name(name, agg_location.at(name))
        if name in key:
            agg_location.at(name).refuse(
                "table_key_invalid", f"{name!r} is a field of the key and the name of a feature"
            )
        features[name] = build_feature(feature, upstream, agg_location.at(name))
    return Table(descriptor.name, upstream, tuple(key), features, ops)
