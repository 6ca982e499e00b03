"""Parse lens documents (``durable.lens/v1``), with every problem at once, and dump them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.lens import ops
from headrace.schema.lens.conversions import BUILTINS, TYPES
from headrace.schema.lens.ops import Lens, Op, Transform
from headrace.schema.pointer import Pointer
from headrace.schema.problem import Problem

API_VERSION = "durable.lens/v1"

#: How deep ops may be nested, and how many names a pointer may have.
MAX_DEPTH = 32
MAX_POINTER_NAMES = 64

_REQUIRED: Any = object()


class _LensLocation(NamedTuple):
    """The pointer of a value, the list that its problems are added to, and its depth in nested ops."""

    pointer: str
    problems: list[Problem]
    depth: int = 0

    def at(self, name: str | int) -> _LensLocation:
        return self._replace(pointer=self.pointer + pointers.text((str(name),)))

    def refuse(self, reason: str) -> Any:
        self.problems.append(Problem(self.pointer, reason))
        return _REQUIRED


class _Codec(NamedTuple):
    """How a value is read and written."""

    read: Callable[[Any, _LensLocation], Any]
    write: Callable[[Any], Any] = lambda value: value


class _Field(NamedTuple):
    """One key of a closed object, with its default if it may be left out."""

    key: str
    attribute: str
    form: _Codec
    default: Any = _REQUIRED


def _checked_codec(what: str, holds: Callable[[Any], bool]) -> _Codec:
    return _Codec(lambda raw, location: raw if holds(raw) else location.refuse(f"must be {what}"))


def _constant_codec(text: str) -> _Codec:
    return _checked_codec(f'"{text}"', lambda raw: isinstance(raw, str) and raw == text)


def _read_pointer(raw: Any, location: _LensLocation) -> Any:
    names = pointers.parse(raw) if isinstance(raw, str) else None
    if names is None:
        return location.refuse("must be a JSON Pointer")
    return names if len(names) <= MAX_POINTER_NAMES else location.refuse(f"must have at most {MAX_POINTER_NAMES} names")


def _read_transform(raw: Any, location: _LensLocation) -> Any:
    if isinstance(raw, dict) and "builtin" in raw:
        return _read_shape(raw, location, Transform, _BY_BUILTIN)
    return _read_shape(raw, location, Transform, _BY_TABLE)


def _write_transform(transform: Transform) -> dict[str, Any]:
    return _write_shape(transform, _BY_TABLE if transform.builtin is None else _BY_BUILTIN)


def _read_table(raw: Any, location: _LensLocation) -> Any:
    if not isinstance(raw, dict):
        return location.refuse("must be an object")
    for text, value in raw.items():
        _SCALAR.read(value, location.at(text))
    return dict(raw)


def _read_ops(raw: Any, location: _LensLocation) -> Any:
    if not isinstance(raw, list):
        return location.refuse("must be an array of ops")
    if location.depth > MAX_DEPTH:
        return location.refuse(f"ops must not be nested more than {MAX_DEPTH} deep")
    if len(raw) > 1000:
        return location.refuse("must be at most 1000 ops")
    return tuple(_read_op(op, location.at(number)) for number, op in enumerate(raw))


def _read_op(raw: Any, location: _LensLocation) -> Any:
    name = raw.get("op") if isinstance(raw, dict) else None
    if not isinstance(name, str) or name not in _OPS:
        return location.refuse("must be an object whose op is one of " + ", ".join(_OPS))
    kind, fields = _OPS[name]
    op = _read_shape(raw, location, kind, (_Field("op", "", _constant_codec(name)), *fields))
    if op is not _REQUIRED:
        for key, reason in _refusals(op, location.depth == 0):
            location.at(key).refuse(reason)
    return op


def _read_shape(raw: Any, location: _LensLocation, kind: Callable[..., Any], fields: tuple[_Field, ...]) -> Any:
    """A closed object as a frozen value; ``_REQUIRED`` where something is wrong with it."""
    if not isinstance(raw, dict):
        return location.refuse("must be an object")
    before = len(location.problems)
    keys = {field.key for field in fields}
    for key in raw:
        if key not in keys:
            location.at(key).refuse("is not known here")
    facts: dict[str, Any] = {}
    for field in fields:
        if field.key in raw:
            deeper = location._replace(depth=location.depth + 1) if kind in {ops.In, ops.Map} else location
            value = field.form.read(raw[field.key], deeper.at(field.key))
        elif (value := field.default) is _REQUIRED:
            location.refuse(f"{field.key} is missing")
        if field.attribute:
            facts[field.attribute] = value
    return kind(**facts) if len(location.problems) == before else _REQUIRED


def _write_shape(value: Any, fields: tuple[_Field, ...]) -> dict[str, Any]:
    document = {}
    for field in fields:
        if field.attribute and (fact := getattr(value, field.attribute)) is not field.default:
            document[field.key] = field.form.write(fact)
    return document


def _write_op(op: Op) -> dict[str, Any]:
    mode = {"mode": "singleton"} if isinstance(op, ops.Wrap) else {}
    return {"op": op.name, **_write_shape(op, _OPS[op.name][1]), **mode}


_POINTER = _Codec(_read_pointer, pointers.text)
_BOOLEAN = _checked_codec("a boolean", lambda raw: isinstance(raw, bool))
_ANY = _Codec(lambda raw, location: raw)
_NAME = _checked_codec("a name", lambda raw: isinstance(raw, str) and raw != "")
_TEXT = _checked_codec("a text", lambda raw: isinstance(raw, str))
_VERSION = _checked_codec("a version", lambda raw: type(raw) is int and raw >= 0)
_SCHEMA = _checked_codec("a JSON Schema", lambda raw: isinstance(raw, dict | bool))
_SCALAR = _checked_codec("a scalar", lambda raw: raw is None or isinstance(raw, str | int | float))
_TYPE = _checked_codec("one of " + ", ".join(TYPES), lambda raw: isinstance(raw, str) and raw in TYPES)
_BUILTIN = _checked_codec("one of " + ", ".join(BUILTINS), lambda raw: isinstance(raw, str) and raw in BUILTINS)
_TRANSFORM = _Codec(_read_transform, _write_transform)
_NESTED = _Codec(_read_ops, lambda raw: [_write_op(op) for op in raw])

_BY_BUILTIN = (_Field("builtin", "builtin", _BUILTIN),)
_BY_TABLE = (_Field("map", "table", _Codec(_read_table, dict)), _Field("default", "default", _SCALAR, msgspec.UNSET))
_OPTIONAL = _Field("optional", "optional", _BOOLEAN, False)
_MOVE = (_Field("from", "source", _POINTER), _Field("to", "target", _POINTER), _OPTIONAL)
_PATH = _Field("path", "path", _POINTER)
_DEFAULT = (_Field("schema", "schema", _SCHEMA), _Field("default", "default", _ANY, msgspec.UNSET), _OPTIONAL)
_NESTED_FIELDS = (_PATH, _Field("ops", "ops", _NESTED), _OPTIONAL)

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
            _Field("mode", "", _constant_codec("singleton")),
            _Field("reverseMode", "", _constant_codec("first"), None),
            _OPTIONAL,
        ),
    ),
    "head": (ops.Head, (_PATH, _Field("reverseMode", "", _constant_codec("singleton"), None), _OPTIONAL)),
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
    "in": (ops.In, _NESTED_FIELDS),
    "map": (ops.Map, _NESTED_FIELDS),
}

_LENS = (
    _Field("apiVersion", "", _constant_codec(API_VERSION)),
    _Field("schema", "schema", _NAME),
    _Field("from", "source", _VERSION),
    _Field("to", "target", _VERSION),
    _Field("description", "description", _TEXT, None),
    _Field("ops", "ops", _NESTED),
)


def parse(raw: Any) -> Lens | list[Problem]:
    """The lens of a document, or every problem with it."""
    problems: list[Problem] = []
    lens = _read_shape(raw, _LensLocation("", problems), Lens, _LENS)
    return problems or lens


def dump(lens: Lens) -> dict[str, Any]:
    """The document of a lens, without members that have their defaults."""
    return {"apiVersion": API_VERSION, **_write_shape(lens, _LENS)}


def _refusals(op: Op, top: bool) -> Iterator[tuple[str, str]]:
    """The problems of a well-formed op: the key of each, and the reason."""
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
            if pointers.has_prefix(host, source):
                yield "host", "must not lie inside the source"
            elif source == (*host, member):
                yield "name", "the value is there already"
        case ops.Convert():
            yield from _misfit(op.forward, op.from_type, op.to_type, "forward")
            yield from _misfit(op.backward, op.to_type, op.from_type, "backward")


def _displaced(source: Pointer, target: Pointer, moves: bool, top: bool) -> Iterator[tuple[str, str]]:
    if source == target:
        yield "to", "the value is there already"
    elif moves and pointers.has_prefix(target, source):
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
    """The lens with unset defaults of its adds taken from the new schema, where that gives one."""
    return msgspec.structs.replace(lens, ops=_filled(lens.ops, schema, ()))


def _filled(lens_ops: tuple[Op, ...], schema: Any, base: Pointer) -> tuple[Op, ...]:
    return tuple(_filled_op(op, schema, base) for op in lens_ops)


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
    """The first default of these schemas, else the empty container of the first of one container type, else UNSET."""
    objects = [schema for schema in schemas if isinstance(schema, dict)]
    for schema in objects:
        if "default" in schema:
            return schema["default"]
    for schema in objects:
        if _types(schema) in (["object"], ["array"]):
            return {} if _types(schema) == ["object"] else []
    return msgspec.UNSET


def declared(root: Any, names: Pointer) -> dict[str, Any]:
    """The schema of the value at a pointer, with references followed; empty where none is declared."""
    schema = _resolved(root, root)
    for name in names:
        items = _is_index(name, schema)
        schema = _resolved(schema.get("items", True) if items else schema.get("properties", {}).get(name, True), root)
    return schema


def admits(root: Any, names: Pointer) -> bool:
    """Whether a schema allows a value at a pointer: no closed object on the path lacks its name."""
    return not any(_is_closed(declared(root, names[:end]), name) for end, name in enumerate(names))


def _is_closed(schema: dict[str, Any], name: str) -> bool:
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return closed and not _is_index(name, schema) and name not in schema.get("properties", {})


def required(root: Any, names: Pointer, present_pointers: list[Pointer]) -> bool:
    """Whether a schema requires the value at a pointer in every document that has values at known pointers."""
    shared = max((_shared(names, pointer) for pointer in present_pointers), default=0)
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
    type_names = schema.get("type", [])
    return [type_names] if isinstance(type_names, str) else list(type_names)


def _resolved(schema: Any, root: Any) -> dict[str, Any]:
    """A schema after following local references; a boolean counts as an empty schema."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        names = pointers.parse(reference[1:]) if isinstance(reference, str) and reference[:1] == "#" else None
        if names is None:
            break
        schema = root
        for name in names:
            schema = schema.get(name, True) if isinstance(schema, dict) else True
    return schema if isinstance(schema, dict) else {}
