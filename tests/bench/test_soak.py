"""What a soak holds a server to: growth that is told from noise, and events that must be where they were written."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from bench.soak import judging
from bench.soak.load import Unexpected
from bench.soak.sampling import Sample
from bench.soak.written import Written, event, every

MB = judging.MB
STILL = Sample(at=0.0, rss=400 * MB, descriptors=100, deleted=0, threads=20, wal=20 * MB)
MINUTES = 30


def course(**per_minute: float) -> list[Sample]:
    """Samples of half an hour with noise, in which some things grow."""
    chance, samples = random.Random(1), []
    for second in range(MINUTES * 60):
        noise = {name: int(getattr(STILL, name) * chance.uniform(0.9, 1.1)) for name in judging.MOST_GROWTH}
        grown = {name: noise[name] + int(rate * second / 60) for name, rate in per_minute.items()}
        samples.append(replace(STILL, at=float(second), **{**noise, **grown}))
    return samples


def test_noise_is_no_growth() -> None:
    assert list(judging.troubles(course(), 1024 * MB)) == []


@pytest.mark.parametrize(
    ("name", "per_minute"), [("rss", 10 * MB), ("descriptors", 20), ("deleted", 1.5), ("threads", 0.6), ("wal", 4 * MB)]
)
def test_what_grows_with_time_is_named(name: str, per_minute: float) -> None:
    found = list(judging.troubles(course(**{name: per_minute}), 1024 * MB))
    assert [trouble.split()[0] for trouble in found if "grew" in trouble] == [name]


def test_a_cache_that_fills_in_the_beginning_does_not_grow() -> None:
    filling = [replace(one, rss=min(400, 150 + int(one.at)) * MB) for one in course()]
    assert list(judging.troubles(filling, 1024 * MB)) == []


def test_a_step_to_more_memory_than_the_limit_is_named() -> None:
    samples = course()
    samples[-5] = replace(samples[-5], rss=1200 * MB)
    [trouble] = judging.troubles(samples, 1024 * MB)
    assert "1,200 MB" in trouble and "1,024 MB" in trouble


def written() -> Written:
    """Six events: three acknowledged, two without an answer, and one acknowledged."""
    found = Written("s")
    for count, status in ((3, 204), (2, 408), (1, 429), (1, 204)):
        found.send(count)
        found.settle(status)
    return found


def test_what_was_refused_is_sent_again_and_what_was_not_answered_is_not() -> None:
    found = written()
    assert found.acknowledged == 6
    assert found.sent == 6
    assert found.least == 4


@pytest.mark.parametrize("numbers", [range(6), (0, 1, 2, 5)])
def test_a_reader_finds_what_was_acknowledged_with_or_without_what_was_not_answered(numbers: range) -> None:
    assert written().follow(0, [event(number) for number in numbers]) == 6


@pytest.mark.parametrize(
    "numbers", [(0, 2), (0, 1, 1), (1, 0), (0, 1, 2, 3, 5), (0, 1, 2, 3, 4, 5, 6)],
    ids=["missing", "twice", "order", "half", "never sent"],
)  # fmt: skip
def test_a_reader_who_finds_anything_else_says_so(numbers: tuple[int, ...]) -> None:
    with pytest.raises(Unexpected):
        written().follow(0, [event(number) for number in numbers])


def test_an_event_that_was_changed_is_found() -> None:
    with pytest.raises(Unexpected, match="was changed"):
        written().follow(0, [event(0) | {"ms": 7.0}])


def test_numbers_of_a_range_are_counted_by_their_remainder() -> None:
    for start, stop in ((0, 0), (0, 41), (7, 63), (20, 21)):
        for remainder in (0, 3, 19):
            plain = sum(number % 20 == remainder for number in range(start, stop))
            assert every(20, remainder, start, stop) == plain
