"""Results of work: what lies in the store is listed, findings are written down, in one commit of the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.engine.derive import failures, leases
from headrace.engine.derive.stall_limit import StallLimit
from headrace.engine.features import histories
from headrace.engine.log.batch import Batch
from headrace.engine.registry import verification_job
from headrace.engine.search.companion_cover import is_current, replaced
from headrace.engine.search.definitions import Defined, Definitions
from headrace.errors import BadRequest, CorruptData
from headrace.format.companion.layout import Companion
from headrace.format.companion.names import companion_key, companion_place
from headrace.format.manifest import Segment, segment_key, segment_place
from headrace.format.ranges import Range
from headrace.format.state.layout import State
from headrace.format.state.names import state_key, state_place
from headrace.reduce.features.history import Known
from headrace.reduce.work_units import DERIVED, FOLDED, MARKED, Outcome, Result, Settled, Unit
from headrace.schema.findings import MOST_NAMED, Findings
from headrace.storage.companions import Companions, object_keys
from headrace.storage.erasures import Erasures
from headrace.storage.states import States
from headrace.storage.streams import LIVE, StreamRow
from headrace.storage.work import UnitRow, Work

log = logging.getLogger("headrace.work")


CHANGED = "what is derived from the stream has changed"


class Leased(NamedTuple):
    """A lease as its worker knows it, and its units."""

    id: str
    token: int
    units: dict[str, Unit]


class Committed(NamedTuple):
    """How each unit ended, and until when the lease goes on."""

    settled: list[Settled]
    expires_us: int


def check(results: Sequence[Result], units: dict[str, Unit]) -> None:
    """Raises BadRequest for a result that does not belong to its unit."""
    for number, result in enumerate(results):
        unit = units.get(result.unit)
        if unit is None:
            raise BadRequest(f"{result.unit!r} is no unit of this lease", field=f"results[{number}].unit")
        made = (result.companion, result.state, result.segment, result.findings, result.rows, result.error)
        if sum(one is not None for one in made) + result.gone != 1:
            raise BadRequest(
                "a result is a companion, a state, a segment, findings, rows, gone or an error",
                field=f"results[{number}]",
            )
        if result.companion is not None and not _fits(unit, result.companion):
            raise BadRequest(
                f"{result.companion.name!r} is not what {result.unit!r} asks for", field=f"results[{number}].companion"
            )
        if result.state is not None and not _folds(unit, result.state):
            raise BadRequest(
                f"{result.state.name!r} is not what {result.unit!r} asks for", field=f"results[{number}].state"
            )
        if result.segment is not None and not _rewrites(unit, result.segment):
            raise BadRequest(
                f"{result.segment.name!r} is not what {result.unit!r} asks for", field=f"results[{number}].segment"
            )
        if result.rows is not None and unit.history is None:
            raise BadRequest(f"{result.unit!r} asks for no rows", field=f"results[{number}].rows")
        if result.findings is not None and not _is_about(unit, result.findings):
            raise BadRequest(f"these are no findings about {result.unit!r}", field=f"results[{number}].findings")
    if len({result.unit for result in results}) != len(results):
        raise BadRequest("a unit has one result", field="results")


def _fits(unit: Unit, companion: Companion) -> bool:
    asked, made = (unit.first_seq, unit.count, unit.level), (companion.first_seq, companion.count, companion.level)
    key = companion_key(unit.stream, unit.incarnation, companion.name, "columns")
    is_named_so = companion.name.startswith(unit.name_begins) and companion_place(key) is not None
    return unit.job in DERIVED and asked == made and is_named_so


def _folds(unit: Unit, state: State) -> bool:
    asked = (unit.table, unit.first_seq, unit.count, unit.level, unit.lives)
    made = (state.table, state.first_seq, state.count, state.level, state.lives)
    is_named_so = state.name.startswith(unit.name_begins)
    key = state_key(unit.stream, unit.incarnation, state.name)
    return unit.job in FOLDED and asked == made and is_named_so and state_place(key) is not None


def _rewrites(unit: Unit, segment: Segment) -> bool:
    asked, made = (unit.first_seq, unit.count), (segment.first_seq, segment.count)
    key = segment_key(unit.stream, unit.incarnation, segment.name)
    is_named_so = segment.name.startswith(unit.name_begins) and segment_place(key) is not None
    return unit.job == "erase" and asked == made and is_named_so


def _is_about(unit: Unit, findings: Findings) -> bool:
    """Whether findings are about just the events of a unit, and add up."""
    seqs = [misfit.seq for misfit in findings.misfits]
    return (
        unit.verification is not None
        and findings.events == unit.count
        and len(seqs) == min(findings.failing, MOST_NAMED)
        and findings.failing <= unit.count
        and seqs == sorted(set(seqs))
        and all(unit.first_seq <= seq < unit.end_seq for seq in seqs)
    )


def commit(
    batch: Batch, lease: Leased, results: Sequence[Result], definitions: Definitions, stall: StallLimit
) -> tuple[Committed, list[str]]:
    """Settle units, as they were checked; what was settled before is only told again.

    The outcomes of those that had none before are the second part of the answer.
    """
    work, id = Work(batch.connection), lease.id
    found = leases.find(batch, id, lease.token)
    rows = {row.id: row for row in work.units(id)}
    if any(rows[result.unit].outcome in (None, "released", "lost") for result in results):
        leases.held(batch, id, lease.token)
    settling = _Settling(batch, work, definitions)
    settled = [settling.settle(rows[result.unit], lease.units[result.unit], result) for result in results]
    settling.finish()
    outcomes = [one.outcome for one in settled if rows[one.unit].outcome is None]
    if found.ended_us is not None:
        return Committed(settled, found.expires_us), outcomes
    if outcomes:
        stall.settle(found, batch.now_us)
    else:
        stall.report(found, found.done, batch.now_us)
    expires_us = stall.extended(found, batch.now_us)
    work.renew(id, expires_us, found.done, found.total)
    if not any(row.outcome is None for row in work.units(id)):
        leases.finish(batch, found)
    return Committed(settled, expires_us), outcomes


class _Target:
    """A living stream that companions are listed for."""

    def __init__(self, row: StreamRow, defined: Defined, listed: list[Companion]) -> None:
        self.row, self.defined, self.listed = row, defined, listed
        self.names = {one.name for one in listed}
        self.start = max(row.first_seq, defined.registry.readable_from)

    def refuses(self, unit: Unit, companion: Companion) -> str | None:
        """Why a companion is of no use."""
        if not is_current(companion, self.defined):
            return CHANGED
        if companion.end_seq <= self.start:
            return "its entries are not retained any more"
        if not {one.name for one in unit.inputs} <= self.names:
            return "its inputs were replaced"
        return None


class _Settling:
    """Settles units one after the other in one commit."""

    def __init__(self, batch: Batch, work: Work, definitions: Definitions) -> None:
        self._batch = batch
        self._work = work
        self._definitions = definitions
        self._companions, self._states = Companions(batch.connection), States(batch.connection)
        self._targets: dict[int, _Target | str] = {}

    def settle(self, row: UnitRow, unit: Unit, result: Result) -> Settled:
        if row.outcome is not None:
            if row.outcome == "dropped":
                self._discard(row, unit, result)
            return Settled(row.id, row.outcome, row.reason)
        outcome, reason = self._judge(row, unit, result)
        if outcome in ("failed", "parked"):
            log.warning("%s of %r from entry %d on %s: %s", unit.job, unit.stream, unit.first_seq, outcome, reason)
        self._work.settle(row.id, outcome, reason)
        if unit.job not in ("verify", "history") and self._batch.streams.of(unit.incarnation) is not None:
            # What is left may be less than is worth the work by itself.
            is_left = unit.job in MARKED and outcome in ("failed", "gone")
            self._work.mark(row.stream, self._batch.now_us, run=is_left)
        return Settled(row.id, outcome, reason)

    def finish(self) -> None:
        """Let those count no more that others have taken the place of."""
        for target in self._targets.values():
            if isinstance(target, _Target):
                names = replaced(sorted(target.listed, key=_first_seq), target.defined, target.start)
                self._companions.retire(target.row.id, names)

    def _judge(self, row: UnitRow, unit: Unit, result: Result) -> tuple[Outcome, str | None]:
        error = result.error
        if result.gone:
            if self._is_replaced(row, unit):
                return "gone", None
            error = "an object that it reads is listed, and not in the store"
        if error is not None:
            outcome = failures.fail(self._work, row.stream, unit, error, self._batch.now_us)
            if unit.history is not None and outcome == "parked":
                histories.fail(self._batch, unit.history, error)
            return outcome, error
        if result.findings is not None and unit.verification is not None:
            where = Range(unit.first_seq, unit.end_seq)
            reason = verification_job.note(self._batch, unit.verification, where, result.findings)
            return ("committed", None) if reason is None else ("dropped", reason)
        if result.rows is not None and unit.history is not None:
            reason = self._note_rows(row, unit, unit.history, result.rows)
            return ("committed", None) if reason is None else ("dropped", reason)
        if result.segment is not None:
            reason = self._note_segment(row, unit, result.segment)
        elif self._is_erased(row, unit):
            reason = "events were erased that it was made of"
        elif result.state is not None:
            reason = self._list_state(row, unit, result.state)
        else:
            assert result.companion is not None
            reason = self._list(row, unit, result.companion)
        if reason is None:
            self._work.succeeded(row.stream, unit.concern, unit.first_seq, unit.end_seq)
            return "committed", None
        self._discard(row, unit, result)
        return "dropped", reason

    def _note_segment(self, row: UnitRow, unit: Unit, segment: Segment) -> str | None:
        """Keep a segment for the next publication, or say why it is of no use."""
        erasures, published = Erasures(self._batch.connection), self._batch.published
        placed = published.holding(row.stream, unit.first_seq)
        if not erasures.is_running(row.stream) or placed is None or placed.key != unit.segments[0].key:
            return "its segment was replaced"
        before, total = placed.segment.before_bytes, placed.segment.total_bytes
        listed = msgspec.structs.replace(segment, before_bytes=before, total_bytes=total)
        erasures.note_rewritten(row.stream, placed.segment.name, listed)
        return None

    def _is_erased(self, row: UnitRow, unit: Unit) -> bool:
        """Whether something that a unit was made of is erased, or was meanwhile."""
        erasures, lease = Erasures(self._batch.connection), self._work.lease(row.lease)
        if erasures.is_running(row.stream):
            return True
        since_us = 0 if lease is None else lease.granted_us
        return erasures.has_ended(row.stream, since_us) and self._is_replaced(row, unit)

    def _note_rows(self, row: UnitRow, unit: Unit, history: str, rows: list[dict[str, Any]]) -> str | None:
        begun = decoding.convert(unit.known, Known)
        self._work.succeeded(row.stream, unit.concern, 0, unit.end_seq)
        return histories.note(self._batch, history, histories.Answer(rows, begun.complete, begun.since))

    def _list_state(self, row: UnitRow, unit: Unit, state: State) -> str | None:
        """List a state in place of those it was made of, or say why it is of no use."""
        stream = self._batch.streams.by_id(row.stream)
        if stream is None or stream.state != LIVE:
            return "the stream was deleted"
        inputs = {one.name for one in unit.states}
        listed = {one.name: one for one in self._states.listed(row.stream) if one.table == state.table}
        if not inputs <= listed.keys():
            return "its inputs were replaced"
        if any(_holds_same(other, state) for name, other in listed.items() if name not in inputs):
            return "its events were folded already"
        self._states.retire(row.stream, inputs)
        self._states.add(row.stream, state)
        self._batch.published.mark(row.stream, self._batch.now_us)
        return None

    def _list(self, row: UnitRow, unit: Unit, companion: Companion) -> str | None:
        """List a companion, or say why it is of no use."""
        target = self._target(row.stream)
        if isinstance(target, str):
            return target
        if (reason := target.refuses(unit, companion)) is not None:
            return reason
        self._companions.add(row.stream, companion)
        target.listed.append(companion)
        self._batch.published.mark(row.stream, self._batch.now_us)
        return None

    def _target(self, stream: int) -> _Target | str:
        """A stream that takes companions, or why it does not."""
        if stream not in self._targets:
            self._targets[stream] = self._look_at(stream)
        return self._targets[stream]

    def _look_at(self, stream: int) -> _Target | str:
        row = self._batch.streams.by_id(stream)
        if row is None or row.state != LIVE:
            return "the stream was deleted"
        try:
            defined = self._definitions.stored(self._batch.registries, row)
        except CorruptData as reason:
            return reason.message
        return CHANGED if defined is None else _Target(row, defined, self._companions.listed(stream))

    def _is_replaced(self, row: UnitRow, unit: Unit) -> bool:
        """Whether something that a unit reads is not listed any more."""
        if unit.inputs:
            listed = {one.name for one in self._companions.listed(row.stream)}
            return not {one.name for one in unit.inputs} <= listed
        known = {one.name for one in self._states.listed(row.stream)} if unit.states else set()
        if not {one.name for one in unit.states} <= known:
            return True
        places = [place for source in unit.segments if (place := segment_place(source.key)) is not None]
        return any(self._batch.published.is_orphan(place[1], name) for place, name in places)

    def _discard(self, row: UnitRow, unit: Unit, result: Result) -> None:
        """Let the objects of a result go, unless it is listed or they go with their stream."""
        made = result.companion, result.state, result.segment
        if not any(one is not None for one in made) or leases.bury(self._batch, unit):
            return
        keys: list[str] = []
        if result.segment is not None and self._batch.published.is_orphan(unit.incarnation, result.segment.name):
            keys.append(segment_key(unit.stream, unit.incarnation, result.segment.name))
        if result.companion is not None and not self._companions.has(row.stream, result.companion.name):
            keys += object_keys(unit.stream, unit.incarnation, [result.companion])
        if result.state is not None and not self._states.has(row.stream, result.state.name):
            keys.append(state_key(unit.stream, unit.incarnation, result.state.name))
        self._batch.published.discard(keys, self._batch.now_us)


def _first_seq(companion: Companion) -> int:
    return companion.first_seq


def _holds_same(one: State, other: State) -> bool:
    """Whether two states of a table hold the same life of a feature over the same events."""
    apart = one.end_seq <= other.first_seq or other.end_seq <= one.first_seq
    return not apart and not set(one.lives.values()).isdisjoint(other.lives.values())
