"""Objects of companions and states that nobody lists: a worker wrote them, and was lost before it could say so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from headrace.format.object_names import COMPANIONS, MANIFESTS, STATES, parse_companion_key, parse_state_key
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, States
from headrace.storage.objects import Objects
from headrace.storage.streams import Streams


def orphans(objects: Objects, connection: Connection, before_us: int) -> Iterator[str]:
    """Keys that were written before a moment: of living streams that do not list them, and of streams that are gone.

    A stream that we do not know is gone where it has no manifest.
    """
    streams = Streams(connection)

    @cache
    def is_gone(place: tuple[str, str]) -> bool:
        return next(iter(objects.list(f"{MANIFESTS}/{'/'.join(place)}")), None) is None

    kinds = (
        (COMPANIONS, parse_companion_key, Companions(connection).is_orphan),
        (STATES, parse_state_key, States(connection).is_orphan),
    )
    for prefix, place_of, is_orphan in kinds:
        for info in objects.list(prefix):
            found = place_of(info.key)
            if found is None or info.modified_us >= before_us:
                continue
            place, name = found
            if is_orphan(place[1], name) if streams.of(place[1]) is not None else is_gone(place):
                yield info.key
