"""Read the fields of a definition: types, converters, validators and constraints must exist and suit each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, get_args

from headrace.schema.entity.nodes import OPT_OUT, Constraints, Converter, Definition, Field, ReducerConfig, Schema, Type
from headrace.schema.entity.problem import (
    INVALID,
    Location,
    choice_reader,
    list_reader,
    read_boolean,
    read_members,
    read_text,
)
from headrace.schema.entity.values import FUNCTIONS, VALIDATORS, is_iso, is_pattern, kind

MOST_FIELDS = 1_000
LONGEST_NAME = 128
#: Members of an entity in a request that are not fields.
RESERVED = ("entity_type", "_meta")

TYPES: tuple[Type, ...] = get_args(Type)

UNKNOWN_TYPE = "unknown_type"
UNKNOWN_CONVERTER = "unknown_converter"
CONVERTER_MISMATCH = "converter_mismatch"
NOT_DETERMINISTIC = "converter_not_deterministic"
UNKNOWN_VALIDATOR = "unknown_validator"
VALIDATOR_MISMATCH = "validator_mismatch"
CONSTRAINT_INVALID = "constraint_invalid"


def read_fields(raw: Any, location: Location) -> dict[str, Field]:
    """The fields by name; every problem is noted."""
    if not isinstance(raw, dict) or not 1 <= len(raw) <= MOST_FIELDS:
        location.refuse(INVALID, f"fields is an object of 1 to {MOST_FIELDS} fields")
        return {}
    return {
        name: field
        for name, value in raw.items()
        if (field := _read_named_field(name, value, location.at(name))) is not None
    }


def _read_named_field(name: str, raw: Any, location: Location) -> Field | None:
    if not is_name(name):
        location.refuse(INVALID, f"{name!r} cannot be the name of a field")
    return read_field(raw, location)


def is_name(name: Any) -> bool:
    """Whether a field can have this name."""
    return isinstance(name, str) and len(name) <= LONGEST_NAME and bool(name.strip()) and name not in RESERVED


def read_field(raw: Any, location: Location) -> Field | None:
    """A field, or None where problems were noted."""
    before = len(location.problems)
    parsed = read_members(raw, _FIELD, location, required=("type",))
    kind = parsed.get("type")
    if kind is not None and kind in TYPES:
        _check_type(kind, parsed, location)
    if len(location.problems) > before:
        return None
    return Field(preserve_case=parsed.pop("preserveCase", False), **parsed)


def read_type(raw: Any, location: Location) -> Any:
    """One of the six types."""
    if raw not in TYPES:
        location.refuse(UNKNOWN_TYPE, f"{raw!r} is no type; a field is one of {', '.join(TYPES)}")
    return raw


def read_converter(raw: Any, location: Location) -> Converter | None:
    """A known converter with the right types, or None where problems were noted."""
    before = len(location.problems)
    parsed = read_members(raw, _CONVERTER, location, required=("from", "to", "function"))
    if isinstance(raw, dict) and raw.get("deterministic") is not True:
        location.at("deterministic").refuse(NOT_DETERMINISTIC, "deterministic is true: there are no other converters")
    function = FUNCTIONS.get(parsed.get("function", ""))
    if len(location.problems) > before or function is None:
        return None
    if parsed["from"] != function.from_type:
        location.at("from").refuse(CONVERTER_MISMATCH, f"{parsed['function']} converts from {function.from_type}")
    if parsed["to"] != function.to_type:
        location.at("to").refuse(CONVERTER_MISMATCH, f"{parsed['function']} converts to {function.to_type}")
    return Converter(parsed["from"], parsed["to"], parsed["function"])


def _read_function_name(raw: Any, location: Location) -> str:
    if not (isinstance(raw, str) and raw in FUNCTIONS):
        location.refuse(UNKNOWN_CONVERTER, f"{raw!r} is no converter; there are {', '.join(FUNCTIONS)}")
        return ""
    return raw


def read_validator(raw: Any, location: Location) -> str:
    """The name of a known validator."""
    if not (isinstance(raw, str) and raw in VALIDATORS):
        location.refuse(UNKNOWN_VALIDATOR, f"{raw!r} is no validator; there are {', '.join(VALIDATORS)}")
        return ""
    return raw


def _check_type(kind: Type, parsed: dict[str, Any], location: Location) -> None:
    """Note converters, validators and constraints that do not suit the type of the field."""
    for number, converter in enumerate(parsed.get("converters", ())):
        if converter is not None and converter.to_type != kind:
            message = f"the field is a {kind}, so its converters make a {kind}"
            location.at("converters").at(number).at("to").refuse(CONVERTER_MISMATCH, message)
    validator = VALIDATORS.get(parsed.get("validator", ""))
    if validator is not None and kind not in validator.types:
        message = f"{parsed['validator']} judges {' and '.join(validator.types)}, and the field is a {kind}"
        location.at("validator").refuse(VALIDATOR_MISMATCH, message)
    if (constraints := parsed.get("constraints")) is not None:
        _check_constraints(kind, constraints, location.at("constraints"))


def _check_constraints(kind: Type, constraints: Constraints, location: Location) -> None:
    """Note the constraints that are not for fields of this type."""
    for name in ("min", "max"):
        if getattr(constraints, name) is not None and kind != "number":
            location.at(name).refuse(CONSTRAINT_INVALID, f"{name} is for numbers, and the field is a {kind}")
    if constraints.pattern is not None and kind != "string":
        location.at("pattern").refuse(CONSTRAINT_INVALID, f"pattern is for strings, and the field is a {kind}")
    for name in ("enum", "banned"):
        of = {"string": str, "date": str, "number": int | float}.get(kind)
        for number, value in enumerate(getattr(constraints, name)):
            if of is None or not isinstance(value, of):
                location.at(name).at(number).refuse(CONSTRAINT_INVALID, f"{value!r} is never the value of a {kind}")


def _read_constraints(raw: Any, location: Location) -> Constraints | None:
    before = len(location.problems)
    parsed = read_members(raw, _CONSTRAINTS, location)
    low, high = parsed.get("min"), parsed.get("max")
    if low is not None and high is not None and low > high:
        location.at("min").refuse(CONSTRAINT_INVALID, "min is above max")
    return Constraints(**parsed) if len(location.problems) == before else None


def _read_number(raw: Any, location: Location) -> Any:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        location.refuse(CONSTRAINT_INVALID, "this is a number")
        return None
    return raw


def _read_scalar(raw: Any, location: Location) -> Any:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        location.refuse(CONSTRAINT_INVALID, "this is a string or a number")
    return raw


def _read_scalars(raw: Any, location: Location) -> Any:
    if raw == []:
        location.refuse(CONSTRAINT_INVALID, "there is at least one value")
    return list_reader(_read_scalar)(raw, location)


def _read_pattern(raw: Any, location: Location) -> Any:
    if not isinstance(raw, str) or not is_pattern(raw):
        location.refuse(CONSTRAINT_INVALID, "this is a regular expression without look-around and back-references")
    return raw


_CONVERTER = {"from": read_type, "to": read_type, "function": _read_function_name, "deterministic": lambda raw, _: raw}
_CONSTRAINTS = {
    "min": _read_number,
    "max": _read_number,
    "enum": _read_scalars,
    "pattern": _read_pattern,
    "banned": _read_scalars,
}
_FIELD = {
    "type": read_type,
    "required": read_boolean,
    "validator": read_validator,
    "preserveCase": read_boolean,
    "description": read_text,
    "converters": list_reader(read_converter),
    "constraints": _read_constraints,
    "sensitivity_class": choice_reader("public", "internal", "sensitive", "restricted"),
}


#: How many entities are used to infer a schema.
MOST_ROWS = 100


def infer_schema(entity_type: str, rows: Iterable[Mapping[str, Any]]) -> Schema | None:
    """A schema of optional fields, each of the type that most values have; None where there are no values."""
    kinds: dict[str, Counter[Type]] = {}
    for row in islice(rows, MOST_ROWS):
        for name, value in row.items():
            if (value_type := _infer_value_type(value)) is not None and is_name(name):
                kinds.setdefault(name, Counter())[value_type] += 1
    fields = {name: Field(_most_common_type(counts)) for name, counts in islice(kinds.items(), MOST_FIELDS)}
    if not fields:
        return None
    return Schema(
        entity_type=entity_type,
        schema_version="1.0.0",
        schema_definition=Definition(fields=fields, identity_opt_out=OPT_OUT),
        reducer_config=ReducerConfig({}),
    )


def _infer_value_type(value: Any) -> Type | None:
    return "date" if isinstance(value, str) and is_iso(value) else kind(value)


def _most_common_type(counts: Counter[Type]) -> Type:
    """The type of most values; dates count as texts where there are other texts."""
    if counts["string"]:
        counts["string"] += counts.pop("date", 0)
    return max(TYPES, key=lambda name: counts[name])
