"""Streams that change: shapes of events that turn into each other by lenses, and events of every shape.

Everything comes from the random source that is handed in, so that a seed is a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from msgspec import Raw

Path = tuple[str, ...]
Make = Callable[[Random], Any]
Ops = list[dict[str, Any]]

START = 1_760_000_000_000
MINUTE, HOUR = 60_000, 3_600_000
#: The last millisecond that rollups know, and the last of the year 9999.
FARTHEST, LAST = 8_640_000_000_000_000, 253_402_300_799_999
HOST = "http"

WORDS = ("ab", "Abc", "b", "Straße", "ΣΊΣΥΦΟΣ", "naïve", "zz", "a1", "日本", "x-y", "İz", "e\u0301")
LEVELS = ("low", "mid", "high")
KEYS = ("red", "grün", "blue", "a/b", "ключ")


class Member(NamedTuple):
    """What may stand at a place of an event, how such values are made, and whether one must be there."""

    schema: Any
    make: Make
    required: bool = False


# -- values


def phrase(random: Random) -> Any:
    """Some words, now and then spelled or spaced oddly."""
    text = " ".join(random.choices(WORDS, k=random.randint(1, 5)))
    return random.choice([text, text, text, f" {text}!", text.upper(), "", " ", "…", Raw(b'"\\u0041b b"'), "🜁 ab"])


def word(random: Random) -> Any:
    """A word, or what is almost one."""
    return random.choice([*WORDS, "", "AB", "ab b", "a*", 'q"\\', Raw(b'"\\ud83d\\ude00"'), Raw(b'"\\u0061b"')])


def whole(random: Random) -> Any:
    """A small whole number in one of its spellings, or one that is none, or a great one."""
    number = random.randint(-1, 6)
    rare = [2**63 - 1, -(2**63), 2**63, -(2**70), 1.5, True, "x", 2**53 + 1]
    odd = [str(number), f" {number} ", float(number), Raw(b"%d.0e0" % number), Raw(b"-0")]
    return random.choice(rare if random.random() < 0.06 else odd if random.random() < 0.2 else [number])


def size(random: Random) -> Any:
    """A whole number of any size."""
    return random.choice([random.randint(-3, 3), random.randint(-(2**40), 2**62), 2**53, 10**30, -(2**63)])


def real(random: Random) -> Any:
    """A number whose sums are exact in any order, in one of its spellings."""
    number = random.randint(-(2**20), 2**30) / 1024
    return random.choice([number, number, number, random.randint(0, 9), repr(number), 0.0, Raw(b"-0.0"), Raw(b"1.50")])


def moment(random: Random) -> Any:
    """A time within a few hours, in one of its spellings, or far away."""
    millis = START + random.randint(-2 * HOUR, 2 * HOUR)
    far = [0, -1, FARTHEST, FARTHEST + 1, 2**70, "2025", "0001-01-01", "soon", millis + 0.5]
    iso = [f"2025-10-09T{random.randint(7, 10):02}:{random.randint(0, 59):02}:30.25+00:00", str(millis), "2025-10-09"]
    return random.choice(far if random.random() < 0.05 else iso if random.random() < 0.2 else [millis])


def truth(random: Random) -> Any:
    """A boolean, or its text."""
    return random.choice([True, False, True, False, "true", " FALSE ", "yes", 1])


def parts(random: Random) -> Any:
    """A summary of other numbers."""
    least, greatest = sorted(random.randint(-(2**20), 2**20) / 1024 for _ in range(2))
    made: dict[str, Any] = {"count": random.randint(0, 9), "sum": least + greatest, "min": least, "max": greatest}
    if random.random() < 0.7:
        made["histogram"] = {random.choice("1248"): random.randint(1, 5)}
    if random.random() < 0.2:
        made[random.choice(["count", "sum", "min"])] = random.choice([None, "2", 1.5, -1])
    return made


#: What is legal, and hardly ever seen: numbers that no double holds, a great many values, a very deep one.
_STRANGE = (Raw(b"1e400"), Raw(b"1e-400"), Raw(b"123456789012345678901234567890.5"), "\0", ["ab"] * 4_100)
_DEEP = Raw(b"[" * 600 + b'"ab"' + b"]" * 600)


def several(one: Make) -> Make:
    """One value, or several, or none."""

    def make(random: Random) -> Any:
        if random.random() < 0.002:
            return random.choice([*_STRANGE, _DEEP])
        chance = random.random()
        if chance < 0.75:
            return one(random)
        if chance < 0.92:
            return [one(random) for _ in range(random.randint(0, 3))]
        return random.choice([None, [None, one(random)], [[one(random)], [[one(random)]]], {"a": 1}, one(random)])

    return make


def loose(random: Random) -> Any:
    """Anything that is JSON."""
    pieces = [phrase(random), whole(random), None, True, [], {}, [phrase(random), phrase(random)]]
    return random.choice([*pieces, {"a": random.choice(pieces), "b": {"c": whole(random)}}])


# -- shapes

_ANY: dict[str, Make] = {
    "time": moment,
    "service": several(word),
    "tags": several(word),
    "path": several(word),
    "request": several(word),
    "message": several(phrase),
    "why": several(phrase),
    "status": several(whole),
    "size": several(size),
    "duration": several(real),
    "error": several(truth),
    "given": parts,
}
_LABEL = {"type": "string"}
_LABELS = {"type": "array", "items": _LABEL, "minItems": 1}
_TYPED: dict[str, Member] = {
    "level": Member({"enum": list(LEVELS)}, lambda random: random.choice(LEVELS)),
    "code": Member({"type": "integer", "minimum": 0, "maximum": 9}, lambda random: random.randint(0, 9)),
    "seen": Member(
        {"type": "integer", "minimum": 0, "maximum": LAST}, lambda random: START + random.randint(-HOUR, HOUR), True
    ),
    "label": Member(_LABEL, lambda random: random.choice(["Ab", "ab", "AB", "Σ", "", "é"])),
    "labels": Member(_LABELS, lambda random: random.choices(["x", "Y", "é"], k=random.randint(1, 3)), True),
}


class Shape:
    """What events of a version look like, and where each meaning has its place in them."""

    def __init__(self, members: dict[Path, Member], places: dict[str, Path]) -> None:
        self.members = members
        self.places = places

    @classmethod
    def first(cls, random: Random) -> Shape:
        """A shape to begin with: some meanings are not there yet, some lie in an object."""
        members = {name: Member(True, make) for name, make in _ANY.items()} | _TYPED
        chosen = [name for name in members if name in ("time", "seen", "labels") or random.random() < 0.9]
        places = {
            name: (HOST, name) if _is_free(members[name]) and random.random() < 0.1 else (name,) for name in chosen
        }
        return cls({places[name]: members[name] for name in chosen}, places)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema."""
        inside = {path[1]: member.schema for path, member in self.members.items() if len(path) > 1}
        outside = {path[0]: member.schema for path, member in self.members.items() if len(path) == 1}
        outside[HOST] = {"type": "object", "properties": inside, "additionalProperties": False}
        required = [path[0] for path, member in self.members.items() if member.required]
        return {
            "type": "object",
            "properties": {"k": {"type": "string"}, **outside},
            "required": required,
            "additionalProperties": False,
        }

    def event(self, random: Random) -> Any:
        """An event of this shape."""
        made: dict[str, Any] = {"k": random.choice(KEYS)} if random.random() < 0.8 else {}
        for path, member in self.members.items():
            if member.required or random.random() < 0.8:
                holder = made if len(path) == 1 else made.setdefault(HOST, {})
                holder[path[-1]] = member.make(random)
        return made


