"""Entity types as they are answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from headrace.engine.entities.enhancement.migrations import run_document
from headrace.engine.entities.types import journal
from headrace.engine.entities.types.entity_types import Outcome
from headrace.engine.entities.types.journal import Action
from headrace.engine.entities.types.rekey_preview import Rekeyed
from headrace.schema.entity.plan import refusal
from headrace.server.http.starlette_json import json_response
from headrace.server.http.wire import AlwaysTrue, Counter, Object, RawObject, When, fill
from headrace.server.routes.entities import Scope
from headrace.storage.enhancements import Run, State
from headrace.storage.entity_types import SchemaRow
from headrace.storage.journals import EntityChangeRow
from headrace.types import rfc3339

_NUMBER = "(0|[1-9][0-9]{0,8})"
Version = Annotated[
    str,
    Meta(extra_json_schema={"pattern": rf"^{_NUMBER}\.{_NUMBER}(\.{_NUMBER})?$"}, examples=["1.0.0"]),
]
_Bump = Literal["none", "patch", "minor", "major"]


class TypeVersion(Struct, kw_only=True):
    """A version of an entity type, with all that it says."""

    schema_id: str
    entity_type: str
    schema_version: Version
    scope: Scope
    user_id: str | None
    active: bool
    base_version: Version | None
    created_at: When
    schema_definition: RawObject
    reducer_config: RawObject
    metadata: RawObject
    #: In lists, whether it is the one that holds for the caller.
    effective: bool | UnsetType = UNSET


class EffectiveType(TypeVersion, kw_only=True):
    """The version that holds for the caller, the stream of its observations, and the last change of the type."""

    stream: str
    change: Counter


class TypeWarning(Struct, kw_only=True):
    """What is odd about a version that was accepted."""

    code: str
    message: str
    fields: list[str]
    constraint: str | UnsetType = UNSET
    constraint_value: Any = UNSET


class TypePlan(Struct, kw_only=True):
    """What a change of a type would do."""

    subject: str
    from_version: str
    to_version: str
    classification: str
    requires_force: bool
    changes: list[Object]
    reasons: list[str]
    lens: Any
    impact: list[Object]
    refusals: list[Object]
    registry: Object


class TypeChange(Struct, kw_only=True):
    """What every answer to a change of a type says of it."""

    success: bool
    dry_run: bool
    changed: bool
    schema_id: str | None
    entity_type: str
    schema_version: Version
    previous_version: Version | None
    scope: Scope
    user_id: str | None
    active: bool
    change: Counter | None
    warnings: list[TypeWarning]
    plan: TypePlan


class TypeChangeAnswer(TypeChange, kw_only=True):
    """What was done to a type or, in a dry run, would be, also to existing entities where their identity changes."""

    rekey: Rekeyed | None


class FieldsChange(TypeChange, kw_only=True):
    """How far a change moves the version, and which fields come and go."""

    bump: _Bump
    fields_added: list[str]
    fields_removed: list[str]


class MigrationAnswer(Struct, kw_only=True):
    """How far the move of fragments to fields is; ``dry_run`` where it was just asked for."""

    dry_run: bool | UnsetType = UNSET
    run_id: str
    entity_type: str
    scope: Scope
    user_id: str | None
    state: State
    fields: list[str]
    through: Counter
    until: Counter | None
    migrated: Counter
    repeated: Counter
    unfit: Counter
    attempts: Counter
    reason: str | None
    undone: bool


class PlannedMigration(Struct):
    """How many fragments a migration would look at."""

    dry_run: AlwaysTrue
    fragments: dict[str, Counter]


class TypeChangeSummary(Struct, kw_only=True):
    """A change of a type, without what it holds of others."""

    change: Counter
    at: When
    who: str
    action: Action
    scope: Scope
    user_id: str | None
    schema_id: str | None
    from_version: Version | None
    to_version: Version | None
    activated: Version | None
    changes: list[Object]
    reasons: list[str]


Changed = TypeVar("Changed", bound=TypeChange)


def answer(kind: type[Changed], outcome: Outcome, *, dry_run: bool, **more: Any) -> Response:
    """What was done or, in a dry run, would be; a plan that is refused is an error unless it is a dry run."""
    plan, proposal = outcome.plan, outcome.proposal
    if plan.refusals and not dry_run:
        raise refusal(plan.refusals)
    schema, row = plan.registry, proposal.row
    stored = row is not None and (outcome.number is not None or not proposal.owner_changes)
    common: dict[str, Any] = {
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
        "warnings": [fill(TypeWarning, notice.dump()) for notice in proposal.notices],
        "plan": fill(TypePlan, plan.dump()),
    }
    if issubclass(kind, FieldsChange):
        common |= {
            "bump": proposal.bump.name.lower(),
            "fields_added": list(proposal.added),
            "fields_removed": list(proposal.removed),
        }
    return json_response(kind(**common, **more))


def version(row: SchemaRow) -> TypeVersion:
    """A version, with all that it says."""
    return TypeVersion(**_version(row))


def effective(row: SchemaRow, stream: str, change: int) -> EffectiveType:
    """The version that holds for the caller."""
    return EffectiveType(**_version(row), stream=stream, change=change)


def _version(row: SchemaRow) -> dict[str, Any]:
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


def change(row: EntityChangeRow) -> TypeChangeSummary:
    """A change, without what it holds of others."""
    document = journal.load(row)
    return TypeChangeSummary(
        change=row.number,
        at=rfc3339(row.at_us),
        who=row.who,
        action=document.action,
        scope="user" if row.user_id else "global",
        user_id=row.user_id or None,
        schema_id=None if document.made is None else document.made.id,
        from_version=document.from_version or None,
        to_version=document.to_version or None,
        activated=document.active or None,
        changes=list(document.changes),
        reasons=list(document.reasons),
    )


def migration(run: Run, *, dry_run: bool | UnsetType = UNSET) -> MigrationAnswer:
    """A migration as it is answered."""
    answer = fill(MigrationAnswer, run_document(run))
    answer.dry_run = dry_run
    return answer
