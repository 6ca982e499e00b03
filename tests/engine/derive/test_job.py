"""What is due, and how it is cut into units."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.registries import change
from headrace.engine.derive.job import Planner
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import save_registry
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.errors import BadRequest
from headrace.format.object_names import segment_key
from headrace.reduce.work_units import JOBS, Result
from headrace.schema.registry import Registry
from headrace.schema.trial import Findings
from headrace.types import JSON
from support.engine_rig import Rig, array
from support.work_rig import SECOND, Worker, covered, listed, opened, publish, search, searched, spans


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_every_published_entry_is_indexed_segment_by_segment(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 25)
        rig.append("s", array({"user": "not published"}))
        grant = Worker(rig).granted()
        assert spans(grant.units) == [(0, 10), (10, 20), (20, 25)]
        first, stream = grant.units[0], rig.find("s")
        (source,) = first.segments
        placed = rig.engine.published.holding(stream.id, 0)
        assert placed is not None
        assert source.key == segment_key("s", stream.incarnation, placed.segment.name)
        assert source.first_seq == 0
        assert source.count == 10
        assert source.sha256 == placed.segment.sha256
        assert first.job == "index"
        assert first.level == 0
        assert first.stream == "s"
        assert first.incarnation == stream.incarnation
        assert Registry.load(first.registry) == rig.engine.schemas.registry(stream)
        assert len({unit.out for unit in grant.units}) == len({unit.unit for unit in grant.units}) == 3


def test_small_neighbours_are_one_unit(directory: Path) -> None:
    with opened(directory, unit_bytes=300) as rig:
        searched(rig, "s", 40)
        payload = [one.segment.payload_bytes for one in rig.engine.published.following(rig.find("s").id, 0, 40)]
        assert 2 * max(payload) <= 300 < 3 * min(payload)
        units = Worker(rig).granted().units
        assert spans(units) == [(0, 20), (20, 40)]
        assert [(source.first_seq, source.count) for source in units[1].segments] == [(20, 10), (30, 10)]


def test_work_of_many_streams_is_one_lease_and_the_limit_holds(directory: Path) -> None:
    with opened(directory) as rig:
        for name in "abc":
            searched(rig, name, 20)
            rig.clock.us += SECOND
        worker = Worker(rig)
        first = worker.granted(limit=3)
        assert [(unit.stream, unit.first_seq) for unit in first.units] == [("a", 0), ("a", 10), ("b", 0)]
        second = worker.granted()
        assert [(unit.stream, unit.first_seq) for unit in second.units] == [("c", 0), ("c", 10), ("b", 10)]
        assert worker.lease() is None


@pytest.mark.parametrize("what", ["nothing published", "no search", "no registry", "bytes"])
def test_a_stream_without_anything_to_derive_is_not_due(directory: Path, what: str) -> None:
    with opened(directory) as rig:
        if what == "nothing published":
            searched(rig, "s")
            rig.append("s", array({"user": "tail"}))
        else:
            rig.create("s", "text/plain" if what == "bytes" else JSON)
            if what == "no search":
                change(rig, "s", schema={"type": "object"})
            rig.append("s", array({"user": "a"}))
            rig.publish("s")
        assert Worker(rig).lease() is None
        assert rig.engine.work.counts()["due"] == 0


def test_few_entries_are_not_worth_it_until_there_are_more_or_they_are_asked_for(directory: Path) -> None:
    with opened(directory, min_rows=15) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        assert worker.lease() is None
        publish(rig, "s", 10)
        grant = worker.granted()
        assert spans(grant.units) == [(0, 10), (10, 20)]
        worker.commit(grant)
        publish(rig, "s", 10)
        assert worker.lease() is None
        rig.run(rig.engine.work.run(rig.find("s")))
        assert worker.work() == 1
        assert covered(rig, "s") == [(0, 10), (10, 20), (20, 30)]


def test_another_number_that_is_worth_it_counts_for_what_is_there(directory: Path) -> None:
    with opened(directory, min_rows=100) as rig:
        searched(rig, "s", 10)
        assert Worker(rig).lease() is None
        rig.config = msgspec.structs.replace(
            rig.config, pipeline=msgspec.structs.replace(rig.config.pipeline, min_rows=10)
        )
        rig.reopen()
        assert Worker(rig).work() == 1


def test_only_the_jobs_that_are_asked_for_are_given(directory: Path) -> None:
    with opened(directory, fan_out=2) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        assert worker.lease(jobs=["compact"]) is None
        worker.commit(worker.granted(jobs=["index"]))
        assert worker.lease(jobs=["index"]) is None
        (unit,) = worker.granted(jobs=["compact"]).units
        assert unit.job == "compact"
        assert unit.level == 1
        assert unit.first_seq == 0
        assert unit.count == 20
        assert [one.name for one in unit.inputs] == [one.name for one in listed(rig, "s")]


def test_a_segment_that_was_written_again_is_read_from_where_the_companion_ends(directory: Path) -> None:
    with Rig(directory, storage={"seal_rows": 100}, pipeline={"min_rows": 0}) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        assert worker.work() == 1
        publish(rig, "s", 5)
        (unit,) = worker.granted().units
        assert spans([unit]) == [(10, 15)]
        assert [(source.first_seq, source.count) for source in unit.segments] == [(0, 15)]


def test_companions_are_merged_level_by_level(directory: Path) -> None:
    with opened(directory, fan_out=4) as rig:
        searched(rig, "s", 10 * 21)
        Worker(rig).work(limit=5)
        found = listed(rig, "s")
        assert [(one.first_seq, one.end_seq, one.level) for one in found] == [
            (0, 160, 2),
            (160, 200, 1),
            (200, 210, 0),
        ]


def test_a_new_field_makes_everything_due_and_the_old_companions_answer_until_then(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        worker.work()
        assert covered(rig, "s") == [(0, 10), (10, 20), (20, 30)]
        change(rig, "s", search=search("user", "city"))
        assert covered(rig, "s") == []
        assert covered(rig, "s", fields=["user", "at"]) == [(0, 10), (10, 20), (20, 30)]
        publish(rig, "s", 10)
        grant = worker.granted(limit=2)
        assert spans(grant.units) == [(30, 40), (0, 10)], "what nothing describes comes first"
        worker.commit(grant)
        assert covered(rig, "s") == [(0, 10), (30, 40)]
        assert covered(rig, "s", fields=["user"]) == [(0, 10), (10, 20), (20, 30), (30, 40)]
        worker.work()
        assert covered(rig, "s") == [(0, 10), (10, 20), (20, 30), (30, 40)]
        assert len(listed(rig, "s")) == 4


def test_a_wide_companion_that_is_out_of_date_answers_until_all_of_it_is_built_again(directory: Path) -> None:
    with opened(directory, fan_out=3) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        worker.work()
        assert covered(rig, "s") == [(0, 30)]
        change(rig, "s", search=search("user", "city"))
        worker.commit(worker.granted(limit=2))
        assert covered(rig, "s") == [(0, 10), (10, 20)]
        assert covered(rig, "s", fields=["user"]) == [(0, 30)]
        worker.work()
        assert covered(rig, "s") == covered(rig, "s", fields=["user"]) == [(0, 30)]
        assert len(listed(rig, "s")) == 1


def test_a_change_that_touches_no_field_makes_nothing_due(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20, "user", "city")
        worker = Worker(rig)
        worker.work()
        change(rig, "s", search={**search("user", "city"), "aliases": {"who": "user"}})
        assert worker.lease() is None
        change(rig, "s", search=search("user"))
        assert worker.lease() is None, "what is not asked for any more does no harm"
        assert covered(rig, "s") == [(0, 10), (10, 20)]


def test_a_rollup_of_its_own_is_derived_and_asked_for_by_name(directory: Path) -> None:
    hourly = {"intervals": ["1h"], "measures": {"n": {"kind": "count"}}}
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.work()
        change(rig, "s", search=search("user", hourly=hourly))
        assert covered(rig, "s", fields=["user"]) == [(0, 10), (10, 20)]
        assert covered(rig, "s", fields=[], rollups=["hourly"]) == []
        assert covered(rig, "s", fields=["city"]) == covered(rig, "s", fields=[], rollups=["daily"]) == []
        worker.work()
        assert covered(rig, "s", fields=["user"], rollups=["hourly"], keys=True) == [(0, 10), (10, 20)]


def test_without_a_search_configuration_companions_are_of_no_use(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.work()
        change(rig, "s", search=None)
        assert covered(rig, "s") == []
        assert worker.lease() is None
        assert listed(rig, "s") == []


def test_entries_before_a_break_are_left_out(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.work()
        stream = rig.find("s")

        def cut(batch: Batch) -> None:
            known = batch.draft(stream).registry
            assert known is not None
            registry = StreamRegistry(known.registry.advanced({"type": "object"}, None, 20), known.revision + 1)
            batch.draft(stream).registry = registry
            save_registry(batch, stream.id, registry)

        rig.run(rig.engine.apply(cut))
        publish(rig, "s", 10)
        assert covered(rig, "s") == []
        assert spans(worker.granted().units) == [(20, 30)]
        assert listed(rig, "s") == []


def test_the_overview_tells_what_is_due_and_how_far_it_is(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        searched(rig, "t", 10)
        worker = Worker(rig, "me")
        grant = worker.granted(limit=1)
        worker.beat(grant, 3, 7)
        found = rig.run(rig.engine.work.overview())
        assert sorted(found.due) == ["s", "t"]
        assert sorted(found.streams) == [("s", 0, 30), ("t", 0, 10)]
        ((lease, units),) = found.leases
        assert lease.worker == "me"
        assert lease.done == 3
        assert lease.total == 7
        assert spans([units[0]]) == [(0, 10)]
        worker.commit(grant)
        while (grant := worker.lease()) is not None:
            last = grant
            worker.commit(grant)
        assert len(last.units) == 3
        found = rig.run(rig.engine.work.overview())
        assert found.due == []
        assert found.streams == []
        assert found.leases == []
        assert found.parked == []
        assert found.counts == {
            "due": 0,
            "leases": 0,
            "units": 0,
            "resting": 0,
            "parked": 0,
            "workers": 2,
            "pipelines": 0,
        }


def test_every_name_and_every_kind_of_output_has_one_job_in_the_order_of_the_names(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as rig:
        jobs = list(rig.engine.work.jobs)
    assert [name for job in jobs for name in job.names] == list(JOBS)
    outputs = [field for field in Result.__struct_fields__ if field not in ("unit", "gone", "error")]
    assert sorted(job.output for job in jobs) == sorted(outputs)


def test_an_output_of_another_job_is_refused_by_the_job_that_makes_such_outputs(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        with pytest.raises(BadRequest, match="these are no findings about") as refused:
            worker.commit(grant, [Result(grant.units[0].unit, findings=Findings(events=10))])
        assert refused.value.facts["field"] == "results[0].findings"


def test_units_are_planned_only_by_the_names_that_are_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as rig:
        searched(rig, "s", 20)
        connection = rig.engine.connect()
        try:
            planner = Planner(connection, rig.engine.work.jobs)
            with planner.snapshot():
                plans = {name: planner.plan(8, 8, [name], rig.clock.us, lambda: True) for name in JOBS}
            assert {name: {planned.unit.job for planned in plan.units} for name, plan in plans.items()} == {
                name: {"index"} if name == "index" else set() for name in JOBS
            }
            assert planner.progress(rig.find("s").id) == (0, 20)
        finally:
            connection.close()
