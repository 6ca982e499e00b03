"""Random JSON Schemas with every keyword the proof speaks of, in any draft, and values that may be valid under them.

Everything comes from one ``random.Random``, so that thousands of cases are cheap and each can be had again by its seed.
"""

from __future__ import annotations

from random import Random
from typing import Any

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
NAMES = ["a", "b", "c", "d", "kind", "0", "1", "a/b", "m~n", "é"]
WORDS = ["", "a", "b", "A", "É", "ß", "İ", "abc", "12", "-7x", "x y", "😀", "zz"]
TIMES = [
    "2024-02-29T12:00:00Z",
    "2016-12-31T23:59:60Z",
    "0001-01-01T00:00:00.1+23:59",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999999-23:59",
    "1970-01-01t00:00:00.000z",
    "2017-01-01T00:59:60+01:00",
]
PATTERNS = {"^[a-z]+$": ["a", "abc", "zz"], "^[A-Z]": ["A", "Abc"], "b": ["b", "abc"], "^.{2,3}$": ["12", "abc"]}
NUMBERS = [0, 1, 2, 3, -1, 5, 6, 7, 12, 100, 0.5, -2.5, 1.0, 2.0, 1e22, 2**53, 2**53 + 1, 2**60, 2.0**60, 2**70, 10**30]


