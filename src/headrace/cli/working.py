"""Work for people: what is due, who does it, what is parked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.cli import output

Told = dict[str, Any]

_STREAMS = ("stream", "indexed", "of", "done")
_LEASES = ("worker", "since", "expires", "streams", "jobs", "units")
_WORKERS = ("worker", "alive", "host", "master", "since", "last_seen", "done", "failed", "lost", "released")
_RESTING = ("stream", "job", "events", "attempts", "retry", "reason")
_PARKED = ("stream", "job", "events", "attempts", "last_attempt", "reason")


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
            "events": events(one),
            "attempts": one["attempts"],
            "retry": one["retry_at"],
            "reason": one["reason"],
        }


def _parked(told: Told) -> Iterator[Told]:
    for one in told["parked"]:
        yield {
            "stream": one["stream"],
            "job": one["job"],
            "events": events(one),
            "attempts": one["attempts"],
            "last_attempt": one["last_attempt_at"],
            "reason": one["reason"],
        }


def events(span: Mapping[str, Any]) -> str:
    """A range of events in words."""
    first, count = span["first_seq"], span["count"]
    return f"events {first} to {first + count - 1}"
