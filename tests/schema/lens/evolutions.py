"""Random evolutions: an old schema, ops that suit it, and the new schema they lead to, which is often a little off."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from schema.sketches import DRAFTS, NAMES, WORDS, Guess, Sketch

Json = Any
Ops = list[dict[str, Any]]


class Evolution(NamedTuple):
    """One case."""

    old: Json
    new: Json
    ops: Ops


def schema_document(random: Random) -> Json:
    """A schema of any draft, of the newest mostly."""
    draft = random.choice([2020] * 12 + [4, 6, 7, 2019])
    return Sketch(random, draft, ("p", "q") if random.random() < 0.25 else ()).document()


def widening(random: Random) -> Evolution:
    """No ops: the new schema is the old one with a few things changed, for the wider more often than not."""
    old = schema_document(random)
    new = tweaked(random, old, random.choice([0, 1, 1, 1, 2, 3]))
    if random.random() < 0.1:
        new["$schema"] = random.choice(list(DRAFTS.values()))
    return Evolution(old, new, [])


def evolution(random: Random) -> Evolution:
    """Ops that suit the old schema and what they make of it; then, at times, something changed on top."""
    old = schema_document(random)
    maker = _Maker(random, copy.deepcopy(old))
    for _ in range(random.choice([1, 1, 1, 2, 2, 3, 4])):
        maker.step()
    new = maker.schema if random.random() < 0.6 else tweaked(random, maker.schema, 1)
    return Evolution(old, new, maker.ops)


# Changes of a schema.


def tweaked(random: Random, schema: Json, times: int) -> Json:
    """The schema with some of its keywords changed."""
    schema = copy.deepcopy(schema)
    for _ in range(times):
        draft = next((number for number, name in DRAFTS.items() if schema.get("$schema") == name), 2020)
        places = list(_places(schema))
        _tweak(random, random.choice(places[: 1 + len(places) // 2] if random.random() < 0.5 else places), draft)
    return schema


def _places(schema: Json) -> Iterator[dict[str, Any]]:
    """Every schema in a schema."""
    if not isinstance(schema, dict):
        return
    yield schema
    for name, value in schema.items():
        if name in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            for inner in value.values():
                yield from _places(inner)
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems") or (name == "items" and isinstance(value, list)):
            for inner in value:
                yield from _places(inner)
        elif name in ("items", "additionalProperties", "not", "if", "then", "else", "contains"):
            yield from _places(value)


_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")


def _tweak(random: Random, schema: dict[str, Any], draft: int) -> None:
    sketch = Sketch(random, draft)
    known = [name for name in schema if name not in ("$schema", "$defs", "definitions", "properties", "type", "$ref")]
    kind = random.choice(["drop", "drop", "shift", "shift", "type", "add", "add", "require", "open", "branch"])
    bounds = [name for name in known if name in _UPPER + _LOWER and not isinstance(schema[name], bool)]
    if kind == "drop" and known:
        _dropped(schema, random.choice(known))
    elif kind == "shift" and bounds:
        name = random.choice(bounds)
        schema[name] = max(0, schema[name] + random.choice([1, 1, -1]) * (1 if name in _UPPER else -1))
    elif kind == "type" and isinstance(schema.get("type"), str):
        wider = {"integer": "number", "number": "integer"}.get(schema["type"], schema["type"])
        schema["type"] = random.choice([wider, sorted({schema["type"], "null", wider}), "string"])
    elif kind == "add" and "properties" in schema:
        schema["properties"][random.choice(NAMES)] = sketch.leaf()
    elif kind == "require" and schema.get("required"):
        schema["required"] = schema["required"][1:] or ["a"]
    elif kind == "open":
        schema["additionalProperties"] = random.choice([sketch.everything(), False, sketch.leaf()])
    elif kind == "branch":
        _branched(random, schema, sketch)


def _dropped(schema: dict[str, Any], name: str) -> None:
    del schema[name]
    for needing, needed in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if name == needed and isinstance(schema.get(needing), bool):
            del schema[needing]


def _branched(random: Random, schema: dict[str, Any], sketch: Sketch) -> None:
    if "enum" in schema:
        schema["enum"] = [*schema["enum"][random.randrange(2) :], {"new": random.randrange(99)}]
    elif "anyOf" in schema or "oneOf" in schema:
        schema["anyOf" if "anyOf" in schema else "oneOf"].append(sketch.leaf())
    elif "type" in schema:
        whole = {name: schema.pop(name) for name in list(schema) if name not in ("$schema", "$defs", "definitions")}
        schema[random.choice(["anyOf", "oneOf"])] = [sketch.leaf(), whole]


# Ops, and what they make of a schema. This knows nothing of shapes: it moves subschemas about, and may be wrong.


class _Maker:
    """Makes ops inside one object; the schema follows them."""

    def __init__(self, random: Random, schema: Json, depth: int = 2) -> None:
        self.random = random
        self.schema = schema
        self.ops: Ops = []
        self._depth = depth

    def step(self) -> None:
        """One more op, if one suits."""
        if not isinstance(self.schema, dict) or not self.schema.get("properties"):
            return
        kinds: list[Callable[[], dict[str, Any] | None]] = [
            self._rename,
            self._rename,
            self._copy,
            self._add,
            self._add,
            self._remove,
            self._hoist,
            self._plunge,
            self._wrap,
            self._head,
            self._convert,
            self._convert,
            self._convert,
            self._inside,
            self._inside,
            self._over,
            self._over,
        ]
        self.random.shuffle(kinds)
        op = next((op for kind in kinds if (op := kind()) is not None), None)
        if op is not None:
            self.ops.append(op)

    @property
    def _members(self) -> dict[str, Any]:
        members: dict[str, Any] = self.schema["properties"]
        return members

    def _required(self, name: str) -> bool:
        return name in self.schema.get("required", [])

    def _require(self, name: str, required: bool) -> None:
        names = [other for other in self.schema.get("required", []) if other != name] + [name] * required
        self.schema["required"] = names
        if not names:
            del self.schema["required"]

    def _optional(self, *names: str) -> dict[str, bool]:
        """Optional where it should be, most of the time."""
        needed = not all(map(self._required, names))
        return {"optional": True} if needed != (self.random.random() < 0.1) else {}

    def _source(self, *types: str) -> str | None:
        fitting = [name for name, schema in self._members.items() if not types or _type(schema) in types]
        return self.random.choice(fitting) if fitting else None

    def _name(self) -> str:
        fresh = [name for name in NAMES if name not in self._members]
        return self.random.choice(fresh if fresh and self.random.random() < 0.9 else NAMES)

    def _set(self, name: str, schema: Json, required: bool) -> None:
        if name in self._members and not required:
            schema = {"anyOf": [schema, self._members[name]]}
        required = required or self._required(name)
        self._members[name] = schema
        self._require(name, required)

    def _unset(self, name: str) -> None:
        self._members.pop(name, None)
        self._require(name, False)

    def _rename(self) -> dict[str, Any] | None:
        source, target = self._source(), self._name()
        if source is None or source == target:
            return None
        op = {"op": "rename", "from": _text(source), "to": _text(target), **self._optional(source)}
        self._set(target, self._members[source], self._required(source))
        self._unset(source)
        return op

    def _copy(self) -> dict[str, Any] | None:
        source, target = self._source(), self._name()
        if source is None or source == target:
            return None
        self._set(target, copy.deepcopy(self._members[source]), self._required(source))
        return {"op": "copy", "from": _text(source), "to": _text(target), **self._optional(source)}

    def _add(self) -> dict[str, Any]:
        name, schema = self._name(), Sketch(self.random, 4).leaf()
        schema.pop("exclusiveMinimum", None), schema.pop("exclusiveMaximum", None)
        flags: dict[str, Any] = {}
        if name in self._members or (
            self.schema.get("additionalProperties") is not False and self.random.random() < 0.8
        ):
            flags["overwrite"] = True
        if self.random.random() < 0.8:
            flags["default"] = Guess(self.random, schema).value(schema)
        elif self.random.random() < 0.5:
            schema["default"] = Guess(self.random, schema).value(schema)
        self._set(name, schema, True)
        return {"op": "add", "path": _text(name), "schema": schema, **flags}

    def _remove(self) -> dict[str, Any] | None:
        source = self._source()
        if source is None:
            return None
        op = {"op": "remove", "path": _text(source), "schema": {}, **self._optional(source)}
        self._unset(source)
        return op

    def _hoist(self) -> dict[str, Any] | None:
        host, target = self._source("object"), self._name()
        if host is None or host == target or not self._members[host].get("properties"):
            return None
        inner = _Maker(self.random, self._members[host])
        member = inner._source()
        assert member is not None
        op = {"op": "hoist", "host": _text(host), "name": member, "to": _text(target)}
        required = self._required(host) and inner._required(member)
        if not required:
            op["optional"] = True
        self._set(target, copy.deepcopy(inner._members[member]), required)
        if self.random.random() < 0.3:
            op["removeFromHost"] = False
        else:
            inner._unset(member)
        return op

    def _plunge(self) -> dict[str, Any] | None:
        source = self._source()
        host = self._source("object") if self.random.random() < 0.5 else self._name()
        if source is None or host is None or host == source:
            return None
        op = {"op": "plunge", "from": _text(source), "host": _text(host), "name": "in", **self._optional(source)}
        required = self._required(source)
        held = self._members.get(host)
        if not isinstance(held, dict) or not held.get("properties"):
            held = {"type": "object", "properties": {}, "additionalProperties": False}
            self._set(host, held, required)
        else:
            self._require(host, required or self._required(host))
        _Maker(self.random, held)._set("in", copy.deepcopy(self._members[source]), required)
        if self.random.random() < 0.2:
            op["removeFromSource"] = False
        else:
            self._unset(source)
        return op

    def _wrap(self) -> dict[str, Any] | None:
        source = self._source()
        if source is None:
            return None
        self._members[source] = {"type": "array", "items": self._members[source], "minItems": 1, "maxItems": 1}
        return {"op": "wrap", "path": _text(source), "mode": "singleton", **self._optional(source)}

    def _head(self) -> dict[str, Any] | None:
        source = self._source("array")
        if source is None or not isinstance(self._members[source].get("items"), dict):
            return None
        self._members[source] = self._members[source]["items"]
        return {"op": "head", "path": _text(source), **self._optional(source)}

    def _convert(self) -> dict[str, Any] | None:
        source = self._source("string", "integer", "boolean", "enum")
        if source is None:
            return None
        schema = self._members[source]
        after, op = _conversion(self.random, schema)
        self._members[source] = after
        return {
            "op": "convert",
            "path": _text(source),
            **op,
            "backward": {"map": {}, "default": None},
            **self._optional(source),
        }

    def _inside(self) -> dict[str, Any] | None:
        source = self._source("object")
        if source is None or not self._depth:
            return None
        inner = _Maker(self.random, self._members[source], self._depth - 1)
        inner.step()
        inner.step()
        return {"op": "in", "path": _text(source), "ops": inner.ops, **self._optional(source)}

    def _over(self) -> dict[str, Any] | None:
        source = self._source("array")
        items = None if source is None else self._members[source].get("items")
        if source is None or not self._depth or not isinstance(items, dict):
            return None
        self._members[source].pop("uniqueItems", None)
        if _type(items) != "object":
            if _type(items) not in ("string", "integer", "boolean", "enum"):
                return None
            self._members[source]["items"], op = _conversion(self.random, items)
            ops: Ops = [{"op": "convert", "path": "", **op, "backward": {"map": {}, "default": None}}]
        else:
            inner = _Maker(self.random, items, self._depth - 1)
            inner.step()
            ops = inner.ops
        return {"op": "map", "path": _text(source), "ops": ops, **self._optional(source)}


def _type(schema: Json) -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("enum"), list) and all(isinstance(value, str) for value in schema["enum"]):
        return "enum"
    return schema["type"] if isinstance(schema.get("type"), str) else "any"


def _conversion(random: Random, schema: dict[str, Any]) -> tuple[Json, dict[str, Any]]:
    """The schema after a conversion, and the conversion."""
    match _type(schema):
        case "boolean":
            table = {"true": random.choice(WORDS), "false": "no"}
            return {"enum": sorted(set(table.values()))}, _by("boolean", "string", {"map": table})
        case "integer" if (
            "minimum" in schema and "maximum" in schema and schema["minimum"] >= 0 and random.random() < 0.5
        ):
            after = {"type": "string", "format": "date-time"}
            return after, _by("integer", "string", {"builtin": "unix_millis_to_rfc3339"})
        case "integer":
            after = {"type": "string", "minLength": 1, **({"maxLength": 9} if random.random() < 0.3 else {})}
            return after, _by("integer", "string", {"builtin": "int_to_string"})
        case "enum":
            return _from_enum(random, schema["enum"])
    if schema.get("format") == "date-time" and random.random() < 0.8:
        after = {"type": "integer", **({"minimum": -(10**14), "maximum": 10**15} if random.random() < 0.5 else {})}
        return after, _by("string", "integer", {"builtin": "rfc3339_to_unix_millis"})
    if random.random() < 0.5:
        name = random.choice(["lowercase", "uppercase"])
        after = {"type": "string", **{key: schema[key] for key in ("minLength", "maxLength") if key in schema}}
        return after, _by("string", "string", {"builtin": name})
    default = {"default": random.choice([0, 9])} if random.random() < 0.8 else {}
    return {"enum": [1, 2, 0, 9]}, _by("string", "integer", {"map": {"a": 1, "b": 2}, **default})


def _from_enum(random: Random, values: list[str]) -> tuple[Json, dict[str, Any]]:
    if random.random() < 0.3:
        name = random.choice(["lowercase", "uppercase"])
        changed = [value.lower() if name == "lowercase" else value.upper() for value in values]
        return {"enum": sorted(set(changed))}, _by("string", "string", {"builtin": name})
    if random.random() < 0.15:
        return {"type": "integer"}, _by("string", "integer", {"builtin": "string_to_int"})
    listed = values[random.random() < 0.15 :]
    table = {value: at for at, value in enumerate(listed)}
    default = {"default": 0} if random.random() < 0.2 else {}
    return {"enum": [*table.values(), 99]}, _by("string", "integer", {"map": table, **default})


def _by(from_type: str, to_type: str, forward: dict[str, Any]) -> dict[str, Any]:
    return {"fromType": from_type, "toType": to_type, "forward": forward}


def _text(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


# Ops that need not suit the schema at all.


def wild_ops(random: Random, schema: Json) -> Ops:
    """Ops at pointers that may exist under the schema, without regard to what they make of it."""
    return [_wild_op(random, schema, 2) for _ in range(random.choice([1, 1, 2, 3]))]


def _wild_op(random: Random, schema: Json, depth: int) -> dict[str, Any]:
    source, target = _wild_pointer(random, schema), _wild_pointer(random, schema)
    kinds = ["rename", "copy", "add", "remove", "hoist", "plunge", "wrap", "head", "convert", "in", "map"]
    kind = random.choice(kinds if depth else kinds[:-2])
    op: dict[str, Any] = {"op": kind, **({"optional": True} if random.random() < 0.8 else {})}
    flag = random.random() < 0.3
    match kind:
        case "rename" | "copy":
            return {**op, "from": _joined(source), "to": _joined(target)}
        case "add":
            return {
                **op,
                "path": _joined(target),
                "schema": True,
                "default": random.choice(WORDS),
                "overwrite": not flag,
            }
        case "remove":
            return {**op, "path": _joined(source), "schema": True}
        case "hoist":
            return {
                **op,
                "host": _joined(source[:-1]),
                "name": source[-1],
                "to": _joined(target),
                "removeFromHost": not flag,
            }
        case "plunge":
            return {
                **op,
                "from": _joined(source),
                "host": _joined(target),
                "name": random.choice(NAMES),
                "removeFromSource": not flag,
            }
        case "wrap":
            return {**op, "path": _joined(source[flag:]), "mode": "singleton"}
        case "head":
            return {**op, "path": _joined(source[flag:])}
        case "convert":
            kind = random.choice(["string", "integer", "number", "boolean", "null", "object", "array"])
            table = {"map": {"a": "A", "1": "one", "true": "yes", "null": ""}, **({} if flag else {"default": "other"})}
            return {**op, "path": _joined(source), **_by(kind, "string", table), "backward": table}
    inner = _at(schema, source)
    if kind == "map":
        inner = inner.get("items", True) if isinstance(inner, dict) else True
    return {
        **op,
        "path": _joined(source),
        "ops": [_wild_op(random, inner, depth - 1) for _ in range(random.randrange(3))],
    }


def _wild_pointer(random: Random, schema: Json) -> tuple[str, ...]:
    """One to three names, declared ones mostly."""
    names: list[str] = []
    for _ in range(random.choice([1, 1, 2, 2, 3])):
        declared = list(schema.get("properties", {})) if isinstance(schema, dict) else []
        if isinstance(schema, dict) and ("items" in schema or "prefixItems" in schema):
            declared = ["0", "1", "2"]
        name = random.choice(declared if declared and random.random() < 0.85 else NAMES)
        names.append(name)
        schema = _at(schema, (name,))
    return tuple(names)


def _at(schema: Json, names: tuple[str, ...]) -> Json:
    for name in names:
        if not isinstance(schema, dict):
            return True
        items = schema.get("items", True)
        schema = schema.get("properties", {}).get(name, items if isinstance(items, dict) else True)
    return schema


def _joined(names: tuple[str, ...]) -> str:
    return "".join(map(_text, names))
