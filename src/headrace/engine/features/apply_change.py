"""Carrying a change of the feature registry out: one step of a commit, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.engine.features.activation import ReadableRange, decide
from headrace.engine.features.proposals import FeatureProposal
from headrace.engine.features.registry import EVENTS, AppliedChange, Current, FeatureDocument
from headrace.engine.features.stream_changes import EventStreamChange, created, evolved, stepped
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange, create_managed, delete, save_registry
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.registry.schemas import MAX_HISTORY_BYTES, MAX_REVISIONS
from headrace.errors import Conflict, HeadraceError, RegistryFull
from headrace.format.feature_registry import key
from headrace.schema.descriptor.nodes import Event
from headrace.storage.feature_registry import FeatureRegistry, FeatureRegistryRow
from headrace.storage.streams import LIVE
from headrace.types import Steps

#: How much history the registry keeps.
KEPT_VERSIONS = 1_000
#: What became of a stream, as it is noted.
_TOLD = {"created": "stream_created", "deleted": "stream_deleted"}


class ApplyFeatureChange(StreamChange):
    """The next version of the registry, with the streams and lives that belong to it."""

    def __init__(
        self,
        proposal: FeatureProposal,
        streams: Mapping[str, Stream],
        who: str,
        most_keys: int,
        publish: Callable[[Current], None],
        done: Callable[[Any], None],
    ) -> None:
        """``streams`` are those of all event sources that exist, by name of the source."""
        super().__init__(done, pinned=tuple(streams.values()), size=10_000)
        self.proposal, self.streams, self.who = proposal, streams, who
        self.outdated = False
        self.current = proposal.base
        self.deleted: list[Stream] = []
        self._most_keys = most_keys
        self._publish = publish

    def perform(self, batch: Batch) -> None:
        """Write everything, unless the registry has moved on."""
        newest = FeatureRegistry(batch.connection).newest()
        if (0 if newest is None else newest.version) != self.proposal.base.version:
            self.outdated = True
            return
        batch.flush()
        added = [name for name in self._events() if name not in self.streams]
        epochs = {name: batch.new_epoch() for name in ("", *added)}
        before = {stream: batch.heads.get(stream) for stream in self.pinned}
        for stream, head in before.items():
            if head is not None:
                batch.heads[stream] = head.copy()
        try:
            with batch.connection:
                self.current = self._apply(batch, epochs)
        except HeadraceError:
            _restore(batch, before)
            raise
        self._note(batch)
        current, publish = self.current, self._publish
        batch.afterwards.append(lambda: publish(current))

    def _note(self, batch: Batch) -> None:
        plan, change = self.current.document.plan, self.proposal.change
        facts = {
            "added": plan.added,
            "removed": plan.removed,
            "changed": [node["name"] for node in plan.changed],
        }
        version = self.current.version
        batch.note("features_registered", self.who, version=version, app=change.app, action=plan.action, **facts)
        for changed_node in plan.streams:
            what = _TOLD.get(changed_node["change"], "schema_changed")
            facts = {} if what == "stream_deleted" else {"version": changed_node["schema_version"]}
            batch.note(what, self.who, stream=EVENTS + changed_node["event"], **facts)

    def _events(self) -> dict[str, Event]:
        return {name: node for name, node in self.proposal.nodes.items() if isinstance(node, Event)}

    def _apply(self, batch: Batch, epochs: dict[str, int]) -> Current:
        proposal, base = self.proposal, self.proposal.base
        cold, streams = self._let_streams_follow(batch, epochs)
        versions, features = decide(
            base,
            proposal.nodes,
            proposal.diff,
            lambda event: ReadableRange() if event in epochs else self._reach(batch, event),
            backfill=proposal.change.backfill,
            name=lambda feature: f"{feature}@{epochs['']}",
        )
        document = FeatureDocument(
            nodes=dict(proposal.nodes),
            apps=dict(proposal.apps),
            lives=versions,
            cold=cold,
            plan=self._plan(features, streams),
        )
        return self._save(batch, document)

    def _let_streams_follow(
        self, batch: Batch, epochs: dict[str, int]
    ) -> tuple[dict[str, Steps], list[dict[str, Any]]]:
        """Make, change and delete streams; answers when entities are cold, and what became of streams."""
        base, events = self.proposal.base, self._events()
        cold: dict[str, Steps] = {}
        effects: list[dict[str, Any]] = []
        for name, stream in self.streams.items():
            if name not in events:
                self.dropped += delete(batch, stream)
                self.deleted.append(stream)
        for name, event in events.items():
            made, next_seq = self._settle(batch, name, event, epochs)
            steps = () if name in epochs else base.document.cold.get(name, ())
            cold[name] = stepped(steps, event.cold_after_ms, next_seq)
            if made.effect != "kept":
                effects.append({"event": name, "change": made.effect, "schema_version": made.registry.current_version})
        effects += [{"event": stream.name.removeprefix(EVENTS), "change": "deleted"} for stream in self.deleted]
        return cold, effects

    def _reach(self, batch: Batch, event: str) -> ReadableRange:
        head = batch.draft(self.streams[event])
        return ReadableRange(max(head.first_seq, self._registry(batch, event).readable_from), head.next_seq)

    def _plan(self, features: list[dict[str, Any]], streams: list[dict[str, Any]]) -> AppliedChange:
        proposal = self.proposal
        return AppliedChange(
            added=tuple(proposal.diff.added),
            removed=tuple(proposal.diff.removed),
            changed=tuple(proposal.diff.changed),
            action=proposal.change.action,
            force=proposal.change.force,
            features=tuple(features),
            streams=tuple(streams),
        )

    def _save(self, batch: Batch, document: FeatureDocument) -> Current:
        version = self.proposal.base.version + 1
        text = msgspec.json.encode(document).decode()
        registry = FeatureRegistry(batch.connection)
        registry.save(FeatureRegistryRow(version, batch.now_us, self.who, self.proposal.change.app, text))
        gone = registry.drop_before(version - KEPT_VERSIONS + 1)
        batch.published.discard(map(key, gone), batch.now_us)
        return Current(version, document)

    def _registry(self, batch: Batch, name: str) -> StreamRegistry:
        registry = batch.draft(self.streams[name]).registry
        assert registry is not None
        return registry

    def _settle(self, batch: Batch, name: str, event: Event, epochs: dict[str, int]) -> tuple[EventStreamChange, int]:
        """Let the stream of an event source follow it; answers what it became, and its next event."""
        if name in epochs:
            made = created(EVENTS + name, event)
            create(batch, made, epochs[name])
            return made, 0
        stream = self.streams[name]
        head, registry = batch.draft(stream), self._registry(batch, name)
        if head.state != LIVE:
            raise Conflict("the stream of this event source was deleted", stream=stream.name)
        made = evolved(registry, event, head.next_seq)
        if made.effect == "kept":
            return made, head.next_seq
        head.registry = made.compiled(registry, self._most_keys)
        if head.registry.revision != registry.revision:
            _check_room(batch, stream)
            save_registry(batch, stream.id, head.registry)
        batch.streams.update(stream.id, managed=made.rules.dump(), retention_age_us=_age_us(event))
        batch.published.mark(stream.id, batch.now_us)
        return made, head.next_seq


def create(batch: Batch, made: EventStreamChange, epoch: int) -> int:
    """The stream of a new event source; refuses a name that is taken."""
    return create_managed(batch, made.registry, made.rules.dump(), epoch, _age_us(made.rules.event))


def _age_us(event: Event) -> int | None:
    return None if event.keep_events_for_ms is None else event.keep_events_for_ms * 1000


def _check_room(batch: Batch, stream: Stream) -> None:
    revisions, size = batch.registries.size(stream.id)
    if revisions >= MAX_REVISIONS or size > MAX_HISTORY_BYTES:
        raise RegistryFull(f"the schema of {stream.name} has changed too often", stream=stream.name)


def _restore(batch: Batch, before: dict[Stream, Any]) -> None:
    """Let the drafts of a batch be what they were."""
    for stream, head in before.items():
        if head is None:
            batch.heads.pop(stream, None)
        else:
            batch.heads[stream] = head