class Loose(Shape):
    """No shape at all: events need not even be objects."""

    @classmethod
    def first(cls, random: Random) -> Loose:
        """Where meanings are looked for all the same."""
        del random
        places: dict[str, Path] = {"message": (), "tags": ("0",), "status": ("a",), "time": ("a",), "service": ("b",)}
        return cls({}, {**places, "size": ("b", "c"), "why": ("a",), "request": ("a",)})

    @property
    def schema(self) -> Any:
        """Everything is valid."""
        return True

    def event(self, random: Random) -> Any:
        """Anything."""
        return loose(random)


def _is_free(member: Member) -> bool:
    return member.schema is True


# -- changes of shape


def evolved(random: Random, shape: Shape) -> tuple[Ops, Shape]:
    """The ops of a lens, up to three, and the shape they lead to."""
    ops: Ops = []
    made = Shape(dict(shape.members), dict(shape.places))
    for _ in range(random.randint(1, 3)):
        ops += random.choice(_CHANGES)(random, made)
    return ops, made


def _rename(random: Random, shape: Shape) -> Ops:
    path = random.choice([path for path in shape.members if path != ("time",)])
    target = (f"{path[-1][:8]}_{random.randrange(1000)}",)
    optional = not shape.members[path].required
    _move(shape, path, target)
    return [{"op": "rename", "from": pointer(path), "to": pointer(target), "optional": optional}]


def _plunge(random: Random, shape: Shape) -> Ops:
    path = random.choice([path for path, member in shape.members.items() if len(path) == 1 and _is_free(member)])
    name = f"{path[0][:8]}_{random.randrange(1000)}"
    _move(shape, path, (HOST, name))
    return [{"op": "plunge", "from": pointer(path), "host": f"/{HOST}", "name": name, "optional": True}]


def _hoist(random: Random, shape: Shape) -> Ops:
    inside = [path for path in shape.members if len(path) > 1]
    if not inside:
        return []
    path = random.choice(inside)
    target = (f"out_{random.randrange(1000)}",)
    _move(shape, path, target)
    return [{"op": "hoist", "host": f"/{HOST}", "name": path[1], "to": pointer(target), "optional": True}]


