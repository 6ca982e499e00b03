"""Migration: every fragment to its own entity, at its own time, once however often it is done; and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.entities.enhancement import fragment_moves, queue
from headrace.engine.entities.erasure import erasures
from headrace.engine.entities.read.snapshots import EntityQuery
from headrace.engine.entities.write.relations import Moved
from headrace.errors import BadRequest, Conflict, NotFound
from headrace.schema.entity import request
from headrace.storage.enhancements import Run
from headrace.storage.entities import Entities
from headrace.storage.entity_types import EVERYBODY
from support.enhancement_rig import Growing
from support.entity_rig import contact

NICK = {"fields_to_add": [{"field_name": "nick", "field_type": "string"}]}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_PAUSE_S", 0.01)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Growing]:
    with Growing(tmp_path) as rig:
        rig.register_type(contact())
        yield rig


def count(rig: Growing, entity: str, user: str = "local") -> int:
    found = rig.shown(entity, user).snapshot
    assert found is not None
    return found.observation_count


def test_an_old_value_does_not_beat_a_newer_one(rig: Growing) -> None:
    entity = rig.said("a@x.y", nick="old")
    other, stored_us = rig.said("b@x.y", nick="only"), rig.clock.us
    rig.update_type(**NICK)
    rig.said("a@x.y", nick="new")
    run = rig.migrate("nick")
    assert run.migrated == 2
    assert run.unfit == 0
    assert run.through == run.until
    assert rig.snapshot(entity)["nick"] == "new"
    shown = rig.shown(other).snapshot
    assert shown is not None and shown.snapshot["nick"] == "only"
    (origin,) = shown.origins["nick"]
    assert origin.source_priority == 0
    assert origin.source_id is not None
    assert origin.observed_at_us == shown.computed_at_us == stored_us


def test_no_value_comes_back_that_was_erased_while_it_was_moved(rig: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "GRACE_S", 0.0)
    gone, kept = rig.said("a@x.y", nick="erased"), rig.said("b@x.y", nick="kept")
    rig.update_type(**NICK)
    migrating, begin = rig.engine.enhancement.migrations, rig.engine.erasure.begin
    read, reads = migrating._read_slice, []

    async def slow(*facts: Any) -> Any:
        """Between what is read and what is stored, an entity is erased, and another of its id comes."""
        found = await read(*facts)
        reads.append(len(found.values))
        if len(reads) == 1:
            await begin(gone, "local")
            asked = request.read_store_request(
                msgspec.json.encode({"entities": [{"entity_type": "contact", "email": "a@x.y"}]}), "local"
            )
            await rig._store(asked)
        return found

    monkeypatch.setattr(migrating, "_read_slice", slow)
    run = rig.migrate("nick")
    assert reads == [2, 1]
    assert run.migrated == 1
    assert rig.snapshot(gone) == {"email": "a@x.y"}
    assert rig.snapshot(kept)["nick"] == "kept"


def test_many_entities_of_one_source_get_their_own_values(rig: Growing) -> None:
    said = [{"entity_type": "contact", "email": f"{n}@x.y", "nick": f"n{n}"} for n in range(20)]
    ids = [one["entity_id"] for one in rig.store(*said, source_id="s")]
    rig.update_type(**NICK)
    assert rig.migrate("nick").migrated == 20
    assert [rig.snapshot(entity)["nick"] for entity in ids] == [f"n{n}" for n in range(20)]


def test_there_is_no_cap_and_steps_are_bounded(rig: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_moves, "MAX_VALUES", 7)
    monkeypatch.setattr(fragment_moves, "MAX_OBSERVATIONS", 20)
    for start in range(0, 120, 40):
        rig.store(*({"entity_type": "contact", "email": f"{start + n}@x.y", "nick": "x"} for n in range(40)))
        rig.store(*({"entity_type": "contact", "email": f"{start + n}@x.y", "name": "y"} for n in range(40)))
        rig.seal_type()
    rig.update_type(**NICK)
    run = rig.migrate("nick")
    assert run.migrated == 120
    assert run.repeated == 0


def test_twice_equals_once(rig: Growing) -> None:
    entity = rig.said("a@x.y", nick="n")
    rig.update_type(**NICK)
    first = rig.migrate("nick")
    before = rig.find("entities/contact").head.next_seq, count(rig, entity)
    second = rig.migrate("nick")
    assert first.migrated == 1
    assert second.migrated == 0
    assert second.repeated == 1
    assert (rig.find("entities/contact").head.next_seq, count(rig, entity)) == before


def test_the_same_that_is_about_to_be_done_is_not_done_twice(rig: Growing) -> None:
    rig.said("a@x.y", nick="n")
    rig.update_type(**NICK)
    begin = rig.engine.enhancement.migrations.begin
    rig.run(rig.engine.enhancement.queue.stop())
    runs = [rig.run(begin("contact", owner, ["nick"], "tests")).id for owner in (EVERYBODY, EVERYBODY, "local")]
    assert runs[0] == runs[1] != runs[2]


def test_a_run_that_is_begun_again_from_the_start_doubles_nothing(rig: Growing) -> None:
    for number in range(10):
        rig.said(f"{number}@x.y", nick="n")
    rig.update_type(**NICK)
    run = rig.migrate("nick")
    end = rig.find("entities/contact").head.next_seq
    again = rig.run(rig.engine.enhancement.migrations.perform(_reset(run), _ignore))
    assert again.migrated == 0
    assert again.repeated == 10
    assert rig.find("entities/contact").head.next_seq == end


def _reset(run: Run) -> Run:
    return msgspec.structs.replace(run, through=0, migrated=0, state="processing", ended_us=None)


async def _ignore(run: Run) -> None:
    pass


def test_a_migration_can_be_undone_and_done_again(rig: Growing) -> None:
    ids = [rig.said(f"{number}@x.y", nick=f"n{number}", name="x") for number in range(5)]
    rig.update_type(**NICK)
    before = [rig.shown(entity).snapshot for entity in ids]
    run = rig.migrate("nick")
    with_it = [rig.shown(entity).snapshot for entity in ids]
    rig.undo(run)
    assert [rig.shown(entity).snapshot for entity in ids] == before
    rig.seal_type()
    rig.work()
    assert [rig.shown(entity).snapshot for entity in ids] == before
    assert all(rig.shown(entity).kept for entity in ids)
    again = rig.migrate("nick")
    assert again.migrated == 5
    assert again.repeated == 0
    assert [found and found.snapshot for found in (rig.shown(entity).snapshot for entity in ids)] == [
        found and found.snapshot for found in with_it
    ]
    rig.undo(run)  # once more changes nothing
    assert rig.snapshot(ids[0])["nick"] == "n0"


def test_an_undone_run_leaves_what_others_have_moved(rig: Growing) -> None:
    entity = rig.said("a@x.y", nick="n", town="t")
    rig.update_type(fields_to_add=[*NICK["fields_to_add"], {"field_name": "town", "field_type": "string"}])
    rig.migrate("nick")
    rig.undo(rig.migrate("town"))
    assert rig.snapshot(entity) == {"email": "a@x.y", "nick": "n"}
    both = rig.migrate("nick", "town")
    assert both.migrated == 1
    assert both.repeated == 1
    assert rig.snapshot(entity) == {"email": "a@x.y", "nick": "n", "town": "t"}


def test_values_that_the_field_does_not_take_stay_where_they_are(rig: Growing) -> None:
    good, bad = rig.said("a@x.y", age=5), rig.said("b@x.y", age="old")
    rig.update_type(fields_to_add=[{"field_name": "age", "field_type": "number"}])
    run = rig.migrate("age")
    assert run.migrated == 1
    assert run.unfit == 1
    assert rig.snapshot(good)["age"] == 5
    assert "age" not in rig.snapshot(bad)


def test_values_that_the_schema_would_refuse_are_not_moved(rig: Growing) -> None:
    good, bad = rig.said("a@x.y", age=5), rig.said("b@x.y", age=500)
    field = {"field_name": "age", "field_type": "number", "constraints": {"max": 150}}
    rig.update_type(fields_to_add=[field])
    run = rig.migrate("age")
    assert run.migrated == 1
    assert run.unfit == 1
    assert rig.snapshot(good)["age"] == 5
    assert "age" not in rig.snapshot(bad)


def test_an_explicit_null_clears_what_was_said_before_it(rig: Growing) -> None:
    entity = rig.said("a@x.y", nick="n")
    rig.said("a@x.y", nick=None)
    rig.update_type(**NICK)
    assert rig.migrate("nick").migrated == 2
    assert "nick" not in rig.snapshot(entity)


def test_originals_of_converted_values_and_corrections_are_not_moved_again(rig: Growing) -> None:
    converter = {"from": "string", "to": "number", "function": "string_to_number", "deterministic": True}
    entity = rig.said("a@x.y", score=1)
    rig.update_type(converters_to_add=[{"field_name": "score", "converter": converter}])
    rig.said("a@x.y", score="7")
    assert rig.migrate("score").migrated == 0
    assert rig.snapshot(entity)["score"] == 7


def test_a_user_moves_their_own_and_everybody_means_everybody(rig: Growing) -> None:
    ann, bob = rig.said("a@x.y", user="ann", nick="a"), rig.said("b@x.y", user="bob", nick="b")
    rig.update_type(**NICK)
    assert rig.migrate("nick", owner="ann").migrated == 1
    assert rig.snapshot(ann, "ann").get("nick") == "a"
    assert rig.snapshot(bob, "bob").get("nick") is None
    everybody = rig.migrate("nick")
    assert everybody.migrated == 1
    assert everybody.repeated == 1
    assert rig.snapshot(bob, "bob")["nick"] == "b"


def test_a_value_whose_observation_was_moved_to_another_entity_follows_it(rig: Growing) -> None:
    entity, other = rig.said("a@x.y", nick="n"), rig.said("b@x.y")
    view = rig.engine.snapshots.view(EntityQuery(entity, "local"))
    (found,) = rig.run(rig.engine.entity_list.observations(view, None, 1, newest_first=False))
    connection = rig.engine.connect()
    into = Entities(connection).find(other)
    connection.close()
    assert into is not None
    rig.run(rig.engine.entity_relations.split("local", entity, into, [Moved(found.observation.id, entity, entity)]))
    rig.update_type(**NICK)
    rig.migrate("nick")
    assert rig.snapshot(other)["nick"] == "n"


def test_an_update_may_ask_for_it(rig: Growing) -> None:
    entity = rig.said("a@x.y", nick="n")
    planned = rig.update_type(**NICK, migrate_existing=True, dry_run=True)
    assert planned.migration == {"dry_run": True, "fragments": {"nick": 1}}
    outcome = rig.update_type(**NICK, migrate_existing=True)
    assert outcome.migration is not None
    assert outcome.migration["state"] == "completed"
    assert outcome.migration["migrated"] == 1
    assert rig.snapshot(entity)["nick"] == "n"


def test_what_cannot_be_moved_or_undone_is_refused(rig: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, undo = rig.engine.enhancement.migrations.begin, rig.engine.enhancement.migrations.undo
    with pytest.raises(BadRequest):
        rig.run(begin("contact", EVERYBODY, ["never"], "tests"))
    with pytest.raises(BadRequest):
        rig.run(begin("contact", EVERYBODY, [], "tests"))
    with pytest.raises(NotFound):
        rig.run(undo("contact", "mig_none", [EVERYBODY], "tests"))
    rig.said("a@x.y", nick="n")
    rig.update_type(**NICK)
    rig.run(rig.engine.enhancement.queue.stop())
    run = rig.run(begin("contact", EVERYBODY, ["nick"], "tests"))
    with pytest.raises(Conflict):
        rig.undo(run)
    with pytest.raises(NotFound):
        rig.run(undo("contact", run.id, ["ann"], "tests"))


def test_a_migration_is_no_part_of_the_source_that_brought_the_value(rig: Growing) -> None:
    (said,) = rig.store({"entity_type": "contact", "email": "a@x.y", "nick": "n"}, source_id="s")
    rig.update_type(**NICK)
    rig.migrate("nick")
    sourcing = rig.engine.source_reader
    found: Any = sourcing.read("local", "s", sourcing.find_parts("local", "s"))
    assert found.complete is True
    assert len(found.observations) == 1
    shown = rig.shown(said["entity_id"]).snapshot
    assert shown is not None and shown.origins["nick"][0].source_id == "s"
