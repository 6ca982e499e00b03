"""Tables of derived work, for people: streams that are due, leases, workers and parked ranges."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from headrace.cli import output
from headrace.errors import HeadraceError, Unavailable

if TYPE_CHECKING:
    from headrace.client import Stream
    from headrace.pipeline.work import Work


Document = dict[str, Any]

_STREAMS = ("stream", "indexed", "of", "done")
_LEASES = ("worker", "since", "expires", "streams", "jobs", "units")
_WORKERS = ("worker", "alive", "host", "master", "since", "last_seen", "done", "failed", "lost", "released")
_RESTING = ("stream", "job", "events", "attempts", "retry", "reason")
_PARKED = ("stream", "job", "events", "attempts", "last_attempt", "reason")


def show(overview: Document) -> None:
    """Print the server's overview of work."""
    counts = overview["counts"]
    output.show(
        {
            "work is": "paused" if overview["paused"] else "given out",
            # A server of an earlier version does not tell what it does not know.
            "workers alive": counts.get("workers", ""),
            "streams due": counts["due"] if "complete" in overview else len(overview["due"]),
            "leases": counts["leases"],
            "units in work": counts["units"],
            "resting": counts.get("resting", ""),
            "parked": counts["parked"],
        },
        as_json=False,
    )
    sections = (
        (_WORKERS, _workers(overview)),
        (_STREAMS, _streams(overview)),
        (_LEASES, _leases(overview)),
        (_RESTING, _resting(overview)),
        (_PARKED, _parked(overview)),
    )
    for columns, rows in sections:
        section = list(rows)
        if section:
            print()
            output.show_all(section, columns, as_json=False)


def _streams(overview: Document) -> Iterator[Document]:
    for stream in overview["streams"]:
        fraction = stream["done"] / stream["total"] if stream["total"] else 1.0
        yield {
            "stream": stream["stream"],
            "indexed": f"{stream['done']:,}",
            "of": f"{stream['total']:,}",
            "done": f"{fraction:.0%}",
        }


def _leases(overview: Document) -> Iterator[Document]:
    for lease in overview["leases"]:
        units = lease["units"]
        open_units = sum(unit["outcome"] is None for unit in units)
        yield {
            "worker": lease["worker"],
            "since": lease["granted_at"],
            "expires": lease["expires_at"],
            "streams": sorted({unit["stream"] or "(deleted)" for unit in units}),
            "jobs": sorted({unit["job"] for unit in units}),
            "units": f"{len(units) - open_units} of {len(units)}",
        }


def _workers(overview: Document) -> Iterator[Document]:
    for worker in overview.get("workers", ()):
        yield {
            "worker": f"{worker['worker']} (itself)" if worker["local"] else worker["worker"],
            "alive": "yes" if worker["alive"] else "no",
            "host": worker["host"] or "",
            "master": worker["master"] or "",
            "since": worker["first_seen_at"],
            "last_seen": worker["last_seen_at"],
            **{name: worker[name] for name in ("done", "failed", "lost", "released")},
        }


def _resting(overview: Document) -> Iterator[Document]:
    for failure in overview.get("resting", ()):
        yield {
            "stream": failure["stream"],
            "job": failure["job"],
            "events": events(failure),
            "attempts": failure["attempts"],
            "retry": failure["retry_at"],
            "reason": failure["reason"],
        }


def _parked(overview: Document) -> Iterator[Document]:
    for failure in overview["parked"]:
        yield {
            "stream": failure["stream"],
            "job": failure["job"],
            "events": events(failure),
            "attempts": failure["attempts"],
            "last_attempt": failure["last_attempt_at"],
            "reason": failure["reason"],
        }


def events(span: Mapping[str, Any]) -> str:
    """A range of events in words."""
    first, count = span["first_seq"], span["count"]
    return f"events {first} to {first + count - 1}"


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


def wait_until_indexed(work: Work, stream: Stream, timeout_s: float | None = None) -> Document:
    """Show progress until all events that a stream has now are published and indexed, or the time is up.

    Raises where a part of it is parked, or no work is given out.
    """
    waiting = _IndexWait(work, stream)
    deadline = None if timeout_s is None else monotonic() + timeout_s
    with output.progressing(f"indexing {stream.name}") as tell:
        while True:
            status = work.status()
            _raise_if_stuck(status, stream.name)
            progress = next((listed for listed in status["streams"] if listed["stream"] == stream.name), None)
            if progress is not None:
                tell(progress["done"], progress["total"])
            state = waiting.poll(status, is_listed=progress is not None)
            if state["complete"]:
                return state
            if deadline is not None and monotonic() >= deadline:
                print(f"headrace: The time is up: {waiting.reason(state)}", file=sys.stderr)
                return state
            sleep(_LOOK_S)


class _IndexWait:
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

    def poll(self, status: Document, *, is_listed: bool) -> Document:
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

    def reason(self, state: Document) -> str:
        """Why the wait is not over."""
        missing = self._wanted - state["published"]
        if missing > 0:
            return f"{missing:,} events of {state['stream']} are not published; the log of the server may say why."
        if not self._is_taken:
            return f"nobody has taken the work on {state['stream']}; is `headrace pipeline` running?"
        return f"{state['stream']} is not indexed; `headrace pipeline status` says how far it is."

    def _tell_whether_taken(self, status: Document, waited_s: float) -> None:
        """Note whether somebody works on the stream, and say once where nobody does for a while."""
        units = (unit for lease in status["leases"] for unit in lease["units"])
        if self._is_taken or any(unit["stream"] == self._stream.name for unit in units):
            self._is_taken = True
        elif waited_s > _REST_S and not self._has_complained:
            self._has_complained = True
            print("headrace: Nobody has taken the work yet; is `headrace pipeline` running?", file=sys.stderr)


def _published(details: Document) -> int:
    return int(details["uploaded_through"]) + 1


def _raise_if_stuck(status: Document, stream: str) -> None:
    if status["paused"]:
        raise Unavailable("No work is given out: `headrace pipeline resume` lets it go on.", reason="paused")
    parked = next((failure for failure in status["parked"] if failure["stream"] == stream), None)
    if parked is not None:
        raise Parked(
            f"The job {parked['job']} has failed {parked['attempts']} times on {events(parked)}: {parked['reason']}",
            **parked,
        )