def _copy(random: Random, shape: Shape) -> Ops:
    """The meaning follows the copy."""
    name = random.choice([name for name, path in shape.places.items() if path in shape.members and name != "time"])
    path, target = shape.places[name], (f"copy_{random.randrange(1000)}",)
    member = shape.members[path]
    shape.members[target] = member
    shape.places[name] = target
    return [{"op": "copy", "from": pointer(path), "to": pointer(target), "optional": not member.required}]


def _add(random: Random, shape: Shape) -> Ops:
    """A meaning that was absent, or that has stood elsewhere, has a constant in all older events."""
    name, value, make = random.choice([("service", "eu", word), ("status", 3, whole), ("why", "ab b", phrase)])
    path = (f"new_{random.randrange(1000)}",)
    shape.members[path] = Member(True, several(make), True)
    shape.places[name] = path
    return [{"op": "add", "path": pointer(path), "schema": True, "default": value}]


def _remove(random: Random, shape: Shape) -> Ops:
    free = [path for path, member in shape.members.items() if _is_free(member) and not member.required]
    path = random.choice([path for path in free if path != ("time",)])
    del shape.members[path]
    return [{"op": "remove", "path": pointer(path), "schema": True, "optional": True}]


def _wrap(random: Random, shape: Shape) -> Ops:
    path = random.choice([path for path, member in shape.members.items() if _is_free(member)])
    member = shape.members[path]
    make = member.make
    several_of_it = lambda random: [make(random) for _ in range(random.randint(0, 2))]  # noqa: E731
    shape.members[path] = Member({"type": "array"}, several_of_it, member.required)
    return [{"op": "wrap", "path": pointer(path), "mode": "singleton", "optional": not member.required}]


def _head(random: Random, shape: Shape) -> Ops:
    del random
    path = _typed(shape, _LABELS)
    if path is None:
        return []
    shape.members[path] = Member(_LABEL, _TYPED["label"].make, True)
    return [{"op": "head", "path": pointer(path)}]


def _shout(random: Random, shape: Shape) -> Ops:
    """Every element in capitals, or the text that is one."""
    del random
    path, inner = _typed(shape, _LABELS), _typed(shape, _LABEL)
    upper = {"fromType": "string", "toType": "string", "forward": {"builtin": "uppercase"}}
    op = {"op": "convert", "path": "", **upper, "backward": {"builtin": "lowercase"}}
    if path is not None:
        return [{"op": "map", "path": pointer(path), "ops": [op]}]
    if inner is None:
        return []
    return [{**op, "path": pointer(inner), "optional": not shape.members[inner].required}]


def _level(random: Random, shape: Shape) -> Ops:
    """Names become numbers."""
    del random
    path = _typed(shape, _TYPED["level"].schema)
    if path is None:
        return []
    numbers = list(range(len(LEVELS)))
    shape.members[path] = Member({"enum": numbers}, lambda random: random.choice(numbers))
    forward = {"map": dict(zip(LEVELS, numbers, strict=True))}
    backward = {"map": {str(number): name for number, name in enumerate(LEVELS)}}
    return [_convert(path, "string", "integer", forward, backward, optional=True)]


def _code(random: Random, shape: Shape) -> Ops:
    """Numbers become texts."""
    del random
    path = _typed(shape, _TYPED["code"].schema)
    if path is None:
        return []
    shape.members[path] = Member({"type": "string"}, lambda random: str(random.randint(0, 9)))
    turns = {"builtin": "int_to_string"}, {"builtin": "string_to_int"}
    return [_convert(path, "integer", "string", *turns, optional=True)]


def _seen(random: Random, shape: Shape) -> Ops:
    """Milliseconds become ISO texts."""
    del random
    path = _typed(shape, _TYPED["seen"].schema)
    if path is None:
        return []
    made = {"type": "string", "format": "date-time"}
    shape.members[path] = Member(made, lambda random: f"2025-10-09T08:{random.randint(0, 59):02}:00.5Z", True)
    turns = {"builtin": "unix_millis_to_rfc3339"}, {"builtin": "rfc3339_to_unix_millis"}
    return [_convert(path, "integer", "string", *turns)]


_CHANGES = (_rename, _plunge, _hoist, _copy, _add, _remove, _wrap, _head, _shout, _level, _code, _seen)


def _convert(path: Path, old: str, new: str, forward: Any, backward: Any, *, optional: bool = False) -> dict[str, Any]:
    turns = {"fromType": old, "toType": new, "forward": forward, "backward": backward}
    return {"op": "convert", "path": pointer(path), **turns, "optional": optional}


def _typed(shape: Shape, schema: Any) -> Path | None:
    return next((path for path, member in shape.members.items() if member.schema == schema), None)


def _move(shape: Shape, source: Path, target: Path) -> None:
    member = shape.members.pop(source)
    shape.members[target] = member._replace(required=member.required and len(target) == 1)
    for name, path in shape.places.items():
        if path == source:
            shape.places[name] = target


def pointer(path: Path) -> str:
    """A path as a JSON Pointer."""
    return "".join(f"/{name}" for name in path)
