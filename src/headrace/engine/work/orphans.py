"""Objects of companions that nobody lists: a worker wrote them, and was lost before it could say so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from headrace.format.companion.names import COMPANIONS, companion_place
from headrace.format.manifest import MANIFESTS
from headrace.storage.companions import Companions
from headrace.storage.database import Connection
from headrace.storage.objects import Objects
from headrace.storage.streams import Streams


def orphans(objects: Objects, connection: Connection, before_us: int) -> Iterator[str]:
    """Keys that were written before a moment: of living streams that do not list them, and of streams that are gone.

    A stream that we do not know is gone where it has no manifest.
    """
    companions, streams = Companions(connection), Streams(connection)

    @cache
    def is_gone(place: tuple[str, str]) -> bool:
        return next(iter(objects.list(f"{MANIFESTS}/{'/'.join(place)}")), None) is None

    for info in objects.list(COMPANIONS):
        found = companion_place(info.key)
        if found is None or info.modified_us >= before_us:
            continue
        place, name = found
        if companions.is_orphan(place[1], name) if streams.of(place[1]) is not None else is_gone(place):
            yield info.key
