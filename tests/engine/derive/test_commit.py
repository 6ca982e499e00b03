"""What comes of work: listed once, or given up with its objects, and never half."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.registries import change
from headrace.errors import BadRequest, Gone
from headrace.reduce.work_units import Result
from headrace.types import JSON
from support.engine_rig import Rig, array
from support.work_rig import (
    SECOND,
    Worker,
    covered,
    failures,
    forget,
    listed,
    opened,
    publish,
    search,
    searched,
    spans,
    stored,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_commit_that_is_repeated_changes_nothing_and_gets_the_same_answer(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        results = worker.made(grant)
        told = worker.commit(grant, results)
        assert [one.outcome for one in told.settled] == ["committed", "committed"]
        before = listed(rig, "s")
        assert worker.commit(grant, results) == told
        rig.reopen()
        assert worker.commit(grant, results) == told
        assert listed(rig, "s") == before


def test_results_may_come_one_by_one(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        grant = worker.granted()
        for number, result in enumerate(worker.made(grant), 1):
            worker.commit(grant, [result])
            assert len(covered(rig, "s")) == number
        assert worker.lease() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_seq": 1},
        {"count": 9},
        {"level": 1},
        {"name": "0000000000000000-10-other"},
        {"name": "0000000000000000-10-../../x"},
    ],
)
def test_a_companion_that_is_not_what_was_asked_for_is_refused(directory: Path, wrong: dict[str, object]) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        (result,) = worker.made(grant)
        assert result.companion is not None
        other = Result(result.unit, msgspec.structs.replace(result.companion, **wrong))
        with pytest.raises(BadRequest) as refusal:
            worker.commit(grant, [other])
        assert refusal.value.facts["field"] == "results[0].companion"
        worker.commit(grant, [result])


@pytest.mark.parametrize("facts", [{}, {"gone": True, "error": "x"}])
def test_a_result_is_one_thing(directory: Path, facts: dict[str, object]) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        with pytest.raises(BadRequest, match=r"a result is a companion, a state, .* or an error"):
            worker.commit(grant, [Result(grant.units[0].unit, **facts)])  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="one result"):
            worker.commit(grant, [Result(grant.units[0].unit, gone=True)] * 2)


def test_a_deleted_stream_takes_its_companions_and_its_work_along(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        searched(rig, "other", 10)
        worker = Worker(rig)
        worker.commit(worker.granted(limit=1))
        grant = worker.granted()
        assert {unit.stream for unit in grant.units} == {"s", "other"}
        results = worker.made(grant)
        rig.delete("s")
        assert rig.engine.work.counts() == {"due": 1, "leases": 1, "units": 1, "resting": 0, "parked": 0}
        _, dropped = worker.beat(grant)
        assert dropped == [unit.unit for unit in grant.units if unit.stream == "s"]
        rig.clear()
        assert len(stored(rig)) == 1, "what belongs to the other stream is left"
        told = worker.commit(grant, results).settled
        outcomes = {unit.stream: one.outcome for unit, one in zip(grant.units, told, strict=True)}
        assert outcomes == {"s": "dropped", "other": "committed"}
        forget(rig)
        assert stored(rig) == {one.name for one in listed(rig, "other")}
        assert stored(rig, "segments") and worker.lease() is None


def test_what_is_written_after_a_deletion_and_never_committed_goes_when_the_lease_ends(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        rig.delete("s")
        rig.clear()
        worker.made(grant)
        rig.clear()
        assert stored(rig)
        rig.clock.us += 61 * SECOND
        assert worker.lease() is None
        rig.clear()
        assert not stored(rig)


def test_a_stream_that_was_made_anew_has_nothing_of_its_former_life(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        results = worker.made(grant)
        rig.delete("s")
        searched(rig, "s", 20)
        (told,) = worker.commit(grant, results).settled
        assert told.outcome == "dropped"
        assert listed(rig, "s") == []
        worker.work()
        forget(rig)
        assert stored(rig) == {one.name for one in listed(rig, "s")}
        assert covered(rig, "s") == [(0, 10), (10, 20)]


def test_a_source_that_only_forks_need_has_no_companions(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.commit(worker.granted(limit=1))
        grant = worker.granted()
        rig.fork("s", "f", 15)
        rig.delete("s")
        (told,) = worker.commit(grant).settled
        assert told.outcome == "dropped"
        with pytest.raises(Gone):
            rig.find("s")
        rig.publish("s")
        rig.publish("f")
        forget(rig)
        assert not stored(rig)
        worker.work()
        assert covered(rig, "f") == [(0, 10), (10, 15)]


def test_a_change_of_what_is_derived_makes_results_useless(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        results = worker.made(grant)
        change(rig, "s", search=search("user", "city"))
        assert worker.lease() is None, "nobody else works on the range meanwhile"
        (told,) = worker.commit(grant, results).settled
        assert told.outcome == "dropped"
        assert told.reason == "what is derived from the stream has changed"
        assert listed(rig, "s") == []
        assert worker.work() == 1
        forget(rig)
        assert stored(rig) == {one.name for one in listed(rig, "s")}


def test_a_change_back_finds_results_as_they_should_be(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        change(rig, "s", search=search("user", "city"))
        change(rig, "s", search=search("user"))
        (told,) = worker.commit(grant).settled
        assert told.outcome == "committed"


def test_what_was_merged_is_dropped_where_an_input_is_gone(directory: Path) -> None:
    with opened(directory, fan_out=2) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.commit(worker.granted())
        grant = worker.granted()
        assert [unit.job for unit in grant.units] == ["compact"]
        change(rig, "s", search=None)
        other = Worker(rig)
        assert other.lease() is None
        change(rig, "s", search=search("user"))
        (told,) = worker.commit(grant).settled
        assert told.outcome == "dropped"
        assert told.reason == "its inputs were replaced"
        worker.work()
        assert covered(rig, "s") == [(0, 20)]


def test_what_is_replaced_goes_once_no_manifest_lists_it(directory: Path) -> None:
    with opened(directory, fan_out=2) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.commit(worker.granted())
        rig.publish("s")
        small = stored(rig)
        worker.work()
        (merged,) = listed(rig, "s")
        forget(rig)
        assert stored(rig) == {merged.name, *small}, "the manifest still lists them"
        rig.publish("s")
        rig.clear()
        assert stored(rig) == {merged.name, *small}, "someone may be reading them"
        forget(rig)
        assert stored(rig) == {merged.name}


def test_companions_go_with_the_entries_they_describe(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        worker.work()
        size = rig.find("s").head.bytes
        rig.retain("s", size=size * 2 // 3)
        assert rig.find("s").head.first_seq == 10
        assert covered(rig, "s") == [(10, 20), (20, 30)]
        rig.publish("s")
        forget(rig)
        assert spans(listed(rig, "s")) == [(10, 20), (20, 30)]
        assert len(stored(rig)) == 2


def test_results_for_entries_that_are_not_retained_any_more_are_dropped(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        rig.retain("s", size=rig.find("s").head.bytes // 2)
        told = worker.commit(grant).settled
        assert [one.outcome for one in told] == ["dropped", "committed"]
        assert covered(rig, "s") == [(10, 20)]


def test_a_segment_that_was_replaced_meanwhile_is_no_failure(directory: Path) -> None:
    with Rig(directory, storage={"seal_rows": 100}, pipeline={"min_rows": 0}) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        publish(rig, "s", 10)
        (told,) = worker.commit(grant, [Result(grant.units[0].unit, gone=True)]).settled
        assert told.outcome == "gone"
        assert failures(rig, "s") == []
        assert worker.work() == 1
        assert covered(rig, "s") == [(0, 20)]


def test_a_segment_that_should_be_there_and_is_not_is_a_failure(directory: Path) -> None:
    with opened(directory, fan_out=2) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        told = worker.commit(grant, [Result(grant.units[0].unit, gone=True), worker.made(grant)[1]]).settled
        assert [one.outcome for one in told] == ["failed", "committed"]
        rig.clock.us += SECOND
        worker.commit(worker.granted())
        grant = worker.granted()
        (told_merging,) = worker.commit(grant, [Result(grant.units[0].unit, gone=True)]).settled
        assert told_merging.outcome == "failed"


def test_a_fork_is_indexed_from_the_segments_of_its_source(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        rig.fork("s", "f", 15)
        rig.append("f", array(*({"user": "own"} for _ in range(10))))
        worker = Worker(rig)
        grant = worker.granted()
        assert [(unit.stream, unit.first_seq, unit.count) for unit in grant.units] == [
            ("s", 0, 10),
            ("s", 10, 10),
            ("f", 0, 10),
            ("f", 10, 5),
        ]
        source = grant.units[3].segments[0]
        assert source.first_seq == 10
        assert source.count == 10
        assert rig.find("s").incarnation in source.key
        worker.commit(grant)
        rig.publish("f")
        assert worker.work() == 1
        assert covered(rig, "f") == [(0, 10), (10, 15), (15, 25)]
        rig.delete("f")
        forget(rig)
        assert stored(rig) == {one.name for one in listed(rig, "s")}


def test_a_fork_is_due_when_what_it_reads_is_published(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s")
        rig.append("s", array(*({"user": "x"} for _ in range(10))))
        rig.fork("s", "f", 10)
        rig.fork("f", "g", 10)
        worker = Worker(rig)
        assert worker.lease() is None
        rig.publish("s")
        assert {unit.stream for unit in worker.granted().units} == {"s", "f", "g"}


def test_objects_that_nobody_lists_are_swept(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.commit(worker.granted(limit=1))
        grant = worker.granted()
        worker.made(grant)
        assert len(stored(rig)) == 2
        later = rig.engine.sealer.publisher.orphans
        assert later(1 << 62) == [], "somebody may still list them"
        worker.release(grant)
        found = later(1 << 62)
        assert {key.rpartition("/")[2].partition(".")[0] for key in found} == stored(rig) - {
            one.name for one in listed(rig, "s")
        }
        assert later(0) == []


def test_a_stream_without_a_schema_registry_costs_nothing(directory: Path) -> None:
    with opened(directory) as rig:
        rig.create("plain", JSON, array(1, 2))
        rig.publish("plain")
        assert rig.engine.work.counts()["due"] == 0
