"""What another identity rule would make of entities that exist: which would have other ids, and which would be one.

An identity rule holds for what is stored from now on, and no entity gets another id by it. Whoever wants them to be as
the rule would have made them sees here which to merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import msgspec

from headrace.engine.entities.read.snapshots import Asked, Snapshots
from headrace.engine.entities.types.proposals import TypeProposal
from headrace.schema.entity.identity import Resolver, Unresolved
from headrace.schema.entity.versions import rekeys
from headrace.storage.entities import Entities, EntityRow
from headrace.storage.entity_types import EVERYBODY

_PAGE = 500
#: As many entities are looked at, for as long, and told of by name.
MOST_ENTITIES, LONGEST_S, MOST_EXAMPLES = 10_000, 2.0, 20


class Rekeyed(msgspec.Struct):
    """How entities would be named; ``complete`` where all of them were looked at."""

    checked: int = 0
    kept: int = 0
    renamed: int = 0
    #: Entities that the rule would make one with another.
    merging: int = 0
    #: Entities that the rule cannot name by what is known of them.
    unresolved: int = 0
    complete: bool = False
    examples: list[dict[str, Any]] = []


def is_rekeyed(proposal: TypeProposal) -> bool:
    """Whether a change is one of the rule by which entities are told apart."""
    base, new = proposal.base, proposal.plan.registry
    old = base.active(base.owner) or base.common
    return old is not None and rekeys(old.schema_definition, new.schema_definition)


async def rekey(proposal: TypeProposal, stream: int, snapshots: Snapshots, entities: Entities) -> Rekeyed:
    """What a change of the rule would make of the entities of its owner; of so many as there is time for."""
    preview, ends = Rekeyed(examples=[]), monotonic() + LONGEST_S
    schema = proposal.plan.registry
    resolver = Resolver(schema.schema_definition, schema.entity_type)
    taken: dict[str, str] = {}
    for row in _rows(proposal, stream, entities):
        if preview.checked >= MOST_ENTITIES or monotonic() > ends:
            return preview
        preview.checked += 1
        shown = (await snapshots.find(Asked(row.entity_id, row.user_id))).snapshot
        values = {} if shown is None else shown.snapshot
        _count(preview, row, resolver.resolve(values, values, row.user_id), taken, entities)
    preview.complete = True
    return preview


def _count(preview: Rekeyed, row: EntityRow, named: Any, taken: dict[str, str], entities: Entities) -> None:
    """Add one entity, by the name that it would have."""
    if isinstance(named, Unresolved):
        preview.unresolved += 1
        return
    if named.entity_id == row.entity_id:
        preview.kept += 1
        return
    preview.renamed += 1
    into = taken.setdefault(named.entity_id, row.entity_id)
    if into == row.entity_id and entities.find(named.entity_id) is not None:
        into = named.entity_id
    example = {"entity_id": row.entity_id, "new_entity_id": named.entity_id, "canonical_name": named.canonical_name}
    if into != row.entity_id:
        preview.merging += 1
        example["merges_with"] = into
    if len(preview.examples) < MOST_EXAMPLES:
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
