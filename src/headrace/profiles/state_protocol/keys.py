"""Touch keys: 64-bit numbers that stand for a table, a template, or the rows and fields that a template picks.

A key is the XXH3 hash of a family's name and the parts, with a zero byte between them, so that a client and the server
compute the same key without asking each other. On the wire a key is 16 hex digits; its last eight are the key's id, and
enough to wait for it.

A template picks rows of an entity by up to three fields that must be equal. The values of these fields are written as
arguments: the same text for the same value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import xxhash

from headrace.errors import BadRequest
from headrace.schema.date_time import is_date_time

_DECIMAL = re.compile("-?(?:0|[1-9][0-9]*)")
#: From here on a number is written with an exponent.
_LARGE = 1e21
_SMALLEST_PLAIN = -6


def encode_argument(value: Any, encoding: str) -> str | None:
    """A value as an argument; None where it has no form in this encoding."""
    return ENCODINGS[encoding](value)


def _string(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return _number(value)


def _number(value: Any) -> str | None:
    """A number in its fewest digits; a whole one without a fraction, however it was spelled."""
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    shortest = repr(value)
    digits, _, exponent = shortest.partition("e")
    if value.is_integer() and abs(value) < _LARGE:
        return format(Decimal(shortest), "f").removesuffix(".0") if value else "0"
    if not exponent:
        return digits
    power = int(exponent)
    return format(Decimal(shortest), "f") if _SMALLEST_PLAIN <= power < 0 else f"{digits}e{power:+d}"


def _int64(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip()
        return value if _DECIMAL.fullmatch(value) else None
    if isinstance(value, float) and not value.is_integer():
        return None
    return _number(value)


def _bool(value: Any) -> str | None:
    return ("1" if value else "0") if isinstance(value, bool) else None


def _datetime(value: Any) -> str | None:
    if not isinstance(value, str) or not is_date_time(value):
        return None
    try:
        moment = datetime.fromisoformat(value).astimezone(UTC)
    except OverflowError:
        return None  # in its zone it is a moment of the years 1 to 9999, and in UTC it is not
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").zfill(20) + f"{moment.microsecond // 1000:03d}Z"


def _bytes(value: Any) -> str | None:
    return value if isinstance(value, str) else None


#: How a field of a template is written.
ENCODINGS: dict[str, Callable[[Any], str | None]] = {
    "string": _string,
    "int64": _int64,
    "bool": _bool,
    "datetime": _datetime,
    "bytes": _bytes,
}


Key = int
_ID = 0xFFFFFFFF
_HEX16 = re.compile("[0-9a-f]{16}")
_hash = xxhash.xxh3_64_intdigest


def table_key(entity: str) -> Key:
    """Touched by every change of an entity."""
    return _hash(b"tbl\0" + entity.encode())


def template_id(entity: str, fields: Iterable[str]) -> int:
    """Names a template: rows of an entity that are picked by some fields, in whatever order these are given."""
    return _hash(b"tpl\0" + b"\0".join(part.encode() for part in (entity, *sorted(fields))))


def template_key(template: int) -> Key:
    """Touched in place of the keys of a template's rows, where these are unknown."""
    return _hash(b"tpl\0" + template.to_bytes(8))


def watch_key(template: int, arguments: Iterable[str]) -> Key:
    """Touched when a row that a template picks with these arguments changes, comes or goes."""
    return _hash(b"key\0" + template.to_bytes(8) + _suffix(arguments))


def membership_key(template: int, arguments: Iterable[str]) -> Key:
    """Touched when a row begins or ceases to be picked with these arguments."""
    return _hash(b"mem\0" + template.to_bytes(8) + _suffix(arguments))


def field_key(template: int, field: str, arguments: Iterable[str]) -> Key:
    """Touched when a field changes of a row that is picked with these arguments before and after."""
    return _hash(b"fld\0" + template.to_bytes(8) + b"\0" + field.encode() + _suffix(arguments))


def _suffix(arguments: Iterable[str]) -> bytes:
    """The end of what is hashed: each argument after a zero byte."""
    return b"".join(b"\0" + argument.encode() for argument in arguments)


def format_key(key: Key) -> str:
    """A key, or the id of a template, as it is written."""
    return f"{key:016x}"


