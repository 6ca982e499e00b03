"""Stores the entities of requests: resolves their types, checks them, and queues their observations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

from headrace.engine.entities.entity_type import ENTITIES, EntityType, compiled
from headrace.engine.entities.read.observations import owned_entity
from headrace.engine.entities.types.entity_types import EntityTypes
from headrace.engine.entities.write.store_observations import (
    DryRunStore,
    ObservationSource,
    StoreObservations,
    TypesOutdated,
)
from headrace.engine.entities.write.store_request import ObservationWrite, Prepared, ResolvedType, infer_first_schema
from headrace.engine.log.lifecycle import make_done_callback
from headrace.engine.log.log import Log
from headrace.engine.log.writer import Writer
from headrace.errors import EntityNotFound, NoSchemaForEntityType
from headrace.schema.entity.request import StoreRequest
from headrace.storage.database import Connection
from headrace.storage.entities import Entities, EntityRow
from headrace.storage.streams import Streams
from headrace.types import Clock

#: How often a request is prepared whose types change before it is stored.
MAX_ATTEMPTS = 5

Store = TypeVar("Store", bound=StoreObservations)


class RequestTypes(NamedTuple):
    """The types of a request: their names by how they are spelled, and the types for the user by name."""

    names: dict[str, str]
    resolved: dict[str, ResolvedType]

    @property
    def unknown(self) -> list[str]:
        """The types that have no schema for the user yet."""
        return [name for name, resolved in self.resolved.items() if resolved.stream is None]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the streams of the types in memory while other requests are served."""
        with ExitStack() as held:
            for resolved in self.resolved.values():
                if resolved.stream is not None:
                    held.enter_context(resolved.stream.held())
            yield


class EntityStore:
    """Stores entities; runs on the event loop."""

    def __init__(self, *, writer: Writer, log: Log, types: EntityTypes, reader: Connection, clock: Clock) -> None:
        self._writer, self._log, self._types, self._clock = writer, log, types, clock
        self._entities, self._streams = Entities(reader), Streams(reader)

    def resolve_types(self, request: StoreRequest) -> RequestTypes:
        """The types of a request; one that is not registered is inferred."""
        names = {spelled: self._types.resolve(spelled, request.user_id) for spelled in request.types}
        resolved = {
            name: self.resolve_type(name, request.user_id) or _infer_type(request, names, name)
            for name in names.values()
        }
        return RequestTypes(names, resolved)

    def resolve_type(self, name: str, user_id: str) -> ResolvedType | None:
        """A type with the schema of a user; None where there is no schema."""
        stream = self._types.stream(name)
        registry = None if stream is None else stream.head.registry
        kind = None if registry is None else registry.hook
        effective = kind.effective(user_id) if isinstance(kind, EntityType) else None
        return None if effective is None else ResolvedType(name, effective, stream, registry)

    def make_write(self, request: StoreRequest, request_types: RequestTypes) -> ObservationWrite:
        """The write of the entities of a request."""
        return ObservationWrite(request, request_types.names, self._clock.now_us())

    def find(self, entity_id: str, user_id: str) -> tuple[EntityRow, str]:
        """An entity of a user and its type; raises EntityNotFound, for entities of other users too."""
        row = owned_entity(self._entities, entity_id, user_id)
        stream = self._streams.by_id(row.stream)
        if stream is None:
            raise EntityNotFound("there is no such entity", entity_id=entity_id)
        return row, stream.name.removeprefix(ENTITIES)

    def require_type(self, entity_type: str, user_id: str) -> dict[str, ResolvedType]:
        """A type by its name; raises NoSchemaForEntityType where it has no schema for the user."""
        resolved = self.resolve_type(entity_type, user_id)
        if resolved is None:
            raise NoSchemaForEntityType(f"{entity_type} has no schema that holds", entity_type=entity_type)
        return {entity_type: resolved}

    async def ensure_schemas(self, request: StoreRequest, request_types: RequestTypes) -> None:
        """Create schemas for the types of a request that have none, unless it would be refused or is a replay."""
        if await self._is_replay(request, request_types):
            return
        rows_by_type = {name: _rows(request, request_types.names, name) for name in request_types.unknown}
        for make in (self._types.check_inferred, self._types.ensure):  # all of them, or none
            for name, rows in rows_by_type.items():
                await make(name, rows, request.user_id)

    async def _is_replay(self, request: StoreRequest, request_types: RequestTypes) -> bool:
        """Whether a request was answered before; raises what would refuse it, and stores nothing."""
        source = self.make_write(request, request_types)
        source.commit = False
        prepared = await asyncio.to_thread(source.prepare, request_types.resolved)
        observe = await self._outcome(DryRunStore, source, prepared)
        if observe.error is not None and not isinstance(observe.error, TypesOutdated):
            raise observe.error
        return observe.was_answered

    def submit(
        self,
        source: ObservationSource,
        prepared: Prepared,
        done: Callable[[StoreObservations], None],
        caller: Any = None,
    ) -> None:
        """Queue a prepared request; ``done`` is called with the outcome."""
        StoreObservations(source, prepared, self._log, done, caller).submit(self._writer)

    async def store(
        self, source: ObservationSource, resolve: Callable[[], Mapping[str, ResolvedType]]
    ) -> StoreObservations:
        """Store the observations of a source, and wait until they are on disk; raises what refused them."""
        observe = await self._outcome(StoreObservations, source, source.prepare(resolve()))
        attempts = 1
        while isinstance(observe.error, TypesOutdated) and attempts < MAX_ATTEMPTS:
            observe = await self._outcome(StoreObservations, source, source.prepare(resolve()))
            attempts += 1
        if observe.error is not None:
            raise observe.error
        return observe

    async def _outcome(self, make_store: type[Store], source: ObservationSource, prepared: Prepared) -> Store:
        settled: asyncio.Future[Store] = asyncio.get_running_loop().create_future()
        make_store(source, prepared, self._log, make_done_callback(settled)).submit(self._writer)
        return await settled


def _infer_type(request: StoreRequest, names: Mapping[str, str], name: str) -> ResolvedType:
    return ResolvedType(name, compiled(infer_first_schema(name, _rows(request, names, name))))


def _rows(request: StoreRequest, names: Mapping[str, str], name: str) -> list[dict[str, Any]]:
    """The fields of the entities of a type."""
    return [
        {key: value for key, value in entity.items() if key not in ("entity_type", "_meta")}
        for entity in request.entities
        if names[entity["entity_type"]] == name
    ]
