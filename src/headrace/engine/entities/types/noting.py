"""Changes of a type that leave its schemas as they are, and are written down like all others."""

from __future__ import annotations

from headrace.engine.entities.types.consequences import Counts, Owned
from headrace.engine.entities.types.journal import Document
from headrace.engine.entities.types.proposing import Make, Proposal
from headrace.engine.entities.types.resolving import Base
from headrace.engine.entities.write.accepting import first_schema
from headrace.schema.plan import Plan


def noted(document: Document) -> Make:
    """Write something down."""

    def make(base: Base, counts: Counts, now_us: int) -> Proposal:
        schema = base.active(base.owner) or base.common or first_schema(base.entity_type, ())
        version = schema.schema_version
        plan = Plan(subject=base.entity_type, from_version=version, to_version=version, registry=schema)
        return Proposal(base, plan, (Owned(base.owner, document),))

    return make