class Sketch:
    """Draws schemas of one draft."""

    def __init__(self, random: Random, draft: int = 2020, definitions: tuple[str, ...] = ()) -> None:
        self.random = random
        self.draft = draft
        self._definitions = definitions

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def everything(self) -> Any:
        return {} if self.draft == 4 else self.random.choice([True, {}])

    def schema(self, depth: int) -> Any:
        if self._definitions and self.chance(0.1):
            return self._reference()
        if depth <= 0 or self.chance(0.45):
            return self.leaf()
        return self.random.choice([self.object, self.object, self.array, self._combined])(depth - 1)

    def _reference(self) -> Any:
        key = "$defs" if self.draft >= 2019 else "definitions"
        reference = {"$ref": f"#/{key}/{self.random.choice(self._definitions)}"}
        return {**reference, **self._string()} if self.chance(0.1) else reference

    def leaf(self) -> Any:
        kinds = [self._string, self._string, self._integer, self._number, self._boolean, self._listed, self._listed]
        schema = self.random.choice(kinds)()
        if schema.get("type", "null") != "null" and self.chance(0.15):
            schema["type"] = [schema["type"], "null"]
        if self.chance(0.05):
            schema["description"] = self.random.choice(WORDS)
        return self.everything() if self.chance(0.04) else schema

    def _string(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        match self.random.randrange(5):
            case 0:
                schema["pattern"] = self.random.choice(list(PATTERNS))
            case 1:
                schema["format"] = "date-time"
            case 2:
                schema |= self._ends("minLength", "maxLength", range(4))
            case 3 if self.draft in (6, 7) and self.chance(0.3):
                schema["contentEncoding"] = "base64"
        return schema

    def _ends(self, low: str, high: str, values: Any) -> dict[str, Any]:
        ends = sorted(self.random.choices(list(values), k=2))
        return {name: end for name, end in zip((low, high), ends, strict=True) if self.chance(0.6)}

    def _integer(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "integer", **self._ends("minimum", "maximum", [*range(-3, 8), 2.5, 10**12])}
        if self.chance(0.2):
            schema["multipleOf"] = self.random.choice([1, 2, 3, 6])
        return self._exclusive(schema)

    def _number(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "number", **self._ends("minimum", "maximum", [-2, 0, 0.5, 1, 7, 100, 2**70])}
        if self.chance(0.1):
            schema["multipleOf"] = self.random.choice([1, 2, 0.5, 0.1])
        return self._exclusive(schema)

    def _exclusive(self, schema: dict[str, Any]) -> dict[str, Any]:
        for plain in ("minimum", "maximum"):
            if plain in schema and self.chance(0.25):
                name = "exclusive" + plain.title()
                schema[name] = True if self.draft == 4 else schema.pop(plain)
        return schema

    def _boolean(self) -> dict[str, Any]:
        return {"type": self.random.choice(["boolean", "boolean", "null"])}

    def _listed(self) -> dict[str, Any]:
        if self.draft > 4 and self.chance(0.3):
            return {"const": self.value()}
        values = self.random.sample(WORDS, self.random.randint(1, 4))
        if self.chance(0.4):
            values = [self.value() for _ in values]
        distinct = {repr(value): value for value in values}
        return {
            "enum": [value for text, value in distinct.items() if not (value == 1 and "1" in distinct and text != "1")]
        }

    def value(self, depth: int = 1) -> Any:
        """Any JSON value, small ones mostly."""
        match self.random.randrange(8 if depth else 6):
            case 0:
                return None
            case 1:
                return self.chance(0.5)
            case 2 | 3:
                return self.random.choice(NUMBERS)
            case 4 | 5:
                return self.random.choice(WORDS + TIMES[:1])
            case 6:
                return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        return {name: self.value(depth - 1) for name in self.random.sample(NAMES, self.random.randrange(3))}

    def object(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randint(1, 4))
        schema: dict[str, Any] = {"properties": {name: self.schema(depth) for name in names}}
        if not self.chance(0.03):
            schema["type"] = "object" if not self.chance(0.05) else ["object", "null"]
        if required := [name for name in names if self.chance(0.6)]:
            schema["required"] = required + (["d"] if self.chance(0.05) and "d" not in required else [])
        if self.chance(0.7):
            schema["additionalProperties"] = False
        elif self.chance(0.3):
            schema["additionalProperties"] = self.leaf()
        if self.chance(0.2):
            schema |= self._object_extra(names, depth)
        return schema

    def _object_extra(self, names: list[str], depth: int) -> dict[str, Any]:
        first, second = names[0], self.random.choice(NAMES)
        extras: list[dict[str, Any]] = [
            {"patternProperties": {self.random.choice(list(PATTERNS)): self.leaf()}},
            self._ends("minProperties", "maxProperties", range(5)),
            {"dependencies": {first: [second]}},
            {"dependencies": {first: {"properties": {second: self.leaf()}}}},
            {"not": {"required": [self.random.choice(NAMES)]}},
            {"anyOf": [{"required": [first]}, {"required": [second]}]},
        ]
        if self.draft >= 6:
            extras.append({"propertyNames": self.random.choice([{"maxLength": 2}, {"pattern": "^[a-z]+$"}])})
        if self.draft >= 7:
            tested = {"properties": {first: self.leaf()}, "required": [first]}
            extras.append({"if": tested, "then": {"required": [second]}, "else": {"properties": {second: self.leaf()}}})
        if self.draft >= 2019:
            extras += [
                {"dependentRequired": {first: [second]}},
                {"dependentSchemas": {first: {"required": [second]}}},
                {"unevaluatedProperties": False, "additionalProperties": self.everything()},
                {"allOf": [{"properties": {second: self.leaf()}}]},
            ]
        return self.random.choice(extras)

    def array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array", **self._ends("minItems", "maxItems", range(4))}
        first = [self.schema(depth) for _ in range(self.random.randint(1, 2))]
        if self.chance(0.8):
            schema["items"] = self.schema(depth)
        elif self.draft == 2020:
            schema |= {"prefixItems": first, **({"items": self.leaf()} if self.chance(0.5) else {})}
        else:
            schema |= {"items": first, **({"additionalItems": self.leaf()} if self.chance(0.5) else {})}
        if self.chance(0.15):
            schema["uniqueItems"] = True
        if self.draft >= 6 and self.chance(0.1):
            schema["contains"] = self.leaf()
        if self.draft >= 2019 and self.chance(0.1):
            schema |= self.random.choice([{"minContains": 2}, {"maxContains": 1}, {"unevaluatedItems": False}])
        return schema

    def _combined(self, depth: int) -> dict[str, Any]:
        match self.random.randrange(6):
            case 0:
                return {"anyOf": [self.schema(depth), self.schema(depth)]}
            case 1:
                return {"oneOf": [self.leaf(), self.schema(depth)]}
            case 2:
                return {"allOf": [self.schema(depth), self.leaf() if self.chance(0.3) else self.everything()]}
            case 3:
                return {**self._string(), "not": self.leaf()}
            case 4:
                return {
                    self.random.choice(["oneOf", "anyOf"]): [
                        self._variant(kind, depth) for kind in "xyz"[: self.random.randint(1, 3)]
                    ]
                }
        if self.draft >= 7:
            return {"if": self.leaf(), "then": self.leaf(), "else": self.leaf()}
        return self.object(depth)

    def _variant(self, kind: str, depth: int) -> dict[str, Any]:
        schema = self.object(depth)
        schema["properties"]["kind"] = {"enum": [kind]}
        schema["required"] = sorted({*schema.get("required", []), "kind"})
        return schema

    def document(self) -> Any:
        """A whole schema: an object mostly, with definitions that may refer to themselves."""
        body = self.object(2) if self.chance(0.85) else self.schema(3)
        schema = dict(body) if isinstance(body, dict) else {"allOf": [body]}
        if self.draft != 2020 or self.chance(0.1):
            schema["$schema"] = DRAFTS[self.draft]
        if self._definitions:
            key = "$defs" if self.draft >= 2019 else "definitions"
            schema[key] = {name: self.object(1) for name in self._definitions}
        return schema


class Guess:
    """Draws values that may be valid under a schema; whoever asks for them has to check."""

    def __init__(self, random: Random, root: Any) -> None:
        self._random = random
        self._root = root
        self._sketch = Sketch(random)

    def value(self, schema: Any, depth: int = 6) -> Any:
        if not isinstance(schema, dict) or depth <= 0:
            return self._sketch.value()
        if "$ref" in schema:
            return self.value(self._target(schema["$ref"]), depth - 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return self.value(self._combined(schema, name), depth - 1)
        if "if" in schema:
            taken = schema.get(self._random.choice(["then", "else"]), {})
            rest = {name: value for name, value in schema.items() if name not in ("if", "then", "else")}
            return self.value(_merged(rest, taken), depth - 1)
        types = schema.get("type", ["object", "string", "integer", "null", "array"])
        kind = types if isinstance(types, str) else self._random.choice(types)
        return getattr(self, f"_{kind}")(schema, depth)

    def _combined(self, schema: dict[str, Any], name: str) -> Any:
        rest = {key: value for key, value in schema.items() if key != name}
        for branch in schema[name] if name == "allOf" else [self._random.choice(schema[name])]:
            referring = isinstance(branch, dict) and "$ref" in branch
            rest = _merged(rest, self._target(branch["$ref"]) if referring else branch)
        return rest

    def _target(self, reference: str) -> Any:
        target = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            target = target[name]
        return target

    def _null(self, schema: Any, depth: int) -> Any:
        return None

    def _boolean(self, schema: Any, depth: int) -> Any:
        return self._random.random() < 0.5

    def _string(self, schema: Any, depth: int) -> Any:
        if "format" in schema:
            return self._random.choice(TIMES)
        if "pattern" in schema:
            return self._random.choice(PATTERNS[schema["pattern"]])
        low, high = schema.get("minLength", 0), schema.get("maxLength", 9)
        return self._random.choice([word for word in WORDS if low <= len(word) <= high] or ["a" * low])

    def _integer(self, schema: Any, depth: int) -> Any:
        number = self._number(schema, depth)
        return int(number) if self._random.random() < 0.8 else float(int(number))

    def _number(self, schema: Any, depth: int) -> Any:
        ends = [
            value
            for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
            if not isinstance(value := schema.get(name, True), bool)
        ]
        near = [end + step for end in ends for step in (0, 1, -1)]
        number = self._random.choice(near or NUMBERS) if self._random.random() < 0.7 else self._random.choice(NUMBERS)
        return number * schema["multipleOf"] if "multipleOf" in schema and self._random.random() < 0.7 else number

    def _array(self, schema: Any, depth: int) -> Any:
        items = schema.get("items", True)
        prefix = items if isinstance(items, list) else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        low, high = schema.get("minItems", 0), schema.get("maxItems", 3)
        length = self._random.randint(min(low, high), max(low, high))
        found = [self.value(prefix[at] if at < len(prefix) else rest, depth - 1) for at in range(length)]
        if "contains" in schema and found and self._random.random() < 0.7:
            found[0] = self.value(schema["contains"], depth - 1)
        return found

    def _object(self, schema: Any, depth: int) -> Any:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        wanted = [name for name in properties if name in required or self._random.random() < 0.6]
        wanted += [name for name in required if name not in properties]
        if schema.get("additionalProperties", True) is not False and self._random.random() < 0.5:
            wanted += [name for name in self._random.sample(NAMES, 2) if name not in properties]
        patterns = schema.get("patternProperties", {})
        for pattern in patterns if self._random.random() < 0.5 else ():
            wanted += [name for name in PATTERNS[pattern] if name not in properties]
        self._random.shuffle(wanted)
        return {name: self.value(self._member(schema, name), depth - 1) for name in dict.fromkeys(wanted)}

    def _member(self, schema: Any, name: str) -> Any:
        if name in schema.get("properties", {}):
            return schema["properties"][name]
        for pattern, inner in schema.get("patternProperties", {}).items():
            if name in PATTERNS[pattern]:
                return inner
        return schema.get("additionalProperties", True)

    def changed(self, value: Any) -> Any:
        """The value with one thing other than it was."""
        if not isinstance(value, dict | list) or not value or self._random.random() < 0.2:
            return self._sketch.value(2)
        if isinstance(value, list):
            at = self._random.randrange(len(value))
            return [*value[:at], self.changed(value[at]), *value[at + 1 :]]
        name = self._random.choice(list(value))
        match self._random.randrange(4):
            case 0:
                return {other: inner for other, inner in value.items() if other != name}
            case 1:
                return {**value, self._random.choice(NAMES): self._sketch.value()}
        return {**value, name: self.changed(value[name])}


def _merged(schema: dict[str, Any], other: Any) -> dict[str, Any]:
    """Both schemas in one, roughly."""
    if not isinstance(other, dict):
        return schema
    both = {**schema, **other}
    for name in ("properties", "patternProperties"):
        if name in schema and name in other:
            both[name] = {**schema[name], **other[name]}
    if "required" in schema and "required" in other:
        both["required"] = [*dict.fromkeys([*schema["required"], *other["required"]])]
    return both
