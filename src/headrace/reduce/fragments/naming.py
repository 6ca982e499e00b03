"""Which keys of fragments may become fields, by their names."""

from __future__ import annotations

import re

import msgspec

from headrace.schema.entity.fields import is_name

_NAME = re.compile("(?!_)[A-Za-z0-9_]{2,50}(?<!_)")
_ENDINGS = (
    *("_id", "_ids", "_gid", "_gids", "_date", "_time", "_at", "_amount", "_price", "_cost", "_name", "_names"),
    *("_email", "_url", "_link", "_address", "_phone", "_path", "_html", "_workspace"),
)
_BEGINNINGS = ("is_", "has_", "can_", "should_")
_WHOLE = ("urgency", "recurrence")
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
    """Whether a field that nobody asked for may have this name."""
    return _NAME.fullmatch(name) is not None and is_name(name)


def is_telling(name: str) -> bool:
    """Whether the name is of a kind that fields often have."""
    lower = name.lower()
    return lower.endswith(_ENDINGS) or lower.startswith(_BEGINNINGS) or lower in _WHOLE


def may_be_moment(name: str) -> bool:
    """Whether great numbers under this name may be moments."""
    return not f"_{name.lower()}".endswith(_NO_MOMENTS)
