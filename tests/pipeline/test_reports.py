"""Units that were there when Spark failed are told apart until one is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipeline.reports import Suspects, group_size, groups, key_of


def unit(first: int, **more: Any) -> dict[str, Any]:
    return {
        "unit": f"u{first}",
        "job": "index",
        "incarnation": "i",
        "first_seq": first,
        "count": 10,
        "level": 0,
        **more,
    }


@pytest.mark.parametrize(
    ("failures", "most", "size"), [(0, 256, 256), (1, 256, 256), (2, 256, 16), (3, 256, 1), (4, 256, 1), (2, 6, 1)]
)
def test_groups_shrink_with_every_failure(failures: int, most: int, size: int) -> None:
    assert group_size(failures, most) == size


def test_the_name_of_a_lease_does_not_matter_but_what_a_unit_is_about_does() -> None:
    assert key_of(unit(0)) == key_of(unit(0, unit="another"))
    told_apart = [unit(0), unit(10), unit(0, count=5), unit(0, level=1), unit(0, job="features", table="t")]
    assert len({key_of(one) for one in told_apart}) == len(told_apart)


def test_units_that_nothing_speaks_against_are_performed_first_and_together() -> None:
    units = [unit(first) for first in range(0, 60, 10)]
    failures = {key_of(units[0]): 2, key_of(units[1]): 1, key_of(units[3]): 3}
    found = [[one["first_seq"] for one in group] for group in groups(units, failures, 6)]
    assert found == [[10, 20, 40, 50], [0], [30]]


def test_only_the_unit_that_was_alone_is_blamed_and_each_failure_counts_once() -> None:
    suspects, units = Suspects(), [unit(first) for first in range(0, 160, 10)]
    poison, performed, blamed = key_of(units[5]), 0, 0
    while blamed < 5:
        open_units = [one for one in units if key_of(one) == poison or performed == 0]
        if poison in suspects.blamed:
            blamed += 1
            suspects.settled([poison])
        for group in groups(open_units, suspects.failures, 16):
            keys = [key_of(one) for one in group]
            if poison in keys:
                suspects.saw_failure(keys, "the worker crashed")
                break
            suspects.settled(keys)
        performed = sum(key_of(one) not in suspects.failures for one in units)
        assert set(suspects.blamed) <= {poison}
    assert set(suspects.failures) <= {key_of(one) for one in units[5:]}


def test_two_failures_blame_nobody_even_if_a_unit_was_alone() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.saw_failure(["a"], "the server was restarted")
    assert not suspects.blamed
    suspects.settled(["a"])
    assert not suspects.failures


def test_suspects_are_bounded() -> None:
    suspects = Suspects()
    for number in range(5000):
        for _ in range(3):
            suspects.saw_failure([str(number)], "down")
    assert len(suspects.failures) == len(suspects.blamed) == 4096
    assert "4999" in suspects.failures and "0" not in suspects.failures
