"""The fields of a definition, read: types, converters, validators and constraints that there are and that suit."""

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
#: What an item of a request holds beside fields.
RESERVED = ("entity_type", "_meta")

TYPES: tuple[Type, ...] = get_args(Type)

UNKNOWN_TYPE = "unknown_type"
UNKNOWN_CONVERTER = "unknown_converter"
CONVERTER_MISMATCH = "converter_mismatch"
NOT_DETERMINISTIC = "converter_not_deterministic"
UNKNOWN_VALIDATOR = "unknown_validator"
VALIDATOR_MISMATCH = "validator_mismatch"
CONSTRAINT_INVALID = "constraint_invalid"


def read_fields(given: Any, place: Location) -> dict[str, Field]:
    """The fields by name; every problem is noted."""
    if not isinstance(given, dict) or not 1 <= len(given) <= MOST_FIELDS:
        place.refuse(INVALID, f"fields is an object of 1 to {MOST_FIELDS} fields")
        return {}
    return {name: field for name, value in given.items() if (field := _named(name, value, place.at(name))) is not None}


def _named(name: str, given: Any, place: Location) -> Field | None:
    if not is_name(name):
        place.refuse(INVALID, f"{name!r} cannot be the name of a field")
    return read_field(given, place)


def is_name(name: Any) -> bool:
    """Whether a field can have this name."""
    return isinstance(name, str) and len(name) <= LONGEST_NAME and bool(name.strip()) and name not in RESERVED


def read_field(given: Any, place: Location) -> Field | None:
    """A field, or None where problems were noted."""
    before = len(place.problems)
    found = read_members(given, _FIELD, place, required=("type",))
    kind = found.get("type")
    if kind is not None and kind in TYPES:
        _suits(kind, found, place)
    if len(place.problems) > before:
        return None
    return Field(preserve_case=found.pop("preserveCase", False), **found)


def read_type(given: Any, place: Location) -> Any:
    """One of the six types."""
    if given not in TYPES:
        place.refuse(UNKNOWN_TYPE, f"{given!r} is no type; a field is one of {', '.join(TYPES)}")
    return given


def read_converter(given: Any, place: Location) -> Converter | None:
    """A converter that there is, declared as what it is, or None where problems were noted."""
    before = len(place.problems)
    found = read_members(given, _CONVERTER, place, required=("from", "to", "function"))
    if isinstance(given, dict) and given.get("deterministic") is not True:
        place.at("deterministic").refuse(NOT_DETERMINISTIC, "deterministic is true: there are no other converters")
    function = FUNCTIONS.get(found.get("function", ""))
    if len(place.problems) > before or function is None:
        return None
    if found["from"] != function.from_type:
        place.at("from").refuse(CONVERTER_MISMATCH, f"{found['function']} converts from {function.from_type}")
    if found["to"] != function.to_type:
        place.at("to").refuse(CONVERTER_MISMATCH, f"{found['function']} converts to {function.to_type}")
    return Converter(found["from"], found["to"], found["function"])


def _function(given: Any, place: Location) -> str:
    if not (isinstance(given, str) and given in FUNCTIONS):
        place.refuse(UNKNOWN_CONVERTER, f"{given!r} is no converter; there are {', '.join(FUNCTIONS)}")
        return ""
    return given


def read_validator(given: Any, place: Location) -> str:
    """The name of a validator that there is."""
    if not (isinstance(given, str) and given in VALIDATORS):
        place.refuse(UNKNOWN_VALIDATOR, f"{given!r} is no validator; there are {', '.join(VALIDATORS)}")
        return ""
    return given


def _suits(kind: Type, found: dict[str, Any], place: Location) -> None:
    """Note what does not suit the type of the field."""
    for number, converter in enumerate(found.get("converters", ())):
        if converter is not None and converter.to_type != kind:
            message = f"the field is a {kind}, so its converters make a {kind}"
            place.at("converters").at(number).at("to").refuse(CONVERTER_MISMATCH, message)
    validator = VALIDATORS.get(found.get("validator", ""))
    if validator is not None and kind not in validator.types:
        message = f"{found['validator']} judges {' and '.join(validator.types)}, and the field is a {kind}"
        place.at("validator").refuse(VALIDATOR_MISMATCH, message)
    if (constraints := found.get("constraints")) is not None:
        _allowed(kind, constraints, place.at("constraints"))


