from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.features.pipelines import asked, event, register, registered, table
from headrace.engine.features import feature_stages
from headrace.engine.features.feature_stages import PlannedFeatureChange
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import run_change
from headrace.engine.registry.registry_change import CommitChange
from headrace.errors import Conflict, MissingField, NotRepresentable, Unavailable
from headrace.storage.journals import FeatureRegistry
from headrace.types import JSON
from support.engine_rig import Rig, array

FINE = {"user": "u", "amount": 1.0}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    with Rig(tmp_path) as opened:
        yield opened  # type: ignore[misc]


def rows(rig: Rig) -> int:
    connection = rig.engine.connect()
    try:
        return len(FeatureRegistry(connection).page(0, 1000))
    finally:
        connection.close()


def test_registering_makes_streams_with_schemas_and_lives(rig: Rig) -> None:
    envelope = registered(rig, event(), table())
    assert envelope.registry_version == 1
    assert envelope.added == ["Txn", "Users"]
    stream = rig.find("events/Txn")
    assert stream.managed
    assert stream.head.registry is not None and stream.head.registry.version == 1
    life = rig.engine.features.current.feature_versions["Users"]["count"]
    assert life.birth == 0


def test_what_is_new_is_born_with_the_first_event_and_what_is_reborn_with_the_next(rig: Rig) -> None:
    registered(rig, event(), table())
    rig.append("events/Txn", array(FINE, FINE))
    before = rig.engine.features.current.feature_versions["Users"]["count"]
    more = {"count": {"op": "count", "params": {}}, "total": {"op": "sum", "params": {"field": "amount"}}}
    registered(rig, event(), table(**more))
    first = rig.engine.features.current.feature_versions["Users"]
    assert first["count"] == before
    assert first["total"].birth == 0
    more["total"] = {"op": "sum", "params": {"field": "amount", "window": "1h"}}
    registered(rig, event(), table(**more), force=True)
    second = rig.engine.features.current.feature_versions["Users"]
    assert second["count"] == before
    assert second["total"].birth == 2
    assert second["total"].id != first["total"].id


@pytest.mark.parametrize(("backfill", "birth"), [(None, 0), (True, 0), (False, 2)])
def test_backfill_says_when_a_new_feature_is_born(rig: Rig, backfill: bool | None, birth: int) -> None:
    registered(rig, event())
    rig.append("events/Txn", array(FINE, FINE))
    registered(rig, event(), table(), backfill=backfill)
    assert rig.engine.features.current.feature_versions["Users"]["count"].birth == birth


def test_nothing_is_born_before_a_break(rig: Rig) -> None:
    registered(rig, event())
    rig.append("events/Txn", array(FINE, FINE))
    narrow = event(schema={"user": "str", "amount": "i64"})
    registered(rig, narrow, force=True)
    registered(rig, narrow, table())
    assert rig.engine.features.current.feature_versions["Users"]["count"].birth == 2


def planned(rig: Rig, *descriptors: dict[str, object], **terms: object) -> PlannedFeatureChange:
    return rig.run(rig.engine.features.prepare(asked(*descriptors, **terms)))


def commit(rig: Rig, change: PlannedFeatureChange) -> CommitChange:
    return rig.run(run_change(rig.engine.writer, CommitChange, change, "me"))


def test_a_change_that_was_planned_for_another_version_is_not_made(rig: Rig) -> None:
    registered(rig, event())
    late = planned(rig, event(), table())
    registered(rig, event(), table("Others"))
    assert commit(rig, late).outdated
    assert "Users" not in rig.engine.features.current.nodes


