"""Descriptors of the right shape made into nodes: names, types, keys, settings, steps; each problem with its path."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any, get_args

from headrace.schema.descriptor.nodes import Derivation, Event, EventField, Feature, Node, RowOp, Table, Type
from headrace.schema.descriptor.operators import ALIASES, OPERATORS, REQUIRED, Operator, Parameter
from headrace.schema.descriptor.problem import DescriptorLocation
from headrace.schema.descriptor.structure import ParsedDescriptor, is_integer, is_scalar
from headrace.schema.descriptor.values import FOREVER, UNFIT, coerce_value, parse_duration_ms
from headrace.schema.expression import ExpressionError, parse, render

INVALID = "aggregation_invalid_param"
MOST_EDGES = 1024

_ABSENT: Any = object()


def canonical_text(text: str, source: str) -> str:
    """The one spelling of an expression; one that cannot be read stays as it is, to be refused when it is checked."""
    try:
        return render(parse(text, source))
    except ExpressionError:
        return text


def build_feature(given: dict[str, Any], source: str, place: DescriptorLocation) -> Feature:
    """The feature; one with problems may be anything."""
    name = ALIASES.get(given["op"], given["op"])
    operator = OPERATORS.get(name)
    if operator is None:
        place.at("op").refuse("unknown_op", f"there is no operator {given['op']!r}")
        return Feature(name)
    raw = _named(given.get("params", {}), operator, place.at("params"))
    params = {}
    for key, parameter in operator.params.items():
        value = _value(raw.pop(key, _ABSENT), key, parameter, source, place.at("params"))
        if value is not None:
            params[key] = value
    for key in raw:
        _refuse_unknown(key, raw[key], operator, place.at("params").at(key))
    _check_sub_window(params, place.at("params"))
    return Feature(name, params)


def _named(given: dict[str, Any], operator: Operator, place: DescriptorLocation) -> dict[str, Any]:
    """The parameters under their own names, durations as text; null is as good as nothing."""
    others = {alias: key for key, parameter in operator.params.items() for alias in parameter.aliases}
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        plain = key.removesuffix("_ms")
        name = others.get(plain if plain in others else key, plain if plain in (*operator.params, "window") else key)
        if name in found:
            place.at(key).refuse(INVALID, f"{name} is there already")
        found[name] = f"{value}ms" if plain != key and is_integer(value) else value
    return found


def _refuse_unknown(key: str, value: Any, operator: Operator, place: DescriptorLocation) -> None:
    if key != "window":
        place.refuse(INVALID, f"{operator.name} has no {key!r}, only {', '.join(operator.params)}")
    elif value != FOREVER:
        place.refuse("window_not_supported", f"{operator.name} has no window; it looks at the whole life of a key")


def _value(given: Any, key: str, parameter: Parameter, source: str, place: DescriptorLocation) -> Any:
    """The value of a parameter; None where there is none."""
    here = place.at(key)
    if given is _ABSENT or (key == "window" and given == FOREVER):
        if parameter.default is REQUIRED:
            finite = " of finite length" if key == "window" else ""
            here.refuse(parameter.code, f"{key} must be given{finite}")
            return None
        return parameter.default
    match parameter.kind:
        case "field":
            return _text(given, "the name of a field", here)
        case "where":
            text = _text(given, "an expression", here)
            return None if text is None else canonical_text(text, source)
        case "duration":
            return _duration(given, parameter, here)
        case "integer" | "number":
            return _number(given, parameter, here)
        case "edges":
            return _edges(given, here)
    return _categories(given, here)


def _text(given: Any, what: str, place: DescriptorLocation) -> str | None:
    if isinstance(given, str):
        return given
    place.refuse(INVALID, f"must be {what}")
    return None


def _duration(given: Any, parameter: Parameter, place: DescriptorLocation) -> int | None:
    found = parse_duration_ms(given)
    if found is None:
        place.refuse(parameter.code, "must be a duration such as 500ms, 15s, 30m, 24h or 7d")
    return found


def _number(given: Any, parameter: Parameter, place: DescriptorLocation) -> int | float | None:
    whole = parameter.kind == "integer"
    fits = is_integer(given) or (isinstance(given, float) and math.isfinite(given))
    if not fits or (whole and given != int(given)) or not parameter.admits(given):
        place.refuse(parameter.code, f"must be {'a whole number' if whole else 'a number'} {parameter.bounds()}")
        return None
    return int(given) if whole else float(given)


def _edges(given: Any, place: DescriptorLocation) -> list[float] | None:
    numbers = given if isinstance(given, list) else []
    fits = all(is_integer(edge) or isinstance(edge, float) for edge in numbers)
    rising = fits and all(low < high for low, high in pairwise(numbers))
    if not rising or not 1 <= len(numbers) <= MOST_EDGES:
        place.refuse(INVALID, f"buckets are 1 to {MOST_EDGES} numbers, each greater than the one before")
        return None
    return [float(edge) for edge in numbers]


def _categories(given: Any, place: DescriptorLocation) -> list[Any] | None:
    values = given if isinstance(given, list) else []
    fits = all(map(is_scalar, values))
    if not values or not fits or len({(type(value), value) for value in values}) < len(values):
        place.refuse(INVALID, "categories are one or more texts, numbers or booleans, no two alike")
        return None
    return list(values)


def _check_sub_window(params: dict[str, Any], place: DescriptorLocation) -> None:
    window, part = params.get("window"), params.get("sub_window")
    if window is not None and part is not None and part > window:
        place.at("sub_window").refuse("aggregation_invalid_sub_window", "the sub_window is longer than the window")


MOST_KEYS = 16
#: Every field of type bytes needs a pattern, and a schema has a hundred.
MOST_BYTES = 100
COLD_AFTER_MS = (1_000, 31_536_000_000)
DEDUPE_WINDOW_MS = 86_400_000

TYPES: tuple[Type, ...] = get_args(Type)
STEPS = ("filter", "select", "drop", "rename", "with_columns", "map", "cast", "fillna")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = ("_beava_", "_headrace_")
_TIMES = ("event_time", "event_time_ms")
_TARGETS = {"i64": "int", "f64": "float"}

INVALID_NODE = "validation_failed"


def build_node(given: ParsedDescriptor, place: DescriptorLocation) -> Node:
    """The node of a descriptor; one with problems may be anything."""
    check_name(given.name, place.at("name"))
    if given.name.startswith(_RESERVED):
        place.at("name").refuse(INVALID_NODE, f"names that begin with {given.name.split('_')[1]!r} are reserved")
    if given.kind == "event":
        return _event(given, place)
    upstream: str = given.members["upstream"]
    ops = tuple(
        _op(op, upstream, place.at("ops").at(number))
        for number, op in enumerate(given.members["ops"])
        if _is_step(op, place.at("ops").at(number))
    )
    if given.kind == "derivation":
        return Derivation(given.name, upstream, ops)
    return _table(given, upstream, ops, place)


def check_name(name: str, place: DescriptorLocation) -> None:
    """Note a name that is none."""
    if _NAME.fullmatch(name) is None:
        reason = f"{name[:140]!r} is no name: a letter or _, then letters, digits and _, at most 128 in all"
        place.refuse(INVALID_NODE, reason)


def is_name(text: str) -> bool:
    """Whether a text can be the name of a field."""
    return _NAME.fullmatch(text) is not None


def _event(given: ParsedDescriptor, place: DescriptorLocation) -> Event:
    members = given.members
    schema = {name: _field(name, field, place.at("schema").at(name)) for name, field in members["schema"].items()}
    if not schema:
        place.at("schema").refuse(INVALID_NODE, "an event has at least one field")
    if sum(field.type == "bytes" for field in schema.values()) > MOST_BYTES:
        place.at("schema").refuse(INVALID_NODE, f"an event has at most {MOST_BYTES} fields of type bytes")
    window = _dedupe_window(members, schema, place)
    return Event(
        given.name,
        schema,
        keep_events_for_ms=_check_duration(members["keep_events_for"], place.at("keep_events_for"), may_last=True),
        cold_after_ms=_cold_after(members["cold_after"], place.at("cold_after")),
        dedupe_key=members["dedupe_key"],
        dedupe_window_ms=window,
    )


def _field(name: str, given: dict[str, Any], place: DescriptorLocation) -> EventField:
    check_name(name, place)
    if name in _TIMES:
        place.refuse("unknown_field_event_time_v0", "time is the time of the append; there is no other")
    kind = given["type"]
    if kind not in TYPES:
        place.refuse("unknown_field_type", f"there is no type {kind!r}, only {', '.join(TYPES)}")
        return EventField("str")
    default = given.get("default")
    if default is not None:
        default = coerce_value(default, kind)
        if default is UNFIT:
            place.at("default").refuse("schema_mismatch", f"the default is no {kind}")
    return EventField(kind, given.get("required", True), default)


def _check_duration(given: str | None, place: DescriptorLocation, *, may_last: bool = False) -> int | None:
    if given is None or (may_last and given == FOREVER):
        return None
    found = parse_duration_ms(given)
    if found is None:
        also = f", or {FOREVER!r}" if may_last else ""
        place.refuse(INVALID_NODE, f"{given!r} is no duration such as 500ms, 15s, 30m, 24h or 7d{also}")
    return found


def _cold_after(given: str | None, place: DescriptorLocation) -> int | None:
    found = _check_duration(given, place)
    least, most = COLD_AFTER_MS
    if found is not None and not least <= found <= most:
        place.refuse(INVALID_NODE, "cold_after lies between 1s and 365d")
    return found


def _dedupe_window(members: dict[str, Any], schema: dict[str, EventField], place: DescriptorLocation) -> int | None:
    key, window = members["dedupe_key"], members["dedupe_window"]
    found = _check_duration(window, place.at("dedupe_window"))
    if key is None:
        if window is not None:
            place.at("dedupe_window").refuse(INVALID_NODE, "a dedupe_window needs a dedupe_key")
        return None
    if key not in schema:
        place.at("dedupe_key").refuse("unknown_field_reference", f"{key!r} is no field of this event")
    return DEDUPE_WINDOW_MS if window is None else found


def _is_step(given: dict[str, Any], place: DescriptorLocation) -> bool:
    if given["op"] in STEPS:
        return True
    place.at("op").refuse("unknown_op", f"there is no step {given['op']!r}, only {', '.join(STEPS)}")
    return False


def _op(given: dict[str, Any], upstream: str, place: DescriptorLocation) -> RowOp:
    match given["op"]:
        case "filter":
            return RowOp("filter", expr=canonical_text(given["expr"], upstream))
        case "select" | "drop" as name:
            return RowOp(name, fields=tuple(sorted(set(given["fields"]))))
        case "rename":
            for old, new in given["mapping"].items():
                check_name(new, place.at("mapping").at(old))
            return RowOp("rename", mapping=dict(given["mapping"]))
        case "with_columns" | "map":
            for name in given["exprs"]:
                check_name(name, place.at("exprs").at(name))
            exprs = {name: canonical_text(text, upstream) for name, text in given["exprs"].items()}
            return RowOp("with_columns", exprs=exprs)
        case "cast":
            return RowOp("cast", type_map={name: _TARGETS.get(to, to) for name, to in given["type_map"].items()})
    return RowOp("fillna", defaults=dict(given["defaults"]))


def _table(given: ParsedDescriptor, upstream: str, ops: tuple[RowOp, ...], place: DescriptorLocation) -> Table:
    key: list[str] = given.members["key"]
    key_at, agg_at = place._replace(path=given.key), place._replace(path=given.agg)
    if len(key) > MOST_KEYS:
        key_at.refuse("table_key_invalid", f"a key has at most {MOST_KEYS} fields")
    for number, name in enumerate(key):
        if name in key[:number]:
            key_at.at(number).refuse("table_key_invalid", f"{name!r} is in the key already")
    features = {}
    for name, feature in given.members["agg"].items():
        check_name(name, agg_at.at(name))
        if name in key:
            agg_at.at(name).refuse("table_key_invalid", f"{name!r} is a field of the key and the name of a feature")
        features[name] = build_feature(feature, upstream, agg_at.at(name))
    return Table(given.name, upstream, tuple(key), features, ops)
