"""The table of jobs: what the server can derive, in order, and which job takes which result."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.derive.planner import Planner
from headrace.errors import BadRequest
from headrace.reduce.work_units import JOBS, Result
from headrace.schema.trial import Findings
from support.work_rig import Worker, opened, searched


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
