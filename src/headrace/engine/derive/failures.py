"""Work that fails: tried again after a pause that grows, alone where it took others along, and parked in the end.

An error is the unit's own. A worker that is lost may have been lost over any of its units: those it had twice are given
out one at a time, so that only the one to blame is parked.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.format.ranges import Range
from headrace.reduce.work_units import Outcome, Unit
from headrace.storage.work import FailureRow, Work

#: A unit that has failed so often is not tried again.
ATTEMPTS = 5
_PAUSE_US, _LONGEST_PAUSE_US = 1_000_000, 60_000_000


def fail(work: Work, stream: int, unit: Unit, reason: str, now_us: int, *, whole: bool) -> Outcome:
    """Note that a unit has failed; ``whole``: it is tried again as it was, not segment by segment."""
    return _note(work, stream, unit, reason, now_us, most=ATTEMPTS, lost=0, whole=whole)


def lose(work: Work, stream: int, unit: Unit, reason: str, now_us: int, *, whole: bool, alone: bool) -> Outcome:
    """Note that the worker of a unit was lost, or has stalled; ``alone``: it had nothing else to do."""
    most = ATTEMPTS if alone else ATTEMPTS - 1
    return _note(work, stream, unit, reason, now_us, most=most, lost=1, whole=whole)


def _note(
    work: Work, stream: int, unit: Unit, reason: str, now_us: int, *, most: int, lost: int, whole: bool
) -> Outcome:
    earlier_failures = {(failure.job, failure.first_seq, failure.count): failure for failure in work.failures(stream)}
    outcome: Outcome = "failed"
    for first, end in _ranges(unit, whole):
        before = earlier_failures.get((unit.concern, first, end - first))
        attempts = min(most, 1 + (before.attempts if before else 0))
        outcome = "parked" if attempts >= ATTEMPTS else "failed"
        work.failed(
            FailureRow(
                stream=stream,
                job=unit.concern,
                first_seq=first,
                count=end - first,
                attempts=attempts,
                at_us=now_us,
                retry_us=now_us + min(_LONGEST_PAUSE_US, _PAUSE_US << (attempts - 1)),
                lost=lost + (before.lost if before else 0),
                parked=int(attempts >= ATTEMPTS),
                reason=reason,
            )
        )
    return outcome


def _ranges(unit: Unit, whole: bool) -> Iterator[Range]:
    """The parts of a unit that are tried by themselves next time: its segments, or else all of it."""
    if whole or not unit.segments:
        yield Range(unit.first_seq, unit.end_seq)
        return
    for source in unit.segments:
        yield Range(max(unit.first_seq, source.first_seq), min(unit.end_seq, source.first_seq + source.count))
