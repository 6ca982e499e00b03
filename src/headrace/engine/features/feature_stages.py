"""The stages of a change of the feature registry: its next version, and the streams of event sources.

One function makes them, for a dry run and for a commit. Which event a feature begins with depends on where streams end,
so the commit makes them anew from its drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.engine.features.bound_sources import bind
from headrace.engine.features.proposals import FeatureProposal
from headrace.engine.features.registry import EVENTS, AppliedChange, Current, FeatureDocument, root_of
from headrace.engine.features.source import MakeSource
from headrace.engine.features.stream_changes import EventStreamChange, created, evolved, stepped
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import delete, save_registry
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.registry.registry_change import (
    CommitChange,
    CreateStream,
    PlannedChange,
    RegistrySnapshot,
    Stage,
    StageNote,
)
from headrace.engine.registry.schemas import MAX_HISTORY_BYTES, MAX_REVISIONS
from headrace.errors import Conflict, RegistryFull
from headrace.format import journal
from headrace.schema.descriptor.bound_fields import StreamBinding
from headrace.schema.descriptor.nodes import Event, FeatureVersion, Table
from headrace.schema.problem import RequestProblem
from headrace.storage.journals import FeatureRegistry, FeatureRegistryRow
from headrace.storage.streams import LIVE
from headrace.storage.work import Work
from headrace.types import Steps

#: How much history the registry keeps.
KEPT_VERSIONS = 1_000

FeatureVersions = dict[str, dict[str, FeatureVersion]]


class SaveFeatures(Stage, frozen=True):
    """The next version of the registry, whole."""

    version: int
    app: str
    document: FeatureDocument

    def describe(self) -> StageNote:
        """The audit note: the added, removed and changed nodes."""
        plan = self.document.plan
        facts = {"added": plan.added, "removed": plan.removed, "changed": [node["name"] for node in plan.changed]}
        return StageNote(
            "features_registered", {"version": self.version, "app": self.app, "action": plan.action, **facts}
        )

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Store it, and forget the oldest version."""
        text = msgspec.json.encode(self.document).decode()
        registry = FeatureRegistry(batch.connection)
        registry.save(FeatureRegistryRow(self.version, batch.now_us, commit.who, self.app, text))
        dropped = registry.drop_before(self.version - KEPT_VERSIONS + 1)
        batch.published.discard(map(journal.FEATURES.key, dropped), batch.now_us)


class EvolveStream(Stage, frozen=True):
    """The stream of an event source follows it: its schema and its rules, from the next event on."""

    stream: Stream
    base: StreamRegistry
    made: EventStreamChange
    make_source: MakeSource

    def describe(self) -> StageNote:
        """The audit note: the new version of the schema."""
        facts = {"stream": self.stream.name, "version": self.made.registry.current_version}
        return StageNote("schema_changed", facts)

    def check(self, batch: Batch) -> None:
        """Refuse one revision too many."""
        if self.made.is_revised:
            revisions, size = batch.registries.size(self.stream.id)
            if revisions >= MAX_REVISIONS or size > MAX_HISTORY_BYTES:
                message = f"the schema of {self.stream.name} has changed too often"
                raise RegistryFull(message, stream=self.stream.name)

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Store the rules, and the registry where it has another revision."""
        registry = batch.draft(self.stream).registry = self.made.compiled(self.base, self.make_source)
        if self.made.is_revised:
            save_registry(batch, self.stream.id, registry)
        made = self.made
        batch.streams.update(self.stream.id, managed=made.rules.dump(), retention_age_us=made.retention_age_us)
        batch.published.mark(self.stream.id, batch.now_us)


class DeleteStream(Stage, frozen=True):
    """The stream of an event source that is removed."""

    stream: Stream

    def describe(self) -> StageNote:
        """The stream."""
        return StageNote("stream_deleted", {"stream": self.stream.name})

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Delete it."""
        batch.flush()
        commit.dropped += delete(batch, self.stream)


