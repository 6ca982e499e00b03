"""The mechanism that every registry changes by, with a registry of one number in the metadata of the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.engine.log.batch import Batch
from headrace.engine.registry.registry_change import (
    CommitChange,
    PlannedChange,
    RegistrySnapshot,
    Stage,
    StageNote,
)
from headrace.errors import Conflict
from support.engine_rig import Rig

NAME = "test_number"


class Add(Stage, frozen=True):
    """Adds to the number, unless the sum is too great."""

    amount: int
    limit: int = 100

    def describe(self) -> StageNote:
        return StageNote("added", {"amount": self.amount})

    def check(self, batch: Batch) -> None:
        if batch.streams.meta(NAME, 0) + self.amount > self.limit:
            raise Conflict("the number would be too great")

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        batch.streams.set_meta(NAME, batch.streams.meta(NAME, 0) + self.amount)


class PlannedSum(PlannedChange):
    """Stages planned from one value of the number."""

    def __init__(self, base: int, *stages: Add) -> None:
        self.base, self.stages = base, stages
        self.published: list[int] = []

    @property
    def has_effect(self) -> bool:
        return bool(self.stages)

    def is_outdated(self, batch: Batch) -> bool:
        return batch.streams.meta(NAME, 0) != self.base

    def make_stages(self, snapshot: RegistrySnapshot) -> Sequence[Add]:
        return self.stages

    def publish(self, stages: Sequence[Stage]) -> None:
        self.published += [stage.amount for stage in stages if isinstance(stage, Add)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as opened:
        yield opened


def number(rig: Rig) -> int:
    return rig.engine.streams.meta(NAME, 0)


def test_a_change_that_is_outdated_is_planned_again(rig: Rig) -> None:
    plans: list[PlannedSum] = []

    async def plan() -> PlannedSum:
        plans.append(PlannedSum(number(rig), Add(1)))
        if len(plans) < 3:
            await rig.engine.apply(lambda batch: batch.streams.set_meta(NAME, 10 * len(plans)))
        return plans[-1]

    change = rig.run(rig.engine.registry_changes.run(plan, "me"))
    assert change.is_applied
    assert number(rig) == 21
    assert [planned.published for planned in plans] == [[], [], [1]]


def test_a_change_that_is_always_outdated_is_given_up(rig: Rig) -> None:
    async def plan() -> PlannedSum:
        return PlannedSum(-1, Add(1))

    with pytest.raises(Conflict, match="the number keeps changing; read it and try again") as reason:
        rig.run(rig.engine.registry_changes.run(plan, "me", subject="number", name=NAME))
    assert reason.value.facts == {"name": NAME}
    assert number(rig) == 0


def test_a_stage_that_is_refused_leaves_nothing_of_those_before_it(rig: Rig) -> None:
    planned = PlannedSum(0, Add(5), Add(7, limit=6))

    async def plan() -> PlannedSum:
        return planned

    with pytest.raises(Conflict, match="too great"):
        rig.run(rig.engine.registry_changes.run(plan, "me"))
    assert number(rig) == 0
    assert planned.published == []


def test_a_dry_run_performs_no_stage(rig: Rig) -> None:
    planned = PlannedSum(0, Add(5), Add(7))

    async def plan() -> PlannedSum:
        return planned

    change = rig.run(rig.engine.registry_changes.run(plan, "me", dry_run=True))
    assert not change.is_applied
    assert [stage.describe() for stage in change.stages] == [
        StageNote("added", {"amount": 5}),
        StageNote("added", {"amount": 7}),
    ]
    assert number(rig) == 0


def test_a_change_without_effect_commits_nothing(rig: Rig) -> None:
    async def plan() -> PlannedSum:
        return PlannedSum(-1)

    commits = rig.engine.writer.commits
    change = rig.run(rig.engine.registry_changes.run(plan, "me"))
    assert not change.is_applied
    assert rig.engine.writer.commits == commits
