"""Promotions: candidates become the next version of a schema, and are recorded as recommendations with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from headrace.engine.entities.enhancement.candidates import Analysis, FragmentCandidates
from headrace.engine.entities.enhancement.migrations import migration
from headrace.engine.entities.enhancement.settings import EffectiveSettings, EnhancementSettings, load
from headrace.engine.entities.types.entity_types import EntityTypes, Outcome
from headrace.engine.entities.types.journal import TypeChange
from headrace.engine.entities.types.proposals import OwnerChange, TypeProposal, propose_update
from headrace.engine.entities.types.type_base import TypeBase
from headrace.errors import BadRequest, NotFound
from headrace.reduce.fragments.candidates import Candidate, update_of
from headrace.reduce.fragments.rules import DECIDED, MIXED, TOO_FEW, TOO_FEW_SOURCES, UNSURE
from headrace.schema.entity.registration import ChangeRequest
from headrace.storage.enhancements import ChangeKind, Enhancements, Recommendation, Run, Status
from headrace.types import Clock

#: The user id of automatic enhancement.
ITSELF = "enhancement"
#: Reasons against a promotion that can be overridden.
_WEAK = frozenset((TOO_FEW, TOO_FEW_SOURCES, MIXED, UNSURE, DECIDED))
_EVIDENCE = (
    *("field_type", "converters", "frequency", "type_share", "types"),
    *("sources", "users", "entities", "confidence"),
)
_CHANGES: dict[str, ChangeKind] = {"add_field": "add_fields", "add_converters": "add_converters"}


class EnhancementOutcome(NamedTuple):
    """An enhancement: its analysis, the promoted candidates, and the change of the schema."""

    analysis: Analysis
    promoted: list[Candidate]
    outcome: Outcome
    #: The run that moves stored values, where that was requested.
    run: Run | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that were added or take more values than before."""
        return tuple(sorted(candidate.fragment_key for candidate in self.promoted))


class Promotions:
    """Promotes candidates; runs on the event loop."""

    def __init__(
        self, *, types: EntityTypes, candidates: FragmentCandidates, enhancements: Enhancements, clock: Clock
    ) -> None:
        self._types, self._candidates, self._enhancements, self._clock = types, candidates, enhancements, clock

    # -- settings

    def settings(self, entity_type: str, owner: str) -> EffectiveSettings:
        """The settings that apply to an owner."""
        self._candidates.schema(entity_type, owner)
        return load(self._enhancements, entity_type, owner)

    async def set(self, entity_type: str, owner: str, settings: EnhancementSettings, who: str) -> EffectiveSettings:
        """Replace the settings of an owner."""
        self.settings(entity_type, owner)
        settings.check()
        document = TypeChange("enhancement", enhancement=msgspec.to_builtins(settings))
        await self._types.record(entity_type, owner, document, who)
        return self.settings(entity_type, owner)

    # -- recommendations

    def recommendations(self, entity_type: str, owner: str) -> list[Recommendation]:
        """The recommendations to an owner, with their status."""
        self.settings(entity_type, owner)
        return self._enhancements.recommendations(entity_type, owner)

    async def decide(self, entity_type: str, owner: str, field: str, status: Status, who: str) -> Recommendation:
        """Approve or reject the candidate of a key, or set it back to pending."""
        analysis = await self._candidates.analyse(entity_type, owner)
        candidate = next((each for each in analysis.candidates if each.fragment_key == field), None)
        if candidate is None:
            raise NotFound(f"no fragments of {field!r} speak for anything", entity_type=entity_type, field=field)
        recommendation = self._recommendation(analysis, owner, candidate, status, who)
        document = TypeChange("recommend", recommendations=(recommendation,))
        await self._types.record(entity_type, owner, document, who)
        return recommendation

    async def recommend(self, analysis: Analysis, owner: str) -> list[Recommendation]:
        """Record candidates that can be promoted as pending recommendations."""
        recommended = {(recommendation.field, recommendation.change) for recommendation in analysis.recommendations}
        fresh = [
            self._recommendation(analysis, owner, candidate, "pending", ITSELF)
            for candidate in analysis.candidates
            if candidate.promotable and (candidate.fragment_key, _CHANGES[candidate.change]) not in recommended
        ]
        if fresh:
            document = TypeChange("recommend", recommendations=tuple(fresh))
            await self._types.record(analysis.schema.entity_type, owner, document, ITSELF)
        return fresh

    # -- promotion

    async def enhance(
        self,
        entity_type: str,
        owner: str,
        who: str,
        *,
        fields: Sequence[str] | None = None,
        force: bool = False,
        migrate: bool = False,
        dry_run: bool = True,
    ) -> EnhancementOutcome:
        """Promote candidates without reasons against them, or some keys; with force, those with weak evidence too."""
        analysis = await self._candidates.analyse(entity_type, owner)
        chosen = _chosen(analysis, fields, force)
        if dry_run:
            return await self._promote(analysis, owner, chosen, who, migrate=False, dry_run=True)
        return await self._promote(analysis, owner, chosen, who, migrate=migrate)

    async def enhance_automatically(self, entity_type: str, owner: str) -> EnhancementOutcome | None:
        """Enhance a type by its settings; None where nothing is promoted."""
        analysis = await self._candidates.analyse(entity_type, owner)
        approved = {
            (recommendation.field, recommendation.change)
            for recommendation in analysis.recommendations
            if recommendation.status == "approved"
        }
        chosen = [
            msgspec.structs.replace(candidate, reasons=())
            for candidate in analysis.candidates
            if (candidate.fragment_key, _CHANGES[candidate.change]) in approved and _is_weak(candidate)
        ]
        if analysis.settings.own.mode == "apply":
            names = {candidate.fragment_key for candidate in chosen}
            chosen += [
                candidate
                for candidate in analysis.candidates
                if candidate.promotable and candidate.fragment_key not in names
            ]
        else:
            await self.recommend(analysis, owner)
        migrate = analysis.settings.own.migrate_existing
        return await self._promote(analysis, owner, chosen, ITSELF, migrate=migrate) if chosen else None

    async def _promote(
        self,
        analysis: Analysis,
        owner: str,
        chosen: list[Candidate],
        who: str,
        *,
        migrate: bool,
        dry_run: bool = False,
    ) -> EnhancementOutcome:
        status: Status = "auto_applied" if who == ITSELF else "applied"
        recommendations = [self._recommendation(analysis, owner, candidate, status, who) for candidate in chosen]
        scope = "user" if owner else "global"
        request = ChangeRequest(update=update_of(chosen), scope=scope, dry_run=dry_run)
        entity_type = analysis.schema.entity_type
        run = (
            migration(
                entity_type,
                owner,
                [recommendation.field for recommendation in recommendations],
                who,
                self._clock.now_us(),
            )
            if migrate
            else None
        )
        propose = partial(_propose_promotion, request=request, recommendations=recommendations, run=run)
        outcome = await self._types.change(entity_type, owner, propose, who, dry_run)
        return EnhancementOutcome(analysis, chosen, outcome, None if outcome.number is None else run)

    def _recommendation(
        self, analysis: Analysis, owner: str, candidate: Candidate, status: Status, who: str
    ) -> Recommendation:
        return Recommendation(
            entity_type=analysis.schema.entity_type,
            user_id=owner,
            field=candidate.fragment_key,
            change=_CHANGES[candidate.change],
            status=status,
            who=who,
            at_us=self._clock.now_us(),
            evidence=evidence(candidate),
        )


