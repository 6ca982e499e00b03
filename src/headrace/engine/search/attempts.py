"""Beginning again: events may vanish or move, and a companion may turn out damaged, while an answer is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headrace.engine.history.stored_events import EventsMoved, MissingObjects
from headrace.engine.log.stream import Head, Stream
from headrace.engine.search.archive import Archive, CoveredRange, SearchSnapshot
from headrace.engine.search.definitions import Defined
from headrace.errors import CorruptData, NotFound, Unavailable
from headrace.storage.objects import ObjectMissing
from headrace.storage.streams import LIVE

T = TypeVar("T")

_TRIES = 5


def tried(archive: Archive, stream: Stream, head: Head, defined: Defined, answer: Callable[[SearchSnapshot], T]) -> T:
    """What can be answered from a look at a stream as of a head; looks again where that has changed meanwhile."""
    missing = MissingObjects()
    for _ in range(_TRIES):
        try:
            with archive.snapshot(stream, head, defined) as snapshot:
                return answer(snapshot)
        except (EventsMoved, ObjectMissing) as reason:
            if stream.head.state != LIVE:
                raise NotFound("the stream was deleted", stream=stream.name) from reason
            if isinstance(reason, ObjectMissing):
                missing.note(reason)
    raise Unavailable("the events of the stream keep moving; try again", retry_after=1, reason="moving")


@contextmanager
def trusting(archive: Archive, covered: CoveredRange) -> Iterator[None]:
    """A companion whose files cannot be read is used no more; what it describes is still in the segments."""
    try:
        yield
    except CorruptData as reason:
        if covered.companion is None:
            raise
        archive.distrust(covered.companion, reason)
        raise EventsMoved("a companion cannot be read") from reason
