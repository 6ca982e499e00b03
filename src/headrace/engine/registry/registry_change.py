"""How every registry changes: planned from its current state, divided into stages, then committed or only described.

Stream schemas, profiles, the feature registry and entity types are the instances. A plan is made in a thread, from one
state of its registry, and never changes. ``make_stages`` divides it for the heads that streams have at one moment:
those that are published in a dry run, the drafts of the commit otherwise. So a dry run describes what a commit
performs, unless streams have moved meanwhile. A commit whose registry has changed since does nothing, and the change is
planned again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange, create_managed, require_free_name, run_change
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.gates import ComputeThreads
from headrace.errors import Conflict
from headrace.schema.registry import Registry
from headrace.storage.database import Connection

_MAX_ATTEMPTS = 20


class RegistrySnapshot(Protocol):
    """What stages are made from: the batch of a commit, or what is published."""

    @property
    def connection(self) -> Connection:
        """The database."""

    def draft(self, stream: Stream) -> Head:
        """The head of a stream."""

    def new_epoch(self) -> int:
        """An epoch for something new."""


class PublishedSnapshot:
    """What is published, for a dry run; its epochs stand for those that a commit would draw."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def draft(self, stream: Stream) -> Head:
        """The published head of a stream."""
        return stream.head

    def new_epoch(self) -> int:
        """No epoch: nothing is made."""
        return 0


class StageNote(NamedTuple):
    """What a stage does, as the stream of registry changes tells it."""

    what: str
    facts: dict[str, Any]


class Stage(msgspec.Struct, frozen=True):
    """One part of a change, which describes itself and performs itself in a commit."""

    def describe(self) -> StageNote | None:
        """What it does; None where another stage tells it."""
        return None

    def check(self, batch: Batch) -> None:
        """Raise why it cannot be performed; all stages are checked before the first writes."""

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Write it."""
        raise NotImplementedError


class CreateStream(Stage, frozen=True):
    """A stream that is managed by what the registry gains."""

    registry: Registry
    managed: str
    epoch: int
    facts: dict[str, Any]
    retention_age_us: int | None = None

    def describe(self) -> StageNote:
        """The stream, and what is known of it."""
        return StageNote("stream_created", {"stream": self.registry.schema, **self.facts})

    def check(self, batch: Batch) -> None:
        """Refuse a name that is taken."""
        require_free_name(batch, self.registry.schema)

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Create it."""
        create_managed(batch, self.registry, self.managed, self.epoch, self.retention_age_us)


class PlannedChange:
    """A change of one registry, planned from one state of it; never changed."""

    #: The streams that it reads or changes, which stay in memory until it is settled.
    streams: Sequence[Stream] = ()
    size = 1_000

    @property
    def has_effect(self) -> bool:
        """Whether there is anything to commit: it is neither refused nor done already."""
        raise NotImplementedError

    def is_outdated(self, batch: Batch) -> bool:
        """Whether the registry has changed since; raises what refuses the change for good."""
        raise NotImplementedError

    def make_stages(self, snapshot: RegistrySnapshot) -> Sequence[Stage]:
        """The stages of the change, in the order in which they are performed and told."""
        raise NotImplementedError

    def publish(self, stages: Sequence[Stage]) -> None:
        """Make it visible, on the writer's thread, once it is on disk and before any entry that follows it."""

    def announce(self, commit: CommitChange) -> None:
        """Notify listeners, on the event loop."""


class CommitChange(StreamChange):
    """A planned change as an operation of the writer: all of its stages, or nothing where it is outdated."""

    def __init__(self, planned: PlannedChange, who: str, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=tuple(planned.streams), size=planned.size)
        self.planned, self.who = planned, who
        self.stages: Sequence[Stage] = ()
        self.outdated = False

    def perform(self, batch: Batch) -> None:
        """Check every stage, then perform and note each."""
        if self.planned.is_outdated(batch):
            self.outdated = True
            return
        self.stages = self.planned.make_stages(batch)
        for stage in self.stages:
            stage.check(batch)
        for stage in self.stages:
            stage.perform(batch, self)
            note = stage.describe()
            if note is not None:
                batch.note(note.what, self.who, **note.facts)
        batch.afterwards.append(partial(self.planned.publish, self.stages))

    def answer(self) -> None:
        """Announce what was done, then answer."""
        if self.settled and self.error is None and not self.outdated:
            self.planned.announce(self)
        super().answer()


Planned = TypeVar("Planned", bound=PlannedChange)
Computed = TypeVar("Computed")


class RegistryChange(NamedTuple, Generic[Planned]):
    """A change as it was planned, its stages, and whether they were performed."""

    planned: Planned
    stages: Sequence[Stage]
    is_applied: bool


class RegistryChanges:
    """Plans changes of registries in a thread, and commits them."""

    def __init__(self, *, writer: Writer, reader: Connection, computing: ComputeThreads, timeout_s: float) -> None:
        self._writer, self._published = writer, PublishedSnapshot(reader)
        self._computing, self._timeout_s = computing, timeout_s

    async def compute(self, work: Callable[[], Computed]) -> Computed:
        """What a computation returns, which runs in a thread and within the time of a request."""
        return await self._computing.plan(self._timeout_s, work)

    async def run(
        self,
        plan: Callable[[], Awaitable[Planned]],
        who: str,
        *,
        dry_run: bool = False,
        subject: str = "registry",
        **facts: object,
    ) -> RegistryChange[Planned]:
        """Plan a change and commit it, or only describe it; it is planned again where the registry has changed since.

        ``subject`` and ``facts`` tell which registry it is where it changes too often.
        """
        for _ in range(_MAX_ATTEMPTS):
            planned = await plan()
            if dry_run or not planned.has_effect:
                return RegistryChange(planned, planned.make_stages(self._published), False)
            commit = await run_change(self._writer, CommitChange, planned, who)
            if not commit.outdated:
                return RegistryChange(planned, commit.stages, True)
        raise Conflict(f"the {subject} keeps changing; read it and try again", **facts)
