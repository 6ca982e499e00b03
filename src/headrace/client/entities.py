"""Entities from Python: register what they look like, store what is known of them, get what that comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, Unpack

from headrace.client import entity_requests, entity_types
from headrace.client.answers import Answer
from headrace.client.client import Client
from headrace.client.entity_requests import (
    STORED_AT_ONCE,
    Decided,
    Erasure,
    ErasurePlan,
    Snapshot,
    Stored,
    StoreOptions,
    View,
)
from headrace.client.entity_types import SchemaVersion, TypeChange, TypeOptions, told
from headrace.client.requests import Request, segment

Item = TypeVar("Item")
Page = tuple[Sequence[Item], str | None]


class EntityTypes:
    """The entity types that a caller sees: everybody's, and their own."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def register(
        self,
        entity_type: str,
        schema_version: str,
        schema_definition: Mapping[str, Any],
        reducer_config: Mapping[str, Any] | None = None,
        *,
        activate: bool = False,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[TypeOptions],
    ) -> TypeChange:
        """Store a version of a type, and make it the active one where that is asked for."""
        document = {
            "entity_type": entity_type,
            "schema_version": schema_version,
            "schema_definition": schema_definition,
            "reducer_config": reducer_config or {},
            "activate": activate,
            "metadata": metadata,
        }
        return entity_types.changed(self._client.send(entity_types.register(document, options)))

    def update(self, entity_type: str, change: Mapping[str, Any], **options: Unpack[TypeOptions]) -> TypeChange:
        """Make the next version from the active one: ``fields_to_add``, ``fields_to_remove``, ``converters_to_add``…"""
        return self._changed(entity_type, "update", change, options)

    def activate(self, entity_type: str, schema_version: str, **options: Unpack[TypeOptions]) -> TypeChange:
        """Make a version the active one; what is written and read is so from now on."""
        return self._changed(entity_type, "activate", {"schema_version": schema_version}, options)

    def deactivate(self, entity_type: str, schema_version: str, **options: Unpack[TypeOptions]) -> TypeChange:
        """Let a version be active no longer."""
        return self._changed(entity_type, "deactivate", {"schema_version": schema_version}, options)

    def enhance(self, entity_type: str, change: Mapping[str, Any], **options: Unpack[TypeOptions]) -> TypeChange:
        """Promote what fragments speak for, ``fields`` of it or all; a dry run unless ``dry_run`` is False."""
        return self._changed(entity_type, "enhance", change, options)

    def reconcile(self, entity_type: str, *, dry_run: bool = True) -> TypeChange:
        """Let everybody have the fields that users agree on; a dry run unless ``dry_run`` is False."""
        return self._changed(entity_type, "reconcile", {}, {"dry_run": dry_run})

    def migrate(self, entity_type: str, fields: Sequence[str], **options: Unpack[TypeOptions]) -> dict[str, Any]:
        """Move values to fields that came after them."""
        request = entity_types.change(entity_type, "migrate", {"fields": fields}, options)
        return told(self._client.send(request))

    def undo_migration(self, entity_type: str, run_id: str, **options: Unpack[TypeOptions]) -> dict[str, Any]:
        """Let a migration count no more; it is found in every scope that the caller may change."""
        verb = f"migrations/{segment(run_id)}/undo"
        return told(self._client.send(entity_types.change(entity_type, verb, {}, options)))

    def candidates(self, entity_type: str, scope: str | None = None) -> dict[str, Any]:
        """What fragments would make of the schema, with the evidence and the reasons against it."""
        return told(self._client.send(entity_types.look(entity_type, "candidates", scope=scope)))

    def get(self, entity_type: str, schema_version: str | None = None, scope: str | None = None) -> SchemaVersion:
        """The version that holds for the caller, or the one that is named."""
        request = entity_types.look(entity_type, schema_version=schema_version, scope=scope)
        return entity_types.version(self._client.send(request))

    def versions(self, entity_type: str) -> Iterator[SchemaVersion]:
        """Every version that the caller sees, the newest first."""
        return _all(
            self._client.send,
            lambda after: entity_types.look(entity_type, "versions", after=after),
            entity_types.versions,
        )

    def export(self, entity_type: str) -> dict[str, str]:
        """Every version as a file: its path, and what is in it, the same bytes each time."""
        return entity_types.files(self._client.send(entity_types.look(entity_type, "export")))

    def __iter__(self) -> Iterator[SchemaVersion]:
        """The active versions, by type."""
        return _all(self._client.send, entity_types.page, entity_types.types)

    def _changed(self, entity_type: str, verb: str, document: Mapping[str, Any], options: TypeOptions) -> TypeChange:
        return entity_types.changed(self._client.send(entity_types.change(entity_type, verb, document, options)))


