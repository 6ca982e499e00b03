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
EVENTS_PER_KEY = 50


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
    keyed, ingest = (250_000, 200_000_000) if quick else (5_000_000, 3_000_000_000)
    events = min(keyed, room // EVENT_BYTES // 10_000 * 10_000)
    size = min(ingest, room)
    remarks = [
        f"the disk has room for {less:,} {unit} instead of {wanted:,}"
        for less, wanted, unit in ((events, keyed, "keyed events"), (size, ingest, "bytes of ingest"))
        if less < wanted
    ]
    if quick:
        remarks.append(f"quick: {events:,} keyed events instead of 5,000,000, {size:,} bytes of ingest instead of 3 GB")
    return Scale(times, 100_000 if quick else 400_000, events, size, tuple(remarks))
