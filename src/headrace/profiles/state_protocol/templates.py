"""Templates: which rows of an entity are told apart, by up to three fields that must be equal."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import BadRequest
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.arguments import ENCODINGS, encode_argument
from headrace.profiles.state_protocol.keys import Key

MOST_DECLARED = 256
MOST_FIELDS = 3


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
        self.id = keys.template_id(entity, self.names)
        self.key = keys.template_key(self.id)
        self.table_key = keys.table_key(entity)
        number = self.id.to_bytes(8)
        self._keys, self._members, self._projected = b"key\0" + number, b"mem\0" + number, b"fld\0" + number + b"\0"

    def knows(self, row: Any) -> bool:
        """Whether a row has every field that the template picks rows by, whatever their values."""
        return isinstance(row, dict) and self.names <= row.keys()

    def place(self, row: Any) -> bytes | None:
        """The arguments that pick a row, as the end of its keys; None for a row that no arguments pick."""
        if not isinstance(row, dict):
            return None
        argument_texts = [encode_argument(row.get(field.name), field.encoding) for field in self.fields]
        return None if None in argument_texts else keys.suffix(argument_texts)  # type: ignore[arg-type]

    def watch(self, arguments: bytes) -> Key:
        """The key of the rows at a place."""
        return keys.hash_key(self._keys + arguments)

    def membership(self, arguments: bytes) -> Key:
        """The key of coming to a place and going from it."""
        return keys.hash_key(self._members + arguments)

    def projected(self, field: str, arguments: bytes) -> Key:
        """The key of a field of the rows at a place."""
        return keys.hash_key(self._projected + field.encode() + arguments)


class InvalidTemplate:
    """A template that was declared and cannot be one."""


def parse_templates(raw: Any, field: str) -> list[Template | InvalidTemplate]:
    """Templates as a request declares them; what has not even their shape is a BadRequest."""
    if not isinstance(raw, list) or not raw:
        raise BadRequest(f"{field} is a list of templates, and not an empty one", field=field)
    if len(raw) > MOST_DECLARED:
        raise BadRequest(f"{field} has at most {MOST_DECLARED} templates", field=field, limit=MOST_DECLARED)
    return [_template(raw_template, f"{field}[{number}]") for number, raw_template in enumerate(raw)]


def _template(raw: Any, where: str) -> Template | InvalidTemplate:
    entity, fields = _members(raw, where, "entity", "fields")
    if not isinstance(fields, list) or not 1 <= len(fields) <= MOST_FIELDS:
        raise BadRequest(f"{where}.fields has one to {MOST_FIELDS} fields", field=f"{where}.fields")
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
