from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.jobs import Progress, Tasks, pack_units, weight


def unit(number: int, size: int) -> dict[str, Any]:
    return {"unit": str(number), "job": "index", "segments": [{"bytes": size}]}


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 8))
def test_every_unit_is_in_one_task_and_no_task_has_much_more_than_another(sizes: list[int], tasks: int) -> None:
    units = [unit(number, size) for number, size in enumerate(sizes)]
    packs = [[msgspec.json.decode(one) for one in pack] for pack in pack_units(units, tasks)]
    assert len(packs) == min(tasks, len(units))
    assert sorted(int(one["unit"]) for pack in packs for one in pack) == list(range(len(units)))
    loads = [sum(weight(one) + 1 for one in pack) for pack in packs]
    assert max(loads) - min(loads) <= max(sizes) + 1


def test_units_count_as_far_as_the_tasks_of_the_running_job_are_done() -> None:
    running: list[Tasks] = []
    progress = Progress(lambda: running, 10)
    assert progress.done() == 0
    running[:] = [(1, 4)]
    assert progress.done() == 2
    progress.finished, running[:] = 4, [(0, 3)]
    assert progress.done() == 4
    running[:] = [(1, 3), (1, 1)]
    assert progress.done() == 7


def test_progress_never_goes_back_and_is_never_complete_before_it_is() -> None:
    running: list[Tasks] = [(4, 4)]
    progress = Progress(lambda: running, 3)
    assert progress.done() == 2
    running.clear()
    assert progress.done() == 2
    progress.finished = 3
    assert progress.done() == 2
