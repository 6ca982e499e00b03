"""Changes of the stream of an event source: its schema version, the lens or break, and the rules of the source."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from headrace.engine.features.source import MakeSource, SourceRules, source_of
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.schema.descriptor.diff import same_definition
from headrace.schema.descriptor.generated import json_schema, make_lens, make_search_config
from headrace.schema.descriptor.nodes import Event
from headrace.schema.registry import Registry
from headrace.types import Steps

Effect = Literal["created", "lens", "break", "settings", "kept"]


class EventStreamChange(NamedTuple):
    """The registry of a stream and the rules of its source after a change, and what the change was."""

    registry: Registry
    rules: SourceRules
    effect: Effect

    @property
    def is_revised(self) -> bool:
        """Whether the registry has another revision."""
        return self.effect in ("lens", "break")

    @property
    def retention_age_us(self) -> int | None:
        """How long events are kept; None is for ever."""
        kept_ms = self.rules.event.keep_events_for_ms
        return None if kept_ms is None else kept_ms * 1000

    def compiled(self, base: StreamRegistry | None, make_source: MakeSource) -> StreamRegistry:
        """Both ready for use, as the next revision, or as the same one where the registry stays as it is."""
        revision = 1 if base is None else base.revision + self.is_revised
        return StreamRegistry(self.registry, revision, make_source(self.rules))


def created(stream: str, event: Event) -> EventStreamChange:
    """A stream that begins with an event source."""
    registry = _searchable(Registry.empty(stream).advanced(json_schema(event), None, 0), event)
    return EventStreamChange(registry, SourceRules(event, kept=((0, event.keep_events_for_ms),)), "created")


def evolved(before: StreamRegistry, new: Event, next_seq: int) -> EventStreamChange:
    """A stream whose event source changes before its next event."""
    registry, old = before.registry, source_of(before).rules
    if same_definition(old.event, new):
        return EventStreamChange(registry, old, "kept")
    effect: Effect = "settings"
    schema = json_schema(new)
    if schema != registry.current_schema:
        document = _lens(registry, old.event, new)
        effect = "break" if document is None else "lens"
        registry = _searchable(registry.advanced(schema, document, next_seq), new)
    forgets = (old.event.dedupe_key, old.event.dedupe_window_ms) != (new.dedupe_key, new.dedupe_window_ms)
    rules = SourceRules(
        new,
        kept=_kept(old.kept, old.event.keep_events_for_ms, new.keep_events_for_ms, next_seq),
        dedupe_since=next_seq if forgets else old.dedupe_since,
    )
    return EventStreamChange(registry, rules, effect)


def _searchable(registry: Registry, event: Event) -> Registry:
    return msgspec.structs.replace(registry, search=make_search_config(event, registry.current_version))


def _lens(registry: Registry, old: Event, new: Event) -> dict[str, object] | None:
    """The lens of a change as the registry of its stream wants it; None where no lens is sound."""
    document = make_lens(old, new)
    version = registry.current_version
    return None if document is None else {**document, "schema": registry.schema, "from": version, "to": version + 1}


def stepped(steps: Steps, value: int | None, next_seq: int) -> Steps:
    """A setting that changes with the next event, unless it has this value already."""
    if steps and steps[-1][1] == value:
        return steps
    return (*(step for step in steps if step[0] < next_seq), (next_seq, value)) if next_seq else ((0, value),)


def _kept(steps: Steps, old: int | None, new: int | None, next_seq: int) -> Steps:
    """The retention of events: a longer one applies to later events, a shorter one to all."""
    if new is not None and (old is None or new < old):
        return tuple((since, new if kept is None else min(kept, new)) for since, kept in steps)
    return stepped(steps, new, next_seq)
