"""Fields that users have added for themselves and agree on, which are then everyone's.

It takes three users with fifty entities each whose schemas have a field that the global one lacks, nine of ten of them
with the same type, and a confidence of 0.8. That is greater the more of them define the field exactly alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from headrace import decoding
from headrace.reduce.fragments.candidates import confidence
from headrace.reduce.fragments.rules import BANNED, MIXED, TOO_FEW_USERS, UNSURE, Banned, Reason, of_name
from headrace.schema.entity.nodes import DEFAULT_POLICY, TYPES, Field, Schema
from headrace.schema.entity.update import Addition

MIN_USERS = 3
MIN_ENTITIES = 50
MIN_SHARE = 0.9
MIN_CONFIDENCE = 0.8


class Adoption(NamedTuple):
    """A user with a schema of their own, and the number of their entities of the type."""

    user_id: str
    schema: Schema
    entities: int


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """A field that some users have and everyone may get."""

    field_name: str
    field: Field
    users: int
    entities: int
    type_share: float
    confidence: float
    reasons: tuple[Reason, ...]

    @property
    def promotable(self) -> bool:
        """Whether there are no objections to it."""
        return not self.reasons

    @property
    def addition(self) -> Addition:
        """The field as an update adds it."""
        return Addition(self.field_name, self.field, DEFAULT_POLICY)


def agreements(adoptions: Iterable[Adoption], schema: Schema, banned: tuple[Banned, ...] = BANNED) -> list[Agreement]:
    """What users' schemas have that the global one lacks, by name."""
    fields: dict[str, list[tuple[Field, int]]] = {}
    for _, theirs, entities in adoptions:
        for name, field in theirs.schema_definition.fields.items():
            if name not in schema.schema_definition.fields:
                fields.setdefault(name, []).append((field, entities))
    return [_agreement(name, fields[name], schema, banned) for name in sorted(fields)]


def _agreement(name: str, proposals: list[tuple[Field, int]], schema: Schema, banned: tuple[Banned, ...]) -> Agreement:
    """What the users that have enough entities agree on; without any, what the others do."""
    counting = [(field, entities) for field, entities in proposals if entities >= MIN_ENTITIES]
    fields = [msgspec.structs.replace(field, required=False) for field, _ in counting or proposals]
    types = Counter(field.type for field in fields)
    kind = max(TYPES, key=lambda each: types[each])
    spelled = Counter(msgspec.json.encode(field) for field in fields if field.type == kind)
    best = max(sorted(spelled), key=lambda each: spelled[each])
    type_share = types[kind] / len(fields)
    sure = confidence(name, type_share, spelled[best] / types[kind], len(counting))
    return Agreement(
        field_name=name,
        field=decoding.decode(best, Field),
        users=len(counting),
        entities=sum(entities for _, entities in counting),
        type_share=round(type_share, 4),
        confidence=sure,
        reasons=(*of_name(name, schema, None, banned), *_weakness(len(counting), type_share, sure)),
    )


def _weakness(users: int, type_share: float, sure: float) -> Iterator[Reason]:
    """The objections to a field that its distribution over users gives."""
    if users < MIN_USERS:
        yield Reason(TOO_FEW_USERS, f"{users} users with {MIN_ENTITIES} entities, and {MIN_USERS} are asked for")
    if type_share < MIN_SHARE:
        yield Reason(MIXED, f"{type_share:.0%} of the users have one type, and {MIN_SHARE:.0%} are asked for")
    if sure < MIN_CONFIDENCE:
        yield Reason(UNSURE, f"the confidence is {sure}, and {MIN_CONFIDENCE} is asked for")
