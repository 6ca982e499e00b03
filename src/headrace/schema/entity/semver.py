"""Versions of entity schemas: three numbers, of which the last may be left out."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

_SYNTAX = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?")


class Bump(IntEnum):
    """How far a change moves the version."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


class Version(NamedTuple):
    """A version; the order of versions is that of their numbers."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def bumped(self, bump: Bump) -> Version:
        """The next version of this kind."""
        if bump is Bump.MAJOR:
            return Version(self.major + 1, 0)
        if bump is Bump.MINOR:
            return Version(self.major, self.minor + 1)
        return self._replace(patch=self.patch + 1) if bump is Bump.PATCH else self


def parse(text: object) -> Version | None:
    """The version that ``1.2`` or ``1.2.3`` means, or None where it is none."""
    match = _SYNTAX.fullmatch(text) if isinstance(text, str) else None
    return Version(*(int(part or 0) for part in match.groups())) if match else None


def distance(old: Version, new: Version) -> Bump:
    """What kind of step leads from one version to a later one."""
    if new <= old:
        return Bump.NONE
    if new.major > old.major:
        return Bump.MAJOR
    return Bump.MINOR if new.minor > old.minor else Bump.PATCH


def next_free_version(base: Version, bump: Bump, taken: Collection[Version] = ()) -> Version:
    """The first version after a base, by steps of this kind, that nobody has taken."""
    version = base.bumped(bump)
    while version in taken and bump is not Bump.NONE:
        version = version.bumped(bump)
    return version
