"""How much each measure does: less where it has to be quick, and where the disk is small."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.driver import Times
from bench.events import EVENT_BYTES
from bench.searching.data import ARRAY
from bench.searching.data import EVENT_BYTES as SEARCHED_BYTES

#: Disk that is left alone, and how many times its size what is written may take: in the log, in segments, on the way.
SPARE_BYTES = 2_000_000_000
TIMES_ON_DISK = 3

SEALED_EVENTS, FEW_SEALED_EVENTS = 1_200_000, 100_000
KEYED_EVENTS, FEW_KEYED_EVENTS = 5_000_000, 250_000
INGEST_BYTES, FEW_INGEST_BYTES = 3_000_000_000, 200_000_000
SEARCHED_EVENTS, FEW_SEARCHED_EVENTS = 1_000_000, 50_000
EXTRACTED_EVENTS, FEW_EXTRACTED_EVENTS = 1_000_000, 200_000
ENTITIES, FEW_ENTITIES = 100_000, 20_000
BACKFILLED_EVENTS, FEW_BACKFILLED_EVENTS = 1_000_000, 100_000
OBSERVATIONS, FEW_OBSERVATIONS = 1_000_000, 100_000
IMPORTED_ROWS, FEW_IMPORTED_ROWS = 2_000_000, 200_000
#: So many times the events that are searched are searched again.
GROWTH = 10
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
    searched_events: int
    grown_events: int
    extracted_events: int
    entities: int
    backfilled_events: int
    observations: int
    imported_rows: int
    #: Where a size is not the one that was meant, and why.
    remarks: tuple[str, ...]

    @property
    def keys(self) -> int:
        """The number of keys among the keyed events."""
        return self.keyed_events // EVENTS_PER_KEY


def scale_of(times: Times, quick: bool, directory: Path, searched: int, observed: int) -> Scale:
    """What to do, on the disk of a directory; so many events are searched, unless there is no room for them, and so
    many observations imported.
    """
    room = max(0, shutil.disk_usage(directory).free - SPARE_BYTES) // TIMES_ON_DISK
    keyed = min(FEW_KEYED_EVENTS if quick else KEYED_EVENTS, room // EVENT_BYTES)
    keyed = max(1, keyed // KEYED_STEP) * KEYED_STEP
    size = min(FEW_INGEST_BYTES if quick else INGEST_BYTES, room)
    grown = min(GROWTH * searched, room // SEARCHED_BYTES // ARRAY * ARRAY)
    small = "the disk is small"
    reason, chosen = ("quick", "quick") if quick else (small, "as told")
    entities, backfilled = (FEW_ENTITIES, FEW_BACKFILLED_EVENTS) if quick else (ENTITIES, BACKFILLED_EVENTS)
    imported = FEW_IMPORTED_ROWS if quick else IMPORTED_ROWS
    sizes = (
        (reason, keyed, KEYED_EVENTS, "keyed events"),
        (reason, size, INGEST_BYTES, "bytes of ingest"),
        (chosen, searched, SEARCHED_EVENTS, "searched events"),
        (small, grown, GROWTH * searched, "searched events in the end"),
        (reason, entities, ENTITIES, "entities"),
        (reason, backfilled, BACKFILLED_EVENTS, "backfilled events"),
        (chosen, observed, OBSERVATIONS, "observations"),
        (reason, imported, IMPORTED_ROWS, "imported rows"),
    )
    remarks = [f"{why}: {less:,} {unit} instead of {whole:,}" for why, less, whole, unit in sizes if less < whole]
    return Scale(
        times=times,
        sealed_events=FEW_SEALED_EVENTS if quick else SEALED_EVENTS,
        keyed_events=keyed,
        ingest_bytes=size,
        searched_events=searched,
        grown_events=grown,
        extracted_events=FEW_EXTRACTED_EVENTS if quick else EXTRACTED_EVENTS,
        entities=entities,
        backfilled_events=backfilled,
        observations=observed,
        imported_rows=imported,
        remarks=tuple(remarks),
    )
