"""Patterns over stream names: ``*`` is one segment, ``**`` any number of them."""

from __future__ import annotations

from enum import Enum
from itertools import takewhile

from headrace.types import RESERVED

#: The first segment of the streams of entities.
ENTITIES = "entities"


class Star(Enum):
    """The wildcards of a pattern."""

    ONE = "*"
    ANY = "**"


class Glob:
    """A pattern; a star inside a segment is written ``%2A``."""

    def __init__(self, pattern: str) -> None:
        self._parts = [_part(segment) for segment in pattern.split("/") if segment]
        if not self._parts:
            raise ValueError("the pattern is empty")

    @property
    def prefix(self) -> str:
        """Text that every matching name begins with."""
        plain = list(takewhile(lambda part: not isinstance(part, Star), self._parts))
        text, stars = "/".join(str(part) for part in plain), self._parts[len(plain) :]
        return text + "/" if text and any(part is not Star.ANY for part in stars) else text

    @property
    def takes_all_below(self) -> bool:
        """Whether it matches the stream of its prefix, and every stream below it."""
        return self._parts[-1] is Star.ANY and bool(self.prefix) and not self.prefix.endswith("/")

    def matches(self, name: str) -> bool:
        """Whether the whole name matches, in time of at most the length of the name times that of the pattern.

        Streams of entities and system streams match only where the pattern names their first segment: not every key
        may see that they exist.
        """
        segments, parts = name.split("/"), self._parts
        if (segments[0] == ENTITIES or name.startswith(RESERVED)) and parts[0] != segments[0]:
            return False
        at = i = 0
        star, resume = -1, 0
        while at < len(segments):
            part = parts[i] if i < len(parts) else None
            if part is Star.ANY:
                star, resume = i, at
                i += 1
            elif part is Star.ONE or part == segments[at]:
                i, at = i + 1, at + 1
            elif star >= 0:
                resume += 1
                i, at = star + 1, resume
            else:
                return False
        return all(part is Star.ANY for part in parts[i:])


def _part(segment: str) -> str | Star:
    if segment in ("*", "**"):
        return Star(segment)
    if "*" in segment:
        raise ValueError(f"a star stands for a whole segment, not for part of {segment!r}; write %2A for the character")
    return segment.replace("%2A", "*").replace("%2a", "*")
