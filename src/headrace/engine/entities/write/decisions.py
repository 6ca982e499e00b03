"""Corrections, deletions and restorations: decisions of a user that override all observations of an entity."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec

from headrace.engine.entities.entity_type import dedupe_key
from headrace.engine.entities.write.store_request import Draft, Prepared, ResolvedType, bodies
from headrace.schema.entity.accept import Fragment, Refused
from headrace.schema.entity.identity import Identity
from headrace.schema.entity.nodes import Definition, Field, Notice
from headrace.schema.entity.observation import (
    CORRECTED,
    DELETED,
    RESTORED,
    Observation,
    observation_id,
    scope_details,
)
from headrace.schema.entity.request import EntityOutcome, WarningAnswer, Warnings, list_issues, refusal
from headrace.schema.entity.values import UNFIT, VALIDATORS, ConstraintChecker, Violation, convert_value
from headrace.storage.dedupe import stored_key

DecisionKind = Literal["correction", "deletion", "restoration"]
_PRIORITIES = {"correction": CORRECTED, "deletion": DELETED, "restoration": RESTORED}
Action = Literal["corrected", "deleted", "restored"]
_ACTIONS: dict[DecisionKind, Action] = {"correction": "corrected", "deletion": "deleted", "restoration": "restored"}
#: The member that says whether an entity is deleted.
DELETED_MEMBER = "_deleted"
_ENCODE = msgspec.json.Encoder(order="sorted").encode


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about an entity; a correction has new values of fields."""

    kind: DecisionKind
    entity_id: str
    entity_type: str
    canonical_name: str
    user_id: str
    at_us: int
    fields: dict[str, Any] = {}
    idempotency_key: str | None = None


class StoreDecision:
    """A request to store a decision as an observation."""

    commit = True
    erasures: int | None = None

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self.user_id, self.idempotency_key = decision.user_id, decision.idempotency_key
        self.digest = sha256(_ENCODE([decision.kind, decision.entity_id, decision.fields])).digest()

    def prepare(self, typed: Mapping[str, ResolvedType]) -> Prepared:
        """The observation of the decision."""
        decision, entity_type = self._decision, typed[self._decision.entity_type]
        definition = entity_type.effective.schema.schema_definition
        values = _DecidedValues(definition, decision)
        if violations := values.violations(definition):
            raise refusal(list_issues(Refused(violations, None), 0, decision.entity_type))
        warnings = Warnings()
        warnings.add(decision.entity_type, 0, values.notices)
        draft = _draft(decision, entity_type, values)
        drafts = [draft]
        return Prepared(
            {decision.entity_type: drafts}, [draft.outcome], warnings, [], {decision.entity_type: bodies(drafts)}
        )

    def answer(self, prepared: Prepared) -> bytes:
        """The answer, once the decision is stored."""
        outcome, decision = prepared.outcomes[0], self._decision
        return msgspec.json.encode(
            DecisionAnswer(
                entity_id=outcome.entity_id,
                entity_type=outcome.entity_type,
                action=_ACTIONS[decision.kind],
                observation_id=outcome.observation_id,
                schema_version=outcome.schema_version,
                fields=list(decision.fields),
                store_warnings=prepared.warnings.dump(),
            )
        )


class DecisionAnswer(msgspec.Struct, kw_only=True):
    """The decision about an entity, with its warnings."""

    entity_id: str
    entity_type: str
    action: Action
    observation_id: str
    schema_version: str
    fields: list[str]
    store_warnings: list[WarningAnswer]


class _DecidedValues:
    """The values of a decision, converted where that makes them fit, and the violations of the others."""

    def __init__(self, definition: Definition, decision: Decision) -> None:
        self.fields: dict[str, Any] = {}
        self.fragments: list[Fragment] = []
        self.notices: list[Notice] = []
        self._unfit: list[Violation] = []
        for name, value in decision.fields.items():
            self._add(definition, name, value)
        if decision.kind != "correction":
            self.fields[DELETED_MEMBER] = decision.kind == "deletion"

    def _add(self, definition: Definition, name: str, value: Any) -> None:
        field = definition.fields.get(name)
        self.fields[name] = value
        if field is None:
            self.fragments.append(Fragment(name, value, "unknown_field"))
            message = f"there is no field {name!r}; the value is kept as a fragment too"
            self.notices.append(Notice("UNKNOWN_FIELD", message, (name,)))
        elif value is not None:
            self._convert(field, name, value)

    def _convert(self, field: Field, name: str, value: Any) -> None:
        self.fields[name] = converted = convert_value(field, value)
        if converted is UNFIT:
            message = f"{name!r} takes a {field.type}: give one, or null to clear the field"
            self._unfit.append(Violation(name, message, "type", field.type))
            return
        if converted is not value:
            self.fragments.append(Fragment(name, value, "converted_value_original", field.type))
        if field.validator is not None and not VALIDATORS[field.validator].accepts(converted):
            message = f"{name!r} takes {VALIDATORS[field.validator].description}: give one, or null to clear the field"
            self._unfit.append(Violation(name, message, "validator", field.validator))

    def violations(self, definition: Definition) -> list[Violation]:
        """The violations of the schema; those of constraints that only warn become notices."""
        limits = ConstraintChecker(definition)
        declared = {name: value for name, value in self.fields.items() if value is not UNFIT}
        violations = limits.violations(declared)
        if not limits.rejects:
            self.notices += [violation.notice() for violation in violations]
        return self._unfit + violations if limits.rejects else self._unfit


def _draft(decision: Decision, typed: ResolvedType, values: _DecidedValues) -> Draft:
    schema, identity = typed.effective.schema, Identity(decision.entity_id, decision.canonical_name, "target_id", "")
    priority, fragments = _PRIORITIES[decision.kind], tuple(values.fragments)
    score, key = 1.0 if decision.kind == "correction" else None, decision.idempotency_key
    identifier = observation_id(
        entity_id=decision.entity_id,
        fields=values.fields,
        fragments=fragments,
        kind=decision.kind,
        # A repeated decision is another one, unless its idempotency key says that it is the same.
        observed_at_us=decision.at_us if key is None else None,
        source_priority=priority,
        observation_source="human",
        specificity_score=score,
        idempotency_key=key,
    )
    observation = Observation(
        id=identifier,
        kind=decision.kind,
        entity_id=decision.entity_id,
        entity_type=typed.entity_type,
        user_id=decision.user_id,
        schema_version=schema.schema_version,
        source_id=None,
        observed_at_us=decision.at_us,
        source_priority=priority,
        observation_source="human",
        specificity_score=score,
        fields=values.fields,
        fragments=fragments,
        identity_basis="target_id",
        idempotency_key=None
        if decision.idempotency_key is None
        else stored_key(decision.user_id, decision.idempotency_key),
        details=scope_details(schema.scope),
    )
    outcome = EntityOutcome(
        decision.entity_id,
        typed.entity_type,
        "",
        identifier,
        schema.schema_version,
        decision.canonical_name,
        "target_id",
        "",
        [fragment.key for fragment in fragments if fragment.reason == "unknown_field"],
        [],
    )
    return Draft(typed, observation, identity, dedupe_key(identifier, None), outcome, 0, False)
