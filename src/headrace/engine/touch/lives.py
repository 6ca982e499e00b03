"""The lives of templates as records: who came in, who was retired, and who had to make room."""

from __future__ import annotations

from collections import deque
from time import time
from typing import Any

from headrace.engine.log.stream import Stream
from headrace.engine.touch.roster import Active
from headrace.profiles.state_protocol import keys
from headrace.types import rfc3339

_MOST = 10_000


class Lives:
    """What became of templates, until someone asks for it; where nobody does, the oldest is forgotten."""

    def __init__(self) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=_MOST)

    def activated(self, stream: Stream, actives: list[Active]) -> None:
        """These came in."""
        self._note("live.template_activated", stream, actives, "declared")

    def evicted(self, stream: Stream, actives: list[Active]) -> None:
        """These made room."""
        self._note("live.template_evicted", stream, actives, "cap_exceeded")

    def retired(self, stream: Stream, actives: list[Active]) -> None:
        """These were used by nobody."""
        self._note("live.template_retired", stream, actives, "inactivity")

    def take(self) -> list[dict[str, Any]]:
        """What was noted since the last time."""
        found = list(self._records)
        self._records.clear()
        return found

    def _note(self, kind: str, stream: Stream, actives: list[Active], reason: str) -> None:
        for active in actives:
            template = active.template
            record = {
                "type": kind,
                "ts": rfc3339(int(time() * 1_000_000)),
                "stream": stream.name,
                "templateId": keys.text(template.id),
                "entity": template.entity,
                "fields": [field.name for field in template.fields],
                "encodings": [field.encoding for field in template.fields],
                "lastSeenAt": rfc3339(int(active.seen_ms * 1000)),
                "inactivityTtlMs": active.ttl_ms,
                "reason": reason,
            }
            self._records.append(record)
