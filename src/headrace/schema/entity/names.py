"""Names of entity types, normalised and linted, and names that fields can have."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from headrace.schema.entity.nodes import Notice

MAX_CHARACTERS = 64

FORBIDDEN = "ERR_FORBIDDEN_ENTITY_TYPE"
PLURAL = "ERR_PLURAL_ENTITY_TYPE"

_SNAKE = re.compile("[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_TEST_LIKE = re.compile("(?:test|tests|testing|tmp|temp|dummy|mock|fake|foo|bar|baz|qux|asdf)[0-9]*")
_TEST_FIRST = re.compile("(?:test|testing|tmp|dummy|e2e)_.*")
_REDUNDANT = ("_entity", "_record", "_data", "_object", "_item", "_entry")
_GENERIC = frozenset(
    {"generic", "thing", "item", "object", "entity", "data", "record", "entry", "misc", "other", "unknown", "type"}
)
_IRREGULAR = frozenset(
    {"people", "children", "men", "women", "mice", "geese", "feet", "teeth", "criteria", "phenomena"}
)
#: Words that end like a plural and are none.
_SINGULAR = frozenset(
    {"news", "series", "species", "means", "lens", "gas", "bias", "atlas", "canvas", "alias", "christmas", "pancreas"}
    | {"chaos", "cosmos", "pathos", "ethos", "pos", "ios", "macos", "sms", "mms", "gps", "dns", "aws", "kubernetes"}
    | {"https", "tls", "cms", "diabetes", "sos", "yes", "mars", "texas"}
)
_SINGULAR_ENDINGS = ("ss", "us", "is", "ics", "itis", "ous")


def normalise_type_name(name: str) -> str:
    """The canonical spelling of a type's name: small letters and digits, words joined by underscores."""
    plain = "".join(mark for mark in unicodedata.normalize("NFKD", name) if not unicodedata.combining(mark)).lower()
    return re.sub("[^a-z0-9]+", "_", plain).strip("_")[:MAX_CHARACTERS].strip("_") or "generic"


def check_type_name(name: str) -> list[Notice]:
    """Why a normalised name is refused unless it is forced: it looks like a test or like a plural."""
    notices = []
    if _TEST_LIKE.fullmatch(name) or _TEST_FIRST.fullmatch(name):
        notices.append(Notice(FORBIDDEN, f"{name!r} looks like the name of a test"))
    if is_plural(name):
        notices.append(Notice(PLURAL, f"{name!r} looks like a plural; a type is named after one entity of it"))
    return notices


def is_plural(name: str) -> bool:
    """Whether the last word of a normalised name looks like a plural."""
    word = name.rpartition("_")[2]
    if word in _IRREGULAR:
        return True
    return len(word) > 2 and word.endswith("s") and word not in _SINGULAR and not word.endswith(_SINGULAR_ENDINGS)


def lint_type_name(raw_name: str) -> list[Notice]:
    """Style warnings about a name as it was sent."""
    name = normalise_type_name(raw_name)
    notices = []
    if _SNAKE.fullmatch(raw_name) is None:
        notices.append(Notice("NAME_NOT_SNAKE_CASE", f"{raw_name!r} is kept as {name!r}"))
    if name.endswith(_REDUNDANT):
        notices.append(Notice("NAME_REDUNDANT_SUFFIX", f"the ending of {name!r} says nothing"))
    if name in _GENERIC:
        notices.append(Notice("NAME_TOO_GENERIC", f"{name!r} could be anything"))
    if len(name) < 3:
        notices.append(Notice("NAME_TOO_SHORT", f"{name!r} has fewer than three characters"))
    return notices


MAX_FIELD_NAME = 128
#: Members of an entity in a request that are not fields.
RESERVED = ("entity_type", "_meta")


def is_field_name(name: Any) -> bool:
    """Whether a field can have this name."""
    return isinstance(name, str) and len(name) <= MAX_FIELD_NAME and bool(name.strip()) and name not in RESERVED
