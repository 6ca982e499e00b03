"""What a recovery makes of deletions: those that were acknowledged hold, and nothing else goes with them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from headrace.engine.history import takeover
from headrace.errors import Fenced, Gone, StoreUnavailable
from headrace.format import object_names
from headrace.types import JSON
from support.disturbed_store import Call, Fault, disturb
from support.engine_rig import Rig, array
from support.machines import Machines


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def lose_the_answer(rig: Rig, name: str) -> None:
    """Publish a stream to a store that takes its manifest, does not say so, and is away from then on."""
    store = disturb(rig.engine.objects)

    def plan(call: Call) -> Fault | None:
        if any(one.verb == "create" and one.key.startswith("manifests/") for one in store.calls[:-1]):
            return "refuse"
        return "lose" if call.verb == "create" and call.key.startswith("manifests/") else None

    store.plan = plan
    with pytest.raises(StoreUnavailable):
        rig.publish(name)


@pytest.mark.parametrize("closed", [0, 1])
def test_a_deletion_holds_where_the_newest_manifest_is_our_own(machines: Machines, closed: int) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1), closed=closed)
        rig.publish("s")
        rig.retain("s", age_us=10**12)
        lose_the_answer(rig, "s")
        rig.delete("s")
    machines.pass_by()
    assert machines.manifest("s").generation == 2
    with machines.open("a") as rig:
        assert rig.engine.log.catalog.find("s") is None
        rig.clear()
    assert machines.published() == {}


def test_a_closed_stream_that_another_node_changed_is_back_although_it_was_deleted_here(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1), closed=1)
        rig.publish("s")
        rig.delete("s")
    with machines.open("b") as rig:
        rig.retain("s", age_us=10**12)
        rig.publish("s")
    with machines.open("a") as rig:
        rig.clear()
        assert rig.read("s") == [b"1"]


def test_what_ended_after_a_manifest_whose_commit_was_cut_off_has_ended(machines: Machines) -> None:
    with machines.open("a") as rig:
        for name in ("closed", "deleted"):
            rig.create(name, JSON, array(1))
            rig.publish(name)
            rig.append(name, array(2))
            rig.fork(name, f"{name}/fork", 2)
        sealer = rig.engine.sealer
        for name in ("closed", "deleted"):
            stream = rig.find(name).id
            rig.run(sealer._thread.run(partial(sealer.publisher.publish, stream, sealer.pace)))
        rig.append("closed", close=True)
        rig.delete("deleted")
    machines.pass_by()
    with machines.open("a") as rig:
        assert rig.find("closed").head.closed
        assert rig.read("closed") == [b"1", b"2"]
        with pytest.raises(Gone):
            rig.find("deleted")
        assert rig.read("deleted/fork") == [b"1", b"2"]
        rig.publish("closed")
        rig.publish("deleted")
    assert machines.manifest("closed").closed
    assert machines.manifest("deleted").state == "soft_deleted"


def test_a_stream_that_expired_while_the_store_was_away_is_back_with_its_objects(machines: Machines) -> None:
    """Nothing is left here that could tell whether another node has gone on with it."""
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1), ttl_s=1)
        rig.publish("s")
        rig.clock.us += 2_000_000
        rig.sweep()
        assert rig.engine.published.deleted_streams(9) != []
    machines.pass_by()
    with machines.open("a") as rig:
        rig.clear()
        assert rig.read("s") == [b"1"]


@pytest.mark.parametrize("published", [(), ("child", "fork")])
def test_what_was_kept_for_forks_that_are_nowhere_is_buried(machines: Machines, published: tuple[str, ...]) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.fork("s", "child", 2)
        rig.fork("child", "fork", 2)
        for name in ("s", *published):
            rig.publish(name)
        for name in ("child", "s"):
            rig.delete(name)
        for name in ("s", *published[:1]):
            rig.publish(name)
        rig.delete("fork")
        if published:
            bury = rig.engine.sealer.remover.remove_stream
            (grave,) = [one for one in rig.engine.published.deleted_streams(9) if one.name == "fork"]
            bury(grave)
    assert machines.manifest("s").state == "soft_deleted"
    with machines.open("b") as rig:
        assert rig.engine.recovered is not None and rig.engine.recovered.problems == []
        for name in ("s", "child"):
            rig.create(name, JSON, array("anew"))
        rig.clear()
        rig.publish("s")
    assert machines.published() == {f"s {machines.manifest('s').incarnation}": [b'"anew"']}


def test_what_a_fork_needs_that_could_not_be_brought_back_is_not_buried(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.fork("s", "f", 2)
        rig.publish("f")
        rig.delete("s")
        rig.publish("s")
        incarnation = rig.find("f").incarnation
    key = object_names.manifest_key("f", incarnation, 1)
    machines.objects.put(key, machines.objects.get(key)[:-20])
    with machines.open("b") as rig:
        rig.clear()
        with pytest.raises(Gone):
            rig.find("s")
    assert machines.manifest("s").state == "soft_deleted"


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_directory_is_refused_that_has_a_fork_of_what_was_deleted(machines: Machines, is_anew: bool) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.publish("s")
        rig.fork("s", "f", 2)
        rig.append("f", array("own"))
    with machines.open("b") as rig:
        rig.delete("s")
        rig.clear()
        if is_anew:
            rig.create("s", JSON, array("anew"))
            rig.publish("s")
        for _ in range(2):
            with pytest.raises(Fenced, match=r"3 entries are in this directory alone: 'f' \(3\)"):
                machines.open("a")
        rig.engine.node.check()


def test_a_directory_is_refused_whose_source_is_deleted_while_it_takes_over(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.publish("s")
        rig.fork("s", "f", 2)
    with machines.open("b") as rig:
        rig.delete("s")
        rig.clear()
    monkeypatch.setattr(takeover, "_refuse_to_drop", lambda objects, streams: None)
    with pytest.raises(Fenced, match="'f' in this object store, and 2 entries are only here"):
        machines.open("a")


def test_forks_that_were_deleted_with_their_source_are_deleted_here(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.fork("s", "f", 2)
        rig.publish("s")
        rig.publish("f")
    with machines.open("b") as rig:
        rig.delete("s")
        rig.delete("f")
        rig.clear()
    with machines.open("a") as rig:
        assert rig.engine.log.page(prefix="", after="", limit=9) == []
