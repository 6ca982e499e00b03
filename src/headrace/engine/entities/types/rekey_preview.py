"""A preview of another identity rule: which entities would have other ids by it, and which would be merged.

An identity rule holds for what is stored from now on, and no entity that exists gets another id by it. The preview
names the entities that have to be merged to be as the rule would have made them.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import msgspec

from headrace.engine.entities.read.snapshots import EntityQuery, Snapshots
from headrace.engine.entities.types.proposals import TypeProposal
from headrace.schema.entity.identity import Resolver, Unresolved
from headrace.schema.entity.versions import changes_identity
from headrace.storage.entities import Entities, EntityRow
from headrace.storage.entity_types import EVERYBODY
from headrace.types import NonNegativeInt

_PAGE = 500
#: How many entities a preview reads, for how long, and how many of them it names.
MAX_ENTITIES, TIMEOUT_S, MAX_EXAMPLES = 10_000, 2.0, 20


class Rekeyed(msgspec.Struct):
    """How many entities would keep or change their ids; ``complete`` where all of them were read."""

    checked: NonNegativeInt = 0
    kept: NonNegativeInt = 0
    renamed: NonNegativeInt = 0
    #: Entities that the rule would make one with another.
    merging: NonNegativeInt = 0
    #: Entities that the rule cannot name by what is known of them.
    unresolved: NonNegativeInt = 0
    complete: bool = False
    examples: list[dict[str, Any]] = []


def is_rekeyed(proposal: TypeProposal) -> bool:
    """Whether a change is one of the identity rule."""
    base, new = proposal.base, proposal.plan.registry
    old = base.active(base.owner) or base.global_schema
    return old is not None and changes_identity(old.schema_definition, new.schema_definition)


async def rekey(proposal: TypeProposal, stream: int, snapshots: Snapshots, entities: Entities) -> Rekeyed:
    """Count what a change of the rule would do to the entities of its owner, as far as time allows."""
    preview, ends = Rekeyed(examples=[]), monotonic() + TIMEOUT_S
    schema = proposal.plan.registry
    resolver = Resolver(schema.schema_definition, schema.entity_type)
    taken: dict[str, str] = {}
    for row in _rows(proposal, stream, entities):
        if preview.checked >= MAX_ENTITIES or monotonic() > ends:
            return preview
        preview.checked += 1
        shown = (await snapshots.find(EntityQuery(row.entity_id, row.user_id))).snapshot
        values = {} if shown is None else shown.snapshot
        _count(preview, row, resolver.resolve(values, values, row.user_id), taken, entities)
    preview.complete = True
    return preview


def _count(preview: Rekeyed, row: EntityRow, identity: Any, taken: dict[str, str], entities: Entities) -> None:
    """Count one entity, by the identity that it would have."""
    if isinstance(identity, Unresolved):
        preview.unresolved += 1
        return
    if identity.entity_id == row.entity_id:
        preview.kept += 1
        return
    preview.renamed += 1
    into = taken.setdefault(identity.entity_id, row.entity_id)
    if into == row.entity_id and entities.find(identity.entity_id) is not None:
        into = identity.entity_id
    example = {
        "entity_id": row.entity_id,
        "new_entity_id": identity.entity_id,
        "canonical_name": identity.canonical_name,
    }
    if into != row.entity_id:
        preview.merging += 1
        example["merges_with"] = into
    if len(preview.examples) < MAX_EXAMPLES:
        preview.examples.append(example)


def _rows(proposal: TypeProposal, stream: int, entities: Entities) -> Iterator[EntityRow]:
    """The entities that a schema holds for: those of its owner, or of all who have none of their own."""
    owner, own, after = proposal.base.owner, proposal.base.rows, ""
    while True:
        page = entities.page(stream, owner, after, _PAGE) if owner else entities.of_stream(stream, after, _PAGE)
        yield from (row for row in page if owner != EVERYBODY or row.user_id not in own)
        if not page:
            return
        after = page[-1].entity_id
