"""What is being erased is not read any more: segments that still hold it are read through a mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from headrace.engine.entities.erasing.targets import Targets
from headrace.schema.entity.tombstone import tombstone

#: Masks by the incarnation of the stream. Empty almost always, and then reads cost nothing more.
Masks = dict[str, "ErasureMask"]

_numbers = count(1)


class ErasureMask:
    """Hides the observations of the erasures of one stream that have not ended; a `Mask` of segments."""

    def __init__(self, targets: Sequence[Targets]) -> None:
        self.number = next(_numbers)
        self._targets, self._entity_type = tuple(targets), targets[0].entity_type
        self.keys = tuple(sorted({key for one in targets for key in one.keys}))
        self.before_seq = max(one.before_seq for one in targets)

    def rows(self, batch: Any) -> list[int]:
        """The rows of a batch that are being erased."""
        from headrace.engine.entities.erasing.rewrite import erased_rows

        return erased_rows(batch, self._targets)

    def tombstone(self, size: int) -> bytes:
        """What is read in the place of an observation of so many bytes."""
        return tombstone(self._entity_type, size)
