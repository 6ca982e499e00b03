"""Publishing takes a small part of the machine while appends are busy, and all of it when it has to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Timer
from time import monotonic

import pytest

from headrace.engine.history.seal_pace import RESTS, SealPace
from headrace.types import OCTETS
from support.engine_rig import Rig

SECOND = 1_000_000
Open = Callable[..., Rig]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens an engine with these storage settings, in which nothing waits."""
    with ExitStack() as stack:
        yield lambda **storage: stack.enter_context(Rig(tmp_path, storage=storage))


def _pace(rig: Rig, appends: Callable[[], int]) -> SealPace:
    return SealPace(rig.engine.sealer.watch, appends, rig.clock, rig.engine.config.storage)


def _count(rig: Rig) -> SealPace:
    rig.run(rig.engine.sealer.watch.count())
    return rig.engine.sealer.pace


def test_a_rest_is_several_times_as_long_as_the_work(opened: Open) -> None:
    assert opened().engine.sealer.pace.length_s(2.0) == 2.0 * RESTS


def test_rests_are_shorter_the_more_waits(opened: Open) -> None:
    rig = opened(backlog_bytes=800)
    rig.create("s", OCTETS, b"x" * 100)
    assert _count(rig).length_s(1.0) == RESTS / 2
    rig.append("s", b"x" * 100)
    assert _count(rig).length_s(1.0) == 0.0


def test_rests_are_shorter_the_more_columns_are_kept_of_events_without_companions(opened: Open) -> None:
    rig, share = opened(), 0.0
    pace = SealPace(rig.engine.sealer.watch, lambda: 0, rig.clock, rig.engine.config.storage, lambda: share)
    assert pace.length_s(1.0) == RESTS
    share = 0.125
    assert pace.length_s(1.0) == RESTS / 2
    share = 0.25
    assert pace.length_s(1.0) == 0.0


def test_a_rest_is_no_longer_than_entries_may_wait(opened: Open) -> None:
    rig = opened(seal_age_s=10.0)
    rig.create("s", OCTETS, b"x")
    rig.clock.us += 9 * SECOND
    assert _count(rig).length_s(100.0) == pytest.approx(1.0)
    rig.clock.us += 2 * SECOND
    assert _count(rig).length_s(100.0) == 0.0


def test_a_rest_ends_when_nothing_is_appended(opened: Open) -> None:
    appends = [0]
    pace = _pace(opened(), lambda: appends[0])
    pace.length_s = lambda worked_s: 60.0  # type: ignore[method-assign]
    began_s = monotonic()
    pace.rest()
    pace.begin()
    appends[0] = 1
    pace.rest()
    assert monotonic() - began_s < 30.0


def test_a_rest_lasts_while_there_are_appends(opened: Open) -> None:
    pace = _pace(opened(), count().__next__)
    pace.length_s = lambda worked_s: 0.2  # type: ignore[method-assign]
    began_s = monotonic()
    pace.rest()
    assert monotonic() - began_s >= 0.2


def test_a_rest_ends_when_the_server_stops(opened: Open) -> None:
    pace = _pace(opened(), count().__next__)
    pace.length_s = lambda worked_s: 60.0  # type: ignore[method-assign]
    timer = Timer(0.01, pace.stop)
    timer.start()
    began_s = monotonic()
    pace.rest()
    timer.join()
    assert monotonic() - began_s < 30.0
