"""Generated JSON Schemas, documents that are valid under them, and documents that nearly are.

``schemas()`` draws schemas; ``documents(schema)`` draws valid documents, by jsonschema-rs as the judge;
``near_misses(schema)`` draws documents that are like valid ones, most of them invalid.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import jsonschema_rs
import msgspec
from hypothesis import reject
from hypothesis import strategies as st

Schema = Any
Json = Any

NAMES = ["a", "b", "c", "id", "at", "a/b", "m~n", "é"]
WORDS = ["", "x", "yes", "no", "id-1", "é", "😀", '":"', "\\", "a b"]
#: Patterns with texts that match them.
PATTERNS = {"^[a-z]{2}$": ["ab", "no"], "^id-[0-9]+$": ["id-1", "id-42"], "x": ["x", "axb", "x y"]}
DATE_TIMES = ["2026-05-04T10:11:12Z", "2024-02-29T23:59:59.123456789+02:00", "0001-01-01T00:00:00.0-23:59"]
BIG = [2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 10**30]
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(BIG) | st.sampled_from(WORDS) | st.just(0.5)


ANYTHING = st.recursive(
    SCALARS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
    max_leaves=6,
)
INTEGERS = st.integers(-10, 10) | st.sampled_from(BIG)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SOME_NAMES = st.lists(st.sampled_from(NAMES), max_size=4, unique=True)
SPARE_NAMES = st.lists(st.sampled_from([*NAMES, "z"]), max_size=2, unique=True)
#: How far a document goes below a schema that refers to itself.
DEEPEST = 8


@lru_cache(512)
def _judge(spelled: bytes) -> Callable[[Json], bool]:
    """The oracle; ``date-time`` apart, it judges by nothing of ours."""
    return jsonschema_rs.validator_for(
        msgspec.json.decode(spelled), validate_formats=False, pattern_options=jsonschema_rs.RegexOptions()
    ).is_valid


def judge(schema: Schema) -> Callable[[Json], bool]:
    """What says whether a document is valid; formats are not asserted."""
    return _judge(msgspec.json.encode(schema))


# --- schemas


@st.composite
def schemas(draw: st.DrawFn, *, depth: int = 3) -> Schema:
    """Schemas of any kind, nested up to ``depth``."""
    return _Sketch(draw).any(depth)


@st.composite
def object_schemas(draw: st.DrawFn, *, depth: int = 3) -> Schema:
    """Schemas of objects: properties, some required, closed, open, or open to values of one schema."""
    return _Sketch(draw).object(depth)


@st.composite
def scalar_schemas(draw: st.DrawFn) -> Schema:
    """Schemas of single values: typed, nullable, enumerated or constant."""
    return _Sketch(draw).scalar()


class _Drawing:
    """Draws step by step: far quicker than strategies made of strategies."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def _one_of(self, options: Sequence[Any]) -> Any:
        return options[self._draw(st.integers(0, len(options) - 1))] if len(options) > 1 else options[0]

    def _maybe(self) -> bool:
        return self._draw(st.booleans())


class _Sketch(_Drawing):
    """One schema."""

    def any(self, depth: int) -> Schema:
        if depth <= 0:
            return self.scalar()
        return self._one_of([self._scalar, self.object, self.object, self._array, self._any_of, self._open])(depth - 1)

    def object(self, depth: int) -> Schema:
        names = self._draw(SOME_NAMES)
        schema = {"type": "object", "properties": {name: self.any(depth) for name in names}}
        if required := [name for name in names if self._maybe()]:
            schema["required"] = required
        others = self._one_of(["closed", "closed", "unsaid", "open", "schema"])
        if others == "schema":
            schema["additionalProperties"] = self.scalar()
        elif others != "unsaid":
            schema["additionalProperties"] = others == "open"
        return schema

    def scalar(self) -> Schema:
        kinds = [self._string, self._string, self._integer, self._number, self._boolean, self._enum, self._const]
        return self._one_of(kinds)()

    def _scalar(self, depth: int) -> Schema:
        return self.scalar()

    def _open(self, depth: int) -> Schema:
        return self._one_of([True, {}])

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self.any(depth) for _ in range(self._one_of([1, 2, 2, 3]))]}

    def _array(self, depth: int) -> Schema:
        schema = {"type": self._type("array"), "items": self.any(depth)}
        schema |= self._bounds("minItems", "maxItems", range(4))
        if self._one_of([False, False, False, True]):
            schema["uniqueItems"] = True
        return schema

    def _type(self, name: str) -> Any:
        """The type, which may admit null too."""
        return self._one_of([name, name, name, [name, "null"]])

    def _bounds(self, low: str, high: str, values: Sequence[Any]) -> dict[str, Any]:
        """A lower and an upper bound, either of which may be missing."""
        bounds = sorted([self._one_of(values), self._one_of(values)])
        return {name: bound for name, bound in zip((low, high), bounds, strict=True) if self._maybe()}

    def _string(self) -> Schema:
        limits = self._one_of(["bounds", "bounds", "pattern", "format"])
        if limits == "bounds":
            return {"type": self._type("string"), **self._bounds("minLength", "maxLength", range(5))}
        if limits == "pattern":
            return {"type": self._type("string"), "pattern": self._one_of(list(PATTERNS))}
        return {"type": self._type("string"), "format": "date-time"}

    def _integer(self) -> Schema:
        if self._maybe():
            return {"type": self._type("integer"), **self._bounds("minimum", "maximum", [*range(-10, 10), *BIG])}
        return {"type": self._type("integer"), "multipleOf": self._one_of([1, 2, 3]), "exclusiveMinimum": 0}

    def _number(self) -> Schema:
        names = self._one_of([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
        return {"type": self._type("number"), **self._bounds(*names, [*range(-10, 10), 0.1, 0.3, -0.5, 2.5, *BIG])}

    def _boolean(self) -> Schema:
        return {"type": self._one_of(["boolean", "null", ["boolean", "null"]])}

    def _enum(self) -> Schema:
        if self._maybe():
            return {"enum": self._draw(st.lists(SCALARS, min_size=1, max_size=4, unique_by=repr))}
        words = self._draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True))
        return {"type": "string", "enum": words}

    def _const(self) -> Schema:
        return {"const": self._draw(SCALARS)}