def parse_key(written: str) -> Key | None:
    """The key that 16 hex digits stand for; None for any other text."""
    written = written.strip().lower()
    return int(written, 16) if _HEX16.fullmatch(written) else None


def id_of(key: Key) -> int:
    """The id of a key."""
    return key & _ID


def id_of_text(written: str) -> int:
    """The id of a text: that of the key it spells, or the hash of any other text."""
    key = parse_key(written)
    return xxhash.xxh32_intdigest(written.strip().lower().encode()) if key is None else key & _ID


MAX_DECLARED = 256
MAX_FIELDS = 3


class Field(msgspec.Struct, frozen=True):
    """A field that a row is picked by, and how its values are written."""

    name: str
    encoding: str


class Template:
    """One template, ready for use."""

    __slots__ = ("_keys", "_members", "_projected", "entity", "fields", "id", "key", "names", "table_key")

    def __init__(self, entity: str, fields: tuple[Field, ...]) -> None:
        self.entity = entity
        self.fields = tuple(sorted(fields, key=lambda field: field.name))
        self.names = frozenset(field.name for field in fields)
        self.id = template_id(entity, self.names)
        self.key = template_key(self.id)
        self.table_key = table_key(entity)
        number = self.id.to_bytes(8)
        self._keys, self._members, self._projected = b"key\0" + number, b"mem\0" + number, b"fld\0" + number + b"\0"

    def has_fields(self, row: Any) -> bool:
        """Whether a row has every field that the template picks rows by, whatever their values."""
        return isinstance(row, dict) and self.names <= row.keys()

    def encode_arguments(self, row: Any) -> bytes | None:
        """The arguments that pick a row, as the end of its keys; None for a row that no arguments pick."""
        if not isinstance(row, dict):
            return None
        argument_texts = [encode_argument(row.get(field.name), field.encoding) for field in self.fields]
        return None if None in argument_texts else _suffix(argument_texts)  # type: ignore[arg-type]

    def watch_key(self, arguments: bytes) -> Key:
        """The key of the rows with these arguments."""
        return _hash(self._keys + arguments)

    def membership_key(self, arguments: bytes) -> Key:
        """The key of rows that begin or cease to have these arguments."""
        return _hash(self._members + arguments)

    def field_key(self, field: str, arguments: bytes) -> Key:
        """The key of a field of the rows with these arguments."""
        return _hash(self._projected + field.encode() + arguments)


class InvalidTemplate:
    """A declared template that is invalid."""


def parse_templates(raw: Any, field: str) -> list[Template | InvalidTemplate]:
    """Templates as a request declares them; a list that has another structure is a BadRequest."""
    if not isinstance(raw, list) or not raw:
        raise BadRequest(f"{field} is a list of templates, and not an empty one", field=field)
    if len(raw) > MAX_DECLARED:
        raise BadRequest(f"{field} has at most {MAX_DECLARED} templates", field=field, limit=MAX_DECLARED)
    return [_template(raw_template, f"{field}[{number}]") for number, raw_template in enumerate(raw)]


def _template(raw: Any, where: str) -> Template | InvalidTemplate:
    entity, fields = _members(raw, where, "entity", "fields")
    if not isinstance(fields, list) or not 1 <= len(fields) <= MAX_FIELDS:
        raise BadRequest(f"{where}.fields has one to {MAX_FIELDS} fields", field=f"{where}.fields")
    raw_fields = [
        _members(raw_field, f"{where}.fields[{number}]", "name", "encoding") for number, raw_field in enumerate(fields)
    ]
    named = [(_word(name, f"{where}.fields[{number}].name"), how) for number, (name, how) in enumerate(raw_fields)]
    word = _word(entity, f"{where}.entity")
    encodings = [how for _, how in named if isinstance(how, str) and how in ENCODINGS]
    if len({name for name, _ in named}) < len(named) or len(encodings) < len(named):
        return InvalidTemplate()
    return Template(word, tuple(Field(name, how) for name, how in named))


def _members(raw: Any, where: str, first: str, second: str) -> tuple[Any, Any]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where} is not an object", field=where)
    for name in raw:
        if name not in (first, second):
            raise BadRequest(f"{where} has no member {name!r}", field=f"{where}.{name}")
    return raw.get(first), raw.get(second)


def _word(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise BadRequest(f"{where} is not a name", field=where)
    return value
