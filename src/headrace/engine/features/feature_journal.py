"""The feature registry as a journal: published version by version; a recovery lets streams of event sources follow it.

The registry in the store is at least as new as any stream there. A stream may lack events that were lost; whatever
begins with one of those begins with the next event instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from headrace.engine.features.registry import EVENTS, AppliedChange, FeatureDocument, load
from headrace.engine.features.source import EventSource, SourceRules, source_of
from headrace.engine.features.stream_changes import created, evolved
from headrace.engine.history.journal import Journal, ReportProblem
from headrace.engine.history.stored_events import Events
from headrace.engine.log.append import dedupe_horizon
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import create_managed, save_registry
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.format import feature_registry as format_
from headrace.format.decoded_columns import DecodedCache
from headrace.schema.descriptor.nodes import Event, Life
from headrace.schema.registry import Registry
from headrace.storage.database import Connection
from headrace.storage.dedupe import Dedupe
from headrace.storage.feature_registry import FeatureRegistry, FeatureRegistryRow
from headrace.storage.published import DeletedStream, Published
from headrace.storage.streams import DELETED, StreamRow
from headrace.types import Steps

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

_PAGE = 500
_SLICE_BYTES = 1024 * 1024


class FeatureJournal(Journal[FeatureRegistryRow]):
    """Versions of the feature registry; each is whole, so that the newest one is enough."""

    name = "feature_registry"
    prefix = format_.FEATURES
    object_records = 1
    reread_key = "dedupe_due"

    def rows(self, connection: Connection) -> FeatureRegistry:
        """The versions in the database."""
        return FeatureRegistry(connection)

    def number(self, row: FeatureRegistryRow) -> int:
        """The version."""
        return row.version

    def size(self, row: FeatureRegistryRow) -> int:
        """The length of the document."""
        return len(row.document)

    def key(self, number: int) -> str:
        """The key of a version."""
        return format_.key(number)

    def number_of(self, key: str) -> int | None:
        """The version that a key stands for."""
        return format_.version_of(key)

    def encode(self, rows: list[FeatureRegistryRow]) -> bytes:
        """An object, which holds one version."""
        (row,) = rows
        document = msgspec.Raw(row.document.encode())
        return format_.encode(format_.StoredVersion(row.version, row.at_us, row.who, row.app, document))

    def decode(self, data: bytes, key: str) -> list[FeatureRegistryRow]:
        """The version that an object holds."""
        stored = format_.decode(data, key)
        document = bytes(stored.document).decode()
        return [FeatureRegistryRow(stored.version, stored.at_us, stored.who, stored.app, document)]

    def restore(self, batch: Batch, new_epoch: Callable[[], int], report: ReportProblem) -> None:
        """Let the streams of event sources follow the newest version."""
        registry = self.rows(batch.connection)
        history = list(_history(registry))
        _judge_strangers(batch, history, report)
        if not history:
            return
        batch.streams.set_meta(self.reread_key, 1)
        document = load(history[-1])
        for name, node in document.nodes.items():
            if isinstance(node, Event):
                _follow(batch, name, _lives_of(history, name), new_epoch, report)
        clamped = _clamped(batch, document)
        if clamped != document:
            version, app = history[-1].version + 1, history[-1].app
            clamped = msgspec.structs.replace(clamped, plan=AppliedChange(action="recovery"))
            text = msgspec.json.encode(clamped).decode()
            registry.save(FeatureRegistryRow(version, batch.now_us, "recovery", app, text))

    def reread(
        self,
        batch: Batch,
        find: Callable[[str], Stream | None],
        connection: Connection,
        segments: Callable[[], Segments],
    ) -> None:
        """Read the keys of events that are stored once, as far back as their sources remember them."""
        dedupe = Dedupe(batch.connection)
        for row in managed(batch):
            stream = find(row.name)
            if stream is not None:
                dedupe.save(_keys(stream, connection, segments, batch.now_us))
        batch.streams.set_meta(self.reread_key, 0)


def _history(registry: FeatureRegistry) -> Iterator[FeatureRegistryRow]:
    after = 0
    while rows := registry.page(after, _PAGE):
        yield from rows
        after = rows[-1].version


def _lives_of(history: list[FeatureRegistryRow], name: str) -> list[Event]:
    """What an event source was since it was last added, the newest last."""
    events: list[Event] = []
    for row in reversed(history):
        node = load(row).nodes.get(name)
        if not isinstance(node, Event):
            break
        if not events or events[-1] != node:
            events.append(node)
    return events[::-1]


def _follow(batch: Batch, name: str, events: list[Event], new_epoch: Callable[[], int], report: ReportProblem) -> None:
    """Let the stream of an event source become what the source is now."""
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
    registry = StreamRegistry(Registry.load(document), row.revision, EventSource(rules, 0))
    matching = [at for at, event in enumerate(events) if event == rules.event]
    for event in events[matching[-1] + 1 if matching else 0 :]:
        made = evolved(registry, event, row.next_seq)
        registry, before = made.compiled(registry, 0), registry
        if registry.revision != before.revision:
            save_registry(batch, row.id, registry)
    rules = _clamped_rules(source_of(registry).rules, row.next_seq)
    kept_ms = rules.event.keep_events_for_ms
    age_us = None if kept_ms is None else kept_ms * 1000
    batch.streams.update(row.id, managed=rules.dump(), retention_age_us=age_us)


def _judge_strangers(batch: Batch, history: list[FeatureRegistryRow], report: ReportProblem) -> None:
    """Streams of event sources that the registry does not have: those that it once had were removed, and go.

    Of the others it lost the version that made them, so they stay as they are.
    """
    if not any(managed(batch)):
        return
    current_names, all_names = set[str](), set[str]()
    for row in history:
        current_names = {name for name, node in load(row).nodes.items() if isinstance(node, Event)}
        all_names |= current_names
    for stream in list(managed(batch)):
        name = stream.name.removeprefix(EVENTS)
        if name in all_names - current_names:
            batch.streams.update(stream.id, state=DELETED, deadline_us=batch.now_us)
            batch.streams.discard(stream.id)
            batch.published.mark_deleted(DeletedStream(stream.incarnation, stream.name))
        elif name not in current_names:
            report(f"{stream.name!r} is the stream of an event source that the feature registry in the store lacks")


def managed(batch: Batch) -> Iterator[StreamRow]:
    """The streams of event sources."""
    after = 0
    while rows := batch.streams.retained(after, _PAGE):
        yield from (row for row in rows if row.managed and row.name.startswith(EVENTS))
        after = rows[-1].id


def _clamped(batch: Batch, document: FeatureDocument) -> FeatureDocument:
    """The registry with nothing that begins after the next event of its source."""
    ends = {row.name.removeprefix(EVENTS): row.next_seq for row in managed(batch)}
    roots = {table: document.root_of(table) for table in document.lives}
    versions = {
        table: {
            name: Life(life.id, min(life.birth, ends.get(roots[table], life.birth)))
            for name, life in table_lives.items()
        }
        for table, table_lives in document.lives.items()
    }
    cold = {event: _clamped_steps(steps, ends.get(event, 0)) for event, steps in document.cold.items()}
    return msgspec.structs.replace(document, lives=versions, cold=cold)


def _clamped_rules(rules: SourceRules, next_seq: int) -> SourceRules:
    kept = _clamped_steps(rules.kept, next_seq)
    return msgspec.structs.replace(rules, kept=kept, dedupe_since=min(rules.dedupe_since, next_seq))


def _clamped_steps(steps: Steps, next_seq: int) -> Steps:
    """Steps of which none begins after the next event; of several that begin with it the last counts."""
    return tuple({min(since, next_seq): (min(since, next_seq), value) for since, value in steps}.values())


def _keys(
    stream: Stream, connection: Connection, segments: Callable[[], Segments], now_us: int
) -> Iterator[tuple[int, str, int, int]]:
    head = stream.head
    hook = None if head.registry is None else head.registry.hook
    if hook is None or not hook.dedupes:
        return
    since, since_us = dedupe_horizon(hook, head.next_seq, now_us)
    placed = Published(connection).first_from(stream.id, since_us)
    at = max(head.first_seq, since, head.published_seq if placed is None else placed.segment.first_seq)
    events = Events(connection, segments, DecodedCache(0), stream, head)
    for run in events.runs(at, head.next_seq, _SLICE_BYTES):
        for number, key in enumerate(hook.unique_keys(run.body)):
            if key is not None and run.times_us[number] > since_us:
                yield stream.id, key, run.first_seq + number, run.times_us[number]