# --- documents


def documents(schema: Schema) -> st.SearchStrategy[Json]:
    """Documents valid under a schema; an example is given up where the schema admits none that we can think of."""
    return _guesses(schema).filter(judge(schema))


def near_misses(schema: Schema) -> st.SearchStrategy[Json]:
    """Documents like valid ones, with one thing changed; some are valid all the same."""
    return st.builds(_spoilt, _guesses(schema), st.randoms(use_true_random=False), SCALARS)


def _spoilt(given: Json, random: Random, other: Json) -> Json:
    value = copy.deepcopy(given)
    if not isinstance(value, dict | list) or not value:
        return other if random.random() < 0.8 else [value]
    where = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
    change = random.choice(["go down", "go down", "replace", "remove", "add"])
    if change == "go down":
        value[where] = _spoilt(value[where], random, other)
    elif change == "replace":
        value[where] = other
    elif change == "remove":
        del value[where]
    elif isinstance(value, dict):
        value[random.choice(NAMES)] = other
    else:
        value.append(copy.deepcopy(value[where]))
    return value


@st.composite
def _guesses(draw: st.DrawFn, schema: Schema) -> Json:
    """Documents that are probably valid."""
    return _Guess(draw, schema).value(schema, DEEPEST)


class _Guess(_Drawing):
    """One document, from the schema downwards."""

    def __init__(self, draw: st.DrawFn, root: Schema) -> None:
        super().__init__(draw)
        self._root = root

    def value(self, schema: Schema, depth: int) -> Json:
        if schema is False or depth < 0:
            reject()
        if schema is True:
            return self._draw(ANYTHING)
        if "$ref" in schema:
            return self.value(self._target(schema["$ref"]), depth - 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._one_of(schema["enum"])
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                rest = {name: value for name, value in schema.items() if name != several}
                option = self._one_of(schema[several])
                return self.value(option if isinstance(option, bool) else {**rest, **option}, depth)
        types = schema.get("type", "anything")
        name = types if isinstance(types, str) else self._one_of(types)
        return getattr(self, f"_{name}")(schema, depth)

    def _target(self, reference: str) -> Schema:
        target = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            target = target[name]
        return target

    def _anything(self, schema: Schema, depth: int) -> Json:
        return self._draw(ANYTHING)

    def _null(self, schema: Schema, depth: int) -> Json:
        return None

    def _boolean(self, schema: Schema, depth: int) -> Json:
        return self._maybe()

    def _string(self, schema: Schema, depth: int) -> Json:
        if schema.get("format") == "date-time":
            return self._one_of(DATE_TIMES)
        if "pattern" in schema:
            known = PATTERNS.get(schema["pattern"])
            return self._one_of(known) if known else self._draw(st.from_regex(schema["pattern"]))
        least = schema.get("minLength", 0)
        most = schema.get("maxLength", least + 4)
        fitting = [word for word in WORDS if least <= len(word) <= most]
        if fitting and self._maybe():
            return self._one_of(fitting)
        return self._draw(st.text(min_size=least, max_size=most))

    def _integer(self, schema: Schema, depth: int) -> Json:
        low, high = _bounds(schema)
        step = schema.get("multipleOf", 1)
        if low is None:
            return self._draw(INTEGERS) * step
        first, last = -int(-low // step), int(high // step)
        return self._draw(st.integers(first, last)) * step if first <= last else reject()

    def _number(self, schema: Schema, depth: int) -> Json:
        low, high = _bounds(schema)
        if self._maybe() and (low is None or int(high) > low):
            return self._integer(schema, depth)
        return self._draw(FLOATS) if low is None else low + (high - low) * self._draw(st.floats(0, 1))

    def _array(self, schema: Schema, depth: int) -> Json:
        items = schema.get("items", True)
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", least + 2)
        length = least if items is False or not depth else self._draw(st.integers(least, most))
        return [self.value(items, depth - 1) for _ in range(length)]

    def _object(self, schema: Schema, depth: int) -> Json:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        others = schema.get("additionalProperties", True)
        wanted = [name for name in properties if name in required or (depth and self._maybe())]
        wanted += [name for name in required if name not in properties]
        if others is not False and depth and self._maybe():
            wanted += [name for name in self._draw(SPARE_NAMES) if name not in wanted and name not in properties]
        shuffled = self._draw(st.permutations(wanted)) if len(wanted) > 1 else wanted
        return {name: self.value(properties.get(name, others), depth - 1) for name in shuffled}


def _bounds(schema: Schema) -> tuple[Any, Any]:
    low = max((schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema), default=None)
    high = min((schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema), default=None)
    if low is None and high is not None:
        low = high - 10
    elif high is None and low is not None:
        high = low + 10
    return low, high
