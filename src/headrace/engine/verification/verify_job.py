"""Verifications: a proposed change is held against all events of a stream, range by range.

Workers check what is published. The server checks the rest, up to the head as it is then, and all of it where
that is little or no worker comes. Checked ranges are stored with their findings, in one commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from headrace import decoding
from headrace.config import PipelineConfig
from headrace.engine.derive.job import Job, JobCommitter, JobPlanner
from headrace.engine.derive.unit_cutter import PlannedUnit, UnitCutter, owned_ranges
from headrace.engine.log.batch import Batch
from headrace.format.object_names import COMPANIONS
from headrace.format.ranges import Range, merge_ranges, without
from headrace.reduce.work_units import Unit
from headrace.schema.trial import MAX_NAMED, Findings
from headrace.storage.background_requests import DONE, FAILED, RUNNING, VerificationRow, Verifications
from headrace.storage.database import Connection
from headrace.storage.published import Published
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import UnitRow, Work

ENDED = "the verification has ended"


class Progress:
    """The progress of a verification: the ranges that were checked, and their findings."""

    def __init__(self, row: VerificationRow) -> None:
        self.row = row
        self.looked = decoding.decode(row.looked, list[Range])
        self.findings = decoding.decode(row.findings, Findings)

    @property
    def through_seq(self) -> int:
        """Every event from the start to before this one was checked."""
        if self.row.state == DONE:
            return self.row.target
        begun = [range for range in self.looked if range.first <= self.row.start]
        return max((range.end for range in begun), default=self.row.start)

    def left(self, stream: StreamRow, taken: list[Range] | None = None) -> list[Range]:
        """Return the ranges that are retained, not checked and not claimed."""
        start = max(self.row.start, stream.first_seq)
        pending = [Range(start, self.row.target)] if start < self.row.target else []
        return without(pending, [*self.looked, *(taken or ())])


class VerifyJob(Job[Findings]):
    """Checks the published events of a stream by a proposal, except the ranges that the server claims itself."""

    names = ("verify",)
    output = "findings"
    writes_objects = False

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        #: By verification.
        self.claims: dict[str, Range] = {}

    def planner(self, connection: Connection) -> VerifyPlanner:
        """Make what finds ranges that were not checked."""
        return VerifyPlanner(connection, self.config, self.claims)

    def committer(self, batch: Batch) -> _VerifyCommitter:
        """Make what adds findings up."""
        return _VerifyCommitter(batch)

    def refusal(self, unit: Unit, output: Findings) -> str | None:
        """Why findings are not about just the events of a unit, or do not add up."""
        seqs = [misfit.seq for misfit in output.misfits]
        is_about = (
            unit.verification is not None
            and output.events == unit.count
            and len(seqs) == min(output.failing, MAX_NAMED)
            and output.failing <= unit.count
            and seqs == sorted(set(seqs))
            and all(unit.first_seq <= seq < unit.end_seq for seq in seqs)
        )
        return None if is_about else f"these are no findings about {unit.unit!r}"


class _VerifyCommitter(JobCommitter[Findings]):
    def accept(self, row: UnitRow, unit: Unit, output: Findings) -> str | None:
        assert unit.verification is not None
        return add_findings(self._batch, unit.verification, Range(unit.first_seq, unit.end_seq), output)


class VerifyPlanner(JobPlanner):
    """Plans verifications; ``claims`` are ranges that the server checks itself."""

    def __init__(self, connection: Connection, config: PipelineConfig, claims: Mapping[str, Range]) -> None:
        self._streams, self._published = Streams(connection), Published(connection)
        self._rows, self._work = Verifications(connection), Work(connection)
        self._config = config
        self._claims = claims

    def queued_units(self, now_us: int, each: int) -> Iterator[PlannedUnit]:
        """Units of every verification that has not ended."""
        for row in self._rows.running():
            yield from islice(self._units(row, now_us), each)

    def _units(self, row: VerificationRow, now_us: int) -> Iterator[PlannedUnit]:
        """Units for workers in the published range of a stream."""
        stream = self._streams.by_id(row.stream)
        if row.tail or stream is None or stream.state != LIVE:
            return
        taken = [*self.working_on(row), *([self._claims[row.id]] if row.id in self._claims else ())]
        owned = owned_ranges(self._streams, stream, max(row.start, stream.first_seq))
        cutter = UnitCutter(
            stream, owned, self._published, self._config, self._work.failures(row.stream), now_us, COMPANIONS
        )
        left = Progress(row).left(stream, [*taken, *cutter.resting("verify")])
        proposal = msgspec.json.decode(row.proposal or "null")
        yield from cutter.units("verify", left, level=0, verification=row.id, registry=proposal)

    def working_on(self, row: VerificationRow) -> list[Range]:
        """Return what workers check now, or did when they were lost."""
        rows = (unit for unit in self._work.open_units(row.stream) if unit.job == "verify")
        units = [decoding.decode(unit.document, Unit) for unit in rows]
        return [Range(unit.first_seq, unit.end_seq) for unit in units if unit.verification == row.id]


def begin_verification(batch: Batch, row: VerificationRow, min_rows: int, *, server_only: bool = False) -> None:
    """Store a verification; where little is published, or with ``server_only``, the server checks all of it."""
    stream = batch.streams.by_id(row.stream)
    assert stream is not None
    start = min(max(row.start, stream.first_seq), stream.next_seq)
    owned = owned_ranges(batch.streams, stream, start)
    target = owned[-1].end if owned else start
    is_little = server_only or target - start < max(1, min_rows)
    Verifications(batch.connection).add(
        msgspec.structs.replace(row, start=start, target=stream.next_seq if is_little else target, tail=int(is_little))
    )


def add_findings(batch: Batch, id: str, where: Range, findings: Findings) -> str | None:
    """Store the findings of a range; or return why they do not count."""
    rows = Verifications(batch.connection)
    row = rows.get(id)
    if row is None or row.state != RUNNING:
        return ENDED
    progress = Progress(row)
    if any(range.overlaps(where) for range in progress.looked):
        return "its entries were looked at already"
    looked = msgspec.json.encode(merge_ranges([*progress.looked, where])).decode()
    all_findings = msgspec.json.encode(progress.findings + findings).decode()
    rows.update(id, looked=looked, findings=all_findings)
    Work(batch.connection).forget_failures_on(row.stream, "verify", *where)
    return None


def advance_verification(batch: Batch, id: str) -> None:
    """Where everything up to the target was checked, go on to the head as it is now, or end."""
    rows = Verifications(batch.connection)
    row = rows.get(id)
    stream = None if row is None else batch.streams.by_id(row.stream)
    if row is None or stream is None or row.state != RUNNING or Progress(row).left(stream):
        return
    if not row.tail:
        row = msgspec.structs.replace(row, target=max(row.target, stream.next_seq), tail=1)
        rows.update(id, target=row.target, tail=1)
    if not Progress(row).left(stream):
        _end(batch, row, state=DONE)


def fail_verification(batch: Batch, id: str, reason: str) -> None:
    """End a verification that cannot go on."""
    row = Verifications(batch.connection).get(id)
    if row is not None and row.state == RUNNING:
        _end(batch, row, state=FAILED, reason=reason)


def _end(batch: Batch, row: VerificationRow, **facts: str) -> None:
    Verifications(batch.connection).update(row.id, ended_us=batch.now_us, proposal=None, **facts)
    if not any(other.stream == row.stream for other in Verifications(batch.connection).running()):
        Work(batch.connection).forget_failures_on(row.stream, "verify", 0, 1 << 62)
