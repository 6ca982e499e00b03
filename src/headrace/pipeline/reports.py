"""Report files of drivers for their parent: the lease and job of a driver, even if it is killed, and why it ended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace import decoding
from headrace.pipeline.work import Lease


class Report(msgspec.Struct):
    """The state of a driver."""

    #: The lease that it holds, without its units.
    lease: Lease | None = None
    #: The keys of the units that Spark performs now.
    performing: list[str] = []
    #: The keys of suspected units that have a result.
    settled: list[str] = []
    #: How often it has committed results.
    commits: int = 0
    #: Why it failed.
    reason: str = ""
    #: Whether trying again without a change of the set-up is useless.
    permanent: bool = False


class ReportFile:
    """The file of a report; an empty path keeps it in memory."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self.report = Report()

    def save(self) -> None:
        """Replace the file by the report as it is now."""
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self.report))
            os.replace(new, self._path)


def take(path: Path) -> Report:
    """The report of a driver that has ended, which is removed; an empty one where it left none."""
    try:
        return decoding.decode(path.read_bytes(), Report)
    except FileNotFoundError:
        return Report()
    finally:
        path.unlink(missing_ok=True)


UnitDocument = dict[str, Any]

#: Failures of a group before it is split.
_GROUP_FAILURES = 2
_SHRINK = 16
#: Suspects that are remembered.
_MAX_SUSPECTS = 4096


def key_of(unit: UnitDocument) -> str:
    """The key of a unit, which is the same in every lease."""
    subject = unit.get("history") or unit.get("table") or unit.get("verification") or ""
    span = f"{unit['first_seq']}+{unit['count']}"
    return f"{unit['job']}:{subject}:{unit['incarnation']}:{span}:{unit['level']}"


def groups(units: Sequence[UnitDocument], failures: Mapping[str, int], max_size: int) -> Iterator[list[UnitDocument]]:
    """Units to perform together: unsuspected ones first, then suspects in ever smaller groups."""
    by_size: dict[int, list[UnitDocument]] = {}
    for unit in units:
        by_size.setdefault(group_size(failures.get(key_of(unit), 0), max_size), []).append(unit)
    for size in sorted(by_size, reverse=True):
        alike = by_size[size]
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def group_size(failures: int, max_size: int) -> int:
    """The size of groups of units with so many failures."""
    return max_size if failures < _GROUP_FAILURES else max(1, max_size // _SHRINK ** (failures - _GROUP_FAILURES + 1))


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
            if len(keys) == 1 and seen > _GROUP_FAILURES:
                self.blamed[key] = reason
        while len(self.failures) > _MAX_SUSPECTS:
            oldest = next(iter(self.failures))
            del self.failures[oldest]
            self.blamed.pop(oldest, None)

    def settled(self, keys: Sequence[str]) -> None:
        """Forget units that were performed, and note that blamed ones were reported; these stay suspects."""
        for key in keys:
            if self.blamed.pop(key, None) is None:
                self.failures.pop(key, None)
