"""A first schema for a type that nobody has registered, from what is given for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from headrace.schema.entity.fields import MOST_FIELDS, TYPES, is_name
from headrace.schema.entity.nodes import OPT_OUT, Definition, Field, ReducerConfig, Schema, Type
from headrace.schema.entity.values import is_iso, kind

#: As many entities as are looked at.
MOST_ROWS = 100


def inferred(entity_type: str, given: Iterable[Mapping[str, Any]]) -> Schema | None:
    """A schema whose fields are all optional, of the type that most values have; None where there are no values."""
    kinds: dict[str, Counter[Type]] = {}
    for row in islice(given, MOST_ROWS):
        for name, value in row.items():
            if (found := _kind(value)) is not None and is_name(name):
                kinds.setdefault(name, Counter())[found] += 1
    fields = {name: Field(_type(counted)) for name, counted in islice(kinds.items(), MOST_FIELDS)}
    if not fields:
        return None
    return Schema(
        entity_type=entity_type,
        schema_version="1.0.0",
        schema_definition=Definition(fields=fields, identity_opt_out=OPT_OUT),
        reducer_config=ReducerConfig({}),
    )


def _kind(value: Any) -> Type | None:
    return "date" if isinstance(value, str) and is_iso(value) else kind(value)


def _type(counted: Counter[Type]) -> Type:
    """The type of most values; dates among other texts are texts."""
    if counted["string"]:
        counted["string"] += counted.pop("date", 0)
    return max(TYPES, key=lambda name: counted[name])
