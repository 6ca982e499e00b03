"""What a change does to the answers about a stream: to search fields, rollups and the routing key."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.schema.lens.carry import Effect


class ValueImpact(msgspec.Struct, frozen=True):
    """A setting whose values change or are lost from a schema version on, and the lens operation that does it.

    ``subject`` and ``op`` are pointers: into the registry, and into the request.
    """

    subject: str
    effect: Effect
    from_version: int
    reason: str
    op: str | None = None

    def dump(self) -> dict[str, Any]:
        """The impact as a JSON object."""
        return {
            "subject": self.subject,
            "effect": self.effect.value,
            "from_version": self.from_version,
            "op": self.op,
            "reason": self.reason,
        }
