"""The verbs that store observations: look for types, accept, queue. All run on the event loop, except the accepting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

from headrace.engine.entities.entity_hook import ENTITIES, EntityHook, compiled
from headrace.engine.entities.types.verbs import EntityTypes
from headrace.engine.entities.write.accepting import Prepared, Storing, Typed, first_schema
from headrace.engine.entities.write.observing import Observe, Outdated, Rehearse, Wish
from headrace.engine.log.lifecycle import settling
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

Kind = TypeVar("Kind", bound=Observe)


class Found(NamedTuple):
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


class Stores:
    """Stores what is said about entities."""

    def __init__(self, writer: Writer, log: Log, types: EntityTypes, reader: Connection, clock: Clock) -> None:
        self._writer, self._log, self._types, self._clock = writer, log, types, clock
        self._entities, self._streams = Entities(reader), Streams(reader)

    def look(self, asked: StoreRequest) -> Found:
        """The types that a request is about; one that nobody has registered is inferred."""
        names = {spelled: self._types.resolve(spelled, asked.user_id) for spelled in asked.types}
        typed = {name: self.typed(name, asked.user_id) or _inferred(asked, names, name) for name in names.values()}
        return Found(names, typed)

    def typed(self, name: str, user_id: str) -> Typed | None:
        """What holds for a user of a type; None where there is no schema."""
        stream = self._types.stream(name)
        registry = None if stream is None else stream.head.registry
        kind = None if registry is None else registry.hook
        effective = kind.effective(user_id) if isinstance(kind, EntityHook) else None
        return None if effective is None else Typed(name, effective, stream, registry)

    def storing(self, asked: StoreRequest, found: Found) -> Storing:
        """The wish to store the entities of a request."""
        return Storing(asked, found.names, self._clock.now_us())

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

    async def ensure(self, asked: StoreRequest, found: Found) -> None:
        """Give a schema to the types of a request that have none, unless it would be refused or is a replay."""
        if await self._is_replay(asked, found):
            return
        given = {name: _rows(asked, found.names, name) for name in found.unknown}
        for make in (self._types.check_inferred, self._types.ensure):  # all of them, or none
            for name, rows in given.items():
                await make(name, rows, asked.user_id)

    async def _is_replay(self, asked: StoreRequest, found: Found) -> bool:
        """Whether a request was answered before; raises what would refuse it, and writes nothing."""
        wish = self.storing(asked, found)
        wish.commit = False
        prepared = await asyncio.to_thread(wish.prepare, found.typed)
        observe = await self._outcome(Rehearse, wish, prepared)
        if observe.error is not None and not isinstance(observe.error, Outdated):
            raise observe.error
        return observe.known

    def submit(self, wish: Wish, prepared: Prepared, done: Callable[[Observe], None], caller: Any = None) -> None:
        """Queue what was accepted; ``done`` is told of the outcome."""
        Observe(wish, prepared, self._log, done, caller).submit(self._writer)

    async def carry_out(self, wish: Wish, typed: Callable[[], Mapping[str, Typed]]) -> Observe:
        """Store what is wished for, and wait until it is on disk; raises what refused it."""
        observe = await self._settled(wish, typed)
        tries = 1
        while isinstance(observe.error, Outdated) and tries < TRIES:
            observe = await self._settled(wish, typed)
            tries += 1
        if observe.error is not None:
            raise observe.error
        return observe

    async def _settled(self, wish: Wish, typed: Callable[[], Mapping[str, Typed]]) -> Observe:
        return await self._outcome(Observe, wish, wish.prepare(typed()))

    async def _outcome(self, kind: type[Kind], wish: Wish, prepared: Prepared) -> Kind:
        settled: asyncio.Future[Kind] = asyncio.get_running_loop().create_future()
        kind(wish, prepared, self._log, settling(settled)).submit(self._writer)
        return await settled


def _inferred(asked: StoreRequest, names: Mapping[str, str], name: str) -> Typed:
    return Typed(name, compiled(first_schema(name, _rows(asked, names, name))))


def _rows(asked: StoreRequest, names: Mapping[str, str], name: str) -> list[dict[str, Any]]:
    """The entities of a type, without what is said besides their fields."""
    return [
        {key: value for key, value in entity.items() if key not in ("entity_type", "_meta")}
        for entity in asked.entities
        if names[entity["entity_type"]] == name
    ]
