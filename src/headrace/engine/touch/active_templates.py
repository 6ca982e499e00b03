"""The templates that are active on a stream, and a log of those that were activated, evicted or retired."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from time import time
from typing import Any, Literal, NamedTuple

import msgspec

from headrace import decoding
from headrace.engine.log.stream import Stream
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.keys import Field, InvalidTemplate, Template
from headrace.profiles.state_protocol.profile import Templates
from headrace.storage.touch import TemplateRow
from headrace.types import rfc3339

RATE_LIMITED: Literal["rate_limited"] = "rate_limited"
INVALID: Literal["invalid"] = "invalid"
_FIELDS = decoding.make_decoder(tuple[Field, ...])
_MINUTE_MS = 60_000.0
_NEVER = 2**62


class ActiveTemplate:
    """A template that is in use."""

    __slots__ = ("active_from", "seen_ms", "stored_ms", "template", "ttl_ms")

    def __init__(self, template: Template, active_from: int, seen_ms: float, ttl_ms: float) -> None:
        self.template = template
        #: Changes from here on touch its keys.
        self.active_from = active_from
        self.seen_ms = self.stored_ms = seen_ms
        self.ttl_ms = ttl_ms

    def row(self) -> TemplateRow:
        """The template as it is stored."""
        template = self.template
        fields = msgspec.json.encode(template.fields).decode()
        times = int(self.seen_ms * 1000), int(self.ttl_ms)
        return TemplateRow(keys.format_key(template.id), template.entity, fields, self.active_from, *times)


class Activation(NamedTuple):
    """Which declared templates were activated."""

    #: Those that are active now, and those of them that are new.
    accepted: list[ActiveTemplate]
    added: list[ActiveTemplate]
    evicted: list[ActiveTemplate]
    #: (id, reason) of those that are not active.
    denied: list[tuple[int, str]]


class ActiveTemplates:
    """The active templates of one stream, the least recently used first."""

    def __init__(self, settings: Templates, rows: Iterable[TemplateRow], now_ms: float) -> None:
        self.settings = settings
        self._active: dict[int, ActiveTemplate] = {}
        self._by_entity: dict[str, dict[int, ActiveTemplate]] = {}
        self._tokens = settings.activation_rate_limit_per_minute
        self._filled_ms = now_ms
        for row in rows:
            template = Template(row.entity, _FIELDS.decode(row.fields))
            self._add(ActiveTemplate(template, row.active_from, now_ms, row.ttl_ms))

    def __len__(self) -> int:
        return len(self._active)

    def __iter__(self) -> Iterator[ActiveTemplate]:
        return iter(self._active.values())

    def get(self, template: int) -> ActiveTemplate | None:
        """The template of this id, if it is active."""
        return self._active.get(template)

    def of(self, entity: str) -> Iterable[ActiveTemplate]:
        """The templates of an entity."""
        return self._by_entity.get(entity, {}).values()

    def see(self, templates: Iterable[int], now_ms: float) -> None:
        """Note that templates were used now."""
        for template in templates:
            active = self._active.pop(template, None)
            if active is not None:
                active.seen_ms = now_ms
                self._active[template] = active

    def declare(self, declared: Sequence[Template | InvalidTemplate], ttl_ms: float, now_ms: float) -> Activation:
        """Activate templates as far as the limits allow; new ones see no changes until ``active_from`` is set."""
        activation = Activation([], [], [], [])
        for template in declared:
            if isinstance(template, InvalidTemplate):
                activation.denied.append((0, INVALID))
                continue
            existing = self._active.get(template.id)
            if existing is not None and existing.template.fields != template.fields:
                activation.denied.append((template.id, INVALID))
            elif existing is not None:
                existing.ttl_ms = ttl_ms
                self.see([template.id], now_ms)
                activation.accepted.append(existing)
            elif not (self._take_token(now_ms) and self._make_room(template, activation)):
                activation.denied.append((template.id, RATE_LIMITED))
            else:
                active = ActiveTemplate(template, _NEVER, now_ms, ttl_ms)
                self._add(active)
                activation.accepted.append(active)
                activation.added.append(active)
        return activation

    def remove(self, actives: Iterable[ActiveTemplate]) -> None:
        """Remove templates."""
        for active in actives:
            template = active.template
            if self._active.pop(template.id, None) is not None:
                of_entity = self._by_entity[template.entity]
                del of_entity[template.id]
                if not of_entity:
                    del self._by_entity[template.entity]

    def expired(self, now_ms: float) -> list[ActiveTemplate]:
        """The templates that were not used for longer than their TTL."""
        return [active for active in self._active.values() if active.seen_ms + active.ttl_ms < now_ms]

    def unstored(self, now_ms: float) -> list[ActiveTemplate]:
        """The templates whose last use is due to be stored."""
        old_ms = now_ms - self.settings.last_seen_persist_interval_ms
        return [
            active
            for active in self._active.values()
            if active.seen_ms > active.stored_ms and active.stored_ms <= old_ms
        ]

    def _add(self, active: ActiveTemplate) -> None:
        template = active.template
        self._active[template.id] = active
        self._by_entity.setdefault(template.entity, {})[template.id] = active

    def _make_room(self, template: Template, activation: Activation) -> bool:
        """Evict templates where the limits are reached, but none of this request; False where that is not enough."""
        settings, kept = self.settings, {active.template.id for active in activation.accepted}
        for actives, limit in (
            (self._by_entity.get(template.entity, {}), settings.max_active_templates_per_entity),
            (self._active, settings.max_active_templates_per_stream),
        ):
            while len(actives) >= limit:
                evictable = (active for active in actives.values() if active.template.id not in kept)
                oldest = min(evictable, key=lambda active: active.seen_ms, default=None)
                if oldest is None:
                    return False
                self.remove([oldest])
                activation.evicted.append(oldest)
        return True

    def _take_token(self, now_ms: float) -> bool:
        limit = self.settings.activation_rate_limit_per_minute
        grown = (now_ms - self._filled_ms) * limit / _MINUTE_MS
        self._tokens, self._filled_ms = min(limit, self._tokens + max(0.0, grown)), now_ms
        if limit and self._tokens < 1:
            return False
        self._tokens -= 1 if limit else 0
        return True


_MAX_RECORDS = 10_000


class TemplateLog:
    """Records of activated, evicted and retired templates, at most 10,000; `take` empties it."""

    def __init__(self) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=_MAX_RECORDS)

    def activated(self, stream: Stream, actives: list[ActiveTemplate]) -> None:
        """Record that templates were activated."""
        self._note("live.template_activated", stream, actives, "declared")

    def evicted(self, stream: Stream, actives: list[ActiveTemplate]) -> None:
        """Record that templates were evicted."""
        self._note("live.template_evicted", stream, actives, "cap_exceeded")

    def retired(self, stream: Stream, actives: list[ActiveTemplate]) -> None:
        """Record that unused templates were retired."""
        self._note("live.template_retired", stream, actives, "inactivity")

    def take(self) -> list[dict[str, Any]]:
        """The records since the last call."""
        records = list(self._records)
        self._records.clear()
        return records

    def _note(self, kind: str, stream: Stream, actives: list[ActiveTemplate], reason: str) -> None:
        for active in actives:
            template = active.template
            record = {
                "type": kind,
                "ts": rfc3339(int(time() * 1_000_000)),
                "stream": stream.name,
                "templateId": keys.format_key(template.id),
                "entity": template.entity,
                "fields": [field.name for field in template.fields],
                "encodings": [field.encoding for field in template.fields],
                "lastSeenAt": rfc3339(int(active.seen_ms * 1000)),
                "inactivityTtlMs": active.ttl_ms,
                "reason": reason,
            }
            self._records.append(record)
