"""Lenses with documents that they apply to, after the oracle.

A case is made from seeds, one for the documents and one for each op, so that it can shrink to the ops that matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

from headrace.schema.lens.document import parse
from headrace.schema.lens.ops import Lens
from schema.lens.oracle import Names, Number, Refused, has, is_type, look, promoted, spell, text
from schema.lens.wire import lens_of


class Manner(Enum):
    """What the ops of a case may do."""

    GENTLE = "every document can be had back"
    LOSSY = "a document like it can be had back"
    LOOSE = "anything that applies"


# Documents.

_NAMES = ["a", "b", "c", "d", "a/b", "~", "é\u2028", ' q"', ""]
# Members that look like elements: taking one away might shift the others, so that not all of it can be undone.
_INDICES = ["0", "1"]
_NUMBERS = ["0", "-0", "1", "1.0", "7", "-3", "0.5", "1e5", "1E+2", "9007199254740993", "123456789012345678901", "2.50"]
_TEXTS = ["x", "Y", "é", 'say "hi"\n', "\U0001f600", "12", "-3 apples", "", "\\", "/"]


class Shape(NamedTuple):
    """What documents of a case have in common."""

    kind: str
    members: dict[str, tuple[Shape, bool]] = {}
    items: Shape | None = None
    lengths: tuple[int, int] = (0, 0)


def _shape(random: Random, names: list[str], depth: int) -> Shape:
    kind = random.choice(["object", "object", "array", "string", "number", "integer", "boolean", "null"])
    if depth and kind == "array":
        return Shape(kind, items=_shape(random, names, depth - 1), lengths=random.choice([(1, 1), (0, 3), (1, 2)]))
    if depth and kind == "object":
        return _object_shape(random, names, depth)
    return Shape(random.choice(["string", "integer"]) if kind in {"array", "object"} else kind)


def _object_shape(random: Random, names: list[str], depth: int) -> Shape:
    # The first is required, so that no document has an empty object where another has none.
    chosen = enumerate(random.sample(names, random.randint(1, 4)))
    return Shape(
        "object", {name: (_shape(random, names, depth - 1), not at or random.random() < 0.6) for at, name in chosen}
    )


def _document(random: Random, shape: Shape, full: int, share: float) -> Any:
    """A document with all it may have in the outer levels, and a share of it in the others."""
    part = 1.0 if full > 0 else share
    match shape.kind:
        case "object":
            chosen = [item for item in shape.members.items() if item[1][1] or random.random() < part]
            random.shuffle(chosen)
            return {name: _document(random, inner, full - 1, share) for name, (inner, _) in chosen}
        case "array":
            assert shape.items is not None
            least, most = shape.lengths
            length = least + round(part * (most - least))
            return [_document(random, shape.items, full - 1, share) for _ in range(length)]
        case "string":
            return random.choice(_TEXTS)
        case "number":
            return Number(random.choice(_NUMBERS))
        case "integer":
            return Number(random.choice([n for n in _NUMBERS if Decimal(n) % 1 == 0]))
    return random.choice([True, False]) if shape.kind == "boolean" else None


def schema_of(shape: Shape) -> dict[str, Any]:
    """A closed JSON Schema for the documents of a shape."""
    if shape.kind == "object":
        return {
            "type": "object",
            "properties": {name: schema_of(inner) for name, (inner, _) in shape.members.items()},
            "required": [name for name, (_, required) in shape.members.items() if required],
            "additionalProperties": False,
        }
    if shape.items is not None:
        least, most = shape.lengths
        return {"type": "array", "items": schema_of(shape.items), "minItems": least, "maxItems": most}
    return {"type": shape.kind}


# Lenses.


class Case(NamedTuple):
    """Lenses in a row, the schema and documents of version 1, and the documents of each later version."""

    schema: dict[str, Any]
    lenses: dict[int, Lens]
    wire: list[dict[str, Any]]
    documents: list[list[Any]]
    shape: Shape

    @property
    def latest(self) -> int:
        return len(self.documents)


def pointers_of(value: Any, names: Names = ()) -> Iterator[Names]:
    """Every pointer into a document."""
    yield names
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from pointers_of(inner, (*names, str(name)))


class _Maker:
    """Makes ops that apply to all documents of a case, in its manner."""

    def __init__(self, manner: Manner, first: str | None = None) -> None:
        self._first = first
        self._manner = manner
        self._loose = manner is Manner.LOOSE
        self._kinds = ["rename", "copy", "add", "hoist", "plunge", "wrap", "head", "convert", "in", "map", "map"]
        if manner is not Manner.GENTLE:
            self._kinds += ["remove", "remove"]
        # Where a copy and its source part later, an old document has room for one of them only.
        self._copies = manner is not Manner.LOSSY
        self._fresh = 0

    def op(self, random: Random, documents: list[Any], depth: int) -> tuple[dict[str, Any], list[Any]] | None:
        """One op, and what it makes of the documents; None where none was found."""
        for _ in range(8):
            op = self._drawn(random, documents, depth)
            optional = {**(op or {}), "optional": True}
            for given in [] if op is None else [optional] if random.random() < 0.2 else [op, optional]:
                try:
                    after = [promoted([given], document) for document in documents]
                except Refused:
                    continue
                if _parses([{"op": "in", "path": "", "ops": [given]}]):
                    return given, after
        return None

    def _drawn(self, random: Random, documents: list[Any], depth: int) -> dict[str, Any] | None:
        kind = self._first or random.choice(self._kinds)
        document = documents[0]
        sources = [names for names in pointers_of(document) if self._goes(document, names)]
        source = random.choice(sources)
        values = [look(d, source) for d in documents if has(d, source)]
        match kind:
            case "in" | "map":
                return self._nested(random, kind, documents, sources, depth)
            case "add":
                return self._add(random, self._target(random, document, sources), source, values)
            case "remove":
                return self._remove(random, source, values)
            case "rename" | "copy" if kind == "rename" or self._copies:
                return {"op": kind, "from": text(source), "to": text(self._target(random, document, sources))}
            case "hoist":
                host, name = text(source[:-1]), (*source, "")[len(source) - 1]
                to = text(self._target(random, document, sources))
                keep = {"removeFromHost": False} if self._copies and random.random() < 0.3 else {}
                return {"op": kind, "host": host, "name": name, "to": to, **keep}
            case "plunge":
                return self._plunge(random, document, source, sources)
        return self._reshape(random, kind, source, values)

    def _goes(self, document: Any, names: Names) -> bool:
        """Only a loose op counts the elements of an array: others may have more or fewer."""
        inner = (look(document, names[:end]) for end in range(len(names)))
        return self._loose or all(isinstance(container, dict) for container in inner)

    def _target(self, random: Random, document: Any, sources: list[Names]) -> Names:
        if self._loose and random.random() < 0.5:
            return random.choice(sources)
        hosts = [names for names in sources if isinstance(look(document, names), dict)]
        return (*random.choice(hosts or [()]), self._name())

    def _name(self) -> str:
        self._fresh += 1
        return f"n{self._fresh}"

    def _add(self, random: Random, target: Names, source: Names, values: list[Any]) -> dict[str, Any]:
        op = {"op": "add", "path": text(target), "schema": True, "default": _json(random, 2)}
        if self._loose:
            return {**op, "overwrite": True}
        if not self._loses(source, values):
            return op
        return {**op, "path": text(source), "default": _jsonable(random.choice(values)), "overwrite": True}

    def _remove(self, random: Random, source: Names, values: list[Any]) -> dict[str, Any] | None:
        if not self._loose and not self._loses(source, values):
            return None
        default = _json(random, 1) if self._loose else _jsonable(random.choice(values))
        return {"op": "remove", "path": text(source), "schema": True, "default": default}

    def _loses(self, names: Names, values: list[Any]) -> bool:
        """Whether a value may get lost; what ops brought there can not be told from what never was."""
        moved = any(name.startswith("n") for name in names)
        return self._manner is Manner.LOSSY and not moved and not any(isinstance(v, dict | list) for v in values)

    def _plunge(self, random: Random, document: Any, source: Names, sources: list[Names]) -> dict[str, Any]:
        hosts = [names for names in sources if isinstance(look(document, names), dict)]
        if self._manner is Manner.LOSSY:
            hosts = []  # a host made where another document has one can not be told from it later
        host = random.choice(hosts or [()]) + tuple(self._name() for _ in range(random.randint(0, 2)))
        name = random.choice("abcd") if self._loose and random.random() < 0.5 else self._name()
        flags = random.choice([{}, {"createHost": False}, {"removeFromSource": not self._copies}])
        return {"op": "plunge", "from": text(source), "host": text(host), "name": name, **flags}

    def _reshape(self, random: Random, kind: str, path: Names, values: list[Any]) -> dict[str, Any] | None:
        if kind == "wrap":
            return {"op": kind, "path": text(path), "mode": "singleton"}
        if kind == "head":
            single = all(isinstance(value, list) and len(value) == 1 for value in values)
            return {"op": kind, "path": text(path)} if single or self._manner is not Manner.GENTLE else None
        transforms = self._transforms(random, values) if kind == "convert" else None
        return transforms and {"op": "convert", "path": text(path), **transforms}

    def _transforms(self, random: Random, values: list[Any]) -> dict[str, Any] | None:
        if all(isinstance(value, bool) for value in values):
            there, back = {"true": "yes", "false": "no"}, {"yes": True, "no": False}
            return _types("boolean", "string", {"map": there}, {"map": back})
        if all(is_type(value, "string") for value in values):
            table = {value: at for at, value in enumerate(_TEXTS)}
            whole = _types("string", "integer", {"map": table}, {"map": {str(at): v for v, at in table.items()}})
            cases = _types("string", "string", {"builtin": "uppercase"}, {"builtin": "lowercase"})
            known = {Manner.GENTLE: [whole], Manner.LOSSY: [whole, cases], Manner.LOOSE: [whole, cases, _odd(random)]}
            return random.choice(known[self._manner])
        if all(is_type(value, "integer") and str(int(Decimal(value))) == value for value in values):
            return _types("integer", "string", {"builtin": "int_to_string"}, {"builtin": "string_to_int"})
        if not self._loose:
            return None
        from_type = random.choice(["number", "integer", "null", "object"])
        return _types(from_type, "string", {"map": {"1": "one"}, "default": ""}, {"map": {}})

    def _nested(
        self, random: Random, kind: str, documents: list[Any], sources: list[Names], depth: int
    ) -> dict[str, Any] | None:
        wanted = dict if kind == "in" else list
        paths = [names for names in sources if isinstance(look(documents[0], names), wanted)]
        if not paths or not depth:
            return None
        path = random.choice(paths)
        self._first = None
        inner = [look(document, path) for document in documents if has(document, path)]
        if not all(isinstance(value, wanted) for value in inner):
            return None
        inner = inner if kind == "in" else [element for array in inner for element in array]
        ops = (
            self.ops([random.randrange(2**32) for _ in range(random.randint(1, 2))], inner, depth - 1)[0]
            if inner
            else []
        )
        return {"op": kind, "path": text(path), "ops": ops}

    def ops(self, seeds: list[int], documents: list[Any], depth: int) -> tuple[list[dict[str, Any]], list[Any]]:
        """One op for each seed for which there is one, and what they make of the documents."""
        ops = []
        for seed in seeds:
            made = self.op(Random(seed), documents, depth)
            self._first = None
            if made is not None:
                ops.append(made[0])
                documents = made[1]
        return ops, documents


def _types(from_type: str, to_type: str, forward: dict[str, Any], backward: dict[str, Any]) -> dict[str, Any]:
    return {"fromType": from_type, "toType": to_type, "forward": forward, "backward": backward}


def _odd(random: Random) -> dict[str, Any]:
    table = {value: random.choice([True, None, 0, 1.5, "s"]) for value in random.sample(_TEXTS, 3)}
    return _types("string", "string", {"map": table, "default": "other"}, {"map": {}, "default": "x"})


def _json(random: Random, depth: int) -> Any:
    kind = random.randint(0, 6 if depth else 4)
    if kind == 5:
        return [_json(random, depth - 1) for _ in range(random.randint(0, 2))]
    if kind == 6:
        return {name: _json(random, depth - 1) for name in random.sample("abc", random.randint(0, 2))}
    return [None, True, 0, "", random.randint(-9, 9)][kind]


def _parses(ops: list[dict[str, Any]]) -> bool:
    return isinstance(parse(lens_of(1, ops)), Lens)


def _jsonable(value: Any) -> Any:
    return json.loads(spell(value))


def _case(seed: int, op_seeds: list[list[int]], manner: Manner, first: str | None) -> Case:
    random = Random(seed)
    # Most events are objects, but any JSON value is one.
    names = _NAMES + ([] if manner is Manner.LOSSY else _INDICES)
    shape = _object_shape(random, names, 3) if random.random() < 0.9 else _shape(random, names, 2)
    # What is in all of these is in every document of the shape that has what is around it.
    documents = [[_document(random, shape, *parts) for parts in ((9, 1), (0, 0), (1, 0), (2, 0), (0, 0.6))]]
    maker = _Maker(manner, first)
    wire = []
    for version, seeds in enumerate(op_seeds, 1):
        ops, after = maker.ops(seeds, documents[-1], 2)
        if not _parses(ops):  # what may stand inside another op may not stand alone
            ops, after = [], documents[-1]
        wire.append(lens_of(version, ops))
        documents.append(after)
    lenses = {given["from"]: parse(given) for given in wire}
    return Case(schema_of(shape), lenses, wire, documents, shape)  # type: ignore[arg-type]


_SEEDS = st.integers(0, 2**32 - 1)


def cases(manner: Manner, lenses: int = 1, first: str | None = None) -> st.SearchStrategy[Case]:
    """Lenses in a row with documents that they apply to; the first op is of a kind, where there can be one."""
    op_seeds = st.lists(st.lists(_SEEDS, max_size=5 if lenses == 1 else 3), min_size=lenses, max_size=lenses)
    return st.builds(lambda seed, ops: _case(seed, ops, manner, first), _SEEDS, op_seeds)
