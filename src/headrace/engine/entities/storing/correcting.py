"""Corrections, deletions and restorations: what somebody decides about an entity, over anything that was observed."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec

from headrace.engine.entities.kind import dedupe_key
from headrace.engine.entities.storing.accepting import Draft, Prepared, Typed, bodies
from headrace.engine.entities.storing.answering import Issue, Told, Warnings, issues_of, refusal
from headrace.schema.entity.accept import Refused
from headrace.schema.entity.constraints import Limits
from headrace.schema.entity.converters import UNFIT, converted
from headrace.schema.entity.identity import Identity
from headrace.schema.entity.nodes import Definition
from headrace.schema.entity.observation import (
    CORRECTED,
    DELETED,
    RESTORED,
    Observation,
    observation_id,
    of_scope,
)
from headrace.schema.entity.problem import Notice
from headrace.schema.entity.split import Fragment
from headrace.schema.entity.validators import VALIDATORS
from headrace.schema.entity.values import fits
from headrace.storage.idempotency import stored_key

Deed = Literal["correction", "deletion", "restoration"]
_PRIORITIES = {"correction": CORRECTED, "deletion": DELETED, "restoration": RESTORED}
_ACTIONS = {"correction": "corrected", "deletion": "deleted", "restoration": "restored"}
#: The member that says whether an entity is deleted.
DELETED_MEMBER = "_deleted"
_ENCODE = msgspec.json.Encoder(order="sorted").encode


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody decides about an entity; a correction says what some of its fields are."""

    kind: Deed
    entity_id: str
    entity_type: str
    canonical_name: str
    user_id: str
    at_us: int
    given: dict[str, Any] = {}
    idempotency_key: str | None = None


class Deciding:
    """The wish that a decision be stored."""

    commit = True
    erasures: int | None = None

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self.user_id, self.idempotency_key = decision.user_id, decision.idempotency_key
        self.digest = sha256(_ENCODE([decision.kind, decision.entity_id, decision.given])).digest()

    def prepare(self, typed: Mapping[str, Typed]) -> Prepared:
        """The one observation that the decision is."""
        decision, found = self._decision, typed[self._decision.entity_type]
        definition = found.effective.schema.schema_definition
        made = _Made(definition, decision)
        if issues := made.issues(definition, decision):
            raise refusal(issues)
        warnings = Warnings()
        warnings.add(decision.entity_type, 0, made.notices)
        draft = _draft(decision, found, made)
        drafts = [draft]
        return Prepared(
            {decision.entity_type: drafts}, [draft.told], warnings, [], {decision.entity_type: bodies(drafts)}
        )

    def answer(self, prepared: Prepared) -> bytes:
        """What is told once it is stored."""
        told, decision = prepared.told[0], self._decision
        return msgspec.json.encode(
            {
                "entity_id": told.entity_id,
                "entity_type": told.entity_type,
                "action": _ACTIONS[decision.kind],
                "observation_id": told.observation_id,
                "schema_version": told.schema_version,
                "fields": list(decision.given),
                "store_warnings": prepared.warnings.dump(),
            }
        )


class _Made:
    """The values of a decision: converted where that makes them fit, else as they were given."""

    def __init__(self, definition: Definition, decision: Decision) -> None:
        self.fields: dict[str, Any] = {}
        self.fragments: list[Fragment] = []
        self.notices: list[Notice] = []
        for name, value in decision.given.items():
            self._take(definition, name, value)
        if decision.kind != "correction":
            self.fields[DELETED_MEMBER] = decision.kind == "deletion"

    def _take(self, definition: Definition, name: str, value: Any) -> None:
        field = definition.fields.get(name)
        if field is None:
            self.fragments.append(Fragment(name, value, "unknown_field"))
            self._note("UNKNOWN_FIELD", name, f"there is no field {name!r}; the value is kept as a fragment too")
        made = value if field is None or value is None else converted(field, value)
        if field is not None and made is UNFIT:
            self._note("TYPE_MISMATCH", name, f"{name!r} takes a {field.type}; the value is kept as it was given")
        elif field is not None and made is not value:
            self.fragments.append(Fragment(name, value, "converted_value_original", field.type))
        self.fields[name] = made = value if made is UNFIT else made
        validator = None if field is None or field.validator is None or made is None else VALIDATORS[field.validator]
        if validator is not None and fits(made, definition.fields[name].type) and not validator.accepts(made):
            self._note("VALIDATOR_FAILED", name, f"{name!r} takes {validator.wants}; the value is kept all the same")

    def _note(self, code: str, name: str, message: str) -> None:
        self.notices.append(Notice(code, message, (name,)))

    def issues(self, definition: Definition, decision: Decision) -> list[Issue]:
        """What the schema does not allow; noted where it merely warns."""
        limits = Limits(definition)
        fitting = {name: value for name, value in self.fields.items() if _fits(definition, name, value)}
        violations = limits.violations(fitting)
        if limits.rejects:
            return issues_of(Refused(violations, None), 0, decision.entity_type)
        for violation in violations:
            self._note("CONSTRAINT_VIOLATION", violation.field, violation.message)
        return []


def _fits(definition: Definition, name: str, value: Any) -> bool:
    """Whether a value is one that constraints of its field speak of."""
    field = definition.fields.get(name)
    return field is not None and value is not None and fits(value, field.type)


def _draft(decision: Decision, typed: Typed, made: _Made) -> Draft:
    schema, identity = typed.effective.schema, Identity(decision.entity_id, decision.canonical_name, "target_id", "")
    priority, fragments = _PRIORITIES[decision.kind], tuple(made.fragments)
    score, key = 1.0 if decision.kind == "correction" else None, decision.idempotency_key
    identifier = observation_id(
        entity_id=decision.entity_id,
        fields=made.fields,
        fragments=fragments,
        kind=decision.kind,
        # What is decided once more is another decision; only who gives a key says that it is the same.
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
        fields=made.fields,
        fragments=fragments,
        identity_basis="target_id",
        idempotency_key=None
        if decision.idempotency_key is None
        else stored_key(decision.user_id, decision.idempotency_key),
        details=of_scope(schema.scope),
    )
    told = Told(
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
    return Draft(typed, observation, identity, dedupe_key(identifier, None), told, 0, False)
