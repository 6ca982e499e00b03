"""Schemas within their documents, which resolve references and know their draft.

A *fact* is a text that says what one schema asserts, references included. Equal facts mean equal sets of documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from headrace.deadline import check_deadline
from headrace.schema import pointer
from headrace.schema.canonical import value_text
from headrace.schema.pointer import Pointer
from headrace.schema.shape.model import Shape
from headrace.schema.subschemas import DEFINITIONS, NAMED_SCHEMAS, SCHEMA_LISTS, SINGLE_SCHEMAS, resolve_pointer


class Dialect(IntEnum):
    """The drafts, oldest first."""

    DRAFT4 = 4
    DRAFT6 = 6
    DRAFT7 = 7
    DRAFT2019 = 2019
    DRAFT2020 = 2020


_NAMES = {
    "http://json-schema.org/draft-04/schema": Dialect.DRAFT4,
    "http://json-schema.org/draft-06/schema": Dialect.DRAFT6,
    "http://json-schema.org/draft-07/schema": Dialect.DRAFT7,
    "https://json-schema.org/draft/2019-09/schema": Dialect.DRAFT2019,
    "https://json-schema.org/draft/2020-12/schema": Dialect.DRAFT2020,
}

SCHEMA = SINGLE_SCHEMAS - {"contentSchema"}
"""Keywords whose value is a schema."""
SCHEMAS = SCHEMA_LISTS | {"items"}
"""Keywords whose value may be a list of schemas."""
NAMED = NAMED_SCHEMAS - DEFINITIONS
"""Keywords whose value is schemas by name."""

_EVER = frozenset(
    [
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "dependencies",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "patternProperties",
        "properties",
        "required",
        "type",
        "uniqueItems",
    ]
)
_SINCE = {
    Dialect.DRAFT6: frozenset(["const", "contains", "propertyNames"]),
    Dialect.DRAFT7: frozenset(["if", "then", "else"]),
    Dialect.DRAFT2019: frozenset(
        [
            "dependentRequired",
            "dependentSchemas",
            "maxContains",
            "minContains",
            "unevaluatedItems",
            "unevaluatedProperties",
        ]
    ),
    Dialect.DRAFT2020: frozenset(["prefixItems"]),
}
_CONTENT = frozenset(["contentEncoding", "contentMediaType"])


def dialect_of(schema: Any, default: Dialect = Dialect.DRAFT2020) -> Dialect | None:
    """The draft that a schema document names, None where it is unknown."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return default
    return _NAMES.get(name.rstrip("#")) if isinstance(name, str) else None


@cache
def asserting(dialect: Dialect) -> frozenset[str]:
    """The keywords that can make a document invalid; validators check encodings in drafts 6 and 7 only."""
    keywords = _EVER.union(*(names for since, names in _SINCE.items() if dialect >= since))
    if dialect < Dialect.DRAFT2020:
        keywords |= {"additionalItems"}
    return keywords | _CONTENT if dialect in (Dialect.DRAFT6, Dialect.DRAFT7) else keywords


_LONG = 80
_TANGLING = ("$id", "id", "$schema", "$dynamicRef", "$recursiveRef", "$recursiveAnchor", "$dynamicAnchor")


class Source(NamedTuple):
    """A schema and the document it belongs to."""

    schema: Any
    root: Root

    @property
    def fact(self) -> str:
        """What the schema asserts, as a text that can be compared."""
        return self.root.fact(self.schema)

    def at(self, schema: Any) -> Source:
        """Another schema of the same document."""
        return Source(schema, self.root)

    def keywords(self) -> dict[str, Any]:
        """What asserts something here; before 2019-09 a reference hides its neighbours."""
        return self.root.keywords(self.schema)

    def follow(self) -> Source:
        """The schema itself where this is nothing but a reference to it."""
        return self.followed()[0]

    def followed(self) -> tuple[Source, Pointer | None]:
        """The schema where this is only a reference, and its path in the document, if a reference led there."""
        source, seen, path = self, set(), None
        while (keywords := source.keywords()).keys() == {"$ref"} and keywords["$ref"] not in seen:
            target = source.root.resolve(keywords["$ref"])
            if target is None:
                break
            seen.add(keywords["$ref"])
            source, path = target, pointer.parse(unquote(keywords["$ref"].partition("#")[2]))
        return source, path


