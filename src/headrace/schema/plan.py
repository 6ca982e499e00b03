"""A plan: everything that a change request would do, known before anything is done.

Dry run, explanation and application all walk the same plan. It knows nothing of streams: any registry whose
versions can be dumped as a document can be what a plan leads to.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from headrace.schema.change import Change, Classification, worst
from headrace.schema.lens.carry import CarryEffect


class ValueImpact(msgspec.Struct, frozen=True):
    """A setting whose values change or are lost from a schema version on, and the lens operation that does it.

    ``subject`` and ``op`` are pointers: into the registry, and into the request.
    """

    subject: str
    effect: CarryEffect
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


class Document(Protocol):
    """Something that can be written as JSON."""

    def dump(self) -> dict[str, Any]:
        """The value as a JSON object."""


Outcome = TypeVar("Outcome", bound=Document)


class Refusal(msgspec.Struct, frozen=True):
    """Why a plan cannot be applied: a stable code, where in the request, and a sentence; facts where there are any."""

    code: str
    pointer: str
    message: str
    facts: Mapping[str, Any] = {}

    def dump(self) -> dict[str, Any]:
        """The refusal as a JSON object."""
        return {"code": self.code, "pointer": self.pointer, "message": self.message, **self.facts}


class PlannedLens(msgspec.Struct, frozen=True):
    """The lens that carries older events over the change, and whether it was written by us."""

    document: Any
    written: bool = False


class Effect(StrEnum):
    """What happens to derived data."""

    KEPT = "kept"
    REBUILT = "rebuilt"
    CLEARED = "cleared"


class Impact(msgspec.Struct, frozen=True):
    """What a plan does to one reducer, and how much that holds."""

    subject: str
    effect: Effect
    counts: Mapping[str, int] = {}

    def dump(self) -> dict[str, Any]:
        """The impact as a JSON object."""
        return {"subject": self.subject, "effect": self.effect.value, **self.counts}


class Plan(msgspec.Struct, Generic[Outcome], frozen=True, kw_only=True):
    """What a change request would do; ``registry`` is what it leads to, or what stays where it is refused.

    Versions are numbers or, where a registry counts so, texts. ``reasons`` are sentences about the plan as a whole.
    ``requires_force`` says that the plan may be applied only when forced; a refused plan can not be forced.
    """

    subject: str
    from_version: int | str
    to_version: int | str
    registry: Outcome
    changes: tuple[Change, ...] = ()
    reasons: tuple[str, ...] = ()
    lens: PlannedLens | None = None
    impact: tuple[Impact | ValueImpact, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    requires_force: bool = False

    @property
    def classification(self) -> Classification:
        """How much the changes may break, taken together."""
        return worst(self.changes)

    @property
    def changes_nothing(self) -> bool:
        """Whether everything is already as requested."""
        return not (self.changes or self.refusals) and self.from_version == self.to_version

    def dump(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "subject": self.subject,
            "from_version": self.from_version,
            "to_version": self.to_version,
            "classification": self.classification.value,
            "requires_force": self.requires_force,
            "changes": [change.dump() for change in self.changes],
            "reasons": list(self.reasons),
            "lens": None if self.lens is None else {"document": self.lens.document, "written": self.lens.written},
            "impact": [impact.dump() for impact in self.impact],
            "refusals": [refusal.dump() for refusal in self.refusals],
            "registry": self.registry.dump(),
        }
