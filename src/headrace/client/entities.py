# Written by tools/blocking_client.py: change aio/entities.py and run it.
"""Entities from Python: register entity types, store observations, get snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from headrace.client import entity_requests, entity_types
from headrace.client.answers import Answer
from headrace.client.client import Client
from headrace.client.entity_requests import (
    MAX_STORED_ENTITIES,
    DecisionOptions,
    Erasure,
    ErasurePlan,
    Snapshot,
    Stored,
    StoreOptions,
    View,
)
from headrace.client.entity_types import SchemaVersion, TypeChange, TypeOptions
from headrace.client.frames import Listing, arrow_table
from headrace.client.requests import Request, segment, split_into_batches
from headrace.client.stream_copy import ObservedStream, RejectedEvent, StreamCopy, StreamOptions
from headrace.errors import HeadraceError, NotFound

if TYPE_CHECKING:
    import pyarrow

Item = TypeVar("Item")
Page = tuple[Sequence[Item], str | None]


class EntityTypes:
    """The entity types that are visible to a caller: global ones, and their own."""

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
        """Store a version of a type, and activate it on request."""
        document = {
            "entity_type": entity_type,
            "schema_version": schema_version,
            "schema_definition": schema_definition,
            "reducer_config": reducer_config or {},
            "activate": activate,
            "metadata": metadata,
        }
        return self._client.fetch(entity_types.register(document, options), TypeChange)

    def update(self, entity_type: str, change: Mapping[str, Any], **options: Unpack[TypeOptions]) -> TypeChange:
        """Make the next version from the active one: ``fields_to_add``, ``fields_to_remove``, ``converters_to_add``…"""
        return self._changed(entity_type, "update", change, options)

    def activate(self, entity_type: str, schema_version: str, **options: Unpack[TypeOptions]) -> TypeChange:
        """Make a version the active one, for writes and reads from now on."""
        return self._changed(entity_type, "activate", {"schema_version": schema_version}, options)

    def deactivate(self, entity_type: str, schema_version: str, **options: Unpack[TypeOptions]) -> TypeChange:
        """Deactivate a version."""
        return self._changed(entity_type, "deactivate", {"schema_version": schema_version}, options)

    def enhance(self, entity_type: str, change: Mapping[str, Any], **options: Unpack[TypeOptions]) -> TypeChange:
        """Promote candidates from fragments, those of ``fields`` or all; a dry run unless ``dry_run`` is False."""
        return self._changed(entity_type, "enhance", change, options)

    def reconcile(self, entity_type: str, *, dry_run: bool = True) -> TypeChange:
        """Promote fields that users agree on to the global schema; a dry run unless ``dry_run`` is False."""
        return self._changed(entity_type, "reconcile", {}, {"dry_run": dry_run})

    def migrate(self, entity_type: str, fields: Sequence[str], **options: Unpack[TypeOptions]) -> dict[str, Any]:
        """Move values to fields that came after them."""
        request = entity_types.change(entity_type, "migrate", {"fields": fields}, options)
        return self._client.fetch(request, dict[str, Any])

    def undo_migration(self, entity_type: str, run_id: str, **options: Unpack[TypeOptions]) -> dict[str, Any]:
        """Undo a migration, in whichever scope that the caller may change."""
        verb = f"migrations/{segment(run_id)}/undo"
        return self._client.fetch(entity_types.change(entity_type, verb, {}, options), dict[str, Any])

    def candidates(self, entity_type: str, scope: str | None = None) -> dict[str, Any]:
        """The candidates for fields that fragments support, with the evidence and the reasons against them."""
        return self._client.fetch(entity_types.read(entity_type, "candidates", scope=scope), dict[str, Any])

    def get(self, entity_type: str, schema_version: str | None = None, scope: str | None = None) -> SchemaVersion:
        """The active version for the caller, or the version that is named."""
        request = entity_types.read(entity_type, schema_version=schema_version, scope=scope)
        return self._client.fetch(request, SchemaVersion)

    def versions(self, entity_type: str) -> Iterator[SchemaVersion]:
        """Every version that the caller sees, the newest first."""
        return _iterate_pages(
            self._client.send,
            lambda after: entity_types.read(entity_type, "versions", after=after),
            entity_types.read_versions,
        )

    def export(self, entity_type: str) -> dict[str, str]:
        """Every version as a file: its path, and what is in it, the same bytes each time."""
        return entity_types.read_files(self._client.send(entity_types.read(entity_type, "export")))

    def __iter__(self) -> Iterator[SchemaVersion]:
        """The active versions, by type."""
        return _iterate_pages(self._client.send, entity_types.page, entity_types.read_types)

    def _changed(self, entity_type: str, verb: str, document: Mapping[str, Any], options: TypeOptions) -> TypeChange:
        return self._client.fetch(entity_types.change(entity_type, verb, document, options), TypeChange)


class Entities:
    """The entities of a caller, and their ``types``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.types = EntityTypes(client)
        self.register, self.activate, self.update = self.types.register, self.types.activate, self.types.update

    def store(self, *entities: Mapping[str, Any], **options: Unpack[StoreOptions]) -> Stored:
        """Store observations of entities, each with its ``entity_type``: all or none, on disk when this returns."""
        return self._client.fetch(entity_requests.store(entities, options), Stored)

    def store_many(self, entities: Iterable[Mapping[str, Any]], **options: Unpack[StoreOptions]) -> Iterator[Stored]:
        """Store entities in requests of many, one after the other; to do it all again stores nothing twice."""
        first_row = 0
        for batch in split_into_batches(entities, MAX_STORED_ENTITIES):
            request = entity_requests.store(batch, options, first_row=first_row)
            yield self._client.fetch(request, Stored)
            first_row += len(batch)

    def observe_stream(
        self,
        stream: str,
        entity_type: str,
        fields: Mapping[str, str] | None = None,
        *,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        on_rejected: Callable[[RejectedEvent], None] = lambda event: None,
        **options: Unpack[StreamOptions],
    ) -> ObservedStream:
        """Store the events of a stream as observations, each once; to do it all again stores only what is new.

        ``fields`` says where each field of the entity is in an event: the name of a member or a JSON Pointer. Without
        it every member is a field. ``on_progress`` is called with the events done and all events, ``on_rejected``
        with each event that cannot be stored.
        """
        copy = StreamCopy(stream, entity_type, fields, on_progress=on_progress, on_rejected=on_rejected, **options)
        while (request := copy.next_request()) is not None:
            try:
                answer = self._client.send(request)
            except HeadraceError as error:
                copy.refuse(error)
            else:
                copy.accept(answer)
        return copy.result()

    def get(self, entity_id: str, **view: Unpack[View]) -> Snapshot:
        """The snapshot of an entity, now or in the past."""
        return self._client.fetch(entity_requests.get(entity_id, view), Snapshot)

    def list(self, entity_type: str | None = None, **filters: str | None) -> Listing[Snapshot]:
        """Entities in the order in which they came: one after the other, or with ``to_pandas()`` as one table.

        Filters are ``search``, ``canonical_name``, ``field.<name>`` and ``source``, from which a value has to be.
        """
        wanted = {"entity_type": entity_type, **filters}
        snapshots = _iterate_pages(
            self._client.send, lambda after: entity_requests.page(wanted, after), entity_requests.read_snapshots
        )
        if entity_type is None:
            return Listing(snapshots, entity_requests.snapshot_row)
        return EntityListing(snapshots, entity_type, self.types)

    def observations(
        self, entity_id: str, *, order: str = "newest", user_id: str | None = None, source: str | None = None
    ) -> Listing[dict[str, Any]]:
        """The observations of an entity, the newest or the oldest first; those of one ``source``, or all."""
        observations = _iterate_pages(
            self._client.send,
            lambda after: entity_requests.observations(entity_id, order, after, user_id, source),
            entity_requests.read_observations,
        )
        return Listing(observations, entity_requests.observation_row)

    def provenance(self, entity_id: str, field: str, **view: Unpack[View]) -> dict[str, Any]:
        """The observations that the value of a field is from, and their sources."""
        return self._client.fetch(entity_requests.provenance(entity_id, field, view), dict[str, Any])

    def source(self, source_id: str, user_id: str | None = None) -> dict[str, Any]:
        """The entities that a source has brought, as they were sent; a source is given by its name or its id."""
        return self._client.fetch(entity_requests.source(source_id, user_id), dict[str, Any])

    def correct(self, entity_id: str, fields: Mapping[str, Any], **options: Unpack[DecisionOptions]) -> dict[str, Any]:
        """Set fields, overriding observations of any time; None clears one."""
        return self._client.fetch(entity_requests.correct(entity_id, fields, options), dict[str, Any])

    def delete(self, entity_id: str, **options: Unpack[DecisionOptions]) -> dict[str, Any]:
        """Delete an entity until it is restored."""
        return self._client.fetch(entity_requests.delete(entity_id, options), dict[str, Any])

    def restore(self, entity_id: str, **options: Unpack[DecisionOptions]) -> dict[str, Any]:
        """Let a deleted entity be there again."""
        return self._client.fetch(entity_requests.restore(entity_id, options), dict[str, Any])

    def erase(self, entity_id: str, user_id: str | None = None) -> Erasure:
        """Begin to erase an entity and everything merged into it; `erasure` returns the progress."""
        return self._client.fetch(entity_requests.erase(entity_id, user_id=user_id), Erasure)

    def erasure_plan(self, entity_id: str, user_id: str | None = None) -> ErasurePlan:
        """What an erasure would remove."""
        return entity_requests.read_plan(
            self._client.send(entity_requests.erase(entity_id, dry_run=True, user_id=user_id))
        )

    def erasure(self, erasure_id: str, user_id: str | None = None) -> Erasure:
        """The progress of an erasure, and what it has removed."""
        return self._client.fetch(entity_requests.get_erasure(erasure_id, user_id), Erasure)

    def merge(self, from_entity_id: str, to_entity_id: str) -> dict[str, Any]:
        """Merge an entity into another."""
        return self._client.fetch(entity_requests.merge(from_entity_id, to_entity_id), dict[str, Any])

    def unmerge(self, from_entity_id: str) -> dict[str, Any]:
        """Undo a merge."""
        return self._client.fetch(entity_requests.unmerge(from_entity_id), dict[str, Any])

    def split(
        self,
        entity_id: str,
        predicate: Mapping[str, Any],
        *,
        to_entity_id: str | None = None,
        to_canonical_name: str | None = None,
    ) -> dict[str, Any]:
        """Move the observations that match a predicate to another entity."""
        into = {"to_entity_id": to_entity_id, "to_canonical_name": to_canonical_name}
        return self._client.fetch(entity_requests.split(entity_id, predicate, into), dict[str, Any])

    def unsplit(self, entity_id: str, split_id: str) -> dict[str, Any]:
        """Undo a split."""
        return self._client.fetch(entity_requests.unsplit(entity_id, split_id), dict[str, Any])

    def duplicates(
        self, entity_type: str, *, threshold: float | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """Pairs of entities of a type that may be the same."""
        return self._client.fetch(entity_requests.duplicates(entity_type, threshold, limit), dict[str, Any])


class EntityListing(Listing[Snapshot]):
    """The entities of one type; as a table they have the columns that the active version of the type declares."""

    def __init__(self, snapshots: Iterator[Snapshot], entity_type: str, types: EntityTypes) -> None:
        super().__init__(snapshots, entity_requests.snapshot_row)
        self._entity_type, self._types = entity_type, types

    def to_arrow(self) -> pyarrow.Table:
        """The entities that are left as an Arrow table."""
        try:
            version = self._types.get(self._entity_type)
        except NotFound:
            return arrow_table(self.rows())
        rows = []
        for entity in self:
            rows.append(entity_requests.snapshot_row(entity, version.type_values(entity.snapshot)))
        return arrow_table(rows, entity_requests.snapshot_types(version.column_types()))


def _iterate_pages(
    send: Callable[[Request], Answer],
    post: Callable[[str | None], Request],
    read: Callable[[Answer], Page[Item]],
) -> Iterator[Item]:
    """All items, page by page."""
    after: str | None = None
    while True:
        items, after = read(send(post(after)))
        yield from items
        if after is None:
            return
