"""The interval of a median that `--against` prints."""

from __future__ import annotations

import math

import pytest
from bench.against import CONFIDENCE, Comparison, lines, median_interval


@pytest.mark.parametrize("count", [6, 10, 11, 15, 20, 33])
def test_the_interval_is_the_narrowest_of_order_statistics_that_reaches_its_confidence(count: int) -> None:
    values = [float(number) for number in range(count)]
    low, high = median_interval(list(reversed(values)))

    assert low == count - 1 - high
    assert _coverage(count, int(low)) >= CONFIDENCE
    assert _coverage(count, int(low) + 1) < CONFIDENCE


def test_ten_pairs_give_the_second_and_the_ninth_value() -> None:
    assert median_interval([float(number) for number in range(10)]) == (1.0, 8.0)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict"),
    [
        (1.11, 1.0, 1.2, "PASS"),
        (0.94, 0.9, 0.97, "PASS"),
        (0.94, 0.9, 0.95, "PASS"),
        (0.94, 0.9, 0.949, "FAIL"),
        (0.91, 0.89, 0.93, "FAIL"),
    ],
)
def test_an_operation_passes_if_its_interval_reaches_the_least_ratio(
    ratio: float, low: float, high: float, verdict: str
) -> None:
    comparison = Comparison("append", 10.0, 10.0 / ratio, ratio, low, high)

    assert lines("abc", 10, [comparison]).endswith(f"  {verdict}")
    assert comparison.holds == (verdict == "PASS")


def _coverage(count: int, low: int) -> float:
    """How likely the true median lies between the value at `low` and the one as far from the end."""
    inside = sum(math.comb(count, below) for below in range(low + 1, count - low))
    return inside / 2**count