def test_a_change_that_fails_half_way_leaves_nothing(rig: Rig) -> None:
    """Another stream takes the name of the second event between the plan and the commit."""
    registered(rig, event(), table())
    rig.append("events/Txn", array(FINE))
    before, stream = rig.engine.features.current, rig.find("events/Txn")
    head = stream.head
    changed = event(schema={"user": "str", "amount": "i64"})
    change = planned(rig, changed, event("Zed"), event("Another"), force=True)
    rig.create("events/Zed", JSON)
    with pytest.raises(Conflict, match="events/Zed"):
        commit(rig, change)
    assert rig.engine.features.current is before
    assert stream.head.registry is head.registry
    assert rig.engine.log.catalog.find("events/Another") is None
    assert rows(rig) == 1
    rig.append("events/Txn", array({"user": "u", "amount": 1.5}))
    rig.reopen()
    assert rig.engine.features.current.version == 1
    assert rig.find("events/Txn").head.registry.version == 1  # type: ignore[union-attr]


def test_others_in_the_same_commit_are_not_undone_with_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(rig, event())
    change = planned(rig, event(schema={"user": "str", "amount": "i64"}), event("Zed"), force=True)
    rig.create("events/Zed", JSON)
    refused: list[CommitChange] = []

    def together(done: object) -> None:
        rig.submit("events/Txn", array(FINE), lambda append: None)
        CommitChange(change, "me", refused.append).submit(rig.engine.writer)
        rig.submit("events/Txn", array(FINE), done)  # type: ignore[arg-type]

    rig.settle(together)
    assert isinstance(refused[0].error, Conflict)
    assert len(rig.read("events/Txn")) == 2


def test_without_epochs_nothing_is_registered(rig: Rig) -> None:
    registered(rig, event())

    def use_up(batch: Batch) -> None:
        batch.streams.set_meta("epoch_end", 0)
        batch.streams.set_meta("spare_epoch", -1)

    rig.run(rig.engine.apply(use_up))
    with pytest.raises(Unavailable, match="epochs"):
        register(rig, event(), event("More"))
    assert rig.engine.features.current.version == 1


def test_an_event_that_is_pushed_under_an_older_registry_is_judged_again(rig: Rig) -> None:
    """The commit of a change stands between the check of an event and its own commit."""
    registered(rig, event())
    change = planned(rig, event(schema={"user": "str", "amount": "f64", "more": "str"}), force=True)

    def together(done: object) -> None:
        CommitChange(change, "me", lambda _: None).submit(rig.engine.writer)
        rig.submit("events/Txn", array(FINE), done)  # type: ignore[arg-type]

    with pytest.raises(MissingField):
        rig.settle(together)
    assert rig.engine.features.current.version == 2
    rig.append("events/Txn", array({**FINE, "more": "x"}))
    assert [msgspec.json.decode(entry) for entry in rig.read("events/Txn", 0)] == [{**FINE, "more": "x"}]


def test_so_many_versions_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_stages, "KEPT_VERSIONS", 3)
    for hours in range(1, 6):
        registered(rig, event(cold_after=f"{hours}h"))
    assert [row.version for row in rig.engine.features.history(0, 10)] == [3, 4, 5]
    rig.reopen()
    assert rig.engine.features.current.version == 5


def test_the_registry_is_there_after_a_restart(rig: Rig) -> None:
    registered(rig, event(cold_after="1h", keep_events_for="7d"), table())
    before = rig.engine.features.current
    rig.reopen()
    after = rig.engine.features.current
    assert after.version == before.version
    assert after.document == before.document
    assert after.cold("Txn") == ((0, 3_600_000),)
    assert after.tables_of("Txn") == ("Users",)


def test_a_read_that_is_refused_lets_go_of_what_it_saw(rig: Rig) -> None:
    """Whoever keeps the error must not keep an old state of the database."""
    registered(rig, event(), event("Rest"))
    rig.append("events/Txn", array(FINE))
    registered(rig, event(schema={"user": "str", "amount": "i64"}), event("Rest"), force=True)
    stream = rig.find("events/Txn")
    with pytest.raises(NotRepresentable) as kept:
        rig.engine.log.read(stream, stream.head, 0, budget=1000)
    registered(rig, event("Rest"), force=True)
    assert rig.engine.log.catalog.find("events/Txn") is None
    assert kept.value.facts["schema_version"] == 2
