"""Features as given made into features as kept: durations in milliseconds, defaults filled in, all within ranges."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from headrace.schema.descriptor.durations import FOREVER, millis
from headrace.schema.descriptor.nodes import Feature
from headrace.schema.descriptor.operators import ALIASES, OPERATORS, REQUIRED, Operator, Parameter
from headrace.schema.descriptor.problem import Place
from headrace.schema.descriptor.structure import is_integer, is_scalar
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


def built(given: dict[str, Any], source: str, place: Place) -> Feature:
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


def _named(given: dict[str, Any], operator: Operator, place: Place) -> dict[str, Any]:
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


def _refuse_unknown(key: str, value: Any, operator: Operator, place: Place) -> None:
    if key != "window":
        place.refuse(INVALID, f"{operator.name} has no {key!r}, only {', '.join(operator.params)}")
    elif value != FOREVER:
        place.refuse("window_not_supported", f"{operator.name} has no window; it looks at the whole life of a key")


def _value(given: Any, key: str, parameter: Parameter, source: str, place: Place) -> Any:
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


def _text(given: Any, what: str, place: Place) -> str | None:
    if isinstance(given, str):
        return given
    place.refuse(INVALID, f"must be {what}")
    return None


def _duration(given: Any, parameter: Parameter, place: Place) -> int | None:
    found = millis(given)
    if found is None:
        place.refuse(parameter.code, "must be a duration such as 500ms, 15s, 30m, 24h or 7d")
    return found


def _number(given: Any, parameter: Parameter, place: Place) -> int | float | None:
    whole = parameter.kind == "integer"
    fits = is_integer(given) or (isinstance(given, float) and math.isfinite(given))
    if not fits or (whole and given != int(given)) or not parameter.admits(given):
        place.refuse(parameter.code, f"must be {'a whole number' if whole else 'a number'} {parameter.bounds()}")
        return None
    return int(given) if whole else float(given)


def _edges(given: Any, place: Place) -> list[float] | None:
    numbers = given if isinstance(given, list) else []
    fits = all(is_integer(edge) or isinstance(edge, float) for edge in numbers)
    rising = fits and all(low < high for low, high in pairwise(numbers))
    if not rising or not 1 <= len(numbers) <= MOST_EDGES:
        place.refuse(INVALID, f"buckets are 1 to {MOST_EDGES} numbers, each greater than the one before")
        return None
    return [float(edge) for edge in numbers]


def _categories(given: Any, place: Place) -> list[Any] | None:
    values = given if isinstance(given, list) else []
    fits = all(map(is_scalar, values))
    if not values or not fits or len({(type(value), value) for value in values}) < len(values):
        place.refuse(INVALID, "categories are one or more texts, numbers or booleans, no two alike")
        return None
    return list(values)


def _check_sub_window(params: dict[str, Any], place: Place) -> None:
    window, part = params.get("window"), params.get("sub_window")
    if window is not None and part is not None and part > window:
        place.at("sub_window").refuse("aggregation_invalid_sub_window", "the sub_window is longer than the window")
