"""Changing the schema of a stream: a plan first, then one commit that applies it or nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import SERVER, StreamChange, run_change, save_registry
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.gates import ComputeThreads
from headrace.errors import BadRequest, Conflict, HeadraceError, LensUnsound, NotFound, RegistryFull
from headrace.query import search_document
from headrace.query.carry import carry_search
from headrace.schema import apply as changes
from headrace.schema.plan import Plan, Refusal
from headrace.schema.problem import Problem
from headrace.schema.registry import Registry
from headrace.schema.update import SchemaUpdate
from headrace.storage.registries import Registries, RegistryRow
from headrace.storage.streams import LIVE

#: A registry keeps all that it ever was, and its stream publishes all of that: beyond this it takes no more changes.
MAX_REVISIONS = 1_000
MAX_HISTORY_BYTES = 16 * 1024 * 1024

_TRIES = 20
_ERRORS: dict[str, type[HeadraceError]] = {
    "conflict": Conflict,
    "registry_full": RegistryFull,
    "lens_unsound": LensUnsound,
}


class SetRegistry(StreamChange):
    """The next revision of a stream's registry, unless the stream has moved on from what it was planned for."""

    def __init__(
        self,
        stream: Stream,
        base: StreamRegistry | None,
        planned: Plan[Registry],
        done: Callable[[SetRegistry], None],
        who: str = SERVER,
    ) -> None:
        super().__init__(done, pinned=(stream,), size=1000)
        self.who = who
        self.stream, self.base, self.planned = stream, base, planned
        self.registry = planned.registry
        self.outdated = False

    def perform(self, batch: Batch) -> None:
        """Let the newest version begin with the next entry."""
        head = batch.draft(self.stream)
        if head.state != LIVE:
            raise NotFound("the stream was deleted", stream=self.stream.name)
        is_first = not self.planned.from_version and bool(self.planned.to_version)
        if head.registry is not self.base or (is_first and head.next_seq):
            self.outdated = True
            return
        if self.planned.to_version != self.planned.from_version:
            self.registry = self.registry.bounded(head.next_seq)
        revision, hook = (1, None) if self.base is None else (self.base.revision + 1, self.base.hook)
        head.registry = StreamRegistry(self.registry, revision, hook)
        save_registry(batch, self.stream.id, head.registry)
        changes = [change.what for change in self.planned.changes]
        batch.note(
            "schema_changed", self.who, stream=self.stream.name, version=self.registry.current_version, changes=changes
        )


class Schemas:
    """Plans and applies changes to registries, on the event loop; plans are computed in a thread."""

    def __init__(self, writer: Writer, registries: Registries, computing: ComputeThreads, patience_s: float) -> None:
        self._writer = writer
        self._registries = registries
        self._computing, self._patience_s = computing, patience_s

    @staticmethod
    def registry(stream: Stream) -> Registry:
        """The registry of a stream, an empty one where it has none."""
        compiled = stream.head.registry
        return Registry.empty(stream.name) if compiled is None else compiled.registry

    def history(self, stream: Stream) -> list[RegistryRow]:
        """Every revision of a stream's registry, the oldest first."""
        return self._registries.history(stream.id)

    async def plan(self, stream: Stream, update: SchemaUpdate) -> Plan[Registry]:
        """What an update would do; nothing is changed."""
        head = stream.head
        registry = Registry.empty(stream.name) if head.registry is None else head.registry.registry
        is_empty = not head.next_seq
        planned = await self._computing.plan(
            self._patience_s,
            lambda: changes.apply(registry, update, next_seq=head.next_seq, is_empty=is_empty, search_rules=SEARCH),
        )
        if planned.refusals or planned.changes_nothing or (full := self._full(stream, planned.registry)) is None:
            return planned
        return msgspec.structs.replace(planned, registry=registry, refusals=(full,))

    async def propose(self, stream: Stream, update: SchemaUpdate) -> tuple[Plan[Registry], Registry | None]:
        """What an update would do, and the registry to try on events, refused or not; None where there is none."""
        registry, next_seq = self.registry(stream), stream.head.next_seq
        planned = await self.plan(stream, update)
        proposal = await self._computing.plan(
            self._patience_s, lambda: changes.propose_registry(registry, update, planned, next_seq=next_seq)
        )
        return planned, proposal

    def _full(self, stream: Stream, registry: Registry) -> Refusal | None:
        """Why the history of a stream's registry cannot take another revision, if it cannot."""
        revisions, size = self._registries.size(stream.id)
        size += len(msgspec.json.encode(registry.dump()))
        if revisions < MAX_REVISIONS and size <= MAX_HISTORY_BYTES:
            return None
        message = f"the registry has {revisions} revisions, and with this one {size} bytes: at most {MAX_REVISIONS} "
        message += f"revisions and {MAX_HISTORY_BYTES} bytes are kept; go on with another stream"
        return Refusal("registry_full", "", message, {"revisions": revisions, "bytes": size})

    async def apply(self, stream: Stream, update: SchemaUpdate, who: str = SERVER) -> tuple[Plan[Registry], Registry]:
        """Do what an update asks for, whole, or raise the reasons why not; answers the registry it led to."""
        with stream.held():
            return await self._apply(stream, update, who)

    async def _apply(self, stream: Stream, update: SchemaUpdate, who: str) -> tuple[Plan[Registry], Registry]:
        for _ in range(_TRIES):
            base = stream.head.registry
            planned = await self.plan(stream, update)
            if planned.refusals:
                raise refused(planned.refusals)
            if planned.changes_nothing:
                return planned, planned.registry
            change = await run_change(self._writer, partial(SetRegistry, who=who), stream, base, planned)
            if not change.outdated:
                return planned, change.registry
        raise Conflict("the registry keeps changing; read it and try again", stream=stream.name)


def refused(refusals: tuple[Refusal, ...]) -> HeadraceError:
    """The error for a plan that cannot be applied: the gravest reason, and all of them as facts."""
    first = next((refusal for refusal in refusals if refusal.code == "conflict"), refusals[0])
    error_class = _ERRORS.get(first.code, BadRequest)
    return error_class(first.message, field=first.pointer or "body", problems=[refusal.dump() for refusal in refusals])


def _check_search(search: Any, version: int, stored: Any) -> list[Problem]:
    parsed = search_document.parse_search_document(search, current_version=version)
    return parsed if isinstance(parsed, list) else search_document.check_reserved_names(search, stored)


SEARCH = changes.SearchRules(_check_search, carry_search)
