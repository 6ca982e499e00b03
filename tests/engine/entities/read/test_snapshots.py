"""Snapshots: history from states and the tail from memory are one, whatever becomes of policies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from headrace.errors import EntityNotFound, NotFound
from support.entity_rig import POLICIES, Entities, contact

SMALL: dict[str, Any] = {
    "storage": {"seal_rows": 16},
    "features": {"fold_rows": 4},
    "pipeline": {"min_rows": 1, "unit_bytes": 4096},
}
LATEST = {**POLICIES, "name": {"strategy": "last_write"}, "tags": {"strategy": "last_write"}}


@pytest.fixture
def entities(tmp_path: Path) -> Iterator[Entities]:
    with Entities(tmp_path / "data") as opened:
        opened.register_type(contact())
        yield opened


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Entities]:
    """Where little is folded in memory, and segments are short."""
    with Entities(tmp_path / "data", **SMALL) as opened:
        opened.register_type(contact())
        yield opened


def said(random: Random, users: int = 1, people: int = 6) -> dict[str, Any]:
    """Something about somebody, by whatever source and in whatever order."""
    meta = {
        "observed_at": f"2024-01-{random.randrange(1, 28):02}T00:00:00Z",
        "source_priority": random.choice([10, 100, 100, 500]),
        "observation_source": random.choice(["sensor", "human", "import"]),
        "specificity_score": random.choice([0.1, 0.5, 0.9]),
        "source_id": f"source-{random.randrange(1 << 40)}",
    }
    fields = {
        "name": random.choice(["Ada", "Countess", None]),
        "phone": str(random.randrange(4)),
        "score": random.randrange(9),
        "tags": [random.choice("abc"), {"deep": random.randrange(2)}],
        "unknown": random.randrange(3),
    }
    chosen = {name: value for name, value in fields.items() if random.random() < 0.6}
    return {"entity_type": "contact", "email": f"u{random.randrange(people)}@x.org", **chosen, "_meta": meta}


def test_an_entity_is_what_was_said_of_it(entities: Entities) -> None:
    ada = entities.said("ada@x.org", name="Ada", tags=["a"])
    assert entities.said("ada@x.org", score=3) == ada
    assert entities.snapshot(ada) == {"email": "ada@x.org", "name": "Ada", "tags": ["a"], "score": 3}


def test_history_in_states_and_a_tail_are_one_snapshot(entities: Entities) -> None:
    ada = entities.said("ada@x.org", name="Ada", tags=["a"])
    entities.seal_type()
    assert entities.work() == 1
    entities.said("ada@x.org", tags=["b"])
    entities.shown(ada)
    entities.ready()
    shown = entities.shown(ada)
    assert shown.kept and shown.snapshot is not None
    assert shown.snapshot.snapshot == {"email": "ada@x.org", "name": "Ada", "tags": ["b", "a"]}
    assert shown.snapshot.observation_count == 2
    assert shown.snapshot.schema_version == "1.0.0"


@pytest.mark.parametrize("seed", range(4))
def test_any_cut_into_states_and_tail_gives_the_same_snapshots(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with Entities(tmp_path / "data", **SMALL) as entities:
        entities.register_type(contact())
        for _ in range(12):
            entities.store(*(said(random) for _ in range(random.randrange(1, 6))), user=random.choice(["ann", "bob"]))
            match random.randrange(4):
                case 0:
                    entities.seal_type()
                case 1:
                    entities.seal_type()
                    entities.work_once(random.choice([1, 256]))
                case 2:
                    entities.ready()
            assert entities.rows() == entities.oracle()


def test_the_order_in_which_observations_come_does_not_matter(tmp_path: Path) -> None:
    random = Random(5)
    told = [said(random) for _ in range(60)]
    found = []
    for number in range(2):
        random.shuffle(told)
        with Entities(tmp_path / str(number), **SMALL) as entities:
            entities.register_type(contact())
            for start in range(0, len(told), 7):
                entities.store(*told[start : start + 7])
                entities.seal_type()
                entities.work_once(1)
            found.append(entities.rows())
    assert found[0] == found[1] != {}


def test_a_user_has_no_entities_of_others(entities: Entities) -> None:
    ada = entities.said("ada@x.org", user="ann")
    with pytest.raises(EntityNotFound):
        entities.shown(ada, "bob")
    assert entities.said("ada@x.org", user="bob") != ada


def test_policies_that_change_act_at_once_and_states_follow(small: Entities) -> None:
    random = Random(1)
    for _ in range(6):
        small.store(*(said(random) for _ in range(8)))
        small.seal_type()
    small.work()
    before = small.rows()
    small.register_type(contact("2.0.0", LATEST))
    expected = small.oracle()
    assert before != expected
    ada = next(iter(expected))
    assert not small.shown(ada).kept
    units = 0
    while settled := small.work_once(1):
        units += 1
        assert settled[0].outcome == "committed"
        assert small.rows() == expected  # nothing of the policies before, however far the states have come
    assert units > 1
    small.ready()
    assert small.shown(ada).kept and small.rows() == expected
    small.activate_type("1.0.0")
    assert {id: row.replace(b"1.0.0", b"") for id, row in small.rows().items()} == {
        id: row.replace(b"1.0.0", b"") for id, row in before.items()
    }


def test_fields_that_are_added_keep_the_states(small: Entities) -> None:
    ada = small.said("ada@x.org", name="Ada")
    small.said("ada@x.org", city="Paris")
    small.seal_type()
    small.work()
    names = [state.name for state in small.states_of()]
    small.update_type(fields_to_add=[{"field_name": "city", "field_type": "string"}])
    assert small.work() == 0 and [state.name for state in small.states_of()] == names
    assert small.snapshot(ada) == {"email": "ada@x.org", "name": "Ada"}
    small.said("ada@x.org", city="London")
    assert small.snapshot(ada) == {"email": "ada@x.org", "name": "Ada", "city": "London"}


def test_a_field_that_is_removed_is_hidden_and_comes_back(small: Entities) -> None:
    ada = small.said("ada@x.org", name="Ada", score=3)
    small.update_type(fields_to_remove=["score"])
    assert small.snapshot(ada) == {"email": "ada@x.org", "name": "Ada"}
    small.update_type(fields_to_add=[{"field_name": "score", "field_type": "number"}])
    assert small.snapshot(ada) == {"email": "ada@x.org", "name": "Ada", "score": 3}


def test_a_converter_that_is_added_later_shows_old_values_converted(small: Entities) -> None:
    ada = small.said("ada@x.org")
    small.update_type(fields_to_add=[{"field_name": "at", "field_type": "number"}])
    small.said("ada@x.org", at=1700000000)
    converter = {"from": "number", "to": "date", "function": "timestamp_s_to_iso", "deterministic": True}
    dated = contact("3.0.0", definition={"fields": {"email": {"type": "string"}, "at": {"type": "date"}}})
    dated["schema_definition"]["fields"]["at"]["converters"] = [converter]
    small.register_type({**dated, "reducer_config": {"merge_policies": {}}})
    assert small.snapshot(ada) == {"email": "ada@x.org", "at": "2023-11-14T22:13:20.000Z"}


def test_without_a_schema_every_field_is_shown(small: Entities) -> None:
    ada = small.said("ada@x.org", name="Ada", score=3)
    small.run(small.engine.types.deactivate("contact", "1.0.0", "", "tests"))
    shown = small.shown(ada).snapshot
    assert shown is not None
    assert shown.snapshot == {"email": "ada@x.org", "name": "Ada", "score": 3}
    assert shown.schema_version == "1.0.0"


def test_a_user_with_policies_of_their_own_has_a_life_of_their_own(small: Entities) -> None:
    random = Random(2)
    for user in ("ann", "bob"):
        small.store(*(said(random) for _ in range(20)), user=user)
    small.seal_type()
    small.work()
    small.register_type(contact("1.1.0", LATEST), owner="ann")
    assert small.rows() == small.oracle()
    small.seal_type()
    small.work()
    small.ready()
    (common,), owned = _lives(small, ""), _lives(small, "ann")
    assert len(owned) == 1 and owned != [common]
    assert small.rows() == small.oracle()
    assert all(small.shown(id, user).kept for user in ("ann", "bob") for id in _ids(small, user))


def _lives(entities: Entities, name: str) -> list[str]:
    return sorted({state.lives[name] for state in entities.states_of() if name in state.lives})


def _ids(entities: Entities, user: str) -> list[str]:
    stream = entities.find("entities/contact")
    return [row.entity_id for row in entities.engine.entity_list._entities.page(stream.id, user, "", 100)]


def test_the_past_is_folded_again(small: Entities) -> None:
    random = Random(3)
    ids = {one["entity_id"] for _ in range(6) for one in small.store(*(said(random) for _ in range(5)))}
    small.seal_type()
    small.work()
    then = small.clock.us
    before = small.rows()
    small.store(*(said(random) for _ in range(20)))
    assert small.rows() != before
    past = {id: small.shown(id, at_ingested_us=then).snapshot for id in ids}
    assert {id: msgspec.json.encode(found) for id, found in past.items()} == before
    for id in ids:
        found = small.shown(id, as_of_us=1_704_844_800_000_000).snapshot  # the tenth of January
        assert found is None or found.last_observation_at_us <= 1_704_844_800_000_000


def test_another_version_shows_the_same_observations(small: Entities) -> None:
    random = Random(4)
    small.store(*(said(random) for _ in range(30)))
    before = small.rows()
    small.register_type(contact("2.0.0", LATEST))
    for id in before:
        assert msgspec.json.encode(small.shown(id, schema_version="1.0").snapshot) == before[id]
    with pytest.raises(NotFound):
        small.shown(next(iter(before)), schema_version="7.0.0")


def test_a_changed_type_shows_old_values_converted_or_as_they_were_stored(small: Entities) -> None:
    ada = small.said("ada@example.com", phone="1", score=7)
    changed = contact("2.0.0", fields={"phone": "number", "score": "string"})
    to_number = {"from": "string", "to": "number", "function": "string_to_number", "deterministic": True}
    changed["schema_definition"]["fields"]["phone"]["converters"] = [to_number]
    small.register_type(changed)
    assert {name: small.snapshot(ada)[name] for name in ("phone", "score")} == {"phone": 1, "score": 7}
    small.said("ada@example.com", score="8")
    assert small.snapshot(ada)["score"] == "8"


def test_a_restart_answers_the_same(small: Entities) -> None:
    random = Random(6)
    small.store(*(said(random) for _ in range(40)))
    small.seal_type()
    small.work()
    small.store(*(said(random) for _ in range(9)))
    before = small.rows()
    small.reopen()
    assert small.rows() == before == small.oracle()


def test_work_of_a_worker_that_dies_is_done_by_another(small: Entities) -> None:
    random = Random(7)
    small.store(*(said(random) for _ in range(40)))
    small.seal_type()
    lost = small.run(small.engine.work.lease("lost", 256, ("snapshots",)))
    assert lost is not None and small.work_once() == []
    small.clock.us += 2 * small.engine.work.ttl_us
    assert small.work_once() == []  # a while is waited before anybody tries again
    small.clock.us += 2 * small.engine.work.ttl_us
    assert small.work() == len(lost.units)
    assert small.rows() == small.oracle()
    late = small.performed(lost)
    with pytest.raises(Exception, match="lease"):
        small.run(small._commit(lost.lease.id, lost.lease.token, late))
    assert small.rows() == small.oracle()
