"""The wait until everything that a stream holds is published and indexed."""

from __future__ import annotations

import sys
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from headrace.cli import output
from headrace.cli.working import events
from headrace.errors import HeadraceError, Unavailable

if TYPE_CHECKING:
    from headrace.client import Stream
    from headrace.pipeline.work import Work

Told = dict[str, Any]

#: The exit code where the time is up before all is indexed.
TIMED_OUT = 3
_LOOK_S = 0.5
#: Longer than any pause before a failed unit is tried again: whoever is not listed for so long is not worked on.
_REST_S = 10.0
#: So many streams that are due or in work are named by the server.
_NAMED = 100


class Parked(HeadraceError):
    """A part of the stream has failed too often, and is not tried any more."""

    code = "parked"


def wait_until_indexed(work: Work, stream: Stream, timeout_s: float | None = None) -> Told:
    """Show progress until all events that a stream has now are published and indexed, or the time is up.

    Raises where a part of it is parked, or no work is given out.
    """
    waiting = _Waiting(work, stream)
    deadline = None if timeout_s is None else monotonic() + timeout_s
    with output.progressing(f"indexing {stream.name}") as tell:
        while True:
            status = work.status()
            _refuse(status, stream.name)
            standing = next((one for one in status["streams"] if one["stream"] == stream.name), None)
            if standing is not None:
                tell(standing["done"], standing["total"])
            found = waiting.look(status, is_listed=standing is not None)
            if found["complete"]:
                return found
            if deadline is not None and monotonic() >= deadline:
                print(f"headrace: The time is up: {waiting.lack(found)}", file=sys.stderr)
                return found
            sleep(_LOOK_S)


class _Waiting:
    """A stream, the events that it had when the wait began, and what was said about it."""

    def __init__(self, work: Work, stream: Stream) -> None:
        self._work, self._stream = work, stream
        details = stream.details()["stream"]
        self._wanted = int(details["next_offset"])
        self._began = self._listed = monotonic()
        self._is_taken = self._has_complained = False
        pending = self._wanted - _published(details)
        self._is_published = pending <= 0
        if not self._wanted:
            print(f"headrace: {stream.name} has no events.", file=sys.stderr)
        elif pending > 0:
            print(f"headrace: {pending:,} events are not published yet; they are published first.", file=sys.stderr)

    def look(self, status: Told, *, is_listed: bool) -> Told:
        """How many events are published, and whether all that are wanted are indexed."""
        now = monotonic()
        if is_listed or len(status["streams"]) >= _NAMED:
            self._listed = now
        if is_listed:
            self._tell_whether_taken(status, now - self._began)
        details = self._stream.details()
        published = _published(details["stream"])
        is_indexed = bool(details["index_status"]["bundled_companions"]["fully_indexed_uploaded_segments"])
        is_complete = not is_listed and is_indexed and published >= self._wanted
        if published >= self._wanted and not self._is_published:
            self._is_published = True  # what was published since is due too
            self._work.run(self._stream.name)
        elif not is_complete and now - self._listed > _REST_S:
            # The server has restarted, or more was published than was due when it was asked.
            self._work.run(self._stream.name, seal=True)
            self._listed = now
        return {"stream": self._stream.name, "published": published, "complete": is_complete}

    def lack(self, found: Told) -> str:
        """What the wait is for."""
        missing = self._wanted - found["published"]
        if missing > 0:
            return f"{missing:,} events of {found['stream']} are not published; the log of the server may say why."
        if not self._is_taken:
            return f"nobody has taken the work on {found['stream']}; is `headrace pipeline` running?"
        return f"{found['stream']} is not indexed; `headrace pipeline status` says how far it is."

    def _tell_whether_taken(self, status: Told, waited_s: float) -> None:
        """Note whether somebody works on the stream, and say once where nobody does for a while."""
        units = (unit for lease in status["leases"] for unit in lease["units"])
        if self._is_taken or any(unit["stream"] == self._stream.name for unit in units):
            self._is_taken = True
        elif waited_s > _REST_S and not self._has_complained:
            self._has_complained = True
            print("headrace: Nobody has taken the work yet; is `headrace pipeline` running?", file=sys.stderr)


def _published(details: Told) -> int:
    return int(details["uploaded_through"]) + 1


def _refuse(status: Told, stream: str) -> None:
    if status["paused"]:
        raise Unavailable("No work is given out: `headrace pipeline resume` lets it go on.", reason="paused")
    parked = next((one for one in status["parked"] if one["stream"] == stream), None)
    if parked is not None:
        raise Parked(
            f"The job {parked['job']} has failed {parked['attempts']} times on {events(parked)}: {parked['reason']}",
            **parked,
        )