def evidence(candidate: Candidate) -> dict[str, Any]:
    """The evidence for a candidate, without any of the values."""
    document = msgspec.to_builtins(candidate)
    return {name: document[name] for name in _EVIDENCE}


def _chosen(analysis: Analysis, fields: Sequence[str] | None, force: bool) -> list[Candidate]:
    """The candidates to promote; raises BadRequest where a named key cannot be promoted."""
    if fields is None:
        return [candidate for candidate in analysis.candidates if candidate.promotable]
    by_field = {candidate.fragment_key: candidate for candidate in analysis.candidates}
    declared = analysis.schema.schema_definition.fields
    absent = [name for name in fields if name not in by_field and name not in declared]
    if absent:
        raise BadRequest(f"no fragments speak for {', '.join(map(repr, absent))}", field="fields", unknown=absent)
    named = [by_field[name] for name in dict.fromkeys(fields) if name in by_field]
    refused = [candidate for candidate in named if not candidate.promotable and not (force and _is_weak(candidate))]
    if refused:
        problems = [
            {"field": candidate.fragment_key, **msgspec.to_builtins(why)}
            for candidate in refused
            for why in candidate.reasons
        ]
        message = f"{refused[0].fragment_key!r} is not promoted: {refused[0].reasons[0].message}"
        raise BadRequest(message, field="fields", problems=problems)
    return [msgspec.structs.replace(candidate, reasons=()) for candidate in named]


def _is_weak(candidate: Candidate) -> bool:
    """Whether a candidate can be promoted if its reasons are overridden."""
    able = candidate.field_type is not None and (candidate.change == "add_field" or bool(candidate.converters))
    return able and all(reason.code in _WEAK for reason in candidate.reasons)


def _propose_promotion(
    base: TypeBase, request: ChangeRequest, recommendations: Iterable[Recommendation], run: Run | None
) -> TypeProposal:
    """The update of the schema, with the recommendations and the migration in the same change."""
    proposal = propose_update(base, request)
    if not proposal.owner_changes or proposal.row is None:
        return proposal
    version = proposal.row.schema_version
    promoted = tuple(
        msgspec.structs.replace(recommendation, schema_version=version) for recommendation in recommendations
    )
    documents = [TypeChange("recommend", recommendations=promoted)]
    if run is not None:
        documents.append(TypeChange("migrate", run=run))
    more = (OwnerChange(base.owner, document) for document in documents)
    return proposal._replace(owner_changes=(*proposal.owner_changes, *more))
