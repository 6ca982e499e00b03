"""The documents that workers and the server exchange: units of work, and their results."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace.format.companion.layout import Companion
from headrace.format.manifest import Segment
from headrace.format.state import State
from headrace.schema.trial import Findings
from headrace.types import NonNegativeInt

JobName = Literal["verify", "history", "erase", "features", "snapshots", "enhance", "compact", "index"]
#: What makes states.
STATE_JOBS: tuple[JobName, ...] = ("features", "snapshots", "enhance")
#: What makes companions, in the order in which it is given out: merged companions are few, and so quick to list.
COMPANION_JOBS: tuple[JobName, ...] = ("compact", "index")
#: What is found anew among the streams that are marked; the others have rows of their own.
MARKED: tuple[JobName, ...] = (*STATE_JOBS, *COMPANION_JOBS)
#: Someone waits for what is verified or asked of the past, and for what is backfilled.
JOBS: tuple[JobName, ...] = ("verify", "history", "erase", *MARKED)

#: How a unit ended. *Committed* is listed; *dropped* was in vain, since the stream or its definition has changed;
#: *gone* had its segments replaced, and is planned anew; *failed* is tried again after a pause, *parked* is not;
#: *released* was given back; *lost* had a worker that was not heard of.
Outcome = Literal["committed", "dropped", "gone", "failed", "parked", "released", "lost"]

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class Source(msgspec.Struct, frozen=True):
    """A segment to read; entries outside the unit's range are left out."""

    key: str
    first_seq: NonNegativeInt
    count: NonNegativeInt
    bytes: NonNegativeInt
    sha256: str


class Unit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A range of a stream's entries, and what to make of it.

    Job ``index`` makes a companion of the entries [first_seq, first_seq + count), which lie in ``segments``. Job
    ``compact`` makes one of ``inputs``, which follow each other, and holds the fields and rollups that are given with
    their hashes. ``out`` is the key of the objects to write, up to a suffix (0-9, a-z) that the worker chooses for each
    attempt. Job ``verify`` writes nothing: it holds the entries in ``segments`` against the newest version of the
    registry, which is proposed. Jobs ``features``, ``snapshots`` and ``enhance`` make a state of the versions in
    ``lives`` of a table, an entity type or the fragments of one: of the entries in ``segments``, or of ``states``,
    which hold these versions over the whole range. Job ``history`` writes nothing either: it returns the rows that
    ``question`` requests, from ``states`` and ``segments``. Job ``erase`` rewrites a segment without the observations
    that ``defined`` names.
    """

    unit: str
    job: JobName
    stream: str
    incarnation: str
    first_seq: NonNegativeInt
    count: NonNegativeInt
    level: NonNegativeInt
    out: str
    segments: tuple[Source, ...] = ()
    inputs: tuple[Companion, ...] = ()
    through_version: NonNegativeInt | None = None
    fields: dict[str, str] | None = None
    rollups: dict[str, str] | None = None
    #: The verification that the findings are for.
    verification: str | None = None
    #: The table or entity type, and the ids of the versions to fold, by name.
    table: str | None = None
    lives: dict[str, str] | None = None
    states: tuple[State, ...] = ()
    #: The question whose rows are requested, and where replay begins.
    history: str | None = None
    start_point: Any = msgspec.field(name="known", default=None)
    #: The documents that say what is derived, tried, folded or asked; left out where a unit is stored.
    registry: Any = None
    defined: Any = None
    question: Any = None

    @property
    def end_seq(self) -> int:
        """The sequence number after its last entry."""
        return self.first_seq + self.count

    @property
    def name_begins(self) -> str:
        """How the name of its companion or state begins."""
        return self.out.rpartition("/")[2]

    @property
    def concern(self) -> str:
        """What fails or succeeds by itself: the job, and the table or question where it has one."""
        return concern(self.job, self.history or self.table)


def concern(job: JobName, subject: str | None = None) -> str:
    """A job, of one table or question where it has one."""
    return job if subject is None else f"{job} {subject}"


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a unit.

    A companion, a state or a segment whose objects are in the store, findings, rows, that a segment is not there, or
    an error.
    """

    unit: Text
    companion: Companion | None = None
    state: State | None = None
    segment: Segment | None = None
    findings: Findings | None = None
    rows: list[dict[str, Any]] | None = None
    gone: bool = False
    error: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


class Settled(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a unit ended, and why if not well."""

    unit: str
    outcome: str
    reason: str | None = None
