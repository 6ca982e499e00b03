"""Which keys of fragments may become fields, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from headrace.reduce.fragments.stats import Stats
from headrace.schema.entity.names import is_field_name
from headrace.schema.entity.nodes import Schema

_NAME = re.compile("(?!_)[A-Za-z0-9_]{2,50}(?<!_)")
_ENDINGS = (
    *("_id", "_ids", "_gid", "_gids", "_date", "_time", "_at", "_amount", "_price", "_cost", "_name", "_names"),
    *("_email", "_url", "_link", "_address", "_phone", "_path", "_html", "_workspace"),
)
_BEGINNINGS = ("is_", "has_", "can_", "should_")
_EXACT = ("urgency", "recurrence")
#: Numbers of these are no moments, however great.
_NO_MOMENTS = ("_id", "_ids", "_gid", "_gids", "_amount", "_price", "_cost", "_phone")


class Banned(msgspec.Struct, frozen=True):
    """Names that are never promoted: a pattern in which ``*`` stands for anything, of one type or user, or of all."""

    pattern: str
    entity_type: str | None = None
    user_id: str | None = None

    def covers(self, name: str, entity_type: str, user_id: str | None) -> bool:
        """Whether a key of a type is banned; for everyone where it is banned for one user only, it is not."""
        pattern = ".*".join(re.escape(part) for part in self.pattern.split("*"))
        return (
            self.entity_type in (None, entity_type)
            and self.user_id in (None, user_id)
            and re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL) is not None
        )


BANNED = (Banned("_test*"), Banned("*_debug"))


def is_sound(name: str) -> bool:
    """Whether a field that is proposed automatically may have this name."""
    return _NAME.fullmatch(name) is not None and is_field_name(name)


def is_telling(name: str) -> bool:
    """Whether the name is of a kind that fields often have."""
    lower = name.lower()
    return lower.endswith(_ENDINGS) or lower.startswith(_BEGINNINGS) or lower in _EXACT


def may_be_moment(name: str) -> bool:
    """Whether great numbers under this name may be moments."""
    return not f"_{name.lower()}".endswith(_NO_MOMENTS)


TOO_FEW = "too_few_occurrences"
TOO_FEW_SOURCES = "too_few_sources"
TOO_FEW_USERS = "too_few_users"
MIXED = "mixed_types"
UNSURE = "low_confidence"
NO_VALUES = "no_values"
NO_CONVERTER = "no_converter"
BLACKLISTED = "blacklisted"
BAD_NAME = "invalid_name"
DECIDED = "decided"


class Reason(msgspec.Struct, frozen=True):
    """A code and a sentence."""

    code: str
    message: str


def of_name(name: str, schema: Schema, user_id: str | None, banned: Iterable[Banned]) -> Iterator[Reason]:
    """The objections to a key that its name alone gives."""
    for each in banned:
        if each.covers(name, schema.entity_type, user_id):
            yield Reason(BLACKLISTED, f"{each.pattern!r} is never promoted")
    if name not in schema.schema_definition.fields and not is_sound(name):
        yield Reason(BAD_NAME, "a name has 2 to 50 letters, digits and underscores, and none of these at its ends")


TRUSTED = ("llm_summary", "import", "sync")

_STEP = 0.05
#: Shares are compared up to rounding.
_ROUNDING = 1e-9


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds for promoting fragments; ``user_id`` is the user whose schema may change, None for everyone's.

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

    def thresholds(self, stats: Stats) -> Thresholds:
        """The thresholds for the fragments of one key."""
        occurrences, min_share = self.min_occurrences, self.min_share
        if self.user_id is None and self.global_conservative:
            occurrences, min_share = 2 * occurrences, min(1.0, min_share + _STEP)
        elif self.user_id is not None and self.trusted_source_relaxation and self._trusts(stats):
            occurrences, min_share = -(-occurrences // 2), min_share - _STEP
        return Thresholds(occurrences, self.min_sources, min_share)

    def _trusts(self, stats: Stats) -> bool:
        """Whether more values come from a kind of source that is trusted than from any other."""
        kinds = stats.kinds
        return bool(kinds) and max(sorted(kinds), key=lambda kind: kinds[kind]) in self.trusted_kinds


class Thresholds(NamedTuple):
    """The least numbers that are evidence."""

    occurrences: int
    sources: int
    min_share: float

    def is_share(self, part: int, total: int) -> bool:
        """Whether a part of the values reaches the least share."""
        return part >= (self.min_share - _ROUNDING) * total
