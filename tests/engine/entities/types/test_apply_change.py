from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.entities.registering import added, asked, change, fields_of, register, schema, update, version_of
from headrace.engine.entities.types import proposals
from headrace.engine.entities.types.apply_change import ApplyTypeChange
from headrace.engine.entities.types.proposals import Make
from headrace.engine.log.lifecycle import run_change
from headrace.errors import AliasTaken, Conflict
from headrace.storage.entity_types import EVERYBODY
from support.engine_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def planned(rig: Rig, make: Make, entity_type: str = "contact") -> Any:
    return rig.run(rig.engine.types._propose(entity_type, EVERYBODY, make))


def applied(rig: Rig, proposal: Any) -> ApplyTypeChange:
    stream = rig.engine.types.stream(proposal.base.entity_type)
    return rig.run(run_change(rig.engine.writer, ApplyTypeChange, proposal, stream, "w"))


def test_a_change_that_was_planned_for_another_type_than_there_is_does_nothing(rig: Rig) -> None:
    register(rig, schema())
    first, second = (
        planned(rig, proposals.update(change(fields_to_add=[added(name)]))) for name in ("first", "second")
    )
    assert not applied(rig, first).outdated
    number = rig.engine.types.number
    assert applied(rig, second).outdated
    assert (rig.engine.types.number, fields_of(rig, "u")) == (number, {"name", "email", "first"})


def test_of_two_first_versions_one_makes_the_stream(rig: Rig) -> None:
    first, second = (planned(rig, proposals.register(asked(schema(version)))) for version in ("1.0.0", "2.0.0"))
    assert not applied(rig, first).outdated
    assert applied(rig, second).outdated
    assert version_of(rig, "u") == "1.0.0"


def test_a_name_that_was_taken_meanwhile_is_refused_in_the_commit(rig: Rig) -> None:
    named = {"aliases": ["lead"]}
    proposal = planned(rig, proposals.register(asked(schema(entity_type="deal", definition=named))), "deal")
    register(rig, schema(definition=named))
    with pytest.raises(AliasTaken):
        applied(rig, proposal)
    assert rig.engine.types.stream("deal") is None
    other = planned(rig, proposals.register(asked(schema(entity_type="task"))), "task")
    rig.create("entities/task")
    with pytest.raises(Conflict):
        applied(rig, other)
    assert rig.engine.types.kind("task") is None


def test_a_changed_type_replaces_what_admits_its_observations(rig: Rig) -> None:
    register(rig, schema())
    stream = rig.find("entities/contact")
    before = stream.head.registry
    update(rig, fields_to_add=[added("age", "number")])
    after = stream.head.registry
    assert before is not None and after is not None
    assert (after is not before, after.revision, after.registry) == (True, before.revision, before.registry)
    assert after.hook is rig.engine.types.kind("contact")
