"""Entity types as answers tell of them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from headrace.engine.entities.types import journal
from headrace.engine.entities.types.entity_types import Outcome
from headrace.schema.entity.plan import refusal
from headrace.server.http.starlette_json import json_response
from headrace.storage.entity_types import SchemaRow
from headrace.storage.journals import EntityChangeRow
from headrace.types import rfc3339


def answer(outcome: Outcome, dry_run: bool, **more: Any) -> Response:
    """What was done or, in a dry run, would be; a plan that is refused is an error unless it is a dry run."""
    plan, proposal = outcome.plan, outcome.proposal
    if plan.refusals and not dry_run:
        raise refusal(plan.refusals)
    schema, row = plan.registry, proposal.row
    stored = row is not None and (outcome.number is not None or not proposal.owner_changes)
    return json_response(
        {
            "success": not plan.refusals,
            "dry_run": dry_run,
            "changed": bool(proposal.owner_changes) and not dry_run,
            "schema_id": row.id if row is not None and stored else None,
            "entity_type": schema.entity_type,
            "schema_version": schema.schema_version,
            "previous_version": plan.from_version or None,
            "scope": schema.scope,
            "user_id": schema.user_id,
            "active": proposal.active,
            "change": outcome.number,
            "warnings": [notice.dump() for notice in proposal.notices],
            "plan": plan.dump(),
            **more,
        }
    )


def fields(outcome: Outcome) -> dict[str, Any]:
    """How far an update moves the version, and which fields come and go."""
    proposal = outcome.proposal
    return {
        "bump": proposal.bump.name.lower(),
        "fields_added": list(proposal.added),
        "fields_removed": list(proposal.removed),
    }


def version(row: SchemaRow) -> dict[str, Any]:
    """A version, with all that it says."""
    return {
        "schema_id": row.id,
        "entity_type": row.entity_type,
        "schema_version": row.schema_version,
        "scope": row.scope,
        "user_id": row.user_id or None,
        "active": bool(row.active),
        "base_version": row.base_version,
        "created_at": rfc3339(row.created_us),
        "schema_definition": msgspec.Raw(row.schema_definition.encode()),
        "reducer_config": msgspec.Raw(row.reducer_config.encode()),
        "metadata": msgspec.Raw(row.metadata.encode()),
    }


def change(row: EntityChangeRow) -> dict[str, Any]:
    """A change, without what it holds of others."""
    document = journal.load(row)
    return {
        "change": row.number,
        "at": rfc3339(row.at_us),
        "who": row.who,
        "action": document.action,
        "scope": "user" if row.user_id else "global",
        "user_id": row.user_id or None,
        "schema_id": None if document.made is None else document.made.id,
        "from_version": document.from_version or None,
        "to_version": document.to_version or None,
        "activated": document.active or None,
        "changes": list(document.changes),
        "reasons": list(document.reasons),
    }
