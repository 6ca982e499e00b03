"""Parse the structure of descriptors strictly: unknown keys and values of a wrong type are noted with their paths.

Descriptors come in two forms, of the documentation and of its server. Both are parsed into one: a table is
``{name, upstream, key, agg, ops}``, a derivation ``{name, upstream, ops}``, and the schema of an event
``{field: {type, required, default}}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.schema.problem import DottedLocation

MAX_FIELDS = 500
MAX_FEATURES = 500
MAX_OPS = 100

INVALID = "schema_invalid"

_DURATIONS = ("keep_events_for", "cold_after", "dedupe_window", "late_after")
_TEXTS = {
    "dedupe_key": "dedupe_key is the name of a field",
    "timestamp_field": "timestamp_field is the name of a field",
    "timestamp_unit": "timestamp_unit is s, ms, us or ns",
    "stream": "stream is the name of a stream",
}
_EVENT = ("kind", "name", "schema", *_DURATIONS, *(f"{name}_ms" for name in _DURATIONS), *_TEXTS)
_TABLE = ("kind", "name", "upstreams", "upstream", "ops", "key", "table_primary_key", "agg")
_DERIVATION = (*_TABLE, "output_kind", "schema")


class ParsedDescriptor(NamedTuple):
    """A well-formed descriptor, and the paths of its parts where the two forms differ."""

    kind: str
    name: str
    members: dict[str, Any]
    agg: str = ""
    key: str = ""


def parse_descriptor(raw: Any, location: DottedLocation) -> ParsedDescriptor | None:
    """Return a descriptor in the common form, or None if problems were recorded."""
    before = len(location.problems)
    if not isinstance(raw, dict):
        location.refuse(INVALID, "a descriptor is an object")
        return None
    kind = raw.get("kind")
    if not isinstance(kind, str):
        location.at("kind").refuse(INVALID, "a descriptor has a kind: event, derivation or table")
        return None
    if not isinstance(raw.get("name"), str):
        location.at("name").refuse(INVALID, "a descriptor has a name")
    parsed = {"event": _parse_event, "derivation": _parse_derivation, "table": _parse_table}[kind](raw, location)
    return parsed if len(location.problems) == before else None


def check_keys(raw: dict[str, Any], keys: tuple[str, ...], location: DottedLocation) -> None:
    """Record a problem for every unknown key."""
    for key in raw:
        if key not in keys:
            location.at(key).refuse(INVALID, f"there is no {key!r} here, only {', '.join(keys)}")


def _parse_event(raw: dict[str, Any], location: DottedLocation) -> ParsedDescriptor:
    check_keys(raw, _EVENT, location)
    members: dict[str, Any] = {"schema": _parse_schema(raw.get("schema"), location.at("schema"))}
    for name in _DURATIONS:
        members[name] = _parse_duration(raw, name, location)
    for name, meaning in _TEXTS.items():
        members[name] = raw.get(name)
        if not isinstance(members[name], str | None):
            location.at(name).refuse(INVALID, meaning)
    return ParsedDescriptor("event", raw.get("name", ""), members)


def _parse_duration(raw: dict[str, Any], name: str, location: DottedLocation) -> str | None:
    """The text of a duration, which may be given in milliseconds."""
    key = f"{name}_ms"
    value, exact = raw.get(name), raw.get(key)
    if value is not None and exact is not None:
        location.at(key).refuse(INVALID, f"{name} is there already")
    if value is not None and not isinstance(value, str):
        location.at(name).refuse(INVALID, f'{name} is a duration such as "30d"')
    if exact is not None and not is_integer(exact):
        location.at(key).refuse(INVALID, f"{key} is a number of milliseconds")
    return f"{exact}ms" if exact is not None else value


def is_integer(value: Any) -> bool:
    """Whether a JSON value is a whole number, of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _parse_schema(raw: Any, location: DottedLocation) -> dict[str, dict[str, Any]]:
    if not isinstance(raw, dict):
        location.refuse(INVALID, "an event has a schema: an object of fields")
        return {}
    optional: list[Any] = []
    if _has_field_list(raw):
        optional, raw = raw.get("optional_fields", []), raw["fields"]
        location = location.at("fields")
    if len(raw) > MAX_FIELDS:
        location.refuse(INVALID, f"an event has at most {MAX_FIELDS} fields")
    fields = {name: _parse_field(field, location.at(name)) for name, field in raw.items()}
    for name in optional:
        if not isinstance(name, str) or name not in fields:
            location.refuse(INVALID, f"optional_fields names {name!r}, which is no field")
        else:
            fields[name]["required"] = False
    return fields