def _allowed(kind: Type, constraints: Constraints, place: Location) -> None:
    """Note the constraints that are not for fields of this type."""
    for name in ("min", "max"):
        if getattr(constraints, name) is not None and kind != "number":
            place.at(name).refuse(CONSTRAINT_INVALID, f"{name} is for numbers, and the field is a {kind}")
    if constraints.pattern is not None and kind != "string":
        place.at("pattern").refuse(CONSTRAINT_INVALID, f"pattern is for strings, and the field is a {kind}")
    for name in ("enum", "banned"):
        of = {"string": str, "date": str, "number": int | float}.get(kind)
        for number, value in enumerate(getattr(constraints, name)):
            if of is None or not isinstance(value, of):
                place.at(name).at(number).refuse(CONSTRAINT_INVALID, f"{value!r} is never the value of a {kind}")


def _constraints(given: Any, place: Location) -> Constraints | None:
    before = len(place.problems)
    found = read_members(given, _CONSTRAINTS, place)
    low, high = found.get("min"), found.get("max")
    if low is not None and high is not None and low > high:
        place.at("min").refuse(CONSTRAINT_INVALID, "min is above max")
    return Constraints(**found) if len(place.problems) == before else None


def _number(given: Any, place: Location) -> Any:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        place.refuse(CONSTRAINT_INVALID, "this is a number")
        return None
    return given


def _scalar(given: Any, place: Location) -> Any:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        place.refuse(CONSTRAINT_INVALID, "this is a string or a number")
    return given


def _scalars(given: Any, place: Location) -> Any:
    if given == []:
        place.refuse(CONSTRAINT_INVALID, "there is at least one value")
    return list_reader(_scalar)(given, place)


def _pattern(given: Any, place: Location) -> Any:
    if not isinstance(given, str) or not is_pattern(given):
        place.refuse(CONSTRAINT_INVALID, "this is a regular expression without look-around and back-references")
    return given


_CONVERTER = {"from": read_type, "to": read_type, "function": _function, "deterministic": lambda given, _: given}
_CONSTRAINTS = {"min": _number, "max": _number, "enum": _scalars, "pattern": _pattern, "banned": _scalars}
_FIELD = {
    "type": read_type,
    "required": read_boolean,
    "validator": read_validator,
    "preserveCase": read_boolean,
    "description": read_text,
    "converters": list_reader(read_converter),
    "constraints": _constraints,
    "sensitivity_class": choice_reader("public", "internal", "sensitive", "restricted"),
}


#: As many entities as are looked at.
MOST_ROWS = 100


def infer_schema(entity_type: str, given: Iterable[Mapping[str, Any]]) -> Schema | None:
    """A schema whose fields are all optional, of the type that most values have; None where there are no values."""
    kinds: dict[str, Counter[Type]] = {}
    for row in islice(given, MOST_ROWS):
        for name, value in row.items():
            if (found := _kind(value)) is not None and is_name(name):
                kinds.setdefault(name, Counter())[found] += 1
    fields = {name: Field(_type(counted)) for name, counted in islice(kinds.items(), MOST_FIELDS)}
    if not fields:
        return None
    return Schema(
        entity_type=entity_type,
        schema_version="1.0.0",
        schema_definition=Definition(fields=fields, identity_opt_out=OPT_OUT),
        reducer_config=ReducerConfig({}),
    )


def _kind(value: Any) -> Type | None:
    return "date" if isinstance(value, str) and is_iso(value) else kind(value)


def _type(counted: Counter[Type]) -> Type:
    """The type of most values; dates among other texts are texts."""
    if counted["string"]:
        counted["string"] += counted.pop("date", 0)
    return max(TYPES, key=lambda name: counted[name])
