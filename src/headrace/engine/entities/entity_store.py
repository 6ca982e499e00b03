"""Stores observations: finds types, accepts requests by them, and queues what was accepted; for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

from headrace.engine.entities.entity_type import ENTITIES, EntityType, compiled
from headrace.engine.entities.types.entity_types import EntityTypes
from headrace.engine.entities.write.store_observations import (
    ObservationSource,
    RehearseStore,
    StoreObservations,
    TypesOutdated,
)
from headrace.engine.entities.write.store_request import ObservationWrite, Prepared, Typed, first_schema
from headrace.engine.log.lifecycle import make_done_callback
from headrace.engine.log.log import Log
from headrace.engine.log.writer import Writer
from headrace.errors import EntityNotFound, NoSchemaForEntityType
from headrace.schema.entity.request import StoreRequest
from headrace.storage.database import Connection
from headrace.storage.entities import Entities, EntityRow
from headrace.storage.streams import Streams
from headrace.types import Clock

#: How often a request is accepted again whose types went away meanwhile.
TRIES = 5

Kind = TypeVar("Kind", bound=StoreObservations)


class RequestTypes(NamedTuple):
    """The types of a request: their names by how they are spelled, and what holds for the user by name."""

    names: dict[str, str]
    typed: dict[str, Typed]

    @property
    def unknown(self) -> list[str]:
        """The types that have no schema for the user yet."""
        return [name for name, typed in self.typed.items() if typed.stream is None]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the streams of the types in memory while others are served."""
        with ExitStack() as held:
            for typed in self.typed.values():
                if typed.stream is not None:
                    held.enter_context(typed.stream.held())
            yield


class EntityStore:
    """Stores what is said about entities."""

    def __init__(self, *, writer: Writer, log: Log, types: EntityTypes, reader: Connection, clock: Clock) -> None:
        self._writer, self._log, self._types, self._clock = writer, log, types, clock
        self._entities, self._streams = Entities(reader), Streams(reader)

    def look(self, request: StoreRequest) -> RequestTypes:
        """The types that a request is about; one that nobody has registered is inferred."""
        names = {spelled: self._types.resolve(spelled, request.user_id) for spelled in request.types}
        typed = {name: self.typed(name, request.user_id) or _inferred(request, names, name) for name in names.values()}
        return RequestTypes(names, typed)

    def typed(self, name: str, user_id: str) -> Typed | None:
        """What holds for a user of a type; None where there is no schema."""
        stream = self._types.stream(name)
        registry = None if stream is None else stream.head.registry
        kind = None if registry is None else registry.hook
        effective = kind.effective(user_id) if isinstance(kind, EntityType) else None
        return None if effective is None else Typed(name, effective, stream, registry)

    def storing(self, request: StoreRequest, request_types: RequestTypes) -> ObservationWrite:
        """What stores the entities of a request."""
        return ObservationWrite(request, request_types.names, self._clock.now_us())

    def find(self, entity_id: str, user_id: str) -> tuple[EntityRow, str]:
        """An entity of a user, and its type; what is not theirs is not there."""
        row = self._entities.find(entity_id)
        stream = None if row is None else self._streams.by_id(row.stream)
        if row is None or row.user_id != user_id or stream is None:
            raise EntityNotFound("there is no such entity", entity_id=entity_id)
        return row, stream.name.removeprefix(ENTITIES)

    def held(self, entity_type: str, user_id: str) -> dict[str, Typed]:
        """A type that must have a schema for the user."""
        typed = self.typed(entity_type, user_id)
        if typed is None:
            raise NoSchemaForEntityType(f"{entity_type} has no schema that holds", entity_type=entity_type)
        return {entity_type: typed}

    async def ensure(self, request: StoreRequest, request_types: RequestTypes) -> None:
        """Give a schema to the types of a request that have none, unless it would be refused or is a replay."""
        if await self._is_replay(request, request_types):
            return
        rows_by_type = {name: _rows(request, request_types.names, name) for name in request_types.unknown}
        for make in (self._types.check_inferred, self._types.ensure):  # all of them, or none
            for name, rows in rows_by_type.items():
                await make(name, rows, request.user_id)

    async def _is_replay(self, request: StoreRequest, request_types: RequestTypes) -> bool:
        """Whether a request was answered before; raises what would refuse it, and writes nothing."""
        source = self.storing(request, request_types)
        source.commit = False
        prepared = await asyncio.to_thread(source.prepare, request_types.typed)
        observe = await self._outcome(RehearseStore, source, prepared)
        if observe.error is not None and not isinstance(observe.error, TypesOutdated):
            raise observe.error
        return observe.known

    def submit(
        self,
        source: ObservationSource,
        prepared: Prepared,
        done: Callable[[StoreObservations], None],
        caller: Any = None,
    ) -> None:
        """Queue what was accepted; ``done`` is told of the outcome."""
        StoreObservations(source, prepared, self._log, done, caller).submit(self._writer)

    async def carry_out(self, source: ObservationSource, typed: Callable[[], Mapping[str, Typed]]) -> StoreObservations:
        """Store what a source makes, and wait until it is on disk; raises what refused it."""
        observe = await self._settled(source, typed)
        tries = 1
        while isinstance(observe.error, TypesOutdated) and tries < TRIES:
            observe = await self._settled(source, typed)
            tries += 1
        if observe.error is not None:
            raise observe.error
        return observe

    async def _settled(self, source: ObservationSource, typed: Callable[[], Mapping[str, Typed]]) -> StoreObservations:
        return await self._outcome(StoreObservations, source, source.prepare(typed()))

    async def _outcome(self, kind: type[Kind], source: ObservationSource, prepared: Prepared) -> Kind:
        settled: asyncio.Future[Kind] = asyncio.get_running_loop().create_future()
        kind(source, prepared, self._log, make_done_callback(settled)).submit(self._writer)
        return await settled


def _inferred(request: StoreRequest, names: Mapping[str, str], name: str) -> Typed:
    return Typed(name, compiled(first_schema(name, _rows(request, names, name))))


def _rows(request: StoreRequest, names: Mapping[str, str], name: str) -> list[dict[str, Any]]:
    """The entities of a type, without what is said besides their fields."""
    return [
        {key: value for key, value in entity.items() if key not in ("entity_type", "_meta")}
        for entity in request.entities
        if names[entity["entity_type"]] == name
    ]
