"""Changes and their classification, shared by all registries."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec


class Classification(StrEnum):
    """How much a change may break, from nothing to everything."""

    IDENTICAL = "identical"
    """No change in meaning."""
    ADDITIVE = "additive"
    """Something is new; what exists stays as it is."""
    WIDENING = "widening"
    """More is allowed than before; what exists stays valid."""
    DESTRUCTIVE = "destructive"
    """Something that exists breaks or is lost, unless a lens carries it or force is given."""
    FORBIDDEN = "forbidden"
    """Not allowed, forced or not."""

    @property
    def breaking(self) -> bool:
        """Whether something that exists may break."""
        return self in {Classification.DESTRUCTIVE, Classification.FORBIDDEN}


_SEVERITY = {classification: rank for rank, classification in enumerate(Classification)}


class Change(msgspec.Struct, frozen=True):
    """One difference: where in the data, what, its classification, and why.

    In ``pointer`` the name ``*`` stands for every element of an array, or every other member of an object.
    ``schema_pointer`` leads to the keyword, in the new schema or, where it is gone, in the old one.
    """

    pointer: str
    what: str
    classification: Classification
    reason: str
    schema_pointer: str | None = None

    def dump(self) -> dict[str, Any]:
        """The change as a JSON object."""
        document = {name: getattr(self, name) for name in self.__struct_fields__}
        return {**document, "classification": self.classification.value}


def worst(changes: Iterable[Change]) -> Classification:
    """The classification of all changes together."""
    classifications = (change.classification for change in changes)
    return max(classifications, key=_SEVERITY.__getitem__, default=Classification.IDENTICAL)