class Entities:
    """The entities of a caller, and their ``types``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.types = EntityTypes(client)
        self.register, self.activate, self.update = self.types.register, self.types.activate, self.types.update

    def store(self, *entities: Mapping[str, Any], **options: Unpack[StoreOptions]) -> Stored:
        """Store what is known of entities, each with its ``entity_type``: all or none, on disk when this returns."""
        return entity_requests.stored(self._client.send(entity_requests.store(entities, options)))

    def store_many(self, entities: Iterable[Mapping[str, Any]], **options: Unpack[StoreOptions]) -> Iterator[Stored]:
        """Store entities in requests of many, one after the other; to do it all again stores nothing twice."""
        left = iter(entities)
        while some := list(islice(left, STORED_AT_ONCE)):
            yield self.store(*some, **options)

    def get(self, entity_id: str, **view: Unpack[View]) -> Snapshot:
        """An entity as it is, or was."""
        return entity_requests.snapshot(self._client.send(entity_requests.get(entity_id, view)))

    def list(self, entity_type: str | None = None, **filters: str | None) -> Iterator[Snapshot]:
        """Entities in the order in which they came; filters are ``search``, ``canonical_name`` and ``field.<name>``."""
        wanted = {"entity_type": entity_type, **filters}
        return _all(self._client.send, lambda after: entity_requests.page(wanted, after), entity_requests.snapshots)

    def observations(
        self, entity_id: str, *, order: str = "newest", user_id: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """What was observed of an entity, the newest or the oldest first."""
        return _all(
            self._client.send,
            lambda after: entity_requests.observations(entity_id, order, after, user_id),
            entity_requests.observed,
        )

    def provenance(self, entity_id: str, field: str, **view: Unpack[View]) -> dict[str, Any]:
        """The observations that the value of a field is from, and their sources."""
        return told(self._client.send(entity_requests.provenance(entity_id, field, view)))

    def source(self, source_id: str, user_id: str | None = None) -> dict[str, Any]:
        """What a request brought, as it was given."""
        return told(self._client.send(entity_requests.source(source_id, user_id)))

    def correct(self, entity_id: str, fields: Mapping[str, Any], **said: Unpack[Decided]) -> dict[str, Any]:
        """Say what fields are, whatever was or will be observed; None clears one."""
        return told(self._client.send(entity_requests.correct(entity_id, fields, said)))

    def delete(self, entity_id: str, **said: Unpack[Decided]) -> dict[str, Any]:
        """Let an entity not be there any more, until it is restored."""
        return told(self._client.send(entity_requests.delete(entity_id, said)))

    def restore(self, entity_id: str, **said: Unpack[Decided]) -> dict[str, Any]:
        """Let a deleted entity be there again."""
        return told(self._client.send(entity_requests.restore(entity_id, said)))

    def erase(self, entity_id: str, user_id: str | None = None) -> Erasure:
        """Begin to remove an entity, and everything merged into it, for good; `erasure` tells when it is done."""
        return entity_requests.begun(self._client.send(entity_requests.erase(entity_id, user_id=user_id)))

    def erasure_plan(self, entity_id: str, user_id: str | None = None) -> ErasurePlan:
        """What an erasure would remove."""
        return entity_requests.planned(
            self._client.send(entity_requests.erase(entity_id, dry_run=True, user_id=user_id))
        )

    def erasure(self, erasure_id: str, user_id: str | None = None) -> Erasure:
        """How far an erasure is, and what it has removed."""
        return entity_requests.begun(self._client.send(entity_requests.get_erasure(erasure_id, user_id)))

    def merge(self, from_entity_id: str, to_entity_id: str) -> dict[str, Any]:
        """Let an entity be a part of another."""
        return told(self._client.send(entity_requests.merge(from_entity_id, to_entity_id)))

    def unmerge(self, from_entity_id: str) -> dict[str, Any]:
        """Let an entity that was merged be one of its own again."""
        return told(self._client.send(entity_requests.unmerge(from_entity_id)))

    def split(
        self,
        entity_id: str,
        predicate: Mapping[str, Any],
        *,
        to_entity_id: str | None = None,
        to_canonical_name: str | None = None,
    ) -> dict[str, Any]:
        """Let the observations that a predicate describes be about another entity."""
        into = {"to_entity_id": to_entity_id, "to_canonical_name": to_canonical_name}
        return told(self._client.send(entity_requests.split(entity_id, predicate, into)))

    def unsplit(self, entity_id: str, split_id: str) -> dict[str, Any]:
        """Let a split not hold any more."""
        return told(self._client.send(entity_requests.unsplit(entity_id, split_id)))

    def duplicates(
        self, entity_type: str, *, threshold: float | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """Pairs of entities of a type that may be the same."""
        return told(self._client.send(entity_requests.duplicates(entity_type, threshold, limit)))


def _all(
    send: Callable[[Request], Answer], ask: Callable[[str | None], Request], read: Callable[[Answer], Page[Item]]
) -> Iterator[Item]:
    """Everything, page by page."""
    after: str | None = None
    while True:
        items, after = read(send(ask(after)))
        yield from items
        if after is None:
            return
