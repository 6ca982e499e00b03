"""Observations on the wire: what is stored and decided about entities, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.requests import Moment, Request, ask, known, moment, segment, with_query

ENTITIES_PATH = "/v1/entities"
#: The most entities of one request that the verbs for many send.
STORED_AT_ONCE = 500


class StoreOptions(TypedDict, total=False):
    """What may be said with entities, of all of a request; the same is said of one of them under ``_meta``."""

    #: When it was so; now where it is left out.
    observed_at: Moment | None
    #: A source by a name of one's own; else it is named after its content.
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
    """What became of one entity: ``created``, ``updated``, ``unchanged``, or what would."""

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
    """What became of each entity of a request, in order, and what is worth knowing about them."""

    entities: list[StoredEntity]
    source_id: str
    unknown_fields_count: int = 0
    store_warnings: list[dict[str, Any]] = []
    dry_run: bool = False


class Decided(TypedDict, total=False):
    """What may be said with a decision about an entity."""

    idempotency_key: str | None
    user_id: str | None


def store(entities: Sequence[Mapping[str, Any]], options: StoreOptions) -> Request:
    """POST: what is known of entities."""
    known(StoreOptions, options)
    said = {**options, "observed_at": moment(options.get("observed_at")) or None}
    # The id of an observation is that of its content: to send it again stores nothing twice.
    return ask("/v1/observations", {"entities": entities, **said}, changes=False)


def correct(entity_id: str, fields: Mapping[str, Any], said: Decided) -> Request:
    """POST: what fields of an entity are, whatever was observed; null says that there is none."""
    known(Decided, said)
    return ask(f"{path(entity_id)}/correct", {"fields": fields, **said})


def delete(entity_id: str, said: Decided) -> Request:
    """POST: the entity is not there any more."""
    known(Decided, said)
    return ask(f"{path(entity_id)}/delete", said)


def restore(entity_id: str, said: Decided) -> Request:
    """POST: the entity is there again."""
    known(Decided, said)
    return ask(f"{path(entity_id)}/restore", said)


def source(source_id: str, user_id: str | None) -> Request:
    """GET: what a request brought."""
    return Request("GET", with_query(f"/v1/sources/{segment(source_id)}", {"user_id": user_id}))


def stored(answer: Answer) -> Stored:
    """What became of entities."""
    return answers.decoded(answer.checked().body, Stored)


def path(entity_id: str) -> str:
    """The path of an entity."""
    return f"{ENTITIES_PATH}/{segment(entity_id)}"


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


ERASURES_PATH = "/v1/erasures"


class ErasurePlan(msgspec.Struct, frozen=True):
    """What an erasure removes, and where it lies: objects are told with their names and bytes."""

    ids: list[str]
    observations: int
    log_rows: int
    segments: list[dict[str, Any]]
    companions: list[dict[str, Any]]
    states: list[dict[str, Any]]
    sources: list[str]
    idempotency_answers: int


class Erasure(msgspec.Struct, frozen=True):
    """An erasure that was begun; ``complete`` once nothing holds the data."""

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
    """POST: remove an entity for good, or ask what that would remove."""
    document = {"dry_run": dry_run, "user_id": user_id}
    return ask(f"{path(entity_id)}/erase", document, changes=not dry_run)


def get_erasure(erasure_id: str, user_id: str | None = None) -> Request:
    """GET: how far an erasure is."""
    return Request("GET", with_query(f"{ERASURES_PATH}/{segment(erasure_id)}", {"user_id": user_id}))


def planned(answer: Answer) -> ErasurePlan:
    """What would be removed."""
    return answers.decoded(answer.checked().body, _Planned).plan


def begun(answer: Answer) -> Erasure:
    """An erasure as it is told."""
    return answers.decoded(answer.checked().body, Erasure)
