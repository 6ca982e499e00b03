"""Prepares the observations of a request: its entities are checked by their schemas, and become documents.

This is pure, so that it can run on the event loop, in a thread, and once more in the commit where a schema has changed
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.engine.entities.entity_type import Effective, dedupe_key
from headrace.errors import BadRequest
from headrace.format import offset as offsets
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
    id_by_origin,
    observation_id,
    scope_details,
)
from headrace.schema.entity.request import (
    EntityOutcome,
    Issue,
    Meta,
    ObservationOptions,
    Origin,
    StoreAnswer,
    StoreRequest,
    Warnings,
    convert,
    encode_answer,
    list_issues,
    refusal,
)
from headrace.schema.entity.sources import check_id, name_of
from headrace.schema.problem import RequestProblem
from headrace.storage.dedupe import stored_key

if TYPE_CHECKING:
    from headrace.engine.log.stream import Stream
    from headrace.engine.log.stream_registry import StreamRegistry

_NO_META = Meta()


class ResolvedType(NamedTuple):
    """An entity type as a request found it; one that is only inferred has no stream yet."""

    entity_type: str
    effective: Effective
    stream: Stream | None = None
    registry: StreamRegistry | None = None


class Draft(msgspec.Struct):
    """An observation to be stored once, and its outcome in the answer."""

    typed: ResolvedType
    observation: Observation
    identity: Identity
    key: str
    outcome: EntityOutcome
    item: int
    strict: bool

    def collision(self) -> RequestProblem | Notice | None:
        """The problem or the warning if an entity of this name exists already; None where it may be merged."""
        definition = self.typed.effective.schema.schema_definition
        if self.is_targeted or (not self.strict and definition.name_collision_policy == "merge"):
            return None
        return identities.check_name_collision(definition, self.identity, self.strict)

    def says_the_same(self, other: Draft) -> bool:
        """Whether another observation of the same id has the same values; one with an origin may have others."""
        mine, others = self.observation, other.observation
        return (mine.entity_id, mine.fields, mine.fragments) == (others.entity_id, others.fields, others.fragments)

    @property
    def is_targeted(self) -> bool:
        """Whether the entity was named by its id, and so must exist."""
        return self.identity.basis == "target_id"


class Prepared(NamedTuple):
    """An accepted request: the observations to be stored by type, and the outcomes of its entities in order."""

    drafts: dict[str, list[Draft]]
    outcomes: list[EntityOutcome]
    warnings: Warnings
    #: The idempotency keys of single entities, and their observations.
    keys: list[tuple[str, Draft]]
    #: The observations of each type as they are stored, joined by commas.
    joined: dict[str, bytes]


class ObservationWrite:
    """A request to store entities; it is prepared again if a schema has changed before it is stored."""

    erasures: int | None = None

    def __init__(self, request: StoreRequest, names: Mapping[str, str], now_us: int) -> None:
        """``names`` are the names of types by how they are spelled in the request."""
        self._request, self._names, self._now_us = request, names, now_us
        self.user_id, self.digest = request.user_id, request.digest
        self.idempotency_key, self.commit = request.envelope.idempotency_key, request.envelope.commit

    def prepare(self, typed: Mapping[str, ResolvedType]) -> Prepared:
        """Make the observations of the request; raises a refusal with all its issues."""
        work = _Acceptance(self._request, {spelled: typed[name] for spelled, name in self._names.items()}, self._now_us)
        for number, entity in enumerate(self._request.entities):
            work.add(number, entity)
        if work.issues:
            raise refusal(work.issues)
        joined = {name: bodies(drafts) for name, drafts in work.drafts.items()}
        return Prepared(work.drafts, work.outcomes, work.warnings, work.keys, joined)

    def answer(self, prepared: Prepared) -> bytes:
        """The answer, once the action of each outcome is decided."""
        outcomes = prepared.outcomes
        unknown = sum([len(outcome.unknown_fields) for outcome in outcomes])
        answer = StoreAnswer(outcomes, self._request.source_id, unknown, prepared.warnings.dump())
        name = name_of(self._request.source_id)
        if name is not None:
            answer.source = name
        if not self.commit:
            answer.dry_run = True
        return encode_answer(answer)


class _Acceptance:
    """Checks the entities of one request."""

    def __init__(self, request: StoreRequest, typed: Mapping[str, ResolvedType], now_us: int) -> None:
        self.request, self.typed, self.now_us = request, typed, now_us
        self.options = _Options(request.envelope, request.envelope, request.source_id)
        self.drafts: dict[str, list[Draft]] = {}
        self.seen: dict[str, Draft] = {}
        self.outcomes: list[EntityOutcome] = []
        self.issues: list[Issue] = []
        self.warnings = Warnings()
        self.keys: list[tuple[str, Draft]] = []

    def add(self, number: int, entity: dict[str, Any]) -> None:
        """Check an entity, and keep its observation or its issues."""
        fields = dict(entity)
        spelled = fields.pop("entity_type")
        meta, options, typed = _NO_META, self.options, self.typed[spelled]
        details: dict[str, Any] = {"item": number, **scope_details(typed.effective.schema.scope)}
        if spelled != typed.entity_type:
            details["given_type"] = spelled
        if "_meta" in fields:
            details["meta"] = fields.pop("_meta")
            meta, options = self._read_meta(number, details["meta"])
        user = self.request.user_id
        accepted = typed.effective.acceptor.accept(fields, user, meta.target_id, options.prioritised)
        if isinstance(accepted, Refused):
            self.issues += list_issues(accepted, number, typed.entity_type)
            return
        draft = self._draft(number, typed, options, accepted, fields, details, meta.origin)
        if meta.idempotency_key is not None:
            self.keys.append((meta.idempotency_key, draft))
        if accepted.notices or options.escalates:
            self.warnings.add(typed.entity_type, number, [*accepted.notices, *options.notices()])
        self._keep(draft)

    def _read_meta(self, number: int, document: Any) -> tuple[Meta, _Options]:
        """The ``_meta`` of an entity, and its options; an error has the number of the entity."""
        where = f"entity {number + 1}, _meta: "
        try:
            meta = convert(document, Meta, where).identify_source(where)
            check_id(meta.source_id, self.request.source_id)
            options = _Options(meta, self.request.envelope, self.request.source_id)
            if meta.origin is not None:
                _check_offset(meta.origin.offset, where)
                if name_of(options.source_id) is None:
                    raise BadRequest(f"{where}an origin needs the name of its source", field="source")
            return meta, options
        except BadRequest as refusal:
            refusal.facts.setdefault("item", number)
            raise

    def _draft(
        self,
        number: int,
        typed: ResolvedType,
        options: _Options,
        accepted: Accepted,
        submitted: dict[str, Any],
        details: dict[str, Any],
        origin: Origin | None,
    ) -> Draft:
        fields, fragments, identity, _ = accepted
        schema, user = typed.effective.schema, self.request.user_id
        if origin is None:
            identifier = _id_by_content(accepted, options, submitted)
        else:
            identifier = id_by_origin(
                user_id=user,
                entity_type=typed.entity_type,
                source_id=options.source_id,
                **msgspec.structs.asdict(origin),
            )
        observation = Observation(
            id=identifier,
            kind="observation",
            entity_id=identity.entity_id,
            entity_type=typed.entity_type,
            user_id=user,
            schema_version=schema.schema_version,
            source_id=options.source_id,
            observed_at_us=self.now_us if options.observed_at_us is None else options.observed_at_us,
            source_priority=options.priority,
            observation_source=options.kind,
            specificity_score=options.score,
            fields=fields,
            fragments=fragments,
            canonical_name=identity.canonical_name or None,
            identity_basis=identity.basis,
            identity_rule=identity.rule or None,
            idempotency_key=None if options.key is None else stored_key(user, options.key),
            details=details,
        )
        outcome = EntityOutcome(
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
        outcome.relate(schema.schema_definition, fields, user)
        key = dedupe_key(identifier, options.source_id)
        return Draft(typed, observation, identity, key, outcome, number, options.strict)

    def _keep(self, draft: Draft) -> None:
        """Keep an observation; where the request repeats it, only note the number of the repetition."""
        self.outcomes.append(draft.outcome)
        first = self.seen.setdefault(draft.key, draft)
        if first is draft:
            self.drafts.setdefault(draft.typed.entity_type, []).append(draft)
        elif not first.says_the_same(draft):
            message = f"entity {draft.item + 1} has the origin of entity {first.item + 1}, and says something else"
            raise BadRequest(message, field="origin", item=draft.item)
        else:
            first.observation.details.setdefault("again", []).append(draft.item)


class _Options:
    """The options of an observation: its own, those of the request, or the defaults."""

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
        """Warnings about the options."""
        if not self.escalates:
            return []
        message = f"priorities from {CORRECTED} on are those of corrections, which win all the same"
        return [Notice("SOURCE_PRIORITY_ESCALATION", message)]


def _id_by_content(accepted: Accepted, options: _Options, submitted: dict[str, Any]) -> str:
    return observation_id(
        entity_id=accepted.identity.entity_id,
        fields=accepted.fields,
        fragments=accepted.fragments,
        members=submitted,
        source_id=options.source_id,
        observed_at_us=options.observed_at_us,
        source_priority=options.priority,
        observation_source=options.kind,
        specificity_score=options.score,
        idempotency_key=options.key,
    )


def _check_offset(text: str, where: str) -> None:
    """Refuse an offset in a spelling that no read returns: it would be another origin than the same offset as read."""
    try:
        is_canonical = text == offsets.encode(*offsets.decode(text))
    except ValueError:
        is_canonical = False
    if not is_canonical:
        raise BadRequest(f"{where}{text!r} is no offset that a read returns", field="origin.offset")


def infer_first_schema(entity_type: str, rows: Iterable[Mapping[str, Any]]) -> Schema:
    """The first schema of a type: inferred from the fields of entities, or empty where none can be a field."""
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
