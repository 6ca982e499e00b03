"""A schema as a type: structures into which msgspec decodes what fits.

The type never admits more than the schema. It may admit less: no member that the schema does not name, and no whole
number spelled with a fraction. Where it cannot say all that the schema asks of a member, it leaves the member open.
Structures are spelled in the order of their fields, so the order that senders use can be learnt.
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

#: A schema of more parts is unsayable, and so is a choice of more values: types take long to make.
MAX_PARTS = 300
MAX_CHOICES = 1_000
#: Larger numbers in a schema are left to those who compare all digits.
MAX_NUMBER = 2**53
#: What a 64-bit integer and a double can hold; the latter as it is spelled.
WIDEST = 2**63
MAX_DOUBLE = 17976931348623157 * 10**292

#: Keywords that ask nothing of a value; ``date-time`` is asked for by a pattern.
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
    """What a schema asks cannot be said by a type."""


class Fractions(IntEnum):
    """Which numbers with a fraction a type admits: none, any that a double holds, or some, so that digits decide."""

    NONE = 0
    ANY = 1
    SOME = 2


class TypeForm(NamedTuple):
    """A type, what is asked of the members that it leaves open, and which numbers with a fraction it admits."""

    type: Any
    open: dict[str, Any]
    fractions: Fractions


class StructBuilder:
    """The schemas of a document, each as a type."""

    def __init__(self, inside: Subschemas, schema: Any) -> None:
        """``schema`` asks the same as the document that ``inside`` knows, in the words of the judge."""
        if inside.unfolded.returns or inside.unfolded.size > MAX_PARTS:
            raise NotExpressible
        self._root = schema
        self._targets = {reference.place: reference.target for reference in inside.references}
        self._orders: dict[Pointer, list[str]] = {}

    def form(self, place: Pointer = ()) -> TypeForm:
        """The form of what fits the schema at a place."""
        place, schema = self._followed(place)
        asked = _asked(schema)
        if not place:
            asked.pop("$id", None)  # the name of the document
        if "enum" in asked or "const" in asked:
            return TypeForm(_choice(asked), {}, Fractions.NONE)
        if asked.keys() == {"anyOf"}:
            return _or_null([self.form((*place, "anyOf", str(number))) for number in range(len(asked["anyOf"]))])
        kinds = _kinds(asked)
        known = {"type"}.union(*({*_LIMITS.get(kind, ()), *_PARTS.get(kind, ())} for kind in kinds))
        if not kinds or not asked.keys() <= known or {"integer", "number"} <= {*kinds}:
            raise NotExpressible
        return _either([self._form_of(kind, place, asked) for kind in kinds])

    def learn(self, value: Any, place: Pointer = ()) -> bool:
        """Take over the order of the members in a value that fits; whether it was another one."""
        place, schema = self._followed(place)
        if not isinstance(schema, dict):
            return False
        if isinstance(value, list) and value:
            return self.learn(value[0], (*place, "items"))
        if not isinstance(value, dict) or "properties" not in schema:
            return False
        known = self._names(place, schema)
        order = self._orders[place] = _ordered(known, value)
        deeper = [self.learn(value[name], (*place, "properties", name)) for name in known if name in value]
        return order != known or any(deeper)

    def _followed(self, place: Pointer) -> tuple[Pointer, Any]:
        """The schema at a place, or the one that it only refers to, and where that stands."""
        schema = resolve_pointer(self._root, place)[1]
        target = self._targets.get(place)
        return (place, schema) if target is None or _asked(schema).keys() != {"$ref"} else self._followed(target)

    def _names(self, place: Pointer, schema: dict[str, Any]) -> list[str]:
        """The members that an object schema names, in the order that is known."""
        return self._orders.get(place) or list(schema["properties"])

    def _form_of(self, kind: str, place: Pointer, asked: dict[str, Any]) -> TypeForm:
        """The form of values of one type."""
        if kind == "object":
            return self._structure(place, asked)
        limits = {name: asked[keyword] for keyword, name in _LIMITS.get(kind, {}).items() if keyword in asked}
        if kind != "array":
            types = [_limited(scalar, limits) for scalar in _SCALARS[kind]]
            fractions = Fractions.NONE if kind != "number" else Fractions.ANY if float in types else Fractions.SOME
            return TypeForm(reduce(or_, types), {}, fractions)
        items = self.form((*place, "items"))
        if items.open:
            raise NotExpressible
        return items._replace(type=_limited(list[items.type], limits))  # type: ignore[name-defined]

    def _structure(self, place: Pointer, asked: dict[str, Any]) -> TypeForm:
        """The form of objects that have no other members than the schema names, whatever it asks of others."""
        required = {*asked.get("required", ())}
        if not required <= asked.get("properties", {}).keys() or "properties" not in asked:
            raise NotExpressible
        fields = {name: f"m{number}" for number, name in enumerate(asked["properties"])}
        members = {
            name: self._member((*place, "properties", name), name in required) for name in self._names(place, asked)
        }
        definitions = [
            (fields[name], form.type) if name in required else (fields[name], form.type | UnsetType, UNSET)
            for name, form in members.items()
        ]
        return TypeForm(
            _defined(definitions, {field: name for name, field in fields.items()}),
            {fields[name] + way: rest for name, form in members.items() for way, rest in form.open.items()},
            max((form.fractions for form in members.values()), default=Fractions.NONE),
        )

    def _member(self, place: Pointer, required: bool) -> TypeForm:
        """The form of a member; it is left open where a type cannot say it, or has open members and may be missing."""
        try:
            form = self.form(place)
            if required or not form.open:
                return form._replace(open={f".{way}": rest for way, rest in form.open.items()})
        except NotExpressible:
            pass
        schema = self._followed(place)[1]
        if _refers(schema):
            raise NotExpressible
        kinds = _kinds(schema) if isinstance(schema, dict) else []
        plain = bool(kinds) and {*kinds} <= {"boolean", "null", "string"}
        return TypeForm(Any, {"": schema}, Fractions.NONE if plain else Fractions.SOME)


def _asked(schema: Any) -> dict[str, Any]:
    """What a schema asks, by keyword."""
    if not isinstance(schema, dict):
        raise NotExpressible
    return {keyword: value for keyword, value in schema.items() if keyword not in _SILENT}


def _kinds(asked: dict[str, Any]) -> list[str]:
    """The types that a schema names."""
    kinds = asked.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _either(forms: list[TypeForm]) -> TypeForm:
    """The form of what has one of some forms."""
    if len(forms) > 1 and any(form.open for form in forms):
        raise NotExpressible
    return TypeForm(reduce(or_, (form.type for form in forms)), forms[0].open, max(form.fractions for form in forms))


def _or_null(forms: list[TypeForm]) -> TypeForm:
    """The form of what has one form or is null."""
    if len(forms) != 2 or all(form.type is not _NULL for form in forms):
        raise NotExpressible
    return _either(forms)


def _choice(asked: dict[str, Any]) -> Any:
    """One of some texts, small whole numbers and null."""
    kinds = _kinds(asked) or ["integer", "null", "string"]
    values = tuple(asked.get("enum", [asked.get("const")]))
    if not 0 < len(values) <= MAX_CHOICES or len(asked.keys() - {"type"}) > 1:
        raise NotExpressible
    if not all(_kind(value) in kinds for value in values):
        raise NotExpressible
    return Literal[values]


def _kind(value: Any) -> str:
    """The type of a value that can stand in a choice; of others, nothing."""
    if isinstance(value, str):
        return "string"
    return "null" if value is None else "integer" if _is_small(value) else ""


def _is_small(value: Any) -> bool:
    return type(value) is int and abs(value) <= MAX_NUMBER


def _limited(plain: Any, limits: dict[str, Any]) -> Any:
    """A type with limits."""
    if limits.keys() == {"ge", "le"} and limits["ge"] <= -WIDEST and limits["le"] >= WIDEST - 1:
        # Limits that say no more than that a number is a 64-bit integer, or a double, which msgspec sees to itself.
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


def _defined(fields: list[Any], names: dict[str, str]) -> type[msgspec.Struct]:
    """A structure with these fields, which have other names in JSON."""
    try:
        return msgspec.defstruct("Object", fields, rename=names, kw_only=True, forbid_unknown_fields=True, gc=False)
    except ValueError as reason:  # a name that no field can have
        raise NotExpressible from reason


def _ordered(names: list[str], value: dict[str, Any]) -> list[str]:
    """Names in the order of a value; one that it lacks stays behind the one that it was behind."""
    positions = {name: position for position, name in enumerate(value)}
    at, position = {}, -1
    for name in names:
        position = at[name] = positions.get(name, position)
    return sorted(names, key=at.__getitem__)


def _refers(value: Any) -> bool:
    """Whether a schema holds a reference, which leads nowhere outside its document."""
    if isinstance(value, dict):
        return not _REFERENCES.isdisjoint(value) or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


Judge = Callable[[Any], bool]

#: One part of a schema in so many may be left open: judging them one by one is slower than judging the whole.
OPEN_IN = 3
#: How many bodies are let pass, at most, after some in a row were not seen to fit.
MAX_PAUSE = 63
#: How many entries of a body are learnt from.
MAX_SHOWN = 100

#: How much longer a body may be than we would spell it, where its numbers are spelled in other ways.
MAX_SPELLING = MAX_DIGITS - 100

_SPELL = msgspec.json.Encoder().encode


def make_fast_validator(inside: Subschemas, schema: Any, compiled: Callable[[Any], Judge]) -> FastValidator | None:
    """A glance for a document, if there can be one; ``schema`` asks the same, in the words of the library."""
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
    """The structures of one schema, in the order in which members are sent."""

    def __init__(self, structures: StructBuilder, form: TypeForm, judges: dict[str, Judge]) -> None:
        """``judges`` see the open members of all entries at once."""
        self._structures = structures
        self._decode = _decoder(form)
        self._fractions = form.fractions
        self._open = [(attrgetter(way), are_valid) for way, are_valid in judges.items()]
        self._misses = self._pause = self._waiting = 0
        #: Whether it wants to be shown the entries that it missed: seldom, as new structures take long to make.
        self.curious = False

    def fits(self, joined: bytes) -> bool:
        """Whether entries joined by commas are seen to fit."""
        return self.count(b"[" + joined + b"]") is not None

    def count(self, body: bytes) -> int | None:
        """How many entries an array holds, where all of them are seen to fit."""
        if self._waiting > 0:
            self._waiting -= 1
            return None
        count = self._seen(body)
        if count is not None:
            self._pause = 0
            return count
        self._misses += 1
        self._waiting = self._pause = min(2 * self._pause + 1, MAX_PAUSE)
        self.curious = self._fractions is Fractions.SOME and self._misses.bit_count() == 1
        return None

    def learn(self, values: list[Any]) -> None:
        """Expect members in the order of entries that were missed and fit."""
        self.curious = False
        if any([self._structures.learn(value) for value in values[:MAX_SHOWN]]):
            self._decode = _decoder(self._structures.form())
            self._waiting = 0

    def _seen(self, body: bytes) -> int | None:
        try:
            values = self._decode(body)
            if not self._is_whole(_SPELL(values), body):
                return None
        except (msgspec.DecodeError, RecursionError):
            return None
        for member, are_valid in self._open:
            if not are_valid([value for value in map(member, values) if value is not UNSET]):
                return None
        return len(values)

    def _is_whole(self, spelled: bytes, body: bytes) -> bool:
        """Whether nothing of a body was lost when it was decoded."""
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
