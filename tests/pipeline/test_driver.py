"""How long a driver waits before it looks for work again."""

from __future__ import annotations

import pytest

from headrace.pipeline.driver import pause


@pytest.mark.parametrize(
    ("idle_s", "poll_s", "expected"), [(0.0, 1.0, 0.1), (10.0, 1.0, 0.5), (60.0, 1.0, 1.0), (0.0, 0.01, 0.01)]
)
def test_a_driver_that_has_just_worked_looks_again_soon(idle_s: float, poll_s: float, expected: float) -> None:
    assert pause(idle_s, poll_s) == expected
