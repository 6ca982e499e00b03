"""Lens documents (``durable.lens/v1``): read with every problem at once, and written again as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.lens import ops
from headrace.schema.lens.builtins import BUILTINS, TYPES
from headrace.schema.lens.ops import Lens, Op, Transform
from headrace.schema.pointer import Pointer
from headrace.schema.problem import Problem

API_VERSION = "durable.lens/v1"

#: How far ops hold ops, and how many names a pointer has.
DEEPEST = 32
LONGEST = 64

_REQUIRED: Any = object()


class _Place(NamedTuple):
    """Where a value was given, where problems go, and how many ops it is inside of."""

    pointer: str
    problems: list[Problem]
    depth: int = 0

    def at(self, name: str | int) -> _Place:
        return self._replace(pointer=self.pointer + pointers.text((str(name),)))

    def refuse(self, reason: str) -> Any:
        self.problems.append(Problem(self.pointer, reason))
        return _REQUIRED


class _Form(NamedTuple):
    """How a value is read and written."""

    read: Callable[[Any, _Place], Any]
    write: Callable[[Any], Any] = lambda value: value


class _Field(NamedTuple):
    """One key of a closed shape; where it may be left out, what that means."""

    key: str
    attribute: str
    form: _Form
    default: Any = _REQUIRED


def _checked(what: str, holds: Callable[[Any], bool]) -> _Form:
    return _Form(lambda given, place: given if holds(given) else place.refuse(f"must be {what}"))


def _exactly(text: str) -> _Form:
    return _checked(f'"{text}"', lambda given: isinstance(given, str) and given == text)


def _read_pointer(given: Any, place: _Place) -> Any:
    names = pointers.parse(given) if isinstance(given, str) else None
    if names is None:
        return place.refuse("must be a JSON Pointer")
    return names if len(names) <= LONGEST else place.refuse(f"must have at most {LONGEST} names")


def _read_transform(given: Any, place: _Place) -> Any:
    if isinstance(given, dict) and "builtin" in given:
        return _read_shape(given, place, Transform, _BY_BUILTIN)
    return _read_shape(given, place, Transform, _BY_TABLE)


def _write_transform(transform: Transform) -> dict[str, Any]:
    return _write_shape(transform, _BY_TABLE if transform.builtin is None else _BY_BUILTIN)


def _read_table(given: Any, place: _Place) -> Any:
    if not isinstance(given, dict):
        return place.refuse("must be an object")
    for text, value in given.items():
        _SCALAR.read(value, place.at(text))
    return dict(given)


def _read_ops(given: Any, place: _Place) -> Any:
    if not isinstance(given, list):
        return place.refuse("must be an array of ops")
    if place.depth > DEEPEST:
        return place.refuse(f"ops must not be nested more than {DEEPEST} deep")
    if len(given) > 1000:
        return place.refuse("must be at most 1000 ops")
    return tuple(_read_op(op, place.at(number)) for number, op in enumerate(given))


def _read_op(given: Any, place: _Place) -> Any:
    name = given.get("op") if isinstance(given, dict) else None
    if not isinstance(name, str) or name not in _OPS:
        return place.refuse("must be an object whose op is one of " + ", ".join(_OPS))
    kind, fields = _OPS[name]
    op = _read_shape(given, place, kind, (_Field("op", "", _exactly(name)), *fields))
    if op is not _REQUIRED:
        for key, reason in _refusals(op, place.depth == 0):
            place.at(key).refuse(reason)
    return op


def _read_shape(given: Any, place: _Place, kind: Callable[..., Any], fields: tuple[_Field, ...]) -> Any:
    """A closed object as a frozen value; ``_REQUIRED`` where something is wrong with it."""
    if not isinstance(given, dict):
        return place.refuse("must be an object")
    before = len(place.problems)
    known = {field.key for field in fields}
    for key in given:
        if key not in known:
            place.at(key).refuse("is not known here")
    facts: dict[str, Any] = {}
    for field in fields:
        if field.key in given:
            deeper = place._replace(depth=place.depth + 1) if kind in {ops.In, ops.Map} else place
            value = field.form.read(given[field.key], deeper.at(field.key))
        elif (value := field.default) is _REQUIRED:
            place.refuse(f"{field.key} is missing")
        if field.attribute:
            facts[field.attribute] = value
    return kind(**facts) if len(place.problems) == before else _REQUIRED


def _write_shape(value: Any, fields: tuple[_Field, ...]) -> dict[str, Any]:
    written = {}
    for field in fields:
        if field.attribute and (fact := getattr(value, field.attribute)) is not field.default:
            written[field.key] = field.form.write(fact)
    return written


def _write_op(op: Op) -> dict[str, Any]:
    mode = {"mode": "singleton"} if isinstance(op, ops.Wrap) else {}
    return {"op": op.name, **_write_shape(op, _OPS[op.name][1]), **mode}


_POINTER = _Form(_read_pointer, pointers.text)
_BOOLEAN = _checked("a boolean", lambda given: isinstance(given, bool))
_ANY = _Form(lambda given, place: given)
_NAME = _checked("a name", lambda given: isinstance(given, str) and given != "")
_TEXT = _checked("a text", lambda given: isinstance(given, str))
_VERSION = _checked("a version", lambda given: type(given) is int and given >= 0)
_SCHEMA = _checked("a JSON Schema", lambda given: isinstance(given, dict | bool))
_SCALAR = _checked("a scalar", lambda given: given is None or isinstance(given, str | int | float))
_TYPE = _checked("one of " + ", ".join(TYPES), lambda given: isinstance(given, str) and given in TYPES)
_BUILTIN = _checked("one of " + ", ".join(BUILTINS), lambda given: isinstance(given, str) and given in BUILTINS)
_TRANSFORM = _Form(_read_transform, _write_transform)
_NESTED = _Form(_read_ops, lambda given: [_write_op(op) for op in given])

_BY_BUILTIN = (_Field("builtin", "builtin", _BUILTIN),)
_BY_TABLE = (_Field("map", "table", _Form(_read_table, dict)), _Field("default", "default", _SCALAR, msgspec.UNSET))
_OPTIONAL = _Field("optional", "optional", _BOOLEAN, False)
_MOVE = (_Field("from", "source", _POINTER), _Field("to", "target", _POINTER), _OPTIONAL)
_PATH = _Field("path", "path", _POINTER)
_DEFAULT = (_Field("schema", "schema", _SCHEMA), _Field("default", "default", _ANY, msgspec.UNSET), _OPTIONAL)
_WITHIN = (_PATH, _Field("ops", "ops", _NESTED), _OPTIONAL)

_OPS: dict[str, tuple[type[Op], tuple[_Field, ...]]] = {
    "rename": (ops.Rename, _MOVE),
    "copy": (ops.Copy, _MOVE),
    "add": (ops.Add, (_PATH, *_DEFAULT, _Field("overwrite", "overwrite", _BOOLEAN, False))),
    "remove": (ops.Remove, (_PATH, *_DEFAULT)),
    "hoist": (
        ops.Hoist,
        (
            _Field("host", "host", _POINTER),
            _Field("name", "member", _NAME),
            _Field("to", "target", _POINTER),
            _Field("removeFromHost", "remove_from_host", _BOOLEAN, True),
            _OPTIONAL,
        ),
    ),
    "plunge": (
        ops.Plunge,
        (
            _Field("from", "source", _POINTER),
            _Field("host", "host", _POINTER),
            _Field("name", "member", _NAME),
            _Field("createHost", "create_host", _BOOLEAN, True),
            _Field("removeFromSource", "remove_from_source", _BOOLEAN, True),
            _OPTIONAL,
        ),
    ),
    "wrap": (
        ops.Wrap,
        (
            _PATH,
            _Field("mode", "", _exactly("singleton")),
            _Field("reverseMode", "", _exactly("first"), None),
            _OPTIONAL,
        ),
    ),
    "head": (ops.Head, (_PATH, _Field("reverseMode", "", _exactly("singleton"), None), _OPTIONAL)),
    "convert": (
        ops.Convert,
        (
            _PATH,
            _Field("fromType", "from_type", _TYPE),
            _Field("toType", "to_type", _TYPE),
            _Field("forward", "forward", _TRANSFORM),
            _Field("backward", "backward", _TRANSFORM),
            _OPTIONAL,
        ),
    ),
    "in": (ops.In, _WITHIN),
    "map": (ops.Map, _WITHIN),
}

_LENS = (
    _Field("apiVersion", "", _exactly(API_VERSION)),
    _Field("schema", "schema", _NAME),
    _Field("from", "source", _VERSION),
    _Field("to", "target", _VERSION),
    _Field("description", "description", _TEXT, None),
    _Field("ops", "ops", _NESTED),
)


def parse(given: Any) -> Lens | list[Problem]:
    """The lens of a document, or everything that is wrong with it."""
    problems: list[Problem] = []
    lens = _read_shape(given, _Place("", problems), Lens, _LENS)
    return problems or lens


def dump(lens: Lens) -> dict[str, Any]:
    """The document of a lens; what says nothing new is left out."""
    return {"apiVersion": API_VERSION, **_write_shape(lens, _LENS)}


def _refusals(op: Op, top: bool) -> Iterator[tuple[str, str]]:
    """What an op of the right shape may still not ask for: the key, and why."""
    match op:
        case ops.Rename(source=source, target=target):
            yield from _displaced(source, target, True, top)
        case ops.Copy(source=source, target=target):
            yield from _displaced(source, target, False, top)
        case ops.Hoist(host=host, member=member, target=target):
            yield from _displaced((*host, member), target, op.remove_from_host, top)
        case ops.Add(path=()) | ops.Remove(path=()):
            yield "path", f"{op.name} must not name a whole value"
        case ops.Plunge(source=source, host=host, member=member):
            if host[: len(source)] == source:
                yield "host", "must not lie inside the source"
            elif source == (*host, member):
                yield "name", "the value is there already"
        case ops.Convert():
            yield from _misfit(op.forward, op.from_type, op.to_type, "forward")
            yield from _misfit(op.backward, op.to_type, op.from_type, "backward")


def _displaced(source: Pointer, target: Pointer, moves: bool, top: bool) -> Iterator[tuple[str, str]]:
    if source == target:
        yield "to", "the value is there already"
    elif moves and target[: len(source)] == source:
        yield "to", "must not lie inside what is moved there"
    elif top and not target:
        yield "to", "must not be the whole event"


def _misfit(transform: Transform, from_type: str, to_type: str, key: str) -> Iterator[tuple[str, str]]:
    if transform.builtin is not None:
        builtin = BUILTINS[transform.builtin]
        fits = to_type == builtin.to_type or (to_type, builtin.to_type) == ("number", "integer")
        if from_type != builtin.from_type or not fits:
            yield (
                key,
                f"{transform.builtin} makes {builtin.to_type} of {builtin.from_type}, not {to_type} of {from_type}",
            )


def fill_defaults(lens: Lens, schema: Any) -> Lens:
    """The lens with the defaults its adds left to the new schema; those that nothing gives stay unset."""
    return msgspec.structs.replace(lens, ops=_filled(lens.ops, schema, ()))


def _filled(given: tuple[Op, ...], schema: Any, base: Pointer) -> tuple[Op, ...]:
    return tuple(_filled_op(op, schema, base) for op in given)


def _filled_op(op: Op, schema: Any, base: Pointer) -> Op:
    match op:
        case ops.Add(default=msgspec.UNSET):
            default = default_of(declared(schema, base + op.path), op.schema)
            return msgspec.structs.replace(op, default=default)
        case ops.In() | ops.Map():
            inside = base + op.path + (("0",) if isinstance(op, ops.Map) else ())
            return msgspec.structs.replace(op, ops=_filled(op.ops, schema, inside))
    return op


def default_of(*schemas: Any) -> Any:
    """The first default that schemas give, else what the first with a single container type begins with; or UNSET."""
    known = [schema for schema in schemas if isinstance(schema, dict)]
    for schema in known:
        if "default" in schema:
            return schema["default"]
    for schema in known:
        if _types(schema) in (["object"], ["array"]):
            return {} if _types(schema) == ["object"] else []
    return msgspec.UNSET


def declared(root: Any, names: Pointer) -> dict[str, Any]:
    """What a schema says of the value at a pointer."""
    schema = _resolved(root, root)
    for name in names:
        items = _is_index(name, schema)
        schema = _resolved(schema.get("items", True) if items else schema.get("properties", {}).get(name, True), root)
    return schema


def admits(root: Any, names: Pointer) -> bool:
    """Whether a schema leaves room for a value at a pointer: no closed object on the way lacks its name."""
    return not any(_is_closed(declared(root, names[:end]), name) for end, name in enumerate(names))


def _is_closed(schema: dict[str, Any], name: str) -> bool:
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return closed and not _is_index(name, schema) and name not in schema.get("properties", {})


def required(root: Any, names: Pointer, known: list[Pointer]) -> bool:
    """Whether a schema requires the value at a pointer in every document that has values at known pointers."""
    shared = max((_shared(names, pointer) for pointer in known), default=0)
    return all(_requires(declared(root, names[:end]), names[end]) for end in range(shared, len(names)))


def _shared(names: Pointer, others: Pointer) -> int:
    return next(
        (at for at, pair in enumerate(zip(names, others, strict=False)) if pair[0] != pair[1]),
        min(len(names), len(others)),
    )


def _requires(schema: dict[str, Any], name: str) -> bool:
    return name in schema.get("required", ()) or (_is_index(name, schema) and int(name) < schema.get("minItems", 0))


def _is_index(name: str, schema: dict[str, Any]) -> bool:
    return pointers.index(name) is not None and ("array" in _types(schema) or "items" in schema)


def _types(schema: dict[str, Any]) -> list[str]:
    given = schema.get("type", [])
    return [given] if isinstance(given, str) else list(given)


def _resolved(schema: Any, root: Any) -> dict[str, Any]:
    """A schema after its local references; a boolean says as much as no word."""
    for _ in range(DEEPEST):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        names = pointers.parse(reference[1:]) if isinstance(reference, str) and reference[:1] == "#" else None
        if names is None:
            break
        schema = root
        for name in names:
            schema = schema.get(name, True) if isinstance(schema, dict) else True
    return schema if isinstance(schema, dict) else {}
