"""Observations in the making: the entities of a request, accepted by their schemas, become documents to be stored.

All of it is pure, so that it is done wherever there is time: on the loop, in a thread, and once more in the commit
where a schema has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.engine.entities.entity_type import Effective, dedupe_key
from headrace.schema.entity import identity as identities
from headrace.schema.entity.accept import Accepted, Refused
from headrace.schema.entity.definition import infer_schema
from headrace.schema.entity.identity import Identity
from headrace.schema.entity.nodes import OPT_OUT, Definition, Notice, ReducerConfig, Schema
from headrace.schema.entity.observation import (
    CORRECTED,
    DEFAULT_SOURCE,
    STORED,
    Observation,
    encode,
    observation_id,
    of_scope,
)
from headrace.schema.entity.request import (
    EntityOutcome,
    Issue,
    Meta,
    ObservationOptions,
    StoreAnswer,
    StoreRequest,
    Warnings,
    check_source,
    convert,
    encode_answer,
    list_issues,
    refusal,
)
from headrace.schema.problem import RequestProblem
from headrace.storage.dedupe import stored_key

if TYPE_CHECKING:
    from headrace.engine.log.stream import Stream
    from headrace.engine.log.stream_registry import StreamRegistry

_NO_META = Meta()


class Typed(NamedTuple):
    """An entity type as a request found it; one that is only infer_schema has no stream yet."""

    entity_type: str
    effective: Effective
    stream: Stream | None = None
    registry: StreamRegistry | None = None


class Draft(msgspec.Struct):
    """An observation that is to be stored once, and what will be told of it."""

    typed: Typed
    observation: Observation
    identity: Identity
    key: str
    told: EntityOutcome
    item: int
    strict: bool

    def collision(self) -> RequestProblem | Notice | None:
        """What is to be said if an entity of this name exists already."""
        definition = self.typed.effective.schema.schema_definition
        if self.is_targeted or (not self.strict and definition.name_collision_policy == "merge"):
            return None
        return identities.check_name_collision(definition, self.identity, self.strict)

    @property
    def is_targeted(self) -> bool:
        """Whether the entity was named by its id, and so must exist."""
        return self.identity.basis == "target_id"


class Prepared(NamedTuple):
    """A request that is accepted: what is to be stored by type, and what is told of each entity in order."""

    drafts: dict[str, list[Draft]]
    told: list[EntityOutcome]
    warnings: Warnings
    #: Keys that single entities came with, and the observations that they stand for.
    keys: list[tuple[str, Draft]]
    #: The observations of each type as they are stored, joined by commas.
    joined: dict[str, bytes]


class ObservationWrite:
    """A request to store entities: accepted again whenever a schema has changed before it is stored."""

    erasures: int | None = None

    def __init__(self, request: StoreRequest, names: Mapping[str, str], now_us: int) -> None:
        """``names`` are those of the types by how they were spelled."""
        self._asked, self._names, self._now_us = request, names, now_us
        self.user_id, self.digest = request.user_id, request.digest
        self.idempotency_key, self.commit = request.envelope.idempotency_key, request.envelope.commit

    def prepare(self, typed: Mapping[str, Typed]) -> Prepared:
        """Make observations of the request, or refuse all of it for every reason there is."""
        work = _Acceptance(self._asked, {spelled: typed[name] for spelled, name in self._names.items()}, self._now_us)
        for number, entity in enumerate(self._asked.entities):
            work.take(number, entity)
        if work.issues:
            raise refusal(work.issues)
        joined = {name: bodies(drafts) for name, drafts in work.drafts.items()}
        return Prepared(work.drafts, work.told, work.warnings, work.keys, joined)

    def answer(self, prepared: Prepared) -> bytes:
        """What is told once it is decided what becomes of each entity."""
        answers = prepared.told
        unknown = sum([len(answer.unknown_fields) for answer in answers])
        answer = StoreAnswer(answers, self._asked.source_id, unknown, prepared.warnings.dump())
        if not self.commit:
            answer.dry_run = True
        return encode_answer(answer)


class _Acceptance:
    """One request on its way."""

    def __init__(self, request: StoreRequest, typed: Mapping[str, Typed], now_us: int) -> None:
        self.asked, self.typed, self.now_us = request, typed, now_us
        self.common = _Common(request.envelope, request.envelope, request.source_id)
        self.drafts: dict[str, list[Draft]] = {}
        self.seen: dict[str, Draft] = {}
        self.told: list[EntityOutcome] = []
        self.issues: list[Issue] = []
        self.warnings = Warnings()
        self.keys: list[tuple[str, Draft]] = []

    def take(self, number: int, entity: dict[str, Any]) -> None:
        """Accept one entity, or take note of what speaks against it."""
        fields = dict(entity)
        spelled = fields.pop("entity_type")
        meta, common, typed = _NO_META, self.common, self.typed[spelled]
        details: dict[str, Any] = {"item": number, **of_scope(typed.effective.schema.scope)}
        if spelled != typed.entity_type:
            details["given_type"] = spelled
        if "_meta" in fields:
            details["meta"] = fields.pop("_meta")
            meta = convert(details["meta"], Meta, f"entity {number}, _meta: ")
            check_source(meta.source_id, self.asked.source_id)
            common = _Common(meta, self.asked.envelope, self.asked.source_id)
        user = self.asked.user_id
        outcome = typed.effective.acceptor.accept(fields, user, meta.target_id, common.prioritised)
        if isinstance(outcome, Refused):
            self.issues += list_issues(outcome, number, typed.entity_type)
            return
        draft = self._draft(number, typed, common, outcome, fields, details)
        if meta.idempotency_key is not None:
            self.keys.append((meta.idempotency_key, draft))
        if outcome.notices or common.escalates:
            self.warnings.add(typed.entity_type, number, [*outcome.notices, *common.notices()])
        self._keep(draft)

    def _draft(
        self,
        number: int,
        typed: Typed,
        common: _Common,
        accepted: Accepted,
        submitted: dict[str, Any],
        details: dict[str, Any],
    ) -> Draft:
        fields, fragments, identity, _ = accepted
        schema, user = typed.effective.schema, self.asked.user_id
        identifier = observation_id(
            entity_id=identity.entity_id,
            fields=fields,
            fragments=fragments,
            members=submitted,
            source_id=common.source_id,
            observed_at_us=common.observed_at_us,
            source_priority=common.priority,
            observation_source=common.kind,
            specificity_score=common.score,
            idempotency_key=common.key,
        )
        observation = Observation(
            id=identifier,
            kind="observation",
            entity_id=identity.entity_id,
            entity_type=typed.entity_type,
            user_id=user,
            schema_version=schema.schema_version,
            source_id=common.source_id,
            observed_at_us=self.now_us if common.observed_at_us is None else common.observed_at_us,
            source_priority=common.priority,
            observation_source=common.kind,
            specificity_score=common.score,
            fields=fields,
            fragments=fragments,
            canonical_name=identity.canonical_name or None,
            identity_basis=identity.basis,
            identity_rule=identity.rule or None,
            idempotency_key=None if common.key is None else stored_key(user, common.key),
            details=details,
        )
        answer = EntityOutcome(
            identity.entity_id,
            typed.entity_type,
            "",
            identifier,
            schema.schema_version,
            identity.canonical_name,
            identity.basis,
            identity.rule,
            accepted.unknown_fields if fragments else [],
            typed.effective.acceptor.missing_required_fields(fields),
        )
        answer.relate(schema.schema_definition, fields, user)
        key = dedupe_key(identifier, common.source_id)
        return Draft(typed, observation, identity, key, answer, number, common.strict)

    def _keep(self, draft: Draft) -> None:
        """Keep what is to be stored; the same again is another place of it, and nothing more."""
        self.told.append(draft.told)
        first = self.seen.setdefault(draft.key, draft)
        if first is draft:
            self.drafts.setdefault(draft.typed.entity_type, []).append(draft)
        else:
            first.observation.details.setdefault("again", []).append(draft.item)


class _Common:
    """What holds for an observation besides its entity: said of it, of all of the request, or by default."""

    __slots__ = (
        "escalates", "key", "kind", "observed_at_us", "prioritised", "priority", "score", "source_id", "strict",
    )  # fmt: skip

    def __init__(self, own: ObservationOptions, all_of: ObservationOptions, source_id: str) -> None:
        self.observed_at_us = own.observed_at_us if own.observed_at is not None else all_of.observed_at_us
        self.source_id = own.source_id or source_id
        priority = all_of.source_priority if own.source_priority is None else own.source_priority
        self.prioritised = priority is not None
        self.priority = STORED if priority is None else priority
        self.escalates = self.priority >= CORRECTED
        self.kind = own.observation_source or all_of.observation_source or DEFAULT_SOURCE
        self.score = all_of.specificity_score if own.specificity_score is None else own.specificity_score
        self.key = own.idempotency_key or all_of.idempotency_key
        self.strict = own.strict or all_of.strict

    def notices(self) -> list[Notice]:
        """What is worth knowing about what was said."""
        if not self.escalates:
            return []
        message = f"priorities from {CORRECTED} on are those of corrections, which win all the same"
        return [Notice("SOURCE_PRIORITY_ESCALATION", message)]


def first_schema(entity_type: str, rows: Iterable[Mapping[str, Any]]) -> Schema:
    """The schema that a type gets which has none: of the fields that entities have, where these can be fields."""
    inferred_schema = infer_schema(entity_type, rows)
    if inferred_schema is not None:
        return inferred_schema
    definition = Definition(fields={}, identity_opt_out=OPT_OUT)
    return Schema(
        entity_type=entity_type,
        schema_version="1.0.0",
        schema_definition=definition,
        reducer_config=ReducerConfig({}),
    )


def bodies(drafts: list[Draft]) -> bytes:
    """Observations as they are stored, joined by commas."""
    return b",".join([encode(draft.observation) for draft in drafts])
