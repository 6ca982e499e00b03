"""Observations on the wire: what is stored and decided about entities, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.options import known
from headrace.client.requests import Moment, Request, ask, moment, segment, with_query

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
