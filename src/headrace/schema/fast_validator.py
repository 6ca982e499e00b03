"""A fast validator: a schema as msgspec structs, into which valid entries are decoded.

The type never admits more than the schema. It may admit less: no member that the schema does not name, and no whole
number spelled with a fraction. A member with constraints that a type cannot express is left open.
Structs encode their fields in order, so the member order that senders use is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import reduce
from operator import attrgetter, or_
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace import decoding
from headrace.schema.entries import BLANKS, MAX_DIGITS
from headrace.schema.pointer import Pointer
from headrace.schema.subschemas import Subschemas, resolve_pointer

#: A schema with more parts, or a choice of more values, gets no type: types take long to make.
MAX_PARTS = 300
MAX_CHOICES = 1_000
#: Larger numbers in a schema are left to those who compare all digits.
MAX_NUMBER = 2**53
#: What a 64-bit integer and a double can hold; the latter as it is spelled.
WIDEST = 2**63
MAX_DOUBLE = 17976931348623157 * 10**292

#: Keywords that constrain no value; ``date-time`` is checked by a pattern.
_SILENT = frozenset(
    {"$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "format"}
    | {"deprecated", "readOnly", "writeOnly"}
)
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
#: The keywords about values of a type: those that are limits, by their names in msgspec, and the others.
_BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
_LIMITS = {
    "array": {"minItems": "min_length", "maxItems": "max_length"},
    "integer": {**_BOUNDS, "multipleOf": "multiple_of"},
    "number": _BOUNDS,
    "string": {"minLength": "min_length", "maxLength": "max_length"},
}
_PARTS = {"array": {"items"}, "object": {"properties", "required", "additionalProperties"}}
_NULL = type(None)
_SCALARS = {"boolean": (bool,), "integer": (int,), "null": (_NULL,), "number": (int, float), "string": (str,)}


class NotExpressible(Exception):
    """The schema cannot be expressed as a type."""


class Fractions(IntEnum):
    """Which numbers with a fraction a type admits: none, any that a double holds, or some, so that digits decide."""

    NONE = 0
    ANY = 1
    SOME = 2


class TypeForm(NamedTuple):
    """A type, the schemas of the members that it leaves open, and which numbers with a fraction it admits."""

    type: Any
    open: dict[str, Any]
    fractions: Fractions


class StructBuilder:
    """The schemas of a document, each as a type."""

    def __init__(self, inside: Subschemas, schema: Any) -> None:
        """``schema`` is the prepared equivalent of the document of ``inside``."""
        if inside.unfolded.returns or inside.unfolded.size > MAX_PARTS:
            raise NotExpressible
        self._root = schema
        self._targets = {reference.path: reference.target for reference in inside.references}
        self._orders: dict[Pointer, list[str]] = {}

    def form(self, path: Pointer = ()) -> TypeForm:
        """The type of values that are valid under the schema at a path."""
        path, schema = self._follow(path)
        constraints = _constraints(schema)
        if not path:
            constraints.pop("$id", None)  # the name of the document
        if "enum" in constraints or "const" in constraints:
            return TypeForm(_literal_type(constraints), {}, Fractions.NONE)
        if constraints.keys() == {"anyOf"}:
            return _nullable_form(
                [self.form((*path, "anyOf", str(number))) for number in range(len(constraints["anyOf"]))]
            )
        kinds = _kinds(constraints)
        allowed = {"type"}.union(*({*_LIMITS.get(kind, ()), *_PARTS.get(kind, ())} for kind in kinds))
        if not kinds or not constraints.keys() <= allowed or {"integer", "number"} <= {*kinds}:
            raise NotExpressible
        return _union_form([self._type_form(kind, path, constraints) for kind in kinds])

    def learn(self, value: Any, path: Pointer = ()) -> bool:
        """Take over the member order of a valid value; True if it differs from the current one."""
        path, schema = self._follow(path)
        if not isinstance(schema, dict):
            return False
        if isinstance(value, list) and value:
            return self.learn(value[0], (*path, "items"))
        if not isinstance(value, dict) or "properties" not in schema:
            return False
        names = self._names(path, schema)
        order = self._orders[path] = _order_names(names, value)
        deeper = [self.learn(value[name], (*path, "properties", name)) for name in names if name in value]
        return order != names or any(deeper)

    def _follow(self, path: Pointer) -> tuple[Pointer, Any]:
        """The schema at a path, with its path, after following it if it is a mere reference."""
        schema = resolve_pointer(self._root, path)[1]
        target = self._targets.get(path)
        return (path, schema) if target is None or _constraints(schema).keys() != {"$ref"} else self._follow(target)

    def _names(self, path: Pointer, schema: dict[str, Any]) -> list[str]:
        """The members that an object schema names, in the order that is known."""
        return self._orders.get(path) or list(schema["properties"])

    def _type_form(self, kind: str, path: Pointer, constraints: dict[str, Any]) -> TypeForm:
        """The type of values of one JSON type."""
        if kind == "object":
            return self._struct_form(path, constraints)
        limits = {
            name: constraints[keyword] for keyword, name in _LIMITS.get(kind, {}).items() if keyword in constraints
        }
        if kind != "array":
            types = [_limit_type(scalar, limits) for scalar in _SCALARS[kind]]
            fractions = Fractions.NONE if kind != "number" else Fractions.ANY if float in types else Fractions.SOME
            return TypeForm(reduce(or_, types), {}, fractions)
        items = self.form((*path, "items"))
        if items.open:
            raise NotExpressible
        return items._replace(type=_limit_type(list[items.type], limits))  # type: ignore[name-defined]

    def _struct_form(self, path: Pointer, constraints: dict[str, Any]) -> TypeForm:
        """The type of objects that have no other members than the schema names."""
        required = {*constraints.get("required", ())}
        if not required <= constraints.get("properties", {}).keys() or "properties" not in constraints:
            raise NotExpressible
        fields = {name: f"m{number}" for number, name in enumerate(constraints["properties"])}
        members = {
            name: self._member_form((*path, "properties", name), name in required)
            for name in self._names(path, constraints)
        }
        definitions = [
            (fields[name], form.type) if name in required else (fields[name], form.type | UnsetType, UNSET)
            for name, form in members.items()
        ]
        return TypeForm(
            _define_struct(definitions, {field: name for name, field in fields.items()}),
            {fields[name] + way: rest for name, form in members.items() for way, rest in form.open.items()},
            max((form.fractions for form in members.values()), default=Fractions.NONE),
        )

    def _member_form(self, path: Pointer, required: bool) -> TypeForm:
        """The type of a member; left open if it is not expressible, or is optional and has open members itself."""
        try:
            form = self.form(path)
            if required or not form.open:
                return form._replace(open={f".{way}": rest for way, rest in form.open.items()})
        except NotExpressible:
            pass
        schema = self._follow(path)[1]
        if _has_reference(schema):
            raise NotExpressible
        kinds = _kinds(schema) if isinstance(schema, dict) else []
        plain = bool(kinds) and {*kinds} <= {"boolean", "null", "string"}
        return TypeForm(Any, {"": schema}, Fractions.NONE if plain else Fractions.SOME)


def _constraints(schema: Any) -> dict[str, Any]:
    """The keywords of a schema that constrain values."""
    if not isinstance(schema, dict):
        raise NotExpressible
    return {keyword: value for keyword, value in schema.items() if keyword not in _SILENT}


def _kinds(constraints: dict[str, Any]) -> list[str]:
    """The types that a schema names."""
    kinds = constraints.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _union_form(forms: list[TypeForm]) -> TypeForm:
    """The union of types."""
    if len(forms) > 1 and any(form.open for form in forms):
        raise NotExpressible
    return TypeForm(reduce(or_, (form.type for form in forms)), forms[0].open, max(form.fractions for form in forms))


def _nullable_form(forms: list[TypeForm]) -> TypeForm:
    """A union of one type and null."""
    if len(forms) != 2 or all(form.type is not _NULL for form in forms):
        raise NotExpressible
    return _union_form(forms)


def _literal_type(constraints: dict[str, Any]) -> Any:
    """A literal type of texts, small whole numbers and null."""
    kinds = _kinds(constraints) or ["integer", "null", "string"]
    values = tuple(constraints.get("enum", [constraints.get("const")]))
    if not 0 < len(values) <= MAX_CHOICES or len(constraints.keys() - {"type"}) > 1:
        raise NotExpressible
    if not all(_kind(value) in kinds for value in values):
        raise NotExpressible
    return Literal[values]


def _kind(value: Any) -> str:
    """The JSON type of a value that a literal type can hold; empty for others."""
    if isinstance(value, str):
        return "string"
    return "null" if value is None else "integer" if _is_small(value) else ""


def _is_small(value: Any) -> bool:
    return type(value) is int and abs(value) <= MAX_NUMBER


def _limit_type(plain: Any, limits: dict[str, Any]) -> Any:
    """A type with limits."""
    if limits.keys() == {"ge", "le"} and limits["ge"] <= -WIDEST and limits["le"] >= WIDEST - 1:
        # Limits that only require a 64-bit integer or a double, which msgspec checks itself.
        if plain is int:
            return Annotated[int, Meta(ge=-WIDEST, le=WIDEST - 1)]
        if plain is float and limits["ge"] <= -MAX_DOUBLE and limits["le"] >= MAX_DOUBLE:
            return float
    if not all(map(_is_small, limits.values())):
        raise NotExpressible
    try:
        return Annotated[plain, Meta(**limits)] if limits else plain
    except ValueError as reason:  # two lower limits, or two upper ones
        raise NotExpressible from reason


def _define_struct(fields: list[Any], names: dict[str, str]) -> type[msgspec.Struct]:
    """A structure with these fields, which have other names in JSON."""
    try:
        return msgspec.defstruct("Object", fields, rename=names, kw_only=True, forbid_unknown_fields=True, gc=False)
    except ValueError as reason:  # a name that no field can have
        raise NotExpressible from reason


def _order_names(names: list[str], value: dict[str, Any]) -> list[str]:
    """Names in the order of a value; one that it lacks stays behind the one that it was behind."""
    positions = {name: position for position, name in enumerate(value)}
    at, position = {}, -1
    for name in names:
        position = at[name] = positions.get(name, position)
    return sorted(names, key=at.__getitem__)


def _has_reference(value: Any) -> bool:
    """Whether a schema holds a reference, which leads nowhere outside its document."""
    if isinstance(value, dict):
        return not _REFERENCES.isdisjoint(value) or any(map(_has_reference, value.values()))
    return isinstance(value, list) and any(map(_has_reference, value))


Judge = Callable[[Any], bool]

#: One part of a schema in so many may be left open: judging them one by one is slower than judging the whole.
OPEN_IN = 3
#: How many bodies are skipped, at most, after several in a row did not fit.
MAX_PAUSE = 63
#: From how many entries of a body the order of members is learnt.
MAX_SHOWN = 100

#: How much longer a body may be than we would spell it, where its numbers are spelled in other ways.
MAX_SPELLING = MAX_DIGITS - 100

_SPELL = msgspec.json.Encoder().encode


def make_fast_validator(inside: Subschemas, schema: Any, compiled: Callable[[Any], Judge]) -> FastValidator | None:
    """A fast validator of a document, if possible; ``schema`` is its prepared equivalent."""
    try:
        structures = StructBuilder(inside, schema)
        form = structures.form()
    except NotExpressible:
        return None
    if len(form.open) * OPEN_IN > inside.unfolded.size:
        return None
    draft = {"$schema": inside.draft} if inside.draft else {}
    judges = {way: compiled({**draft, "items": rest}) for way, rest in form.open.items()}
    return FastValidator(structures, form, judges)


class FastValidator:
    """The structs of one schema, in the order in which members are sent."""

    def __init__(self, structures: StructBuilder, form: TypeForm, judges: dict[str, Judge]) -> None:
        """``judges`` validate the open members of all entries at once."""
        self._structures = structures
        self._decode = _decoder(form)
        self._fractions = form.fractions
        self._open = [(attrgetter(way), are_valid) for way, are_valid in judges.items()]
        self._misses = self._pause = self._waiting = 0
        #: Whether ``learn`` should be called with entries that it missed: seldom, as new structs take long to make.
        self.wants_examples = False

    def fits(self, joined: bytes) -> bool:
        """Whether entries joined by commas are surely valid."""
        return self.count(b"[" + joined + b"]") is not None

    def count(self, body: bytes) -> int | None:
        """How many entries an array holds, if all of them are surely valid."""
        if self._waiting > 0:
            self._waiting -= 1
            return None
        count = self._count_valid(body)
        if count is not None:
            self._pause = 0
            return count
        self._misses += 1
        self._waiting = self._pause = min(2 * self._pause + 1, MAX_PAUSE)
        self.wants_examples = self._fractions is Fractions.SOME and self._misses.bit_count() == 1
        return None

    def learn(self, values: list[Any]) -> None:
        """Expect members in the order of valid entries that were missed."""
        self.wants_examples = False
        if any([self._structures.learn(value) for value in values[:MAX_SHOWN]]):
            self._decode = _decoder(self._structures.form())
            self._waiting = 0

    def _count_valid(self, body: bytes) -> int | None:
        try:
            values = self._decode(body)
            if not self._is_lossless(_SPELL(values), body):
                return None
        except (msgspec.DecodeError, RecursionError):
            return None
        for member, are_valid in self._open:
            if not are_valid([value for value in map(member, values) if value is not UNSET]):
                return None
        return len(values)

    def _is_lossless(self, spelled: bytes, body: bytes) -> bool:
        """Whether decoding a body lost nothing."""
        if spelled == body:
            return True
        if self._fractions is Fractions.SOME:
            return spelled.translate(None, BLANKS) == body.translate(None, BLANKS)
        if self._fractions is Fractions.ANY and len(body) - len(spelled) > MAX_SPELLING:
            return False  # among so many digits may be a number that is too long
        disguised = b"\\" in body and b"\\u003" in body  # \u003a is a colon
        return not disguised and spelled.count(b":") == body.count(b":")


def _decoder(form: TypeForm) -> Callable[[bytes], list[Any]]:
    return decoding.make_decoder(list[form.type]).decode  # type: ignore[name-defined]