class BindStream(Stage, frozen=True):
    """The stream that a source is bound to, from which features are derived from now on."""

    stream: Stream

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Note it."""
        Work(batch.connection).note_bound(self.stream.id)


class ReadableRange(NamedTuple):
    """The events of a source that a feature can be folded from, and the next one."""

    first_seq: int = 0
    next_seq: int = 0


class SourceChange(NamedTuple):
    """An event source after a change: its own stream or how it is bound, what can be read, when entities are cold."""

    made: EventStreamChange | None
    readable: ReadableRange
    cold: Steps
    binding: StreamBinding | None = None


class SourceStreams(NamedTuple):
    """The streams of event sources that exist, by name of the source: their own, and those they are bound to.

    ``rebound`` are sources whose stream was made anew since they were bound.
    """

    own: Mapping[str, Stream]
    bound: Mapping[str, Stream]
    rebound: frozenset[str] = frozenset()


class PlannedFeatureChange(PlannedChange):
    """A proposal, and the streams of the event sources that exist."""

    size = 10_000

    def __init__(
        self,
        proposal: FeatureProposal,
        streams: SourceStreams,
        *,
        errors: Sequence[RequestProblem],
        make_source: MakeSource,
        log: Log,
        publish: Callable[[Current], None],
    ) -> None:
        """``errors`` refuse the change, even with force."""
        self.proposal, self.errors = proposal, errors
        self._sources, self.stream_of = streams, streams.own
        self.streams = tuple(dict.fromkeys((*streams.own.values(), *streams.bound.values())))
        self._make_source, self._log, self._publish = make_source, log, publish

    @property
    def needs_force(self) -> bool:
        """Whether it would take something away, and is not forced."""
        return self.proposal.diff.destructive and not self.proposal.change.force

    @property
    def is_refused(self) -> bool:
        """Whether something speaks against it."""
        return bool(self.errors) or self.needs_force

    @property
    def has_effect(self) -> bool:
        """Whether the registry would be another."""
        return not self.is_refused and (bool(self._sources.rebound) or not self.proposal.changes_nothing)

    def is_outdated(self, batch: Batch) -> bool:
        """Whether the registry has another version now."""
        newest = FeatureRegistry(batch.connection).newest()
        return (0 if newest is None else newest.version) != self.proposal.base.version

    def make_stages(self, snapshot: RegistrySnapshot) -> Sequence[Stage]:
        """The version, the streams that are created or follow their sources, and those that are deleted."""
        proposal, epoch = self.proposal, snapshot.new_epoch()
        changes = {
            name: self._change_source(snapshot, name, node)
            for name, node in proposal.nodes.items()
            if isinstance(node, Event)
        }
        deleted = [name for name in self.stream_of if changes.get(name) is None or changes[name].made is None]
        readable = {name: change.readable for name, change in changes.items()}
        versions, features = make_feature_versions(proposal, readable, epoch, self._sources.rebound)
        streams = [
            {"event": name, "change": change.made.effect, "schema_version": change.made.registry.current_version}
            for name, change in changes.items()
            if change.made is not None and change.made.effect != "kept"
        ]
        bindings = {name: change.binding for name, change in changes.items() if change.binding is not None}
        before = proposal.base.document.sources
        streams += [
            {"event": name, "change": "bound", "stream": proposal.nodes[name].stream}  # type: ignore[union-attr]
            for name, binding in bindings.items()
            if name not in before or before[name].incarnation != binding.incarnation
        ]
        plan = AppliedChange(
            added=tuple(proposal.diff.added),
            removed=tuple(proposal.diff.removed),
            changed=tuple(proposal.diff.changed),
            action=proposal.change.action,
            force=proposal.change.force,
            features=tuple(features),
            streams=(*streams, *({"event": name, "change": "deleted"} for name in deleted)),
        )
        cold = {name: change.cold for name, change in changes.items()}
        document = FeatureDocument(
            nodes=dict(proposal.nodes),
            apps=dict(proposal.apps),
            feature_versions=versions,
            cold=cold,
            sources=bindings,
            plan=plan,
        )
        return (
            SaveFeatures(proposal.base.version + 1, proposal.change.app, document),
            *self._stream_stages(snapshot, changes),
            *(DeleteStream(self.stream_of[name]) for name in deleted),
            *map(BindStream, dict.fromkeys(self._sources.bound.values())),
        )

    def _change_source(self, snapshot: RegistrySnapshot, name: str, event: Event) -> SourceChange:
        stream, cold = self.stream_of.get(name), self.proposal.base.document.cold.get(name, ())
        if event.stream is not None:
            return self._bind_source(snapshot, name, event)
        if stream is None:
            return SourceChange(created(EVENTS + name, event), ReadableRange(), stepped((), event.cold_after_ms, 0))
        head = snapshot.draft(stream)
        if head.state != LIVE or head.registry is None:
            raise Conflict("the stream of this event source was deleted", stream=stream.name)
        made = evolved(head.registry, event, head.next_seq)
        readable = ReadableRange(max(head.first_seq, made.registry.readable_from), head.next_seq)
        return SourceChange(made, readable, stepped(cold, event.cold_after_ms, head.next_seq))

    def _bind_source(self, snapshot: RegistrySnapshot, name: str, event: Event) -> SourceChange:
        stream, base = self._sources.bound.get(name), self.proposal.base.document
        binding, cold = base.sources.get(name), () if name in self._sources.rebound else base.cold.get(name, ())
        if stream is None or snapshot.draft(stream).state != LIVE:
            if binding is None:
                raise Conflict("the stream of this event source was deleted", stream=event.stream)
            return SourceChange(None, ReadableRange(), stepped(cold, event.cold_after_ms, 0), binding)
        head = snapshot.draft(stream)
        is_other = binding is not None and binding.incarnation != stream.incarnation
        if binding is None or not is_other or name in self._sources.rebound:
            binding = bind(self.proposal, name, stream, head)
        readable_from = 0 if head.registry is None else head.registry.readable_from
        readable = ReadableRange(max(head.first_seq, readable_from), head.next_seq)
        return SourceChange(None, readable, stepped(cold, event.cold_after_ms, head.next_seq if cold else 0), binding)

    def _stream_stages(self, snapshot: RegistrySnapshot, changes: Mapping[str, SourceChange]) -> Iterator[Stage]:
        for name, change in changes.items():
            stream, made = self.stream_of.get(name), change.made
            if made is None:
                continue
            if stream is None:
                facts = {"version": made.registry.current_version}
                rules, epoch = made.rules.dump(), snapshot.new_epoch()
                yield CreateStream(made.registry, rules, epoch, facts, made.retention_age_us)
            elif made.effect != "kept":
                base = snapshot.draft(stream).registry
                assert base is not None, "it was found above"
                yield EvolveStream(stream, base, made, self._make_source)

    def publish(self, stages: Sequence[Stage]) -> None:
        """Activate the version, and apply the retention of its event sources."""
        for stage in stages:
            if isinstance(stage, SaveFeatures):
                self._publish(Current(stage.version, stage.document))
            elif isinstance(stage, EvolveStream):
                stage.stream.retention_age_us = stage.made.retention_age_us

    def announce(self, commit: CommitChange) -> None:
        """Forget the streams that are deleted."""
        deleted = [stage.stream for stage in commit.stages if isinstance(stage, DeleteStream)]
        self._log.note_deleted(commit.dropped, deleted)


def make_feature_versions(
    proposal: FeatureProposal, readable: Mapping[str, ReadableRange], epoch: int, rebound: Collection[str] = ()
) -> tuple[FeatureVersions, list[dict[str, Any]]]:
    """The versions of all features after a change, and what happens to those that do not simply go on.

    A feature that is new begins with the first event that can be read, one that was cleared with the next one;
    ``backfill`` says otherwise for all of them.
    """
    versions: FeatureVersions = {}
    effects: list[dict[str, Any]] = []
    base, backfill = proposal.base, proposal.change.backfill
    for table, node in proposal.nodes.items():
        if not isinstance(node, Table):
            continue
        root = root_of(proposal.nodes, table)
        source = readable[root]
        versions[table] = {}
        for feature in node.features:
            version = None if root in rebound else base.feature_versions.get(table, {}).get(feature)
            change = proposal.diff.state_effects.get(table, {}).get(feature, "kept")
            if version is not None and change == "kept":
                versions[table][feature] = version
                continue
            is_cleared = (version is not None and change == "zeroed") if backfill is None else not backfill
            first_seq = source.next_seq if is_cleared else source.first_seq
            versions[table][feature] = FeatureVersion(f"{feature}@{epoch}", first_seq)
            state, start = "reborn" if change == "zeroed" else "new", "now" if is_cleared else "first_retained"
            effects.append({"table": table, "feature": feature, "state": state, "born": start, "seq": first_seq})
    for table, features in base.feature_versions.items():
        gone = (feature for feature in features if feature not in versions.get(table, {}))
        effects += ({"table": table, "feature": feature, "state": "cleared"} for feature in gone)
    return versions, effects
