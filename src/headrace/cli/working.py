"""Work for people: what is due, who does it, what is parked; and the wait until a stream is indexed."""

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

Told = dict[str, Any]

_LOOK_S = 0.5
#: What has failed rests for up to so long before it is tried again, and is not listed meanwhile.
_REST_S = 10.0

_STREAMS = ("stream", "indexed", "of", "done")
_LEASES = ("worker", "since", "expires", "streams", "jobs", "units")
_WORKERS = ("worker", "alive", "host", "master", "since", "last_seen", "done", "failed", "lost", "released")
_RESTING = ("stream", "job", "events", "attempts", "retry", "reason")
_PARKED = ("stream", "job", "events", "attempts", "last_attempt", "reason")


class Parked(HeadraceError):
    """A part of the stream has failed too often, and is not tried any more."""

    code = "parked"


def show(told: Told) -> None:
    """Print everything that the server tells about work."""
    counts = told["counts"]
    output.show(
        {
            "work is": "paused" if told["paused"] else "given out",
            # A server of an earlier version does not tell what it does not know.
            "workers alive": counts.get("workers", ""),
            "streams due": counts["due"] if "complete" in told else len(told["due"]),
            "leases": counts["leases"],
            "units in work": counts["units"],
            "resting": counts.get("resting", ""),
            "parked": counts["parked"],
        },
        as_json=False,
    )
    sections = (
        (_WORKERS, _workers(told)),
        (_STREAMS, _streams(told)),
        (_LEASES, _leases(told)),
        (_RESTING, _resting(told)),
        (_PARKED, _parked(told)),
    )
    for columns, rows in sections:
        found = list(rows)
        if found:
            print()
            output.show_all(found, columns, as_json=False)


def follow(work: Work, stream: Stream) -> Told:
    """Show progress until a stream is indexed; raises where a part of it is parked, or nobody may work."""
    began = heard = monotonic()
    is_taken = False
    with output.progressing(f"indexing {stream.name}") as tell:
        while True:
            told = work.status()
            _refuse(told, stream.name)
            standing = next((one for one in told["streams"] if one["stream"] == stream.name), None)
            if standing is None:
                found = _indexed(stream)
                if found["complete"] or monotonic() - heard > _REST_S:
                    return found
            else:
                heard = monotonic()
                tell(standing["done"], standing["total"])
                is_taken = is_taken or _is_taken(told, stream.name, heard - began)
            sleep(_LOOK_S)


def _indexed(stream: Stream) -> Told:
    """How many events are published, and whether all of them are indexed; those that came meanwhile may not be."""
    details = stream.details()
    complete = details["index_status"]["bundled_companions"]["fully_indexed_uploaded_segments"]
    return {
        "stream": stream.name,
        "published": int(details["stream"]["uploaded_through"]) + 1,
        "complete": complete,
    }


def _refuse(told: Told, stream: str) -> None:
    if told["paused"]:
        raise Unavailable("No work is given out: `headrace pipeline resume` lets it go on.", reason="paused")
    parked = next((one for one in told["parked"] if one["stream"] == stream), None)
    if parked is not None:
        raise Parked(
            f"The job {parked['job']} has failed {parked['attempts']} times on {_events(parked)}: {parked['reason']}",
            **parked,
        )


def _is_taken(told: Told, stream: str, waited_s: float) -> bool:
    """Whether somebody works on a stream; after a while without anybody it says so, and is content."""
    if any(unit["stream"] == stream for lease in told["leases"] for unit in lease["units"]):
        return True
    if waited_s > _REST_S:
        print("headrace: Nobody has taken the work yet; is `headrace pipeline` running?", file=sys.stderr)
    return waited_s > _REST_S


def _streams(told: Told) -> Iterator[Told]:
    for one in told["streams"]:
        share = one["done"] / one["total"] if one["total"] else 1.0
        yield {
            "stream": one["stream"],
            "indexed": f"{one['done']:,}",
            "of": f"{one['total']:,}",
            "done": f"{share:.0%}",
        }


def _leases(told: Told) -> Iterator[Told]:
    for lease in told["leases"]:
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


def _workers(told: Told) -> Iterator[Told]:
    for one in told.get("workers", ()):
        yield {
            "worker": f"{one['worker']} (itself)" if one["local"] else one["worker"],
            "alive": "yes" if one["alive"] else "no",
            "host": one["host"] or "",
            "master": one["master"] or "",
            "since": one["first_seen_at"],
            "last_seen": one["last_seen_at"],
            **{name: one[name] for name in ("done", "failed", "lost", "released")},
        }


def _resting(told: Told) -> Iterator[Told]:
    for one in told.get("resting", ()):
        yield {
            "stream": one["stream"],
            "job": one["job"],
            "events": _events(one),
            "attempts": one["attempts"],
            "retry": one["retry_at"],
            "reason": one["reason"],
        }


def _parked(told: Told) -> Iterator[Told]:
    for one in told["parked"]:
        yield {
            "stream": one["stream"],
            "job": one["job"],
            "events": _events(one),
            "attempts": one["attempts"],
            "last_attempt": one["last_attempt_at"],
            "reason": one["reason"],
        }


def _events(span: Mapping[str, Any]) -> str:
    first, count = span["first_seq"], span["count"]
    return f"events {first} to {first + count - 1}"
