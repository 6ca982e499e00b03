"""Requests about entities and their answers: observations, snapshots, merges and erasures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from headrace.client.answers import Answer
from headrace.client.declared_types import arrow_type, parse_type
from headrace.client.frames import Row
from headrace.client.json_values import moment, to_json
from headrace.client.requests import Moment, Request, check_options, post, segment, with_query
from headrace.errors import BadRequest

ENTITIES_PATH = "/v1/entities"
#: The most entities in one request of ``store_many``.
MAX_STORED_ENTITIES = 500


class StoreOptions(TypedDict, total=False):
    """Options of a store request; ``_meta`` of an entity has the same ones for that entity."""

    #: When it was so; now where it is left out.
    observed_at: Moment | None
    #: The name of the source, such as ``crm-a``; the first use of a name makes the source.
    source: str | None
    #: A source by its id, which for a source with a name is the name; else the id is a hash of the content.
    source_id: str | None
    source_priority: int | None
    #: sensor, workflow_state, llm_summary, human, import or sync.
    observation_source: str | None
    specificity_score: float | None
    #: The same request again answers as the first time.
    idempotency_key: str | None
    #: Refuse what would be merged with an entity that exists.
    strict: bool | None
    #: False stores nothing, and says what would become of each.
    commit: bool | None
    #: For whom an admin asks.
    user_id: str | None


class StoredEntity(msgspec.Struct, frozen=True):
    """The outcome for one entity; ``action`` is ``created``, ``updated`` or ``unchanged``."""

    entity_id: str
    entity_type: str
    action: str
    observation_id: str
    schema_version: str
    canonical_name: str = ""
    identity_basis: str = ""
    identity_rule: str = ""
    unknown_fields: list[str] = []
    required_fields_missing: list[str] = []
    events: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []


class Stored(msgspec.Struct, frozen=True):
    """The outcome for each entity of a request, in order, with warnings."""

    entities: list[StoredEntity]
    source_id: str
    unknown_fields_count: int = 0
    store_warnings: list[dict[str, Any]] = []
    #: The name of the source; None where it was given none.
    source: str | None = None
    dry_run: bool = False


class ObservationCounts(msgspec.Struct):
    """How many rows or events were stored and rejected, and the warnings about them by code."""

    actions: Counter[str] = msgspec.field(default_factory=Counter)
    rejected: int = 0
    warnings: Counter[str] = msgspec.field(default_factory=Counter)
    #: What each code of a warning means.
    reasons: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """How many rows or events were read."""
        return self.actions.total() + self.rejected

    def add(self, stored: Stored) -> None:
        """Count the outcomes of a request, and its warnings."""
        self.actions.update(entity.action for entity in stored.entities)
        for warning in stored.store_warnings:
            self.warnings[warning["code"]] += len(warning["items"])
            self.reasons.setdefault(warning["code"], warning["message"])


class DecisionOptions(TypedDict, total=False):
    """Options of a decision about an entity."""

    idempotency_key: str | None
    user_id: str | None


def store(entities: Sequence[Mapping[str, Any]], options: StoreOptions, *, first_row: int = 0) -> Request:
    """POST: observations of entities, which messages count from ``first_row`` on."""
    check_options(StoreOptions, options)
    options = {**options, "observed_at": moment(options.get("observed_at")) or None}
    # The id of an observation is that of its content: to send it again stores nothing twice.
    return post(
        "/v1/observations",
        {"entities": msgspec.Raw(to_json(list(entities), first_row=first_row)), **options},
        changes=False,
    )


def list_refused_items(refusal: BadRequest) -> dict[int, list[str]]:
    """The reasons against each entity of a refused request, by its number; empty where none is named."""
    issues: Collection[dict[str, Any]] = refusal.facts.get("issues") or [{**refusal.facts, "message": refusal.message}]
    reasons: dict[int, list[str]] = {}
    for issue in issues:
        if "item" in issue:
            reasons.setdefault(issue["item"], []).append(issue["message"])
    return reasons


def correct(entity_id: str, fields: Mapping[str, Any], options: DecisionOptions) -> Request:
    """POST: set fields of an entity, overriding observations; null clears one."""
    check_options(DecisionOptions, options)
    return post(f"{path(entity_id)}/correct", {"fields": fields, **options})


def delete(entity_id: str, options: DecisionOptions) -> Request:
    """POST: delete an entity."""
    check_options(DecisionOptions, options)
    return post(f"{path(entity_id)}/delete", options)


def restore(entity_id: str, options: DecisionOptions) -> Request:
    """POST: restore a deleted entity."""
    check_options(DecisionOptions, options)
    return post(f"{path(entity_id)}/restore", options)


def source(source_id: str, user_id: str | None) -> Request:
    """GET: the content of a store request."""
    return Request("GET", with_query(f"/v1/sources/{segment(source_id)}", {"user_id": user_id}))


def path(entity_id: str) -> str:
    """The path of an entity."""
    return f"{ENTITIES_PATH}/{segment(entity_id)}"


class View(TypedDict, total=False):
    """Which state of an entity to read: as observed by a moment, as ingested by one, under a version of its schema."""

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
    #: The names of sources by field; a source without a name is there by its id, and a correction has no source.
    sources: dict[str, list[str]] = {}


class _Page(msgspec.Struct):
    entities: list[Snapshot]
    after: str | None = None


class _Observations(msgspec.Struct):
    observations: list[dict[str, Any]]
    after: str | None = None


#: Columns of tables that are no fields.
_SNAPSHOT_COLUMNS = ("entity_id", "entity_type", "canonical_name", "observation_count", "last_observation_at")
_OBSERVATION_COLUMNS = (
    *("id", "entity_id", "kind", "observed_at", "ingested_at", "schema_version", "source_priority"),
    *("observation_source", "source"),
)
_MOMENTS = ("last_observation_at", "observed_at", "ingested_at")


def snapshot_row(entity: Snapshot, fields: Mapping[str, Any] | None = None) -> Row:
    """An entity as a row: what it is, and a column for each field, ``field.NAME`` where another column has the name."""
    columns = {name: getattr(entity, name) for name in _SNAPSHOT_COLUMNS}
    return _row(columns, entity.snapshot if fields is None else fields)


def snapshot_types(fields: Mapping[str, str]) -> dict[str, Any]:
    """The types of Arrow of the columns of such rows, given the types of the fields."""
    columns = dict(zip(_SNAPSHOT_COLUMNS, ("str", "str", "str", "i64", "datetime"), strict=True))
    types = columns | {f"field.{name}" if name in columns else name: kind for name, kind in fields.items()}
    return {name: arrow_type(parse_type(kind)) if kind else None for name, kind in types.items()}


def observation_row(observation: Mapping[str, Any]) -> Row:
    """An observation as a row: what it is, the name of its source or else the id, and a column for each field."""
    columns = {name: observation[name] for name in _OBSERVATION_COLUMNS}
    return _row({**columns, "source": observation["source_id"]}, observation["fields"])


def _row(columns: Row, fields: Mapping[str, Any]) -> Row:
    for name in _MOMENTS:
        if name in columns:
            columns[name] = datetime.fromisoformat(columns[name])
    return columns | {f"field.{name}" if name in columns else name: value for name, value in fields.items()}


def get(entity_id: str, view: View) -> Request:
    """GET: the snapshot of an entity."""
    return Request("GET", with_query(path(entity_id), _view(view)))


def provenance(entity_id: str, field: str, view: View) -> Request:
    """GET: the provenance of a field."""
    return Request("GET", with_query(f"{path(entity_id)}/provenance/{segment(field)}", _view(view)))


def page(filters: Mapping[str, str | None], after: str | None) -> Request:
    """GET: one page of entities."""
    return Request("GET", with_query(ENTITIES_PATH, {**filters, "after": after}))


def observations(
    entity_id: str, order: str, after: str | None, user_id: str | None, source: str | None = None
) -> Request:
    """GET: one page of observations of an entity."""
    query = {"order": order, "after": after, "user_id": user_id, "source": source}
    return Request("GET", with_query(f"{path(entity_id)}/observations", query))


def merge(from_entity_id: str, to_entity_id: str) -> Request:
    """POST: merge an entity into another."""
    return post(f"{ENTITIES_PATH}/merge", {"from_entity_id": from_entity_id, "to_entity_id": to_entity_id})


def unmerge(from_entity_id: str) -> Request:
    """POST: undo a merge."""
    return post(f"{ENTITIES_PATH}/merge/undo", {"from_entity_id": from_entity_id})


def split(entity_id: str, predicate: Mapping[str, Any], into: Mapping[str, str | None]) -> Request:
    """POST: move some observations of an entity to another."""
    return post(f"{ENTITIES_PATH}/split", {"entity_id": entity_id, "predicate": predicate, **into})


def unsplit(entity_id: str, split_id: str) -> Request:
    """POST: undo a split."""
    return post(f"{ENTITIES_PATH}/split/undo", {"entity_id": entity_id, "split_id": split_id})


def duplicates(entity_type: str, threshold: float | None, limit: int | None) -> Request:
    """GET: pairs of entities that may be duplicates."""
    query = {
        "entity_type": entity_type,
        "threshold": None if threshold is None else str(threshold),
        "limit": None if limit is None else str(limit),
    }
    return Request("GET", with_query(f"{ENTITIES_PATH}/duplicates", query))


def read_snapshots(answer: Answer) -> tuple[Sequence[Snapshot], str | None]:
    """A page of entities, and where the next one begins."""
    page = answer.decode(_Page)
    return page.entities, page.after


def read_observations(answer: Answer) -> tuple[Sequence[dict[str, Any]], str | None]:
    """A page of observations, and where the next one begins."""
    page = answer.decode(_Observations)
    return page.observations, page.after


def _view(view: View) -> dict[str, str | None]:
    check_options(View, view)
    return {
        "as_of": moment(view.get("as_of")) or None,
        "at_ingested": moment(view.get("at_ingested")) or None,
        "schema_version": view.get("schema_version"),
        "scope": view.get("scope"),
        "user_id": view.get("user_id"),
    }


ERASURES_PATH = "/v1/erasures"


class ErasurePlan(msgspec.Struct, frozen=True):
    """What an erasure removes, with the names and sizes of the objects that hold it."""

    ids: list[str]
    observations: int
    log_rows: int
    segments: list[dict[str, Any]]
    companions: list[dict[str, Any]]
    states: list[dict[str, Any]]
    sources: list[str]
    idempotency_answers: int


class Erasure(msgspec.Struct, frozen=True):
    """A started erasure; ``complete`` once nothing holds the data."""

    erasure_id: str
    entity_id: str
    entity_type: str
    state: str
    step: str
    complete: bool
    begun_at: str
    plan: ErasurePlan
    report: dict[str, Any]
    completed_at: str | None = None


class _Planned(msgspec.Struct):
    plan: ErasurePlan


def erase(entity_id: str, *, dry_run: bool = False, user_id: str | None = None) -> Request:
    """POST: remove an entity for good, or plan that."""
    document = {"dry_run": dry_run, "user_id": user_id}
    return post(f"{path(entity_id)}/erase", document, changes=not dry_run)


def get_erasure(erasure_id: str, user_id: str | None = None) -> Request:
    """GET: the progress of an erasure."""
    return Request("GET", with_query(f"{ERASURES_PATH}/{segment(erasure_id)}", {"user_id": user_id}))


def read_plan(answer: Answer) -> ErasurePlan:
    """The plan of an erasure."""
    return answer.decode(_Planned).plan
