"""Answers to requests about entities: the outcome of each entity, warnings, or the reasons of a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from headrace.errors import BadRequest, ConstraintViolation, StoreResolutionFailed
from headrace.schema.entity.accept import Refused
from headrace.schema.entity.nodes import Definition
from headrace.schema.entity.problem import Notice
from headrace.schema.entity.relations import find_links, find_moments

#: How many reasons and warnings an answer holds; the others are counted.
MOST_ISSUES, MOST_WARNINGS = 100, 1_000
VIOLATED = ConstraintViolation.code
ACTIONS = ["created", "updated", "unchanged", "would_create", "would_match_existing"]


class EntityOutcome(msgspec.Struct):
    """The outcome of one entity of a request.

    ``action`` is ``created``, ``updated`` or, where the very same was stored before, ``unchanged``; of a dry run
    ``would_create`` or ``would_match_existing``.
    """

    entity_id: str
    entity_type: str
    action: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ACTIONS})]
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
        """Add the dated events and the links that the schema declares."""
        if definition.temporal_fields:
            self.events = [moment._asdict() for moment in find_moments(definition, fields)]
        if definition.reference_fields:
            self.links = [link._asdict() for link in find_links(definition, fields, tenant)]


class WarningAnswer(TypedDict):
    """A notice about entities of a request; ``items`` are their numbers."""

    code: str
    message: str
    fields: list[str]
    entity_type: str
    items: list[int]


class Warnings:
    """Notices about entities of a request; equal notices are grouped."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, Notice], list[int]] = {}

    def add(self, entity_type: str, item: int, notices: Iterable[Notice]) -> None:
        """Add the notices about one entity."""
        for notice in notices:
            self._items.setdefault((entity_type, notice), []).append(item)

    def dump(self) -> list[WarningAnswer]:
        """The warnings as JSON, each with the indexes of the entities it is about."""
        documents: list[Any] = [
            {**notice.dump(), "entity_type": entity_type, "items": items}
            for (entity_type, notice), items in islice(self._items.items(), MOST_WARNINGS)
        ]
        more = len(self._items) - len(documents)
        if more:
            left_out = Notice("MORE_WARNINGS", f"{more} further warnings are left out")
            documents.append({**left_out.dump(), "entity_type": "", "items": []})
        return documents


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
    """The reasons to refuse one entity."""
    issues = [
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
        issues.append(Issue(unresolved.code, unresolved.message, item, entity_type, hint=unresolved.hint))
    return issues


def refusal(issues: list[Issue]) -> BadRequest:
    """The error that refuses a request, with every reason."""
    first = issues[0]
    kind = ConstraintViolation if first.code == VIOLATED else StoreResolutionFailed
    documents = [msgspec.to_builtins(issue) for issue in issues[:MOST_ISSUES]]
    facts: dict[str, Any] = {"item": first.item, "issues": documents, "issues_count": len(issues)}
    if first.field is not None:
        facts |= {"field": first.field, "constraint": first.constraint, "constraint_value": first.constraint_value}
    return kind(f"entity {first.item} ({first.entity_type}) is refused: {first.message}", **facts)


class StoreAnswer(msgspec.Struct):
    """The answer to a request, once everything is on disk or, in a dry run, would be."""

    entities: list[EntityOutcome]
    source_id: str
    unknown_fields_count: int
    store_warnings: list[WarningAnswer]
    dry_run: bool | UnsetType = UNSET


_ENCODE = msgspec.json.Encoder().encode


def encode(answer: StoreAnswer) -> bytes:
    """The answer as it is sent, and remembered for the same request."""
    return _ENCODE(answer)
