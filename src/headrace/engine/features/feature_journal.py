"""The feature registry as a journal: published version by version; a recovery lets streams of event sources follow it.

The registry in the store is at least as new as any stream there. A stream may lack events that were lost; whatever
begins with one of those begins with the next event instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.engine.features.registry import EVENTS, AppliedChange, FeatureDocument, load
from headrace.engine.features.source import EventSource, SourceRules, source_of
from headrace.engine.features.stream_changes import created, evolved
from headrace.engine.history.journal import Journal, ReadRuns, ReportProblem
from headrace.engine.log.append import dedupe_horizon
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import create_managed, save_registry
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.format import journal
from headrace.schema.descriptor.nodes import Event, FeatureVersion, Node
from headrace.schema.registry import Registry
from headrace.storage.dedupe import Dedupe
from headrace.storage.journals import FeatureRegistry, FeatureRegistryRow
from headrace.storage.published import DeletedStream, Published
from headrace.storage.streams import DELETED
from headrace.storage.work import Work
from headrace.types import Steps


class FeatureJournal(Journal[FeatureRegistryRow]):
    """Versions of the feature registry; each is whole, so that the newest one is enough."""

    name = "feature_registry"
    format = journal.FEATURES
    stream_prefix = EVENTS
    reread_key = "dedupe_due"
    rows = FeatureRegistry

    def restore(self, batch: Batch, new_epoch: Callable[[], int], report: ReportProblem) -> None:
        """Update the streams of event sources to the newest version."""
        registry = self.rows(batch.connection)
        history = list(registry.all())
        self._delete_removed(batch, history, report)
        if not history:
            return
        batch.streams.set_meta(self.reread_key, 1)
        document = load(history[-1])
        for name in document.sources:
            row = batch.streams.by_name(document.stream_of(name))
            if row is not None:
                Work(batch.connection).note_bound(row.id)
        for name, node in document.nodes.items():
            if isinstance(node, Event) and node.stream is None:
                _follow(batch, name, _definitions(history, name), new_epoch, report)
        ends = _ends_of_sources(batch, document)
        clamped = _clamped(document, ends)
        if clamped != document:
            version, app = history[-1].version + 1, history[-1].app
            clamped = msgspec.structs.replace(clamped, plan=AppliedChange(action="recovery"))
            text = msgspec.json.encode(clamped).decode()
            registry.save(FeatureRegistryRow(version, batch.now_us, "recovery", app, text))

    def reread_stream(self, batch: Batch, stream: Stream, runs: ReadRuns) -> None:
        """Read the keys of events that are stored once, as far back as their source remembers them."""
        head = stream.head
        hook = None if head.registry is None else head.registry.hook
        if hook is None or not hook.deduplicates:
            return
        since, since_us = dedupe_horizon(hook, head.next_seq, batch.now_us)
        placed = Published(batch.connection).first_from(stream.id, since_us)
        start = max(head.first_seq, since, head.published_seq if placed is None else placed.segment.first_seq)
        Dedupe(batch.connection).save(
            (stream.id, key, run.first_seq + number, run.times_us[number])
            for run in runs(start)
            for number, key in enumerate(hook.dedupe_keys(run.body))
            if key is not None and run.times_us[number] > since_us
        )

    def _delete_removed(self, batch: Batch, history: list[FeatureRegistryRow], report: ReportProblem) -> None:
        """Delete the streams of event sources that were removed from the registry.

        A stream that no version names stays as it is: the version that created it is lost.
        """
        if not any(self.streams(batch)):
            return
        current_names, all_names = set[str](), set[str]()
        for row in history:
            current_names = {name for name, node in load(row).nodes.items() if _has_own_stream(node)}
            all_names |= current_names
        for stream in list(self.streams(batch)):
            name = stream.name.removeprefix(EVENTS)
            if name in all_names - current_names:
                batch.streams.update(stream.id, state=DELETED, deadline_us=batch.now_us)
                batch.streams.discard(stream.id)
                batch.published.mark_deleted(DeletedStream(stream.incarnation, stream.name))
            elif name not in current_names:
                report(f"{stream.name!r} is the stream of an event source that the feature registry in the store lacks")


def _has_own_stream(node: Node) -> bool:
    return isinstance(node, Event) and node.stream is None


def _ends_of_sources(batch: Batch, document: FeatureDocument) -> dict[str, int]:
    """The next event of every source whose stream is there."""
    rows = {
        name: batch.streams.by_name(document.stream_of(name))
        for name, node in document.nodes.items()
        if isinstance(node, Event)
    }
    return {name: row.next_seq for name, row in rows.items() if row is not None and row.state != DELETED}


def _definitions(history: list[FeatureRegistryRow], name: str) -> list[Event]:
    """The definitions of an event source since it was last added, the newest last."""
    events: list[Event] = []
    for row in reversed(history):
        node = load(row).nodes.get(name)
        if not (isinstance(node, Event) and _has_own_stream(node)):
            break
        if not events or events[-1] != node:
            events.append(node)
    return events[::-1]


def _follow(batch: Batch, name: str, events: list[Event], new_epoch: Callable[[], int], report: ReportProblem) -> None:
    """Update the stream of an event source to the newest definition, version by version."""
    row = batch.streams.by_name(EVENTS + name)
    if row is None or row.state == DELETED:
        made = created(EVENTS + name, events[-1])
        create_managed(batch, made.registry, made.rules.dump(), new_epoch(), made.retention_age_us)
        return
    if not row.managed:
        report(f"{row.name!r} is the stream of an event source, and somebody else's")
        return
    document = msgspec.json.decode(batch.registries.document(row.id, row.revision))
    rules = SourceRules.load(row.managed)
    registry = StreamRegistry(Registry.load(document), row.revision, EventSource(rules))
    matching = [at for at, event in enumerate(events) if event == rules.event]
    for event in events[matching[-1] + 1 if matching else 0 :]:
        made = evolved(registry, event, row.next_seq)
        registry, before = made.compiled(registry, EventSource), registry
        if registry.revision != before.revision:
            save_registry(batch, row.id, registry)
    rules = _clamped_rules(source_of(registry).rules, row.next_seq)
    kept_ms = rules.event.keep_events_for_ms
    age_us = None if kept_ms is None else kept_ms * 1000
    batch.streams.update(row.id, managed=rules.dump(), retention_age_us=age_us)


def _clamped(document: FeatureDocument, ends: Mapping[str, int]) -> FeatureDocument:
    """The registry with nothing that begins after the next event of its source, given the ends of their streams."""
    roots = {table: document.root_of(table) for table in document.feature_versions}
    versions = {
        table: {
            name: FeatureVersion(version.id, min(version.birth, ends.get(roots[table], version.birth)))
            for name, version in features.items()
        }
        for table, features in document.feature_versions.items()
    }
    cold = {event: _clamped_steps(steps, ends.get(event, 0)) for event, steps in document.cold.items()}
    return msgspec.structs.replace(document, feature_versions=versions, cold=cold)


def _clamped_rules(rules: SourceRules, next_seq: int) -> SourceRules:
    kept = _clamped_steps(rules.kept, next_seq)
    return msgspec.structs.replace(rules, kept=kept, dedupe_since=min(rules.dedupe_since, next_seq))


def _clamped_steps(steps: Steps, next_seq: int) -> Steps:
    """Steps of which none begins after the next event; of several that begin with it the last counts."""
    return tuple({min(since, next_seq): (min(since, next_seq), value) for since, value in steps}.values())
