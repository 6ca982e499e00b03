"""Which keywords of JSON Schema assert something, in each draft."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any


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

SCHEMA = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
"""Keywords whose value is a schema."""
SCHEMAS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems", "items"])
"""Keywords whose value may be a list of schemas."""
NAMED = frozenset(["properties", "patternProperties", "dependentSchemas", "dependencies"])
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
    """The draft a schema document says it is written in, None where we do not know it."""
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
