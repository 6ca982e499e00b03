"""The proof on data in an engine: who looks at what, how far it goes, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.registries import change, evolve, stored, stream_with, update
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.verification import verifier
from headrace.engine.verification.verify_job import Progress
from headrace.errors import BadRequest, Conflict, NotFound, Overloaded
from headrace.pipeline.kernels import verify
from headrace.pipeline.kernels.units import result
from headrace.reduce.work_units import Result, Unit
from headrace.schema.registry import Registry
from headrace.schema.trial import Findings, Misfit
from headrace.storage.background_requests import KEPT_US, VerificationRow
from headrace.types import JSON
from server.registries import WHOLE, lens, rename, shape
from support.engine_rig import Rig, array
from support.work_rig import SECOND, Worker, failures, opened, search

BELOW_100 = shape(n={"type": "integer", "maximum": 99})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An engine that seals ten entries at a time, and leaves whatever is published to workers first."""
    with opened(tmp_path / "data") as rig:
        yield rig


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the server wait for workers no longer."""
    return lambda: monkeypatch.setattr(verifier, "WORKERS_FIRST_S", 0.0)


def numbers(rig: Rig, name: str, *values: int) -> None:
    for start in range(0, len(values), 10):
        rig.append(name, array(*({"n": value} for value in values[start : start + 10])))


def numbered(rig: Rig, name: str, published: int, tail: int = 0, first: int = 80) -> None:
    """A stream of events that count up, some published, ten to a segment."""
    stream_with(rig, name, shape(n=WHOLE))
    numbers(rig, name, *range(first, first + published))
    if published:
        rig.publish(name)
    numbers(rig, name, *range(first + published, first + published + tail))


def begin(rig: Rig, name: str, schema: Any = BELOW_100, *ops: dict[str, Any]) -> str:
    """Begin to hold the next version against the events of a stream."""
    version = rig.engine.schemas.registry(rig.find(name)).current_version
    body = {"schema": schema, **({"lens": lens(name, version, *ops)} if ops else {})}

    async def begun() -> str:
        stream = rig.find(name)
        _, proposal = await rig.engine.schemas.propose(stream, update(**body))
        assert proposal is not None
        return (await rig.engine.verifier.begin(stream, proposal)).id

    return rig.run(begun())


def now(rig: Rig, name: str, id: str) -> VerificationRow:
    return rig.engine.verifier.find(rig.find(name), id)


def ended(rig: Rig, name: str, id: str) -> Progress:
    """The verification once it has ended."""
    until(rig, lambda: now(rig, name, id).state != "running")
    return Progress(now(rig, name, id))


def until(rig: Rig, holds: Callable[[], bool]) -> None:
    """Let the engine go on until something holds."""

    async def wait() -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.005)

    rig.run(wait())


def seqs(found: Progress) -> list[int]:
    return [misfit.seq for misfit in found.findings.misfits]


def granted(rig: Rig, limit: int = 256) -> Grant:
    return Worker(rig).granted(limit, jobs=["verify"])


def looked(rig: Rig, grant: Grant) -> list[Result]:
    """What the kernel finds in each unit."""
    store = (Path(rig.config.storage.data_dir) / "objects").resolve().as_uri()
    results = [result(verify.perform, msgspec.json.encode(unit), store) for unit in grant.units]
    return [msgspec.convert(msgspec.to_builtins(one), Result) for one in results]


def test_the_server_looks_when_its_turn_comes_at_the_index_gate(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", storage={"seal_rows": 10}) as rig:
        numbered(rig, "a", 0, tail=30)
        gate = rig.engine.gates.index
        rig.run(gate.__aenter__())
        id = begin(rig, "a")
        until(rig, lambda: gate.queued == 1)
        rig.run(gate.__aexit__())
        assert ended(rig, "a", id).findings.events == 30


def test_the_server_looks_at_little_at_once_and_at_the_tail_too(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", storage={"seal_rows": 10}) as rig:
        numbered(rig, "s", published=30, tail=15)
        id = begin(rig, "s")
        assert Worker(rig).lease(jobs=["verify"]) is None, "so little is not worth a worker"
        found = ended(rig, "s", id)
        assert found.row.state == "done"
        assert found.through_seq == 45
        assert found.findings.events == 45
        assert found.findings.lens == 0
        assert found.findings.schema == 25
        assert seqs(found) == list(range(20, 45))
        assert found.findings.misfits[0] == Misfit(20, "schema", "/n", "value is greater than the maximum of 99")


def test_workers_look_at_what_is_published_and_the_server_at_the_rest(rig: Rig) -> None:
    numbered(rig, "s", published=30, tail=5)
    id = begin(rig, "s")
    worker, grant = Worker(rig), granted(rig)
    assert [(unit.job, unit.first_seq, unit.count) for unit in grant.units] == [
        ("verify", 0, 10),
        ("verify", 10, 10),
        ("verify", 20, 10),
    ]
    assert worker.lease(jobs=["verify"]) is None
    results = looked(rig, grant)
    worker.commit(grant, results[1:])
    halfway = Progress(now(rig, "s", id))
    assert halfway.row.state == "running"
    assert halfway.findings.events == 20
    assert halfway.through_seq == 0
    numbers(rig, "s", 1, 1000)
    told = worker.commit(grant, results[:1])
    assert [one.outcome for one in told.settled] == ["committed"]
    found = ended(rig, "s", id)
    assert found.row.state == "done"
    assert found.through_seq == 37
    assert found.findings.events == 37
    assert seqs(found) == [*range(20, 35), 36]
    assert worker.lease() is None and rig.engine.work.counts()["due"] == 0


def test_a_commit_that_is_repeated_counts_once(rig: Rig) -> None:
    numbered(rig, "s", published=20)
    id = begin(rig, "s")
    worker, grant = Worker(rig), granted(rig)
    results = looked(rig, grant)
    for _ in range(2):
        worker.commit(grant, results)
    assert ended(rig, "s", id).findings.events == 20


def test_verifying_and_indexing_do_not_hinder_each_other(rig: Rig) -> None:
    numbered(rig, "s", published=20)
    rig.publish("s")
    change(rig, "s", search=search("n"))
    ids = [begin(rig, "s"), begin(rig, "s", shape(n={"type": "integer", "minimum": 90}))]
    grant = Worker(rig).granted()
    assert sorted((unit.job, unit.verification or "", unit.first_seq) for unit in grant.units) == sorted(
        [("index", "", 0), ("index", "", 10), *(("verify", id, first) for id in ids for first in (0, 10))]
    )
    Worker(rig).commit(grant, looked(rig, Grant(grant.lease, [one for one in grant.units if one.job == "verify"])))
    assert [ended(rig, "s", id).findings.schema for id in ids] == [0, 10]


def test_where_no_worker_comes_the_server_looks_at_everything(rig: Rig, alone: Callable[[], None]) -> None:
    alone()
    numbered(rig, "s", published=30, tail=5)
    rig.run(rig.engine.work.pause(True))
    found = ended(rig, "s", begin(rig, "s"))
    assert found.row.state == "done"
    assert found.through_seq == 35
    assert found.findings.schema == 15


def test_what_a_lost_worker_had_is_looked_at_by_the_server(rig: Rig, alone: Callable[[], None]) -> None:
    numbered(rig, "s", published=20)
    id = begin(rig, "s")
    grant = granted(rig, limit=1)
    alone()
    until(rig, lambda: Progress(now(rig, "s", id)).findings.events == 10)
    assert now(rig, "s", id).state == "running", "what a worker has is left to it"
    rig.clock.us += 61 * SECOND
    assert ended(rig, "s", id).findings.events == 20
    with pytest.raises(Conflict, match="ended"):
        Worker(rig).commit(grant, looked(rig, grant))


def test_what_fails_with_a_worker_is_looked_at_by_the_server(rig: Rig, alone: Callable[[], None]) -> None:
    numbered(rig, "s", published=20)
    id = begin(rig, "s")
    grant = granted(rig)
    told = Worker(rig).commit(grant, [Result(unit.unit, error="boom") for unit in grant.units])
    assert {one.outcome for one in told.settled} == {"failed"}
    assert len(failures(rig, "s")) == 2
    alone()
    assert ended(rig, "s", id).findings.events == 20
    assert failures(rig, "s") == [], "nothing is left of it"


@pytest.mark.parametrize(
    "wrong",
    [
        Findings(9),
        Findings(10, 1),
        Findings(10, 0, 1, (Misfit(10, "schema", "", "x"),)),
        Findings(10, 0, 2, (Misfit(1, "schema", "", "x"), Misfit(1, "schema", "", "x"))),
        Findings(10, 11, 0, tuple(Misfit(seq, "lens", "", "x") for seq in range(11))),
    ],
)
def test_findings_that_are_not_about_the_unit_are_refused(rig: Rig, wrong: Findings) -> None:
    numbered(rig, "s", published=10)
    id = begin(rig, "s")
    grant = granted(rig)
    with pytest.raises(BadRequest) as refusal:
        Worker(rig).commit(grant, [Result(grant.units[0].unit, findings=wrong)])
    assert refusal.value.facts["field"] == "results[0].findings"
    Worker(rig).commit(grant, looked(rig, grant))
    assert ended(rig, "s", id).findings.events == 10


def test_a_unit_of_another_job_has_no_findings(rig: Rig) -> None:
    stream_with(rig, "s", shape(n=WHOLE))
    change(rig, "s", search=search("n"))
    numbers(rig, "s", *range(10))
    rig.publish("s")
    grant = Worker(rig).granted()
    assert [unit.job for unit in grant.units] == ["index"]
    with pytest.raises(BadRequest, match="no findings about"):
        Worker(rig).commit(grant, [Result(grant.units[0].unit, findings=Findings(10))])


def test_events_of_every_version_go_through_their_own_lenses(rig: Rig) -> None:
    stream_with(rig, "s", shape(n=WHOLE), *({"n": number} for number in range(10)))
    evolve(rig, "s", shape(m=WHOLE), rename("n", "m"))
    rig.append("s", array({"m": 10}, {"m": 11}))
    rig.publish("s")
    rig.append("s", array({"m": 12}))
    id = begin(rig, "s", shape(k={"type": "integer", "multipleOf": 3}), rename("m", "k"))
    grant = granted(rig)
    Worker(rig).commit(grant, looked(rig, grant))
    found = ended(rig, "s", id)
    assert found.findings.events == 13
    assert found.findings.schema == 8
    assert {misfit.pointer for misfit in found.findings.misfits} == {"/k"}


def test_a_first_schema_is_held_against_what_is_there(rig: Rig) -> None:
    rig.create("s", JSON, array({"n": 1}, {"n": "x"}, 5))
    found = ended(rig, "s", begin(rig, "s", shape(n=WHOLE)))
    assert found.row.from_version == 0
    assert seqs(found) == [1, 2]
    assert found.through_seq == 3


def test_a_stream_without_events_carries_everything(rig: Rig) -> None:
    stream_with(rig, "s", shape(n=WHOLE))
    found = ended(rig, "s", begin(rig, "s"))
    assert found.row.state == "done"
    assert found.findings == Findings()
    assert found.through_seq == 0


def test_a_fork_is_verified_with_what_it_reads_of_its_source(rig: Rig, alone: Callable[[], None]) -> None:
    alone()
    numbered(rig, "s", published=20, tail=10, first=95)
    rig.fork("s", "f", 25)
    numbers(rig, "f", 1, 100)
    found = ended(rig, "f", begin(rig, "f"))
    assert found.findings.events == 27
    assert found.through_seq == 27
    assert seqs(found) == [*range(5, 25), 26]


def test_a_deletion_takes_verifications_along(rig: Rig) -> None:
    numbered(rig, "s", published=10)
    id = begin(rig, "s")
    grant = granted(rig)
    results = looked(rig, grant)
    rig.delete("s")
    assert stored(rig, "verifications") == 0
    numbered(rig, "s", published=0)
    with pytest.raises(NotFound):
        now(rig, "s", id)
    (told,) = Worker(rig).commit(grant, results).settled
    assert told.outcome == "dropped"
    assert told.reason == "the stream was deleted"
    assert Worker(rig).lease() is None


def test_another_version_ends_a_verification_and_another_setting_does_not(rig: Rig) -> None:
    numbered(rig, "s", published=10)
    id = begin(rig, "s")
    grant = granted(rig)
    change(rig, "s", search=search("n"))
    assert now(rig, "s", id).state == "running"
    evolve(rig, "s", shape(m=WHOLE), rename("n", "m"))
    row = now(rig, "s", id)
    assert row.state == "failed"
    assert row.reason == "the stream got schema version 2 meanwhile; plan the change again"
    (told,) = Worker(rig).commit(grant, looked(rig, grant)).settled
    assert told.outcome == "dropped"
    assert told.reason == "the verification has ended"


def test_a_proposal_must_lead_on_from_what_is_there(rig: Rig) -> None:
    numbered(rig, "s", published=0)
    proposal = Registry.empty("s").advanced(True, None, 0)
    with pytest.raises(Conflict, match="changed meanwhile"):
        rig.run(rig.engine.verifier.begin(rig.find("s"), proposal))


def test_events_that_are_not_retained_any_more_are_not_looked_at(rig: Rig) -> None:
    numbered(rig, "s", published=30)
    id = begin(rig, "s")
    grant = granted(rig, limit=1)
    rig.retain("s", size=rig.find("s").head.bytes // 3)
    Worker(rig).commit(grant, looked(rig, grant))
    rest = granted(rig)
    assert [(unit.first_seq, unit.count) for unit in rest.units] == [(20, 10)]
    Worker(rig).commit(rest, looked(rig, rest))
    found = ended(rig, "s", id)
    assert found.row.state == "done"
    assert found.findings.events == 20
    assert found.through_seq == 30


def test_a_segment_that_was_replaced_meanwhile_is_no_failure(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", storage={"seal_rows": 100}, pipeline={"min_rows": 0}) as rig:
        numbered(rig, "s", published=10)
        id = begin(rig, "s")
        grant = granted(rig)
        numbers(rig, "s", 1, 2)
        rig.publish("s")
        (told,) = Worker(rig).commit(grant, [Result(grant.units[0].unit, gone=True)]).settled
        assert told.outcome == "gone"
        again = granted(rig)
        assert [(unit.first_seq, unit.count) for unit in again.units] == [(0, 10)]
        Worker(rig).commit(again, looked(rig, again))
        assert ended(rig, "s", id).findings.events == 12


def test_a_segment_that_is_missing_ends_a_verification(rig: Rig, alone: Callable[[], None]) -> None:
    alone()
    numbered(rig, "s", published=20)
    (first, *_) = sorted(info.key for info in rig.engine.objects.list("segments"))
    rig.engine.objects.delete([first])
    found = ended(rig, "s", begin(rig, "s"))
    assert found.row.state == "failed"
    assert first in (found.row.reason or "")


def test_a_restart_goes_on_where_it_was(rig: Rig) -> None:
    numbered(rig, "s", published=20, tail=5)
    id = begin(rig, "s")
    first, second = granted(rig, limit=1), granted(rig)
    Worker(rig).commit(first, looked(rig, first))
    rig.reopen()
    assert Progress(now(rig, "s", id)).findings.events == 10
    Worker(rig).commit(second, looked(rig, second))
    assert ended(rig, "s", id).findings.events == 25


def test_only_so_many_run_at_a_time(rig: Rig) -> None:
    numbered(rig, "s", published=10)
    for _ in range(verifier.MAX_RUNNING):
        begin(rig, "s")
    with pytest.raises(Overloaded):
        begin(rig, "s")


def test_what_has_ended_is_kept_for_a_day(rig: Rig) -> None:
    numbered(rig, "s", published=10)
    numbered(rig, "t", published=0, tail=3)
    running, done = begin(rig, "s"), begin(rig, "t")
    assert ended(rig, "t", done).row.proposal is None
    rig.clock.us += KEPT_US
    rig.sweep()
    assert now(rig, "t", done).state == "done"
    rig.clock.us += 1
    rig.sweep()
    with pytest.raises(NotFound):
        now(rig, "t", done)
    assert now(rig, "s", running).state == "running"


def test_the_newest_that_have_ended_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.log.retention.KEPT", 2)
    numbered(rig, "s", published=0, tail=3)
    ids = []
    for _ in range(4):
        rig.clock.us += 1
        ids.append(begin(rig, "s"))
        ended(rig, "s", ids[-1])
    rig.sweep()
    assert stored(rig, "verifications") == 2
    assert [now(rig, "s", id).state for id in ids[2:]] == ["done", "done"]


def test_a_unit_tells_what_is_proposed(rig: Rig) -> None:
    numbered(rig, "s", published=10)
    id = begin(rig, "s")
    (unit,) = granted(rig).units
    assert unit.verification == id
    assert unit.registry["currentVersion"] == 2
    assert unit.registry["schemas"]["2"] == BELOW_100
    assert isinstance(unit, Unit)
