"""Units that were being performed when Spark failed: one of them may be the cause.

Such units are performed in smaller groups the more often that happens, and alone in the end. A unit is blamed only if
it was alone, had been there before, and Spark works again without it; that counts as one failure of that unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Unit = dict[str, Any]

#: So often units are performed together before they are told apart.
_TOGETHER = 2
_SHRINK = 16
#: Suspects that are remembered.
_MOST = 4096


def key_of(unit: Unit) -> str:
    """What identifies a unit in every lease that has it."""
    subject = unit.get("history") or unit.get("table") or unit.get("verification") or ""
    span = f"{unit['first_seq']}+{unit['count']}"
    return f"{unit['job']}:{subject}:{unit['incarnation']}:{span}:{unit['level']}"


def groups(units: Sequence[Unit], failures: Mapping[str, int], most: int) -> Iterator[list[Unit]]:
    """Units to perform together: those that nothing speaks against first, then suspects in ever smaller groups."""
    by_size: dict[int, list[Unit]] = {}
    for unit in units:
        by_size.setdefault(group_size(failures.get(key_of(unit), 0), most), []).append(unit)
    for size in sorted(by_size, reverse=True):
        alike = by_size[size]
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def group_size(failures: int, most: int) -> int:
    """How many units are performed together that have seen so many failures."""
    return most if failures < _TOGETHER else max(1, most // _SHRINK ** (failures - _TOGETHER + 1))


class Suspects:
    """How many failures in a row each unit has seen, and the units that are blamed."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        #: Why a unit is blamed; noted as its failure once Spark works again.
        self.blamed: dict[str, str] = {}

    def saw_failure(self, keys: Sequence[str], reason: str) -> None:
        """Note that Spark failed while it performed these units together, and nothing else."""
        for key in keys:
            seen = self.failures.pop(key, 0) + 1
            self.failures[key] = seen
            if len(keys) == 1 and seen > _TOGETHER:
                self.blamed[key] = reason
        while len(self.failures) > _MOST:
            oldest = next(iter(self.failures))
            del self.failures[oldest]
            self.blamed.pop(oldest, None)

    def settled(self, keys: Sequence[str]) -> None:
        """Forget units that were performed, and note that blamed ones were reported; these stay suspects."""
        for key in keys:
            if self.blamed.pop(key, None) is None:
                self.failures.pop(key, None)
