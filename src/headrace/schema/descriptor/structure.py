"""The shape of a payload, judged strictly: every unknown key and every value of the wrong kind, with its path.

Descriptors come in two dialects, of the documentation and of its server. What passes is brought into one: a table is
``{name, upstream, key, agg, ops}``, a derivation ``{name, upstream, ops}``, and the schema of an event
``{field: {type, required, default}}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.schema.descriptor.problem import DescriptorLocation

MOST_FIELDS = 500
MOST_FEATURES = 500
MOST_OPS = 100

INVALID = "schema_invalid"

_DURATIONS = ("keep_events_for", "cold_after", "dedupe_window")
_EVENT = ("kind", "name", "schema", *_DURATIONS, *(f"{name}_ms" for name in _DURATIONS), "dedupe_key")
_TABLE = ("kind", "name", "upstreams", "upstream", "ops", "key", "table_primary_key", "agg")
_DERIVATION = (*_TABLE, "output_kind", "schema")


class ParsedDescriptor(NamedTuple):
    """A descriptor of the right shape, and the paths of its parts where the dialects differ."""

    kind: str
    name: str
    members: dict[str, Any]
    agg: str = ""
    key: str = ""


def parse_descriptor(given: Any, place: DescriptorLocation) -> ParsedDescriptor | None:
    """A descriptor in the one shape, or None where problems were noted."""
    before = len(place.problems)
    if not isinstance(given, dict):
        place.refuse(INVALID, "a descriptor is an object")
        return None
    kind = given.get("kind")
    if not isinstance(kind, str):
        place.at("kind").refuse(INVALID, "a descriptor has a kind: event, derivation or table")
        return None
    if not isinstance(given.get("name"), str):
        place.at("name").refuse(INVALID, "a descriptor has a name")
    found = {"event": _event, "derivation": _derivation, "table": _table}[kind](given, place)
    return found if len(place.problems) == before else None


def check_keys(given: dict[str, Any], keys: tuple[str, ...], place: DescriptorLocation) -> None:
    """Note the keys that have no meaning."""
    for key in given:
        if key not in keys:
            place.at(key).refuse(INVALID, f"there is no {key!r} here, only {', '.join(keys)}")


def _event(given: dict[str, Any], place: DescriptorLocation) -> ParsedDescriptor:
    check_keys(given, _EVENT, place)
    members: dict[str, Any] = {"schema": _schema(given.get("schema"), place.at("schema"))}
    for name in _DURATIONS:
        members[name] = _duration(given, name, place)
    key = given.get("dedupe_key")
    if key is not None and not isinstance(key, str):
        place.at("dedupe_key").refuse(INVALID, "dedupe_key is the name of a field")
    return ParsedDescriptor("event", given.get("name", ""), {**members, "dedupe_key": key})


def _duration(given: dict[str, Any], name: str, place: DescriptorLocation) -> str | None:
    """The text of a duration, which may be given in milliseconds."""
    key = f"{name}_ms"
    value, exact = given.get(name), given.get(key)
    if value is not None and exact is not None:
        place.at(key).refuse(INVALID, f"{name} is there already")
    if value is not None and not isinstance(value, str):
        place.at(name).refuse(INVALID, f'{name} is a duration such as "30d"')
    if exact is not None and not is_integer(exact):
        place.at(key).refuse(INVALID, f"{key} is a number of milliseconds")
    return f"{exact}ms" if exact is not None else value


def is_integer(value: Any) -> bool:
    """Whether a JSON value is a whole number, of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _schema(given: Any, place: DescriptorLocation) -> dict[str, dict[str, Any]]:
    if not isinstance(given, dict):
        place.refuse(INVALID, "an event has a schema: an object of fields")
        return {}
    optional: list[Any] = []
    if _is_listed(given):
        optional, given = given.get("optional_fields", []), given["fields"]
        place = place.at("fields")
    if len(given) > MOST_FIELDS:
        place.refuse(INVALID, f"an event has at most {MOST_FIELDS} fields")
    found = {name: _field(field, place.at(name)) for name, field in given.items()}
    for name in optional:
        if not isinstance(name, str) or name not in found:
            place.refuse(INVALID, f"optional_fields names {name!r}, which is no field")
        else:
            found[name]["required"] = False
    return found


def _is_listed(given: dict[str, Any]) -> bool:
    """Whether fields are listed as ``{fields: {…}, optional_fields: […]}``."""
    fields = given.get("fields")
    if not isinstance(fields, dict) or not given.keys() <= {"fields", "optional_fields"}:
        return False
    return isinstance(given.get("optional_fields"), list) or ("optional_fields" not in given and "type" not in fields)


def _field(given: Any, place: DescriptorLocation) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": given}
    if not isinstance(given, dict):
        place.refuse(INVALID, "a field is the name of a type, or {type, required, default}")
        return {}
    check_keys(given, ("type", "required", "default"), place)
    if not isinstance(given.get("type"), str):
        place.at("type").refuse(INVALID, "a field has a type")
    if not isinstance(given.get("required", True), bool):
        place.at("required").refuse(INVALID, "required is true or false")
    return dict(given)


def _derivation(given: dict[str, Any], place: DescriptorLocation) -> ParsedDescriptor:
    check_keys(given, _DERIVATION, place)
    output = given.get("output_kind", "event")
    if output not in ("event", "table"):
        place.at("output_kind").refuse(INVALID, "output_kind is event or table")
    if not isinstance(given.get("schema", {}), dict):
        place.at("schema").refuse(INVALID, "schema is an object; it may be left out, as it follows from the ops")
    if output == "table":
        return _aggregation(given, place)
    for key in ("key", "table_primary_key", "agg"):
        if given.get(key) is not None:
            place.at(key).refuse(INVALID, f"{key} belongs to a table")
    ops = _ops(given.get("ops"), place.at("ops"))
    return ParsedDescriptor("derivation", given.get("name", ""), {"upstream": _upstream(given, place), "ops": ops})


