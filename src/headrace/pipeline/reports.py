"""What a driver leaves in a file for its parent: what it holds and does, also if it is killed, and why it ended."""

from __future__ import annotations

import os
from pathlib import Path

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
