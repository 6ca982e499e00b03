"""Merges, splits and their undoing: what is told of an entity follows, wherever it lies, and outlives restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.engine.entities.read.snapshots import EntityQuery
from headrace.engine.entities.write.relations import SplitPredicate, moved_observations, split_target
from headrace.errors import Conflict, EntityAlreadyMerged, EntityNotFound, MergeTargetAlreadyMerged
from headrace.reduce.policies.build import fold_observations
from headrace.reduce.policies.reducer import TypeReducer
from headrace.schema.entity.observation import Observation, decode
from support.entity_rig import USER, Entities, contact

SMALL: dict[str, Any] = {"storage": {"seal_rows": 16}, "features": {"fold_rows": 4}}


@pytest.fixture
def entities(tmp_path: Path) -> Iterator[Entities]:
    with Entities(tmp_path / "data", **SMALL) as opened:
        opened.register_type(contact())
        yield opened


def tags(entities: Entities, entity_id: str, **terms: Any) -> list[str]:
    return sorted(entities.snapshot(entity_id, **terms)["tags"])


def merge(entities: Entities, source: str, into: str) -> None:
    entities.clock.us += 1_000_000
    entities.run(entities.engine.entity_relations.merge(USER, source, into))


def split(entities: Entities, entity_id: str, name: str, **predicate: Any) -> Observation:
    """Move some observations to an entity of another name."""
    entities.clock.us += 1_000_000
    engine = entities.engine
    view = engine.snapshots.view(EntityQuery(entity_id, USER))
    found = entities.run(engine.entity_list.observations(view, None, 1000, newest_first=False))
    gone = moved_observations(view, SplitPredicate(**predicate), found)
    into = split_target(view, name)
    return entities.run(engine.entity_relations.split(USER, view.group.row.entity_id, into, gone)).observation


def people(entities: Entities, *names: str) -> list[str]:
    return [entities.said(f"{name}@x.org", tags=[name]) for name in names]


def test_a_merge_combines_what_lies_in_states_and_in_the_tail(entities: Entities) -> None:
    ada, countess = people(entities, "ada", "countess")
    entities.seal_type()
    entities.work()
    merge(entities, countess, ada)
    entities.said("countess@x.org", tags=["late"])
    assert tags(entities, ada) == tags(entities, countess) == ["ada", "countess", "late"]
    names = [state.name for state in entities.states_of()]
    entities.run(entities.engine.entity_relations.unmerge(USER, countess))
    assert tags(entities, ada) == ["ada"] and tags(entities, countess) == ["countess", "late"]
    assert [state.name for state in entities.states_of()] == names  # nothing was rewritten


def test_a_merge_is_told_of_from_its_time_on(entities: Entities) -> None:
    ada, countess = people(entities, "ada", "countess")
    before = entities.clock.us
    merge(entities, countess, ada)
    assert tags(entities, ada, at_ingested_us=before) == ["ada"]
    assert tags(entities, countess, at_ingested_us=before) == ["countess"]
    assert tags(entities, ada, at_ingested_us=entities.clock.us) == ["ada", "countess"]


def test_two_that_merge_the_same_at_once_do_so_once(entities: Entities) -> None:
    ada, countess, bob = people(entities, "ada", "countess", "bob")
    merge(entities, countess, ada)
    with pytest.raises(EntityAlreadyMerged):
        merge(entities, countess, bob)
    with pytest.raises(MergeTargetAlreadyMerged):
        merge(entities, bob, countess)
    with pytest.raises(Conflict):
        entities.run(entities.engine.entity_relations.unmerge(USER, ada))
    with pytest.raises(EntityNotFound):
        entities.run(entities.engine.entity_relations.merge("another", bob, ada))


def test_moved_observations_are_about_the_other_entity_wherever_they_lie(entities: Entities) -> None:
    (ada,) = people(entities, "ada")
    entities.said("ada@x.org", name="Bob", tags=["b1"])
    entities.seal_type()
    entities.work()
    entities.said("ada@x.org", name="Bob", tags=["b2"])
    made = split(entities, ada, "bob@x.org", fields={"name": "Bob"})
    bob = made.details["into"]
    assert tags(entities, ada) == ["ada"] and tags(entities, bob) == ["b1", "b2"]
    entities.said("ada@x.org", tags=["late"])
    assert tags(entities, ada) == ["ada", "late"] and tags(entities, bob) == ["b1", "b2"]
    entities.run(entities.engine.entity_relations.unsplit(USER, made))
    assert tags(entities, ada) == ["ada", "b1", "b2", "late"]
    assert entities.shown(bob).snapshot is None


def test_what_was_moved_twice_goes_back_one_step(entities: Entities) -> None:
    (ada,) = people(entities, "ada")
    entities.said("ada@x.org", name="Bob", tags=["b"])
    bob = split(entities, ada, "bob@x.org", fields={"name": "Bob"}).details["into"]
    entities.said("bob@x.org", tags=["own"])
    second = split(entities, bob, "cyd@x.org", fields={"name": "Bob"})
    cyd = second.details["into"]
    assert tags(entities, cyd) == ["b"] and tags(entities, bob) == ["own"] and tags(entities, ada) == ["ada"]
    entities.run(entities.engine.entity_relations.unsplit(USER, second))
    assert tags(entities, bob) == ["b", "own"] and tags(entities, ada) == ["ada"]


def expected(entities: Entities, groups: dict[str, str], places: dict[str, str]) -> dict[str, Any]:
    """Snapshots by what entities and observations are about, folded in one pass."""
    effective = entities.engine.types.effective("contact", USER)
    assert effective is not None
    reducer, rows = TypeReducer({"": effective.schema.reducer_config}), dict[str, list[Any]]()
    for seq, body in enumerate(entities.read("entities/contact")):
        one = decode(body)
        if one.kind == "observation":
            about = places.get(one.id, one.entity_id)
            while about in groups:
                about = groups[about]
            rows.setdefault(about, []).append((seq, 0, one))
    found = {}
    for about, told in rows.items():
        state = None
        for row in fold_observations(reducer, told).values():
            state = row if state is None else reducer.merge(state, row)
        found[about] = reducer.finish(state, schema=effective.schema)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_merged_and_undone_is_told_as_if_it_had_always_been_so(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with Entities(tmp_path / "data", **SMALL) as entities:
        entities.register_type(contact())
        ids = people(entities, *"abcdef")
        groups: dict[str, str] = {}
        for _ in range(25):
            match random.randrange(4):
                case 0:
                    entities.said(f"{random.choice('abcdef')}@x.org", tags=[str(random.randrange(30))])
                case 1:
                    roots = [id for id in ids if id not in groups]
                    if len(roots) > 1:
                        source, into = random.sample(roots, 2)
                        merge(entities, source, into)
                        groups[source] = into
                case 2 if groups:
                    gone = random.choice(sorted(groups))
                    entities.run(entities.engine.entity_relations.unmerge(USER, gone))
                    del groups[gone]
                case 3:
                    entities.seal_type()
                    entities.work_once(1)
            told = expected(entities, groups, {})
            assert {id: entities.shown(id).snapshot for id in told} == told


def test_a_restart_and_an_empty_directory_know_what_was_merged_and_moved(tmp_path: Path) -> None:
    store = {"object_store": str(tmp_path / "store")}
    with Entities(tmp_path / "first", storage=store) as entities:
        entities.register_type(contact())
        ada, countess, bob = people(entities, "ada", "countess", "bob")
        entities.said("bob@x.org", name="Cyd", tags=["c"])
        merge(entities, countess, ada)
        cyd = split(entities, bob, "cyd@x.org", fields={"name": "Cyd"}).details["into"]
        entities.run(entities.engine.sealer.publish_journals())
        entities.seal_type()
        entities.work()
        entities.reopen()
        before = {id: entities.shown(id).snapshot for id in (ada, bob, cyd)}
        assert tags(entities, ada) == ["ada", "countess"] and tags(entities, cyd) == ["c"]
        entities.seal_type()
    with Entities(tmp_path / "second", storage=store) as entities:
        assert {id: entities.shown(id).snapshot for id in (ada, bob, cyd)} == before
        assert entities.shown(countess).view.group.row.entity_id == ada
