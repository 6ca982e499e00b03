"""How much each measure does: less where it has to be quick, and where the disk is small."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.driver import Times
from bench.events import EVENT_BYTES

#: Disk that is left alone, and how many times its size what is written may take: in the log, in segments, on the way.
SPARE_BYTES = 2_000_000_000
TIMES_ON_DISK = 3

SEALED_EVENTS, FEW_SEALED_EVENTS = 400_000, 100_000
KEYED_EVENTS, FEW_KEYED_EVENTS = 5_000_000, 250_000
INGEST_BYTES, FEW_INGEST_BYTES = 3_000_000_000, 200_000_000
EVENTS_PER_KEY = 50
#: Keyed events come in round numbers, and there are always some.
KEYED_STEP = 10_000


@dataclass(frozen=True)
class Scale:
    """The times of closed loops, and the sizes of what is stored."""

    times: Times
    sealed_events: int
    keyed_events: int
    ingest_bytes: int
    #: Where a size is not the one that was meant, and why.
    remarks: tuple[str, ...]

    @property
    def keys(self) -> int:
        """The number of keys among the keyed events."""
        return self.keyed_events // EVENTS_PER_KEY


def scale_of(times: Times, quick: bool, directory: Path) -> Scale:
    """What to do, on the disk of a directory."""
    room = max(0, shutil.disk_usage(directory).free - SPARE_BYTES) // TIMES_ON_DISK
    keyed = min(FEW_KEYED_EVENTS if quick else KEYED_EVENTS, room // EVENT_BYTES)
    keyed = max(1, keyed // KEYED_STEP) * KEYED_STEP
    size = min(FEW_INGEST_BYTES if quick else INGEST_BYTES, room)
    reason = "quick" if quick else "the disk is small"
    remarks = [
        f"{reason}: {less:,} {unit} instead of {whole:,}"
        for less, whole, unit in ((keyed, KEYED_EVENTS, "keyed events"), (size, INGEST_BYTES, "bytes of ingest"))
        if less < whole
    ]
    return Scale(times, FEW_SEALED_EVENTS if quick else SEALED_EVENTS, keyed, size, tuple(remarks))
