"""Readers of requests about entity types: members, texts, lists and fields; every problem is noted.

Codes in capitals are those of the reference interface; ours are in lower case. The types, converters, validators and
constraints of a field must exist and suit each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from headrace.schema.entity.names import is_field_name
from headrace.schema.entity.nodes import TYPES, Constraints, Converter, Field, Type
from headrace.schema.entity.values import FUNCTIONS, VALIDATORS, is_pattern
from headrace.schema.problem import Location

INVALID = "schema_invalid"
MISSING = "missing_member"
UNKNOWN = "unknown_member"
DANGLING = "unknown_field"
UNKNOWN_TYPE = "unknown_type"
UNKNOWN_CONVERTER = "unknown_converter"
CONVERTER_MISMATCH = "converter_mismatch"
NOT_DETERMINISTIC = "converter_not_deterministic"
UNKNOWN_VALIDATOR = "unknown_validator"
VALIDATOR_MISMATCH = "validator_mismatch"
CONSTRAINT_INVALID = "constraint_invalid"

MAX_FIELDS = 1_000
MAX_MEMBERS = 1_000
MAX_TEXT = 10_000

Reader = Callable[[Any, Location], Any]


def read_members(
    raw: Any, readers: Mapping[str, Reader], location: Location, required: Collection[str] = ()
) -> dict[str, Any]:
    """Read the members of an object; unknown, missing and bad ones are noted. A null counts as missing."""
    if not isinstance(raw, dict):
        location.refuse(INVALID, "this is an object")
        return {}
    for name in raw:
        if name not in readers:
            location.at(name).refuse(UNKNOWN, f"there is no {name!r} here, only {', '.join(readers)}")
    for name in required:
        if raw.get(name) is None:
            location.at(name).refuse(MISSING, f"{name} is missing")
    return {name: reader(raw[name], location.at(name)) for name, reader in readers.items() if raw.get(name) is not None}


def read_text(raw: Any, location: Location) -> str:
    """A text that is not blank."""
    if isinstance(raw, str) and raw.strip() and len(raw) <= MAX_TEXT:
        return raw
    location.refuse(INVALID, f"this is a text of 1 to {MAX_TEXT} characters")
    return ""


def read_boolean(raw: Any, location: Location) -> bool:
    """True or false."""
    if not isinstance(raw, bool):
        location.refuse(INVALID, "this is true or false")
    return raw is True


def read_fraction(raw: Any, location: Location) -> float:
    """A number from 0 to 1."""
    if isinstance(raw, int | float) and not isinstance(raw, bool) and 0 <= raw <= 1:
        return raw
    location.refuse(INVALID, "this is a number from 0 to 1")
    return 0.0


def choice_reader(*words: str) -> Reader:
    """A reader of one of some words."""

    def read(raw: Any, location: Location) -> Any:
        if not (isinstance(raw, str) and raw in words):
            location.refuse(INVALID, f"this is one of {', '.join(words)}")
        return raw

    return read


def coded_choice_reader(code: str, kind: str, words: Collection[str]) -> Reader:
    """A reader of one of some words, with a code of its own for any other."""

    def read(raw: Any, location: Location) -> str:
        if isinstance(raw, str) and raw in words:
            return raw
        location.refuse(code, f"{raw!r} is no {kind}; there are {', '.join(words)}")
        return ""

    return read


def list_reader(read_element: Reader) -> Reader:
    """A reader of a list whose elements are all read by one reader."""

    def read(raw: Any, location: Location) -> tuple[Any, ...]:
        if not isinstance(raw, list) or len(raw) > MAX_MEMBERS:
            location.refuse(INVALID, f"this is a list of at most {MAX_MEMBERS}")
            return ()
        return tuple(read_element(element, location.at(number)) for number, element in enumerate(raw))

    return read


def read_distinct_texts(raw: Any, location: Location) -> tuple[str, ...]:
    """A list of texts, none of them twice."""
    texts: tuple[str, ...] = list_reader(read_text)(raw, location)
    for number, name in enumerate(texts):
        if name in texts[:number]:
            location.at(number).refuse(INVALID, f"{name!r} is there already")
    return texts


def read_fields(raw: Any, location: Location) -> dict[str, Field]:
    """The fields by name; every problem is noted."""
    if not isinstance(raw, dict) or not 1 <= len(raw) <= MAX_FIELDS:
        location.refuse(INVALID, f"fields is an object of 1 to {MAX_FIELDS} fields")
        return {}
    return {
        name: field
        for name, value in raw.items()
        if (field := _read_named_field(name, value, location.at(name))) is not None
    }


def _read_named_field(name: str, raw: Any, location: Location) -> Field | None:
    if not is_field_name(name):
        location.refuse(INVALID, f"{name!r} cannot be the name of a field")
    return read_field(raw, location)


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


_CONVERTER = {
    "from": read_type,
    "to": read_type,
    "function": coded_choice_reader(UNKNOWN_CONVERTER, "converter", FUNCTIONS),
    "deterministic": lambda raw, _: raw,
}
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
    "validator": coded_choice_reader(UNKNOWN_VALIDATOR, "validator", VALIDATORS),
    "preserveCase": read_boolean,
    "description": read_text,
    "converters": list_reader(read_converter),
    "constraints": _read_constraints,
    "sensitivity_class": choice_reader("public", "internal", "sensitive", "restricted"),
}
