"""What comes of holding a proposal against events: counts, and the first events that would fail.

Findings can be added up over adjacent or distant ranges, in any order.
"""

from __future__ import annotations

import heapq
from typing import Annotated, Literal

import msgspec

#: How many events that would fail are named.
MOST_NAMED = 100
MOST_TEXT = 300

#: What an event fails at: a lens on its way, or the proposed schema in the end.
Cause = Literal["lens", "schema"]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class Misfit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event that would fail: where in it, and why.

    At a lens the pointer leads into the event as it came there, else into what the lenses made of it.
    """

    seq: Count
    cause: Cause
    pointer: _Text
    reason: _Text


class Findings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many events were looked at, how many of them would fail at what, and the first of those."""

    events: Count = 0
    lens: Count = 0
    schema: Count = 0
    misfits: Annotated[tuple[Misfit, ...], msgspec.Meta(max_length=MOST_NAMED)] = ()

    @property
    def failing(self) -> int:
        """How many events would fail."""
        return self.lens + self.schema

    def __add__(self, other: Findings) -> Findings:
        """What was found in both, which have no event in common."""
        if not other.misfits:
            misfits = self.misfits
        else:
            misfits = tuple(heapq.merge(self.misfits, other.misfits, key=_seq))[:MOST_NAMED]
        return Findings(self.events + other.events, self.lens + other.lens, self.schema + other.schema, misfits)


def _seq(misfit: Misfit) -> int:
    return misfit.seq