class Root:
    """A whole schema document."""

    def __init__(self, schema: Any, default: Dialect = Dialect.DRAFT2020) -> None:
        self.schema = schema
        dialect = dialect_of(schema, default)
        self.dialect = dialect or default
        self.plain = dialect is not None and not self._tangled(schema, top=True)
        # By identity, with the schema itself, so that it is not freed and its identity not used again.
        self._texts: dict[int, tuple[Any, str, frozenset[str]]] = {}
        self._facts: dict[int, tuple[Any, str]] = {}
        self.shapes: dict[int, tuple[Any, Shape]] = {}
        """What was read already."""

    @property
    def source(self) -> Source:
        """The schema of the whole document."""
        return Source(self.schema, self)

    def keywords(self, schema: Any) -> dict[str, Any]:
        """The asserting keywords of a schema of this document."""
        if not isinstance(schema, dict):
            return {}
        if "$ref" in schema and self.dialect < Dialect.DRAFT2019:
            return {"$ref": schema["$ref"]}
        asserting_keywords = asserting(self.dialect)
        return {
            name: value
            for name, value in schema.items()
            if name in asserting_keywords and (name != "format" or value == "date-time")
        }

    def resolve(self, reference: Any) -> Source | None:
        """The schema a local reference means; None where it leads elsewhere."""
        base, _, fragment = reference.partition("#") if isinstance(reference, str) else ("?", "", "")
        check_deadline()
        if base not in ("", self._name()):
            return None
        fragment = unquote(fragment)
        names = pointer.parse(fragment)
        target = self._anchored(self.schema, fragment) if names is None else resolve_pointer(self.schema, names)[1]
        if not isinstance(target, dict | bool) or self._tangled(target, top=target is self.schema):
            return None
        return Source(target, self)

    def fact(self, schema: Any) -> str:
        """What a schema of this document asserts, with every schema it refers to."""
        cached = self._facts.get(id(schema))
        if cached is None:
            cached = self._facts[id(schema)] = (schema, self._fact(schema))
        return cached[1]

    def _fact(self, schema: Any) -> str:
        if not self.plain:
            return _digest_long(f"{self._document_fact()}!{value_text(schema)}")
        text, references = self._text(schema)
        reached: dict[str, str] = {}
        pending = list(references)
        while pending:
            check_deadline()
            reference = pending.pop()
            if reference not in reached:
                target = self.resolve(reference)
                # What a reference leads to may be anywhere in the document where we cannot follow it.
                reached[reference], more = (
                    self._text(target.schema) if target else (self._document_fact(), frozenset[str]())
                )
                pending.extend(more)
        closure = "".join(f"|{json.dumps(name)}={reached[name]}" for name in sorted(reached))
        return _digest_long(f"{self.dialect.value}|{text}{closure}")

    def _document_fact(self) -> str:
        return _digest_long("!" + value_text(self.schema))

    def _name(self) -> Any:
        """The id of the document."""
        return self.schema.get("$id", self.schema.get("id")) if isinstance(self.schema, dict) else None

    def _text(self, schema: Any) -> tuple[str, frozenset[str]]:
        cached = self._texts.get(id(schema))
        if cached is None:
            check_deadline()
            text, references = self._spelled(schema)
            cached = self._texts[id(schema)] = (schema, _digest_long(text), references)
        return cached[1], cached[2]

    def _spelled(self, schema: Any) -> tuple[str, frozenset[str]]:
        if not isinstance(schema, dict):
            return value_text(schema), frozenset()
        references: set[str] = set()
        parts = []
        for name, value in sorted(self.keywords(schema).items()):
            parts.append(f"{name}:{self._keyword_text(name, value, references)}")
        return "{" + ",".join(parts) + "}" if parts else "true", frozenset(references)

    def _keyword_text(self, name: str, value: Any, references: set[str]) -> str:
        def inner(schema: Any) -> str:
            text, more = self._text(schema)
            references.update(more)
            return text

        if name == "$ref":
            references.add(str(value))
        if name in NAMED and isinstance(value, dict):
            return "{" + ",".join(f"{json.dumps(key)}:{inner(value[key])}" for key in sorted(value)) + "}"
        if name in SCHEMAS and isinstance(value, list):
            return "[" + ",".join(inner(element) for element in value) + "]"
        if name in SCHEMA:
            return inner(value)
        if name in ("required", "enum", "type") and isinstance(value, list):
            return "[" + ",".join(sorted(value_text(element) for element in value)) + "]"
        return value_text(value)

    def _anchored(self, schema: Any, anchor: str) -> Any:
        check_deadline()
        if not isinstance(schema, dict):
            return None
        if self.dialect >= Dialect.DRAFT2019 and schema.get("$anchor") == anchor:
            return schema
        return next(
            (anchored for inner in _inner_schemas(schema) if (anchored := self._anchored(inner, anchor)) is not None),
            None,
        )

    def _tangled(self, schema: Any, *, top: bool = False) -> bool:
        """Whether it has what is not followed here: other base URIs, other drafts, dynamic references."""
        if not isinstance(schema, dict):
            return False
        own = _TANGLING[3:] if top else _TANGLING
        return any(isinstance(schema.get(name), str | bool) for name in own) or any(
            map(self._tangled, _inner_schemas(schema))
        )


def _digest_long(text: str) -> str:
    """The text, or a digest of a long one, so that texts do not repeat each other."""
    return text if len(text) <= _LONG else hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _inner_schemas(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas directly inside a schema."""
    for name, value in schema.items():
        if isinstance(value, dict) and name in NAMED_SCHEMAS:
            yield from (element for element in value.values() if isinstance(element, dict))
        elif isinstance(value, dict) and name in SCHEMA:
            yield value
        elif isinstance(value, list) and name in SCHEMAS:
            yield from (element for element in value if isinstance(element, dict))
