"""Entities as they are told: snapshots, observations, and which entity is which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.observations import ENTITIES_PATH, path
from headrace.client.options import known
from headrace.client.requests import Moment, Request, ask, moment, segment, with_query


class View(TypedDict, total=False):
    """Which entity is meant: as it was known of a moment, as was ingested by one, under a version of its schema."""

    as_of: Moment | None
    at_ingested: Moment | None
    schema_version: str | None
    #: Whose that version is, ``global`` or ``user``.
    scope: str | None
    user_id: str | None


class Snapshot(msgspec.Struct, frozen=True):
    """An entity: its fields, and the observations that their values are from."""

    entity_id: str
    entity_type: str
    canonical_name: str
    schema_version: str
    snapshot: dict[str, Any]
    #: The ids of observations by field, with commas between.
    provenance: dict[str, str]
    computed_at: str
    observation_count: int
    last_observation_at: str
    merged_from: list[str] = []
    events: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    truncated_fields: list[str] = []


class _Page(msgspec.Struct):
    entities: list[Snapshot]
    after: str | None = None


class _Observations(msgspec.Struct):
    observations: list[dict[str, Any]]
    after: str | None = None


def get(entity_id: str, view: View) -> Request:
    """GET: an entity as it is, or was."""
    return Request("GET", with_query(path(entity_id), _view(view)))


def provenance(entity_id: str, field: str, view: View) -> Request:
    """GET: where the value of a field is from."""
    return Request("GET", with_query(f"{path(entity_id)}/provenance/{segment(field)}", _view(view)))


def page(filters: Mapping[str, str | None], after: str | None) -> Request:
    """GET: one page of entities."""
    return Request("GET", with_query(ENTITIES_PATH, {**filters, "after": after}))


def observations(entity_id: str, order: str, after: str | None, user_id: str | None) -> Request:
    """GET: one page of what was observed of an entity."""
    query = {"order": order, "after": after, "user_id": user_id}
    return Request("GET", with_query(f"{path(entity_id)}/observations", query))


def merge(from_entity_id: str, to_entity_id: str) -> Request:
    """POST: an entity is another one."""
    return ask(f"{ENTITIES_PATH}/merge", {"from_entity_id": from_entity_id, "to_entity_id": to_entity_id})


def unmerge(from_entity_id: str) -> Request:
    """POST: an entity that was merged is one of its own."""
    return ask(f"{ENTITIES_PATH}/merge/undo", {"from_entity_id": from_entity_id})


def split(entity_id: str, predicate: Mapping[str, Any], into: Mapping[str, str | None]) -> Request:
    """POST: some observations of an entity are about another."""
    return ask(f"{ENTITIES_PATH}/split", {"entity_id": entity_id, "predicate": predicate, **into})


def unsplit(entity_id: str, split_id: str) -> Request:
    """POST: observations that were moved are about the entities that they came from."""
    return ask(f"{ENTITIES_PATH}/split/undo", {"entity_id": entity_id, "split_id": split_id})


def duplicates(entity_type: str, threshold: float | None, limit: int | None) -> Request:
    """GET: pairs of entities that may be the same."""
    query = {
        "entity_type": entity_type,
        "threshold": None if threshold is None else str(threshold),
        "limit": None if limit is None else str(limit),
    }
    return Request("GET", with_query(f"{ENTITIES_PATH}/duplicates", query))


def snapshot(answer: Answer) -> Snapshot:
    """An entity."""
    return answers.decoded(answer.checked().body, Snapshot)


def snapshots(answer: Answer) -> tuple[Sequence[Snapshot], str | None]:
    """A page of entities, and where the next one begins."""
    page = answers.decoded(answer.checked().body, _Page)
    return page.entities, page.after


def observed(answer: Answer) -> tuple[Sequence[dict[str, Any]], str | None]:
    """A page of observations, and where the next one begins."""
    page = answers.decoded(answer.checked().body, _Observations)
    return page.observations, page.after


def _view(view: View) -> dict[str, str | None]:
    known(View, view)
    return {
        "as_of": moment(view.get("as_of")) or None,
        "at_ingested": moment(view.get("at_ingested")) or None,
        "schema_version": view.get("schema_version"),
        "scope": view.get("scope"),
        "user_id": view.get("user_id"),
    }
