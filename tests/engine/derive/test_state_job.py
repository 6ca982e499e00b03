"""How much payload a unit has, by what there is to fold and by how many units are done at once."""

from __future__ import annotations

import os

import pytest

from headrace.config import PipelineConfig
from headrace.engine.derive.state_job import MAX_UNIT_FACTOR, MIN_UNIT_FACTOR, concurrent_units, even_unit_bytes
from headrace.engine.derive.unit_cutter import SegmentPart
from headrace.format.ranges import Range
from headrace.reduce.work_units import Source

UNIT = 100


def segments(count: int, payload_bytes: int) -> list[SegmentPart]:
    """So many segments of one event each."""
    return [SegmentPart(Source(str(at), at, 1, 1, ""), Range(at, at + 1), payload_bytes) for at in range(count)]


def cut(found: list[SegmentPart], at_once: int) -> list[int]:
    """How many segments each unit has, where as many are taken as fit."""
    most, units, room = even_unit_bytes(found, UNIT, at_once), list[int](), 0
    for piece in found:
        if not units or piece.payload_bytes > room:
            units.append(0)
            room = most
        units[-1] += 1
        room -= piece.payload_bytes
    return units


@pytest.mark.parametrize(
    ("count", "at_once", "units"),
    [
        (39, 2, [20, 19]),
        (39, 4, [10, 10, 10, 9]),
        (39, 1, [20, 19]),
        (60, 2, [15, 15, 15, 15]),
        (7, 4, [4, 3]),
        (3, 16, [3]),
    ],
)
def test_units_are_even_and_as_many_as_are_done_at_once_unless_they_would_be_small(
    count: int, at_once: int, units: list[int]
) -> None:
    assert cut(segments(count, UNIT), at_once) == units


def test_units_of_much_are_as_large_as_they_may_be() -> None:
    assert even_unit_bytes(segments(1000, UNIT), UNIT, 2) == MAX_UNIT_FACTOR * UNIT


def test_a_segment_that_is_larger_than_a_unit_is_one() -> None:
    assert cut(segments(2, MAX_UNIT_FACTOR * UNIT * 3), 1) == [1, 1]


def test_what_makes_less_than_the_least_unit_is_one() -> None:
    assert cut(segments(MIN_UNIT_FACTOR, UNIT), 8) == [MIN_UNIT_FACTOR]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"master": "local[3]"}, 3),
        ({"master": "local[3,2]"}, 3),
        ({"master": "local"}, 1),
        ({"master": "local[*]"}, os.cpu_count()),
        ({"master": "spark://there:7077"}, 16),
        ({"master": "local[3]", "remote": "sc://there"}, 16),
    ],
)
def test_workers_on_this_machine_do_as_many_units_at_once_as_they_have_cores(
    settings: dict[str, str], expected: int
) -> None:
    assert concurrent_units(PipelineConfig(**settings)) == expected  # type: ignore[arg-type]
