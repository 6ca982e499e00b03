"""Changes of the schema of a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import SERVER, save_registry
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.registry.registry_change import (
    CommitChange,
    PlannedChange,
    RegistryChanges,
    RegistrySnapshot,
    Stage,
    StageNote,
)
from headrace.errors import BadRequest, Conflict, HeadraceError, LensUnsound, NotFound, RegistryFull
from headrace.query import search_document
from headrace.query.carry import carry_search
from headrace.schema import apply as changes
from headrace.schema.plan import Plan, Refusal, ValueImpact
from headrace.schema.problem import Problem
from headrace.schema.registry import Registry
from headrace.schema.update import SchemaUpdate
from headrace.storage.registries import Registries, RegistryRow
from headrace.storage.streams import LIVE

#: A registry keeps all that it ever was, and its stream publishes all of that: beyond this it takes no more changes.
MAX_REVISIONS = 1_000
MAX_HISTORY_BYTES = 16 * 1024 * 1024

_ERRORS: dict[str, type[HeadraceError]] = {
    "conflict": Conflict,
    "registry_full": RegistryFull,
    "lens_unsound": LensUnsound,
}


class SaveSchema(Stage, frozen=True):
    """The next revision of a stream's registry; its newest version holds from the next entry on."""

    stream: Stream
    registry: Registry
    base: StreamRegistry | None
    changes: tuple[str, ...]

    def describe(self) -> StageNote:
        """The version that holds from now on, and what has changed."""
        facts = {"stream": self.stream.name, "version": self.registry.current_version, "changes": self.changes}
        return StageNote("schema_changed", facts)

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Store the revision."""
        revision, hook = (1, None) if self.base is None else (self.base.revision + 1, self.base.hook)
        registry = batch.draft(self.stream).registry = StreamRegistry(self.registry, revision, hook)
        save_registry(batch, self.stream.id, registry)


class EventProof(Protocol):
    """The proof that stored events fit a first schema."""

    def covers(self, batch: Batch) -> bool:
        """Whether every event fits that a commit finds; raises where one of the newest does not.

        False where there are more new events than a commit should check.
        """


#: Proves that the events of a stream fit a proposed first schema, or raises.
ProveEvents = Callable[[Stream, Registry], Awaitable[EventProof]]


#: The impact of a change of a registry, from the one that a stream has to the next.
ImpactOn = Callable[[Stream, Registry, Registry], Iterable[ValueImpact]]


class PlannedSchemaChange(PlannedChange):
    """A plan for the registry of a stream."""

    def __init__(
        self, stream: Stream, base: StreamRegistry | None, plan: Plan[Registry], proof: EventProof | None = None
    ) -> None:
        self.streams = (stream,)
        self.stream, self.base, self.plan, self._proof = stream, base, plan, proof

    @property
    def has_effect(self) -> bool:
        """Whether the plan is not refused, and changes something."""
        return not self.plan.refusals and not self.plan.changes_nothing

    def is_outdated(self, batch: Batch) -> bool:
        """Whether the stream has another registry now, or entries that are not proven to fit a first schema."""
        head = batch.draft(self.stream)
        if head.state != LIVE:
            raise NotFound("the stream was deleted", stream=self.stream.name)
        if head.registry is not self.base:
            return True
        is_first = not self.plan.from_version and bool(self.plan.to_version)
        return is_first and head.next_seq > 0 and not (self._proof is not None and self._proof.covers(batch))

    def make_stages(self, snapshot: RegistrySnapshot) -> Sequence[Stage]:
        """The next revision."""
        if not self.has_effect:
            return ()
        plan, registry = self.plan, self.plan.registry
        if plan.to_version != plan.from_version:
            registry = registry.bounded(snapshot.draft(self.stream).next_seq)
        return (SaveSchema(self.stream, registry, self.base, tuple(change.what for change in plan.changes)),)


class Schemas:
    """Plans and applies changes of registries, on the event loop."""

    def __init__(self, registry_changes: RegistryChanges, registries: Registries) -> None:
        self._changes, self._registries = registry_changes, registries
        #: Find what a change does to what is computed from a stream elsewhere; called in a thread.
        self.impact_on: list[ImpactOn] = []

    @staticmethod
    def registry(stream: Stream) -> Registry:
        """The registry of a stream, an empty one where it has none."""
        compiled = stream.head.registry
        return Registry.empty(stream.name) if compiled is None else compiled.registry

    def history(self, stream: Stream) -> list[RegistryRow]:
        """Every revision of a stream's registry, the oldest first."""
        return self._registries.history(stream.id)

    async def plan(self, stream: Stream, update: SchemaUpdate) -> Plan[Registry]:
        """The plan of an update; nothing is changed."""
        change = await self._changes.run(partial(self.prepare, stream, update), SERVER, dry_run=True)
        return change.planned.plan

    async def prepare(
        self, stream: Stream, update: SchemaUpdate, prove: ProveEvents | None = None
    ) -> PlannedSchemaChange:
        """An update, planned from the registry that the stream has now; with the proof that a first schema needs."""
        base, registry, next_seq = stream.head.registry, self.registry(stream), stream.head.next_seq
        plan = await self._changes.compute(lambda: self._plan(stream, registry, update, next_seq))
        if not plan.refusals and not plan.changes_nothing and (full := self._full(stream, plan.registry)) is not None:
            plan = msgspec.structs.replace(plan, registry=registry, refusals=(full,))
        proof = None
        if prove is not None and next_seq and not (plan.refusals or registry.current_version):
            proposal = await self._propose(registry, update, plan, next_seq)
            proof = None if proposal is None else await prove(stream, proposal)
        return PlannedSchemaChange(stream, base, plan, proof)

    def _plan(self, stream: Stream, registry: Registry, update: SchemaUpdate, next_seq: int) -> Plan[Registry]:
        plan = changes.apply(registry, update, next_seq=next_seq, is_empty=not next_seq, search_rules=SEARCH)
        if plan.refusals or plan.to_version == plan.from_version:
            return plan
        impact = [each for find in self.impact_on for each in find(stream, registry, plan.registry)]
        return msgspec.structs.replace(plan, impact=(*plan.impact, *impact))

    async def propose(self, stream: Stream, update: SchemaUpdate) -> tuple[Plan[Registry], Registry | None]:
        """The plan of an update, and the registry to try on events, refused or not; None where there is none."""
        registry, next_seq = self.registry(stream), stream.head.next_seq
        plan = await self.plan(stream, update)
        return plan, await self._propose(registry, update, plan, next_seq)

    async def _propose(
        self, registry: Registry, update: SchemaUpdate, plan: Plan[Registry], next_seq: int
    ) -> Registry | None:
        return await self._changes.compute(lambda: changes.propose_registry(registry, update, plan, next_seq=next_seq))

    def _full(self, stream: Stream, registry: Registry) -> Refusal | None:
        """Why the history of a stream's registry cannot take another revision, if it cannot."""
        revisions, size = self._registries.size(stream.id)
        size += len(msgspec.json.encode(registry.dump()))
        if revisions < MAX_REVISIONS and size <= MAX_HISTORY_BYTES:
            return None
        message = f"the registry has {revisions} revisions, and with this one {size} bytes: at most {MAX_REVISIONS} "
        message += f"revisions and {MAX_HISTORY_BYTES} bytes are kept; go on with another stream"
        return Refusal("registry_full", "", message, {"revisions": revisions, "bytes": size})

    async def apply(
        self, stream: Stream, update: SchemaUpdate, who: str = SERVER, prove: ProveEvents | None = None
    ) -> tuple[Plan[Registry], Registry]:
        """Make an update, whole, or raise the reasons why not; returns the registry that the stream has then.

        ``prove`` is asked where a first schema may be installed on stored events.
        """
        with stream.held():
            change = await self._changes.run(partial(self.prepare, stream, update, prove), who, stream=stream.name)
        plan = change.planned.plan
        if plan.refusals:
            raise refused(plan.refusals)
        return plan, next((stage.registry for stage in change.stages if isinstance(stage, SaveSchema)), plan.registry)


def refused(refusals: tuple[Refusal, ...]) -> HeadraceError:
    """The error for a plan that cannot be applied: the gravest reason, and all of them as facts."""
    first = next((refusal for refusal in refusals if refusal.code == "conflict"), refusals[0])
    error_class = _ERRORS.get(first.code, BadRequest)
    return error_class(first.message, field=first.pointer or "body", problems=[refusal.dump() for refusal in refusals])


def _check_search(search: Any, version: int, stored: Any) -> list[Problem]:
    parsed = search_document.parse_search_document(search, current_version=version)
    return parsed if isinstance(parsed, list) else search_document.check_reserved_names(search, stored)


SEARCH = changes.SearchRules(_check_search, carry_search)