def _has_field_list(raw: dict[str, Any]) -> bool:
    """Whether fields are listed as ``{fields: {…}, optional_fields: […]}``."""
    fields = raw.get("fields")
    if not isinstance(fields, dict) or not raw.keys() <= {"fields", "optional_fields"}:
        return False
    return isinstance(raw.get("optional_fields"), list) or ("optional_fields" not in raw and "type" not in fields)


def _parse_field(raw: Any, location: DottedLocation) -> dict[str, Any]:
    if isinstance(raw, str):
        return {"type": raw}
    if not isinstance(raw, dict):
        location.refuse(INVALID, "a field is the name of a type, or {type, required, default, pointer}")
        return {}
    check_keys(raw, ("type", "required", "default", "pointer"), location)
    if not isinstance(raw.get("type"), str):
        location.at("type").refuse(INVALID, "a field has a type")
    if not isinstance(raw.get("required", True), bool):
        location.at("required").refuse(INVALID, "required is true or false")
    if not isinstance(raw.get("pointer"), str | None):
        location.at("pointer").refuse(INVALID, "pointer is a JSON Pointer")
    return dict(raw)


def _parse_derivation(raw: dict[str, Any], location: DottedLocation) -> ParsedDescriptor:
    check_keys(raw, _DERIVATION, location)
    output = raw.get("output_kind", "event")
    if output not in ("event", "table"):
        location.at("output_kind").refuse(INVALID, "output_kind is event or table")
    if not isinstance(raw.get("schema", {}), dict):
        location.at("schema").refuse(INVALID, "schema is an object; it may be left out, as it follows from the ops")
    if output == "table":
        return _parse_aggregation(raw, location)
    for key in ("key", "table_primary_key", "agg"):
        if raw.get(key) is not None:
            location.at(key).refuse(INVALID, f"{key} belongs to a table")
    ops = _parse_ops(raw.get("ops"), location.at("ops"))
    return ParsedDescriptor("derivation", raw.get("name", ""), {"upstream": _parse_upstream(raw, location), "ops": ops})


def _parse_table(raw: dict[str, Any], location: DottedLocation) -> ParsedDescriptor:
    check_keys(raw, _TABLE, location)
    return _parse_aggregation(raw, location)


def _parse_aggregation(raw: dict[str, Any], location: DottedLocation) -> ParsedDescriptor:
    """A table, whose features may be in a last step ``group_by``."""
    raw_ops = raw.get("ops")
    last = raw_ops[-1] if isinstance(raw_ops, list) and raw_ops else None
    grouped = isinstance(last, dict) and last.get("op") == "group_by"
    key_location = location.at("table_primary_key" if "table_primary_key" in raw else "key")
    key, agg, agg_location = raw.get("key", raw.get("table_primary_key")), raw.get("agg"), location.at("agg")
    if "key" in raw and "table_primary_key" in raw:
        location.at("table_primary_key").refuse(INVALID, "key is there already")
    if grouped and isinstance(raw_ops, list) and isinstance(last, dict):
        here = location.at("ops").at(len(raw_ops) - 1)
        check_keys(last, ("op", "keys", "agg"), here)
        if agg is not None:
            here.at("agg").refuse(INVALID, "agg is there already")
        keys = last.get("keys", key)
        if key is not None and _as_list(keys) != _as_list(key):
            here.at("keys").refuse(INVALID, "the keys of group_by are not those of the table")
        key, agg, agg_location, raw_ops = keys, last.get("agg"), here.at("agg"), raw_ops[:-1]
    members = {
        "upstream": _parse_upstream(raw, location),
        "key": _parse_key(key, key_location),
        "agg": _parse_agg(agg, agg_location),
        "ops": _parse_ops(raw_ops, location.at("ops")),
    }
    return ParsedDescriptor("table", raw.get("name", ""), members, agg_location.path, key_location.path)


