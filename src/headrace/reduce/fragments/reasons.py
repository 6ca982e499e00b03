"""Why something that fragments speak for is not done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from headrace.reduce.fragments.naming import Banned, is_sound
from headrace.schema.entity.nodes import Schema

TOO_FEW = "too_few_occurrences"
TOO_FEW_SOURCES = "too_few_sources"
TOO_FEW_USERS = "too_few_users"
MIXED = "mixed_types"
UNSURE = "low_confidence"
NO_VALUES = "no_values"
NO_CONVERTER = "no_converter"
BLACKLISTED = "blacklisted"
BAD_NAME = "invalid_name"
DECIDED = "decided"


class Reason(msgspec.Struct, frozen=True):
    """A code and a sentence."""

    code: str
    message: str


def of_name(name: str, schema: Schema, user_id: str | None, banned: Iterable[Banned]) -> Iterator[Reason]:
    """What speaks against a key whatever its values are."""
    for each in banned:
        if each.covers(name, schema.entity_type, user_id):
            yield Reason(BLACKLISTED, f"{each.pattern!r} is never promoted")
    if name not in schema.schema_definition.fields and not is_sound(name):
        yield Reason(BAD_NAME, "a name has 2 to 50 letters, digits and underscores, and none of these at its ends")
