"""Request and response bodies of the enhancement of entity types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.engine.entities.enhancement.candidates import Analysis
from headrace.engine.entities.enhancement.settings import EnhancementSettings
from headrace.reduce.fragments.agreement import Agreement
from headrace.reduce.fragments.candidates import Candidate
from headrace.reduce.fragments.rules import Reason
from headrace.schema.entity.nodes import TYPES as FIELD_TYPES
from headrace.server.http.wire import Counter, Object, Share, User, When
from headrace.server.routes.entities import Scope
from headrace.server.routes.entity_type_documents import FieldsChange, MigrationAnswer, Version
from headrace.storage.enhancements import ChangeKind, Recommendation, Run, State, Status
from headrace.types import rfc3339

MAX_FIELDS = 1_000

_FieldType = Annotated[str, Meta(extra_json_schema={"enum": list(FIELD_TYPES)})]
_FieldNames = Annotated[tuple[str, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_FIELDS})]


class EnhancementBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose schema a request is about: the caller's own, unless it says that it is everybody's."""

    scope: Scope = "user"
    user_id: User | None = None


class UndoBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The owner of the migration; without a scope it is found by its id."""

    scope: Scope | None = None
    user_id: User | None = None


class EnhanceBody(EnhancementBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields to promote; nothing changes unless ``dry_run`` is false."""

    fields: _FieldNames | None = None
    force: bool = False
    migrate_existing: bool = False
    dry_run: bool = True


class SettingsBody(EnhancementSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an owner; those that are left out are the defaults."""

    scope: Scope = "user"
    user_id: User | None = None

    def settings(self) -> EnhancementSettings:
        """The settings alone."""
        names = EnhancementSettings.__struct_fields__
        return EnhancementSettings(**{name: getattr(self, name) for name in names})


class CandidateDecisionBody(EnhancementBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision about the fragments of a key."""

    field: str
    status: Literal["pending", "approved", "rejected"]


class MigrateBody(EnhancementBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that values of fragments are to be moved to."""

    fields: _FieldNames
    dry_run: bool = False


class ReconcileBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``dry_run`` only reports what users agree on."""

    dry_run: bool = True


class CandidateAnswer(Struct, kw_only=True):
    """A field to add, or converters for an existing one, with the evidence and the reasons against it."""

    fragment_key: str
    change: Literal["add_field", "add_converters"]
    field_type: _FieldType | None
    converters: list[Object]
    frequency: Counter
    type_share: Share
    types: dict[str, Counter]
    sources: Counter
    users: Counter
    entities: Counter
    confidence: Share
    examples: list[Any]
    reasons: list[Reason]
    first_seen: When
    last_seen: When
    promotable: bool
    status: Status | None


class FragmentCoverage(Struct, kw_only=True):
    """Which observations candidates are made of."""

    complete: bool
    observations: Counter
    missing: Counter
    truncated: bool


class CandidatesAnswer(Struct, kw_only=True):
    """The fields that fragments suggest, the most frequent first."""

    entity_type: str
    schema_version: Version
    scope: Scope
    user_id: str | None
    coverage: FragmentCoverage
    candidates: list[CandidateAnswer]


class RecommendationAnswer(Struct, kw_only=True):
    """A recommendation about a key of fragments, and the decision."""

    key: str
    field: str
    change: ChangeKind
    status: Status
    can_rollback: bool
    schema_version: Version | None
    who: str
    at: When
    evidence: Object


class RecommendationsAnswer(Struct):
    """Recommendations by field."""

    entity_type: str
    recommendations: list[RecommendationAnswer]


class MigrationsAnswer(Struct):
    """The migrations of a type, the newest first."""

    entity_type: str
    migrations: list[MigrationAnswer]


class EnhancementRun(Struct, kw_only=True):
    """One run over the fragments of a type, and its outcome."""

    run_id: str
    state: State
    attempts: Counter
    reason: str | None
    begun_at: When
    ended_at: When | None
    outcome: Object


class SettingsAnswer(Struct, kw_only=True):
    """The effective settings of an owner, and the last automatic run."""

    entity_type: str
    scope: Scope
    user_id: str | None
    is_set: bool
    settings: EnhancementSettings
    runs: list[EnhancementRun]


class FieldAgreement(Struct, kw_only=True):
    """A field that some users have and everyone may get."""

    field: str
    field_type: _FieldType
    users: Counter
    entities: Counter
    type_share: Share
    confidence: Share
    promotable: bool
    reasons: list[Reason]


class EnhanceAnswer(FieldsChange, kw_only=True):
    """The version that a promotion created, or would create in a dry run."""

    promoted: list[CandidateAnswer]
    migration: Annotated[
        Any,
        Meta(
            extra_json_schema={
                "anyOf": [
                    {"$ref": "#/components/schemas/MigrationAnswer"},
                    {"$ref": "#/components/schemas/PlannedMigration"},
                    {"type": "null"},
                ]
            }
        ),
    ]
    rekey: None


class ReconcileAnswer(FieldsChange, kw_only=True):
    """The version that a reconciliation created, or would create in a dry run."""

    agreements: list[FieldAgreement]
    rekey: None


def candidates_answer(analysis: Analysis, owner: str, candidates: list[CandidateAnswer]) -> CandidatesAnswer:
    """Candidates of an owner, and which observations they are made of."""
    schema, counts = analysis.schema, analysis.counts
    return CandidatesAnswer(
        entity_type=schema.entity_type,
        schema_version=schema.schema_version,
        scope="user" if owner else "global",
        user_id=owner or None,
        coverage=FragmentCoverage(
            complete=counts.complete,
            observations=counts.next_seq - counts.first_seq,
            missing=counts.missing,
            truncated=counts.fragments.truncated,
        ),
        candidates=candidates,
    )


def candidate_answer(analysis: Analysis, candidate: Candidate) -> CandidateAnswer:
    """A candidate, and what was decided about it."""
    document: dict[str, Any] = msgspec.to_builtins(candidate)
    document["first_seen"] = rfc3339(document.pop("first_seen_us"))
    document["last_seen"] = rfc3339(document.pop("last_seen_us"))
    recommendations = {recommendation.field: recommendation for recommendation in analysis.recommendations}
    status = recommendations[candidate.fragment_key].status if candidate.fragment_key in recommendations else None
    return CandidateAnswer(**document, promotable=candidate.promotable, status=status)


def recommendation_answer(recommendation: Recommendation) -> RecommendationAnswer:
    """A recommendation as it is answered."""
    return RecommendationAnswer(
        key=recommendation.key,
        field=recommendation.field,
        change=recommendation.change,
        status=recommendation.status,
        can_rollback=recommendation.can_rollback,
        schema_version=recommendation.schema_version,
        who=recommendation.who,
        at=rfc3339(recommendation.at_us),
        evidence=recommendation.evidence,
    )


def field_agreement(agreement: Agreement) -> FieldAgreement:
    """A field that users agree on."""
    return FieldAgreement(
        field=agreement.field_name,
        field_type=agreement.field.type,
        users=agreement.users,
        entities=agreement.entities,
        type_share=agreement.type_share,
        confidence=agreement.confidence,
        promotable=agreement.promotable,
        reasons=list(agreement.reasons),
    )


def enhancement_run(run: Run) -> EnhancementRun:
    """A run as it is answered."""
    return EnhancementRun(
        run_id=run.id,
        state=run.state,
        attempts=run.attempts,
        reason=run.reason,
        begun_at=rfc3339(run.begun_us),
        ended_at=None if run.ended_us is None else rfc3339(run.ended_us),
        outcome=run.outcome,
    )
