"""One difference between two versions of a schema."""

from __future__ import annotations

from typing import NamedTuple

from headrace.schema import pointer
from headrace.schema.change import Change, Classification
from headrace.schema.entity.semver import Bump


class Difference(NamedTuple):
    """A change, and how far it alone moves the version."""

    change: Change
    bump: Bump


class Site(NamedTuple):
    """Where in a schema something differs; each kind of difference has one class and one bump."""

    path: pointer.Pointer

    def breaks(self, what: str, reason: str) -> Difference:
        """Something that worked may not work any more."""
        return self._made(what, Classification.DESTRUCTIVE, reason, Bump.MAJOR)

    def shifts(self, what: str, reason: str) -> Difference:
        """Snapshots may show other values; nothing is lost."""
        return self._made(what, Classification.DESTRUCTIVE, reason, Bump.MINOR)

    def widens(self, what: str, reason: str) -> Difference:
        """More is accepted than before."""
        return self._made(what, Classification.WIDENING, reason, Bump.MINOR)

    def adds(self, what: str, reason: str) -> Difference:
        """Something is new, or does more."""
        return self._made(what, Classification.ADDITIVE, reason, Bump.MINOR)

    def rewords(self, what: str, reason: str) -> Difference:
        """Only people see the difference."""
        return self._made(what, Classification.IDENTICAL, reason, Bump.PATCH)

    def _made(self, what: str, classification: Classification, reason: str, bump: Bump) -> Difference:
        return Difference(Change(pointer.text(self.path), what, classification, reason), bump)
