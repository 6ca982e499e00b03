"""Objects that are missing when an answer is computed: replaced meanwhile by others, or gone for good."""

from __future__ import annotations

from headrace.errors import ObjectMissing


class MissingObjects:
    """What the tries of one answer have missed so far."""

    def __init__(self) -> None:
        self._objects: set[object] = set()

    def note(self, reason: ObjectMissing) -> None:
        """Remember an object; raises where it was missed before, since then nothing has taken its place."""
        found = reason.facts.get("object")
        if found in self._objects:
            raise reason
        self._objects.add(found)
