from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.entities.registering import added, asked, change, fields_of, register, schema, update, version_of
from headrace.engine.entities.types.proposals import Propose, propose_registration, propose_update
from headrace.engine.entities.types.type_stages import PlannedTypeChange
from headrace.engine.log.lifecycle import run_change
from headrace.engine.registry.registry_change import CommitChange
from headrace.errors import AliasTaken, Conflict
from headrace.storage.entity_types import EVERYBODY
from support.engine_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def planned(rig: Rig, propose: Propose, entity_type: str = "contact") -> PlannedTypeChange:
    return rig.run(rig.engine.types.prepare(entity_type, EVERYBODY, propose))


def registering(*version: str, **members: Any) -> Propose:
    return partial(propose_registration, registration=asked(schema(*version, **members)))


def commit(rig: Rig, change: PlannedTypeChange) -> CommitChange:
    return rig.run(run_change(rig.engine.writer, CommitChange, change, "w"))


def test_a_change_that_was_planned_for_another_type_than_there_is_does_nothing(rig: Rig) -> None:
    register(rig, schema())
    first, second = (
        planned(rig, partial(propose_update, request=change(fields_to_add=[added(name)])))
        for name in ("first", "second")
    )
    assert not commit(rig, first).outdated
    number = rig.engine.types.number
    assert commit(rig, second).outdated
    assert rig.engine.types.number == number
    assert fields_of(rig, "u") == {"name", "email", "first"}


def test_of_two_first_versions_one_makes_the_stream(rig: Rig) -> None:
    first, second = (planned(rig, registering(version)) for version in ("1.0.0", "2.0.0"))
    assert not commit(rig, first).outdated
    assert commit(rig, second).outdated
    assert version_of(rig, "u") == "1.0.0"


def test_a_name_that_was_taken_meanwhile_is_refused_in_the_commit(rig: Rig) -> None:
    named = {"aliases": ["lead"]}
    deal = planned(
        rig, partial(propose_registration, registration=asked(schema(entity_type="deal", definition=named))), "deal"
    )
    register(rig, schema(definition=named))
    with pytest.raises(AliasTaken):
        commit(rig, deal)
    assert rig.engine.types.stream("deal") is None
    task = planned(rig, registering(entity_type="task"), "task")
    rig.create("entities/task")
    with pytest.raises(Conflict):
        commit(rig, task)
    assert rig.engine.types.find("task") is None


def test_a_changed_type_replaces_what_admits_its_observations(rig: Rig) -> None:
    register(rig, schema())
    stream = rig.find("entities/contact")
    before = stream.head.registry
    update(rig, fields_to_add=[added("age", "number")])
    after = stream.head.registry
    assert before is not None and after is not None
    assert after is not before
    assert after.revision == before.revision
    assert after.registry == before.registry
    assert after.hook is rig.engine.types.find("contact")
