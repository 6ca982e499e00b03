from __future__ import annotations

from headrace.pipeline.progress import Progress, Tasks


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