def _table(given: dict[str, Any], place: DescriptorLocation) -> ParsedDescriptor:
    check_keys(given, _TABLE, place)
    return _aggregation(given, place)


def _aggregation(given: dict[str, Any], place: DescriptorLocation) -> ParsedDescriptor:
    """A table, whose features may stand in a last step ``group_by``."""
    raw = given.get("ops")
    last = raw[-1] if isinstance(raw, list) and raw else None
    grouped = isinstance(last, dict) and last.get("op") == "group_by"
    key_at = place.at("table_primary_key" if "table_primary_key" in given else "key")
    key, agg, agg_at = given.get("key", given.get("table_primary_key")), given.get("agg"), place.at("agg")
    if "key" in given and "table_primary_key" in given:
        place.at("table_primary_key").refuse(INVALID, "key is there already")
    if grouped and isinstance(raw, list) and isinstance(last, dict):
        here = place.at("ops").at(len(raw) - 1)
        check_keys(last, ("op", "keys", "agg"), here)
        if agg is not None:
            here.at("agg").refuse(INVALID, "agg is there already")
        keys = last.get("keys", key)
        if key is not None and _listed(keys) != _listed(key):
            here.at("keys").refuse(INVALID, "the keys of group_by are not those of the table")
        key, agg, agg_at, raw = keys, last.get("agg"), here.at("agg"), raw[:-1]
    members = {
        "upstream": _upstream(given, place),
        "key": _key(key, key_at),
        "agg": _agg(agg, agg_at),
        "ops": _ops(raw, place.at("ops")),
    }
    return ParsedDescriptor("table", given.get("name", ""), members, agg_at.path, key_at.path)


def _listed(key: Any) -> Any:
    return [key] if isinstance(key, str) else key


def _key(given: Any, place: DescriptorLocation) -> list[str]:
    key = _listed(given)
    if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
        place.refuse(INVALID, "a table has a key: a list of fields, empty for one row in all")
        return []
    return key


def _agg(given: Any, place: DescriptorLocation) -> dict[str, dict[str, Any]]:
    if not isinstance(given, dict) or not given:
        place.refuse(INVALID, "a table has an agg: an object with at least one feature")
        return {}
    if len(given) > MOST_FEATURES:
        place.refuse(INVALID, f"a table has at most {MOST_FEATURES} features")
    return {name: _feature(feature, place.at(name)) for name, feature in given.items()}


def _feature(given: Any, place: DescriptorLocation) -> dict[str, Any]:
    if not isinstance(given, dict):
        place.refuse(INVALID, "a feature is {op, params}")
        return {}
    check_keys(given, ("op", "params"), place)
    if not isinstance(given.get("op"), str):
        place.at("op").refuse(INVALID, "a feature has an op")
    if not isinstance(given.get("params", {}), dict):
        place.at("params").refuse(INVALID, "params is an object")
    return given


def _upstream(given: dict[str, Any], place: DescriptorLocation) -> str:
    one, several = given.get("upstream"), given.get("upstreams")
    if one is not None and several is not None:
        place.at("upstream").refuse(INVALID, "upstreams is there already")
    if several is None and isinstance(one, str):
        return one
    if isinstance(several, list) and len(several) == 1 and isinstance(several[0], str):
        return str(several[0])
    place.at("upstream" if several is None else "upstreams").refuse(INVALID, "there is one upstream, by its name")
    return ""


def _ops(given: Any, place: DescriptorLocation) -> list[dict[str, Any]]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > MOST_OPS:
        place.refuse(INVALID, f"ops is a list of at most {MOST_OPS} steps")
        return []
    return [_op(op, place.at(number)) for number, op in enumerate(given)]


def _op(given: Any, place: DescriptorLocation) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("op"), str):
        place.refuse(INVALID, "a step is an object with an op")
        return {}
    if given["op"] == "group_by":
        place.refuse(INVALID, "group_by is the last step, of a table, and no step follows it")
    elif given["op"] in _STEPS:
        member, fits, what = _STEPS[given["op"]]
        check_keys(given, ("op", member), place)
        if not fits(given.get(member)):
            place.at(member).refuse(INVALID, f"{given['op']} has {member}: {what}")
    return given


def _names(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(name, str) for name in given)


def _texts(given: Any) -> bool:
    return isinstance(given, dict) and bool(given) and all(isinstance(text, str) for text in given.values())


def _scalars(given: Any) -> bool:
    return isinstance(given, dict) and bool(given) and all(map(is_scalar, given.values()))


def is_scalar(value: Any) -> bool:
    """Whether a JSON value is a text, a boolean or a number, one of 64 bits if it is whole."""
    return isinstance(value, str | bool | float) or is_integer(value)


_EXPRS = ("exprs", _texts, "an object of expressions")
_STEPS: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    "filter": ("expr", lambda given: isinstance(given, str), "an expression"),
    "select": ("fields", _names, "a list of fields"),
    "drop": ("fields", _names, "a list of fields"),
    "rename": ("mapping", _texts, "an object from old names to new"),
    "with_columns": _EXPRS,
    "map": _EXPRS,
    "cast": ("type_map", _texts, "an object from fields to str, int, float or bool"),
    "fillna": ("defaults", _scalars, "an object of values, none of them null"),
}
