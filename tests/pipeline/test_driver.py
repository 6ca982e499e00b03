"""How long a driver waits before it looks for work again, and what it says while it works."""

from __future__ import annotations

import logging

import pytest

from headrace.pipeline.driver import ProgressLines, pause


@pytest.mark.parametrize(
    ("idle_s", "poll_s", "expected"), [(0.0, 1.0, 0.1), (10.0, 1.0, 0.5), (60.0, 1.0, 1.0), (0.0, 0.01, 0.01)]
)
def test_a_driver_that_has_just_worked_looks_again_soon(idle_s: float, poll_s: float, expected: float) -> None:
    assert pause(idle_s, poll_s) == expected


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return said


def test_progress_is_logged_at_once_then_after_growing_pauses_and_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.pipeline")
    now_s = 0.0
    progress = ProgressLines(lambda: now_s)
    units = [{"job": "index", "stream": "logs"}] * 200
    seconds: list[float] = []
    for number in range(200):
        now_s = float(number)
        progress.report(units, number)
        seconds += [now_s] * len(lines(caplog))
    assert seconds == [0, 2, 6, 14, 30, 62, 122, 182]
    progress.end()
    progress.end()
    assert lines(caplog) == ["pipeline: done"]
    progress.report(units, 3)
    assert lines(caplog) == ["pipeline: indexing logs, 3 of 200 units"]


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([("index", "a", None), ("compact", "a", None)], "indexing a, merging companions of a, 0 of 2 units"),
        ([("index", "a", None), ("index", "b", None), ("index", "a", None)], "indexing a and b, 0 of 3 units"),
        ([("index", name, None) for name in "abcde"], "indexing 5 streams, 0 of 5 units"),
        ([("features", "requests", "by_user")], "folding features of by_user, 0 of 1 units"),
    ],
)
def test_a_line_names_what_is_done_to_what(
    units: list[tuple[str, str, str | None]], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.pipeline")
    documents = [{"job": job, "stream": stream, "table": table} for job, stream, table in units]
    ProgressLines().report(documents, 0)
    assert lines(caplog) == [f"pipeline: {expected}"]