def _as_list(key: Any) -> Any:
    return [key] if isinstance(key, str) else key


def _parse_key(raw: Any, location: DottedLocation) -> list[str]:
    key = _as_list(raw)
    if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
        location.refuse(INVALID, "a table has a key: a list of fields, empty for one row in all")
        return []
    return key


def _parse_agg(raw: Any, location: DottedLocation) -> dict[str, dict[str, Any]]:
    if not isinstance(raw, dict) or not raw:
        location.refuse(INVALID, "a table has an agg: an object with at least one feature")
        return {}
    if len(raw) > MAX_FEATURES:
        location.refuse(INVALID, f"a table has at most {MAX_FEATURES} features")
    return {name: _parse_feature(feature, location.at(name)) for name, feature in raw.items()}


def _parse_feature(raw: Any, location: DottedLocation) -> dict[str, Any]:
    if not isinstance(raw, dict):
        location.refuse(INVALID, "a feature is {op, params}")
        return {}
    check_keys(raw, ("op", "params"), location)
    if not isinstance(raw.get("op"), str):
        location.at("op").refuse(INVALID, "a feature has an op")
    if not isinstance(raw.get("params", {}), dict):
        location.at("params").refuse(INVALID, "params is an object")
    return raw


def _parse_upstream(raw: dict[str, Any], location: DottedLocation) -> str:
    upstream, upstreams = raw.get("upstream"), raw.get("upstreams")
    if upstream is not None and upstreams is not None:
        location.at("upstream").refuse(INVALID, "upstreams is there already")
    if upstreams is None and isinstance(upstream, str):
        return upstream
    if isinstance(upstreams, list) and len(upstreams) == 1 and isinstance(upstreams[0], str):
        return str(upstreams[0])
    location.at("upstream" if upstreams is None else "upstreams").refuse(INVALID, "there is one upstream, by its name")
    return ""


def _parse_ops(raw: Any, location: DottedLocation) -> list[dict[str, Any]]:
    if raw is None:
        return []
    if not isinstance(raw, list) or len(raw) > MAX_OPS:
        location.refuse(INVALID, f"ops is a list of at most {MAX_OPS} steps")
        return []
    return [_parse_op(op, location.at(number)) for number, op in enumerate(raw)]


def _parse_op(raw: Any, location: DottedLocation) -> dict[str, Any]:
    if not isinstance(raw, dict) or not isinstance(raw.get("op"), str):
        location.refuse(INVALID, "a step is an object with an op")
        return {}
    if raw["op"] == "group_by":
        location.refuse(INVALID, "group_by is the last step, of a table, and no step follows it")
    elif raw["op"] in _STEPS:
        member, fits, what = _STEPS[raw["op"]]
        check_keys(raw, ("op", member), location)
        if not fits(raw.get(member)):
            location.at(member).refuse(INVALID, f"{raw['op']} has {member}: {what}")
    return raw


def _are_names(raw: Any) -> bool:
    return isinstance(raw, list) and bool(raw) and all(isinstance(name, str) for name in raw)


def _are_texts(raw: Any) -> bool:
    return isinstance(raw, dict) and bool(raw) and all(isinstance(text, str) for text in raw.values())


def _are_scalars(raw: Any) -> bool:
    return isinstance(raw, dict) and bool(raw) and all(map(is_scalar, raw.values()))


def is_scalar(value: Any) -> bool:
    """Whether a JSON value is a text, a boolean or a number, one of 64 bits if it is whole."""
    return isinstance(value, str | bool | float) or is_integer(value)


_EXPRS = ("exprs", _are_texts, "an object of expressions")
_STEPS: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    "filter": ("expr", lambda raw: isinstance(raw, str), "an expression"),
    "select": ("fields", _are_names, "a list of fields"),
    "drop": ("fields", _are_names, "a list of fields"),
    "rename": ("mapping", _are_texts, "an object from old names to new"),
    "with_columns": _EXPRS,
    "map": _EXPRS,
    "cast": ("type_map", _are_texts, "an object from fields to str, int, float or bool"),
    "fillna": ("defaults", _are_scalars, "an object of values, none of them null"),
}
