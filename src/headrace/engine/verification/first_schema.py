"""The proof that a stream's events fit its first schema.

History is checked by a verification, which may be longer than a request waits. What has come since is checked by the
request, and the rest in the commit that installs the schema, so that no append can slip between. Proofs are kept in
memory: after a restart events are verified again.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import xxhash

from headrace.engine.log.batch import Batch
from headrace.engine.log.stream import Stream
from headrace.engine.registry.schemas import EventProof
from headrace.engine.verification.verifier import Verifier
from headrace.engine.verification.verify_job import Progress
from headrace.errors import EventsDoNotFit, NotFound, ObjectMissing, Unavailable
from headrace.format.ranges import Range
from headrace.schema.entries import entries_of
from headrace.schema.registry import Registry
from headrace.schema.trial import Findings, Trial
from headrace.storage.background_requests import FAILED, RUNNING, VerificationRow
from headrace.storage.wal import Entries

#: So much may have come since the events were checked that the commit still checks it.
MAX_TAIL_EVENTS, MAX_TAIL_BYTES = 10_000, 16 * 1024 * 1024
#: How long a request waits for a verification before it tells how far that is.
WAIT_S = 5.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.01, 0.2
_KEPT_PROOFS = 64


class VerificationRunning(Exception):
    """The events are not all checked yet; the same request goes on from there."""

    def __init__(self, row: VerificationRow) -> None:
        super().__init__(row.id)
        self.row = row


class TailProof(NamedTuple):
    """The proof that all events before ``through`` fit, with what checks the later ones in a commit."""

    stream: Stream
    trial: Trial
    through: int

    def covers(self, batch: Batch) -> bool:
        """Whether every event fits that a commit finds; raises where one of the newest does not."""
        head = batch.draft(self.stream)
        position = max(self.through, head.first_seq)
        if head.next_seq - position > MAX_TAIL_EVENTS:
            return False
        batch.flush()
        findings, size = Findings(), 0
        for row in batch.wal.scan(self.stream.id, position, head.next_seq):
            size += len(row.body)
            if row.seq > position or size > MAX_TAIL_BYTES:
                return False
            findings += _check_row(self.trial, row, position, head.next_seq)
            position = min(row.seq + row.count, head.next_seq)
        require_fitting(self.stream, findings)
        return position >= head.next_seq


class OutdatedProof:
    """Stands for a proof that nobody needs any more, as the stream has got a schema meanwhile."""

    def covers(self, batch: Batch) -> bool:
        """Never: the change is planned again."""
        return False


class FirstSchemaProofs:
    """Proves first schemas by verifications, which requests for the same schema share."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        #: The verifications by stream and proposal, those used last at the end.
        self._ids: dict[tuple[int, str], str] = {}
        self._beginning = asyncio.Lock()

    async def prove(self, stream: Stream, proposal: Registry) -> EventProof:
        """Prove that the stored events fit; raises EventsDoNotFit, or VerificationRunning when that takes long."""
        document = msgspec.json.encode(proposal.dump(), order="sorted")
        key = stream.id, xxhash.xxh3_128_hexdigest(document)
        async with self._beginning:
            begun = await self._begin(stream, proposal, key)
        row = await self._wait(stream, begun)
        if row.state == RUNNING:
            raise VerificationRunning(row)
        progress = Progress(row)
        if row.state == FAILED or progress.findings.failing:
            self._ids.pop(key, None)
        if row.state == FAILED and stream.head.registry is not None and stream.head.registry.version:
            return OutdatedProof()
        if row.state == FAILED:
            raise Unavailable(f"the stored events could not be verified: {row.reason}", stream=stream.name)
        require_fitting(stream, progress.findings)
        return await self._catch_up(stream, msgspec.structs.replace(row, proposal=document.decode()))

    async def _begin(self, stream: Stream, proposal: Registry, key: tuple[int, str]) -> VerificationRow:
        """The verification of a proposal, begun now where there is none."""
        if (id := self._ids.pop(key, None)) is not None:
            try:
                row = self._verifier.find(stream, id)
                self._ids[key] = id
                return row
            except NotFound:  # it ended long ago
                pass
        row = await self._verifier.begin(stream, proposal)
        self._ids[key] = row.id
        for oldest in list(islice(self._ids, max(0, len(self._ids) - _KEPT_PROOFS))):
            del self._ids[oldest]
        return row

    async def _wait(self, stream: Stream, row: VerificationRow) -> VerificationRow:
        """The verification when it has ended, or after a while."""
        deadline, pause = monotonic() + WAIT_S, _FIRST_PAUSE_S
        while row.state == RUNNING and monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)
            row = self._verifier.find(stream, row.id)
        return row

    async def _catch_up(self, stream: Stream, row: VerificationRow) -> TailProof:
        """Check what has come since a verification, up to what a commit checks."""
        through, target = row.target, stream.head.next_seq
        while through < target:
            through = max(through, stream.head.first_seq)
            try:
                end, findings = await self._verifier.check_events(row, stream, Range(through, target))
            except ObjectMissing:  # it was replaced a moment ago
                end, findings = through, Findings()
            require_fitting(stream, findings)
            if end == through and through >= stream.head.first_seq:
                raise Unavailable("the newest events cannot be read now", stream=stream.name, retry_after=1)
            through = end
        return TailProof(stream, await self._verifier.compile_trial(row), through)


def _check_row(trial: Trial, row: Entries, start: int, end: int) -> Findings:
    """Check those events of a row of the log that lie in a range."""
    first, stop = max(0, start - row.seq), min(row.count, end - row.seq)
    keys = [row.key] * row.count if row.keys is None else msgspec.json.decode(row.keys, type=list[str | None])
    joined = row.body
    if stop - first < row.count:
        joined = b",".join(map(bytes, entries_of(row.body)[first:stop]))
    return trial.check(row.seq + first, row.version, joined, stop - first, keys[first:stop])


def require_fitting(stream: Stream, findings: Findings) -> None:
    """Raise EventsDoNotFit with the first events that do not fit, if there are any."""
    if not findings.failing:
        return
    misfits = [describe_misfit(stream, misfit) for misfit in findings.misfits]
    first = misfits[0]
    verb = "does" if findings.failing == 1 else "do"
    raise EventsDoNotFit(
        f"{findings.failing:,} of {findings.events:,} stored events {verb} not fit the schema, the first before offset "
        f"{first['offset']}: {first['reason']} (at {first['pointer'] or 'its root'})",
        field="/schema",
        stream=stream.name,
        events=findings.events,
        failing={"lens": findings.lens, "schema": findings.schema, "key": findings.key},
        failures=misfits,
    )


def describe_misfit(stream: Stream, misfit: Any) -> dict[str, Any]:
    """An event that does not fit as a JSON object, with the offset after it."""
    return {"offset": stream.offset_at(misfit.seq + 1), **msgspec.structs.asdict(misfit)}
