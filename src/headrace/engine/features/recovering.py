"""A recovery takes the feature registry over from the object store, and lets the streams of event sources follow it.

The registry in the store is at least as new as any stream there. A stream may lack events that were lost; whatever
begins with one of those begins with the next event instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from headrace.engine.features import publishing
from headrace.engine.features.applying import create
from headrace.engine.features.evolving import created, evolved
from headrace.engine.features.registry import EVENTS, Document, Plan, load
from headrace.engine.features.source import Rules, Source, source_of
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import save_registry
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.errors import CorruptData
from headrace.format import feature_registry as format_
from headrace.schema.descriptor.nodes import Event, Life
from headrace.schema.registry import Registry
from headrace.storage.feature_registry import FeatureRegistry, FeatureRegistryRow
from headrace.storage.objects import Objects
from headrace.storage.published import Grave
from headrace.storage.streams import DELETED, StreamRow
from headrace.types import Steps

#: Set while the keys of events have to be read from the events again.
DEDUPE_DUE = "dedupe_due"
_PAGE = 500


def recover(objects: Objects, batch: Batch, new_epoch: Callable[[], int], complain: Callable[[str], None]) -> None:
    """Bring the feature registry up to what the store has, after its streams."""
    registry = FeatureRegistry(batch.connection)
    _take_versions(objects, registry, complain)
    history = list(_history(registry))
    _judge_strangers(batch, history, complain)
    if not history:
        return
    batch.streams.set_meta(DEDUPE_DUE, 1)
    document = load(history[-1])
    for name, node in document.nodes.items():
        if isinstance(node, Event):
            _follow(batch, name, _lives_of(history, name), new_epoch, complain)
    clamped = _clamped(batch, document)
    if clamped != document:
        version, app = history[-1].version + 1, history[-1].app
        clamped = msgspec.structs.replace(clamped, plan=Plan(action="recovery"))
        text = msgspec.json.encode(clamped).decode()
        registry.save(FeatureRegistryRow(version, batch.now_us, "recovery", app, text))


def _take_versions(objects: Objects, registry: FeatureRegistry, complain: Callable[[str], None]) -> None:
    """Every version in the store counts; what is here alone stays only where it follows them."""
    found = sorted(v for info in objects.list(format_.FEATURES) if (v := format_.version_of(info.key)) is not None)
    while objects.has(format_.key(version := found[-1] + 1 if found else 1)):
        found.append(version)  # a listing does not show it yet
    for version in found:
        known = registry.version(version)
        key = format_.key(version)
        try:
            theirs = publishing.row(format_.decode(objects.get(key), key))
        except CorruptData as reason:
            complain(reason.message)
            continue
        if known is not None and known != theirs:
            registry.drop_from(version)
            known = None
        if known is None:
            registry.save(theirs, published=True)
    if found:
        registry.note_published(found[-1])


def _history(registry: FeatureRegistry) -> Iterator[FeatureRegistryRow]:
    after = 0
    while rows := registry.page(after, _PAGE):
        yield from rows
        after = rows[-1].version


def _lives_of(history: list[FeatureRegistryRow], name: str) -> list[Event]:
    """What an event source was since it was last added, the newest last."""
    found: list[Event] = []
    for row in reversed(history):
        node = load(row).nodes.get(name)
        if not isinstance(node, Event):
            break
        if not found or found[-1] != node:
            found.append(node)
    return found[::-1]


def _follow(
    batch: Batch, name: str, events: list[Event], new_epoch: Callable[[], int], complain: Callable[[str], None]
) -> None:
    """Let the stream of an event source become what the source is now."""
    row = batch.streams.by_name(EVENTS + name)
    if row is None or row.state == DELETED:
        create(batch, created(EVENTS + name, events[-1]), new_epoch())
        return
    if not row.managed:
        complain(f"{row.name!r} is the stream of an event source, and somebody else's")
        return
    document = msgspec.json.decode(batch.registries.document(row.id, row.revision))
    rules = Rules.load(row.managed)
    found = StreamRegistry(Registry.load(document), row.revision, Source(rules, 0))
    known = [at for at, event in enumerate(events) if event == rules.event]
    for event in events[known[-1] + 1 if known else 0 :]:
        made = evolved(found, event, row.next_seq)
        found, before = made.compiled(found, 0), found
        if found.revision != before.revision:
            save_registry(batch, row.id, found)
    rules = _clamped_rules(source_of(found).rules, row.next_seq)
    kept_ms = rules.event.keep_events_for_ms
    age_us = None if kept_ms is None else kept_ms * 1000
    batch.streams.update(row.id, managed=rules.dump(), retention_age_us=age_us)


def _judge_strangers(batch: Batch, history: list[FeatureRegistryRow], complain: Callable[[str], None]) -> None:
    """Streams of event sources that the registry does not have: those that it once had were removed, and go.

    Of the others it lost the version that made them, so they stay as they are.
    """
    if not any(managed(batch)):
        return
    known, ever = set[str](), set[str]()
    for row in history:
        known = {name for name, node in load(row).nodes.items() if isinstance(node, Event)}
        ever |= known
    for stream in list(managed(batch)):
        name = stream.name.removeprefix(EVENTS)
        if name in ever - known:
            batch.streams.update(stream.id, state=DELETED, deadline_us=batch.now_us)
            batch.streams.discard(stream.id)
            batch.published.dig(Grave(stream.incarnation, stream.name))
        elif name not in known:
            complain(f"{stream.name!r} is the stream of an event source that the feature registry in the store lacks")


def managed(batch: Batch) -> Iterator[StreamRow]:
    """The streams of event sources."""
    after = 0
    while rows := batch.streams.retained(after, _PAGE):
        yield from (row for row in rows if row.managed and row.name.startswith(EVENTS))
        after = rows[-1].id


def _clamped(batch: Batch, document: Document) -> Document:
    """The registry with nothing that begins after the next event of its source."""
    ends = {row.name.removeprefix(EVENTS): row.next_seq for row in managed(batch)}
    roots = {table: document.root_of(table) for table in document.lives}
    lives = {
        table: {
            name: Life(life.id, min(life.birth, ends.get(roots[table], life.birth))) for name, life in found.items()
        }
        for table, found in document.lives.items()
    }
    cold = {event: _clamped_steps(steps, ends.get(event, 0)) for event, steps in document.cold.items()}
    return msgspec.structs.replace(document, lives=lives, cold=cold)


def _clamped_rules(rules: Rules, next_seq: int) -> Rules:
    kept = _clamped_steps(rules.kept, next_seq)
    return msgspec.structs.replace(rules, kept=kept, dedupe_since=min(rules.dedupe_since, next_seq))


def _clamped_steps(steps: Steps, next_seq: int) -> Steps:
    """Steps of which none begins after the next event; of several that begin with it the last counts."""
    return tuple({min(since, next_seq): (min(since, next_seq), value) for since, value in steps}.values())
