"""Workers that come, go, fail and die while streams grow, change, shrink and vanish: what is promised of work holds."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from engine.registries import change
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.derive.leases import LeaseLost
from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.format.companion.layout import Companion
from headrace.reduce.work_units import Result
from headrace.storage.derived import Companions
from support.engine_rig import Rig
from support.work_rig import SECOND, Worker, covered, listed, opened, publish, search, searched, spans, stored

STORIES, STEPS = (200, 200) if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else (12, 60)
FIELDS = ("user", "city", "team")


class Story:
    """One random course of events."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self.rig = rig
        self.chance = chance
        self.worker = Worker(rig)
        self.held: list[Grant] = []
        self.names: list[str] = []
        self.made = 0

    def steps(self) -> list[Callable[[], None]]:
        more = [self.lease, self.commit, self.grow] * 3
        return [*more, self.create, self.fail, self.die, self.release, self.change, self.fork, self.retain, self.delete]

    def create(self) -> None:
        if len(self.names) < 3:
            self.made += 1
            self.names.append(f"s{self.made}")
            searched(self.rig, self.names[-1], self.chance.randrange(40))

    def name(self) -> str:
        if not self.names:
            self.create()
        return self.chance.choice(self.names)

    def grow(self) -> None:
        publish(self.rig, self.name(), self.chance.choice([3, 10, 25]))

    def fork(self) -> None:
        if len(self.names) < 3 and self.names:
            source = self.rig.find(self.name())
            self.made += 1
            self.names.append(f"s{self.made}")
            position = self.chance.randint(source.head.first_seq, source.head.next_seq)
            self.rig.fork(source.name, self.names[-1], position)

    def change(self) -> None:
        fields = self.chance.sample(FIELDS, self.chance.randint(1, 3))
        change(self.rig, self.name(), search=None if self.chance.random() < 0.1 else search(*fields))

    def retain(self) -> None:
        name = self.name()
        self.rig.retain(name, size=self.rig.find(name).head.bytes * 2 // 3)

    def delete(self) -> None:
        name = self.name()
        self.names.remove(name)
        self.rig.delete(name)

    def lease(self) -> None:
        grant = self.worker.lease(self.chance.choice([1, 3, 100]))
        if grant is not None:
            self.held.append(grant)

    def commit(self) -> None:
        if self.held:
            grant = self.held[self.chance.randrange(len(self.held))]
            results = self.worker.made(grant)
            self.chance.shuffle(results)
            if self.chance.random() < 0.3:
                results = results[: len(results) // 2]
            self._report(grant, results)
            self._report(grant, results)

    def fail(self) -> None:
        if self.held:
            grant = self.held.pop()
            kinds = [Result(unit.unit, error="no") if self.chance.random() < 0.5 else Result(unit.unit, gone=True)
                     for unit in grant.units]  # fmt: skip
            self._report(grant, kinds)

    def _report(self, grant: Grant, results: list[Result]) -> None:
        try:
            self.worker.commit(grant, results)
        except LeaseLost:
            self.held = [other for other in self.held if other is not grant]

    def die(self) -> None:
        self.rig.clock.us += self.chance.choice([5, 61, 700]) * SECOND
        self.rig.clear()
        if self.chance.random() < 0.3:
            self.rig.reopen()

    def release(self) -> None:
        if self.held:
            self.worker.release(self.held.pop())


def check(rig: Rig, names: list[str]) -> None:
    """What holds at any moment."""
    found = rig.run(rig.engine.work.overview())
    busy: dict[int, list[tuple[int, int]]] = {}
    for _, units in found.leases:
        for unit in units:
            if unit.outcome is None:
                busy.setdefault(unit.stream, []).append((unit.first_seq, unit.end_seq))
    for ranges in busy.values():
        assert all(a[1] <= b[0] or b[1] <= a[0] for a, b in combinations(ranges, 2)), "two leases on one range"
    there = stored(rig)
    for name in names:
        stream = rig.find(name)
        known = [*listed(rig, name), *Companions(rig.engine._reader).retired(stream.id)]
        assert {one.name for one in known} <= there, "a companion without objects"
        answering = covered(rig, name, fields=["at"])
        assert all(before[1] <= after[0] for before, after in pairwise(answering))
        assert all(end <= stream.head.next_seq for _, end in answering)


@pytest.mark.parametrize("seed", range(STORIES))
def test_whatever_happens_work_is_done_once_and_in_the_end_completely(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with opened(tmp_path, fan_out=3) as rig:
        story = Story(rig, chance)
        story.create()
        for _ in range(STEPS):
            chance.choice(story.steps())()
            check(rig, story.names)
        finish(rig, story)


def finish(rig: Rig, story: Story) -> None:
    """Once everyone has stopped, a worker brings everything up to date, and nothing else is left."""
    rig.clock.us += 700 * SECOND
    for name in story.names:
        rig.publish(name)
        rig.run(rig.engine.work.run(rig.find(name)))
    for _ in range(10):  # who was lost leaves pauses behind
        story.worker.work()
        rig.clock.us += 61 * SECOND
    for name in story.names:
        stream = rig.find(name)
        if rig.engine.coverage.defined(stream) is None:
            continue
        spanned = covered(rig, name)
        assert all(before[1] == after[0] for before, after in pairwise(spanned))
        if stream.head.next_seq > stream.head.first_seq:
            assert spanned[0][0] <= stream.head.first_seq
            assert spanned[-1][1] == stream.head.next_seq
        assert spans(listed(rig, name)) == spanned
        assert levels_are_few(listed(rig, name))
    for row in rig.engine.streams.every(0, 100):  # those that only forks need included
        rig.run(rig.engine.sealer.publish(row.id))
    rig.clock.us += 61 * SECOND
    rig.clear()
    assert not [report for report in verify(rig.engine.objects, JOURNALS) if report.damage]
    found = rig.engine.sealer.publisher.orphans(1 << 62)
    kept = {one.name for name in story.names for one in listed(rig, name)}
    assert stored(rig) == kept | {key.rpartition("/")[2].partition(".")[0] for key in found if "companions/" in key}


def levels_are_few(companions: list[Companion]) -> bool:
    by_level: dict[int, int] = {}
    for one in companions:
        by_level[one.level] = by_level.get(one.level, 0) + 1
    return all(number < 2 * 3 for number in by_level.values())
