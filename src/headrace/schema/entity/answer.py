"""What is answered to a request about entities: what became of each, what is worth knowing, or why nothing was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.errors import BadRequest, ConstraintViolation, StoreResolutionFailed
from headrace.schema.entity.accept import Refused
from headrace.schema.entity.nodes import Definition
from headrace.schema.entity.problem import Notice
from headrace.schema.entity.relations import find_links, find_moments

#: So many reasons and warnings are given at once; the others are counted.
MOST_ISSUES, MOST_WARNINGS = 100, 1_000
VIOLATED = ConstraintViolation.code


class EntityOutcome(msgspec.Struct):
    """What became of one entity of a request.

    ``action`` is ``created``, ``updated`` or, where the very same was stored before, ``unchanged``; of a dry run
    ``would_create`` or ``would_match_existing``.
    """

    entity_id: str
    entity_type: str
    action: str
    observation_id: str
    schema_version: str
    canonical_name: str
    identity_basis: str
    identity_rule: str
    unknown_fields: list[str]
    required_fields_missing: list[str]
    events: list[dict[str, Any]] | UnsetType = UNSET
    links: list[dict[str, Any]] | UnsetType = UNSET

    def relate(self, definition: Definition, fields: Mapping[str, Any], tenant: str) -> None:
        """Add what the values say about time and other entities, where the schema declares that."""
        if definition.temporal_fields:
            self.events = [moment._asdict() for moment in find_moments(definition, fields)]
        if definition.reference_fields:
            self.links = [link._asdict() for link in find_links(definition, fields, tenant)]


class Warnings:
    """Notices about entities of a request; what is the same for many is said once."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, Notice], list[int]] = {}

    def add(self, entity_type: str, item: int, notices: Iterable[Notice]) -> None:
        """Take note of what is worth knowing about one entity."""
        for notice in notices:
            self._items.setdefault((entity_type, notice), []).append(item)

    def dump(self) -> list[dict[str, Any]]:
        """The warnings as JSON, each with the places of the entities it is about."""
        told = [
            {**notice.dump(), "entity_type": entity_type, "items": items}
            for (entity_type, notice), items in islice(self._items.items(), MOST_WARNINGS)
        ]
        more = len(self._items) - len(told)
        if more:
            left_out = Notice("MORE_WARNINGS", f"{more} further warnings are left out")
            told.append({**left_out.dump(), "entity_type": "", "items": []})
        return told


class Issue(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an entity of a request is refused, and with it the request."""

    code: str
    message: str
    item: int
    entity_type: str
    field: str | None = None
    constraint: str | None = None
    constraint_value: Any = None
    reason: str | None = None
    hint: dict[str, Any] | None = None


def issues_of(refused: Refused, item: int, entity_type: str) -> list[Issue]:
    """What speaks against one entity."""
    found = [
        Issue(
            VIOLATED,
            violation.message,
            item,
            entity_type,
            field=violation.field,
            constraint=violation.constraint,
            constraint_value=violation.constraint_value,
        )
        for violation in refused.violations
    ]
    unresolved = refused.unresolved
    if unresolved is not None:
        found.append(Issue(unresolved.code, unresolved.message, item, entity_type, hint=unresolved.hint))
    return found


def refusal(issues: list[Issue]) -> BadRequest:
    """The error that refuses a request, with every reason."""
    first = issues[0]
    kind = ConstraintViolation if first.code == VIOLATED else StoreResolutionFailed
    told = [msgspec.to_builtins(issue) for issue in issues[:MOST_ISSUES]]
    facts: dict[str, Any] = {"item": first.item, "issues": told, "issues_count": len(issues)}
    if first.field is not None:
        facts |= {"field": first.field, "constraint": first.constraint, "constraint_value": first.constraint_value}
    return kind(f"entity {first.item} ({first.entity_type}) is refused: {first.message}", **facts)


class Answer(msgspec.Struct):
    """What is answered once everything of a request is on disk, or would be."""

    entities: list[EntityOutcome]
    source_id: str
    unknown_fields_count: int
    store_warnings: list[dict[str, Any]]
    dry_run: bool | UnsetType = UNSET


_ENCODE = msgspec.json.Encoder().encode


def encode(answer: Answer) -> bytes:
    """The answer as it is sent, and remembered for the same request."""
    return _ENCODE(answer)
