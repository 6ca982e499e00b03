"""When fragments are evidence enough, as the enhancement of a type is set.

The numbers that hold unless something else is asked for: three values, from two sources, 95 % of them of one type. A
cautious change of everyone's schema asks for twice as many, and 5 % more of them. A user's own schema that is fed by
sources that are trusted is content with half as many, and 5 % less.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.reduce.fragments.naming import BANNED, Banned
from headrace.reduce.fragments.stats import Stats

TRUSTED = ("llm_summary", "import", "sync")

_STEP = 0.05
#: Shares are compared up to rounding.
_ROUNDING = 1e-9


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of fragments; ``user_id`` is the user whose schema may change, None for everyone's.

    ``decided`` are keys on which somebody has decided, so that nothing is done about them again.
    """

    user_id: str | None = None
    min_occurrences: int = 3
    min_sources: int = 2
    min_share: float = 0.95
    global_conservative: bool = False
    trusted_source_relaxation: bool = False
    trusted_kinds: tuple[str, ...] = TRUSTED
    banned: tuple[Banned, ...] = BANNED
    decided: frozenset[str] = frozenset()

    def bar(self, stats: Stats) -> Bar:
        """What is asked of the fragments of one key."""
        occurrences, share = self.min_occurrences, self.min_share
        if self.user_id is None and self.global_conservative:
            occurrences, share = 2 * occurrences, min(1.0, share + _STEP)
        elif self.user_id is not None and self.trusted_source_relaxation and self._trusts(stats):
            occurrences, share = -(-occurrences // 2), share - _STEP
        return Bar(occurrences, self.min_sources, share)

    def _trusts(self, stats: Stats) -> bool:
        """Whether more values come from a kind of source that is trusted than from any other."""
        kinds = stats.kinds
        return bool(kinds) and max(sorted(kinds), key=lambda kind: kinds[kind]) in self.trusted_kinds


class Bar(NamedTuple):
    """The least numbers that are evidence."""

    occurrences: int
    sources: int
    share: float

    def is_share(self, part: int, whole: int) -> bool:
        """Whether a part of values is great enough."""
        return part >= (self.share - _ROUNDING) * whole
