from __future__ import annotations

import pytest

from headrace.schema.entity.semver import Bump, Version, distance, next_free_version, parse


@pytest.mark.parametrize(
    ("text", "version"), [("1.0", (1, 0, 0)), ("1.0.0", (1, 0, 0)), ("0.10.2", (0, 10, 2)), ("12.3", (12, 3, 0))]
)
def test_two_or_three_numbers_are_a_version(text: str, version: tuple[int, int, int]) -> None:
    assert parse(text) == version


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "v1.0",
        "1.0.0.0",
        "1.0-beta",
        "01.0",
        "1.-1",
        "1.0 ",
        "1..0",
        "one",
        "1.0\n",
        "1.٣",
        1.0,
        None,
        "1." + "9" * 10,
    ],
)
def test_anything_else_is_none(text: object) -> None:
    assert parse(text) is None


def test_a_step_clears_what_is_behind_it() -> None:
    version = Version(1, 2, 3)
    assert [str(version.bumped(bump)) for bump in Bump] == ["1.2.3", "1.2.4", "1.3.0", "2.0.0"]


def test_the_kind_of_a_step_is_told() -> None:
    version = Version(1, 2, 3)
    assert [distance(version, version.bumped(bump)) for bump in Bump] == list(Bump)
    assert distance(version, Version(1, 0, 9)) is Bump.NONE


def test_versions_that_are_taken_are_passed_over() -> None:
    taken = {Version(1, 1), Version(1, 2), Version(2, 0)}
    assert next_free_version(Version(1, 0), Bump.MINOR, taken) == Version(1, 3)
    assert next_free_version(Version(1, 0), Bump.MAJOR, taken) == Version(3, 0)
    assert next_free_version(Version(1, 0), Bump.PATCH, taken) == Version(1, 0, 1)
    assert next_free_version(Version(1, 1), Bump.NONE, taken) == Version(1, 1)


def test_versions_are_ordered_by_number_and_not_by_text() -> None:
    assert sorted([Version(1, 10), Version(1, 9, 9), Version(0, 99)])[-1] == Version(1, 10)
