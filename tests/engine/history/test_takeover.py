"""What a directory has missed, and how it goes on: nothing published is overwritten, nothing acknowledged dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.config import ConfigError, StorageConfig
from headrace.engine.history.recovery import first_difference
from headrace.engine.history.verify import verify
from headrace.engine.log import batch
from headrace.engine.products import JOURNALS
from headrace.errors import CorruptData, Fenced, OffsetFenced
from headrace.format import object_names
from headrace.format import offset as offsets
from headrace.storage import node as nodes
from headrace.storage.backup import back_up, restore
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.types import JSON, SystemClock
from support.engine_rig import ManualClock, Rig, array
from support.machines import Machines, take_over


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@contextmanager
def refused(kind: type[Exception], **facts: Any) -> Iterator[None]:
    with pytest.raises(kind) as refusal:
        yield
    found: Any = refusal.value
    assert {name: found.facts.get(name) for name in facts} == facts


def test_a_directory_that_wrote_last_has_missed_nothing(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.publish("s")
        rig.append("s", array(3))
        epochs = rig.find("s").epochs
        rig.reopen()
        assert rig.engine.recovered is None
        assert rig.find("s").epochs == epochs
        assert rig.read("s") == [b"1", b"2", b"3"]


def test_a_new_directory_has_everything_that_was_published_and_new_epochs(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.append("s", array(3), producer=("p", 4, 0), stream_seq="7")
        rig.publish("s")
        rig.append("s", array("lost"))
        lost = rig.find("s").tail_offset()
        rig.create("closed", JSON, array(1), closed=1)
        rig.publish("closed")
    with machines.open("b") as rig:
        assert rig.engine.recovered is not None
        assert rig.engine.recovered.streams == 2
        assert rig.engine.recovered.entries == 4
        assert rig.read("s") == [b"1", b"2", b"3"]
        assert len(rig.find("s").epochs) == 2
        assert len(rig.find("closed").epochs) == 1
        rig.append("s", array("new"))
        with pytest.raises(OffsetFenced):
            rig.find("s").locate(offsets.decode(lost))
        assert rig.append("s", array("again"), producer=("p", 4, 0)).duplicate
        assert rig.find("s").head.stream_seq == "7"


def test_a_directory_that_was_passed_goes_on_from_the_newer_manifest(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.append("s", array(2), producer=("p", 0, 0))
        rig.publish("s")
        ours = rig.find("s").id
    with machines.open("b") as rig:
        rig.append("s", array(3), producer=("p", 0, 1))
        offset = rig.find("s").tail_offset()
        rig.publish("s")
    with machines.open("a") as rig:
        assert rig.read("s") == [b"1", b"2", b"3"]
        assert rig.find("s").id == ours
        assert rig.find("s").locate(offsets.decode(offset)) == 3
        assert rig.append("s", array(3), producer=("p", 0, 1)).duplicate
        rig.append("s", array(4), producer=("p", 0, 2))
        rig.publish("s")
        assert rig.read("s") == [b"1", b"2", b"3", b"4"]
    assert not [report for report in verify(machines.objects, JOURNALS) if report.damage]


def test_a_directory_with_entries_of_its_own_is_refused_before_it_takes_over(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.append("s", array("only", "here"))
    with machines.open("b") as rig:
        rig.append("s", array("there"))
        rig.publish("s")
        for _ in range(2):
            with refused(Fenced, streams=1, entries=2):
                machines.open("a")
        rig.engine.node.check()
        rig.append("s", array("and on"))
        rig.publish("s")
    assert machines.published() == {"s 0": [b"1", b'"there"', b'"and on"']}


def test_a_directory_keeps_its_tail_where_another_node_published_nothing(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.append("s", array(2))
        kept = rig.find("s").tail_offset()
    machines.open("b").close()
    with machines.open("a") as rig:
        assert rig.read("s") == [b"1", b"2"]
        assert rig.find("s").locate(offsets.decode(kept)) == 2
        rig.append("s", array(3))
        rig.publish("s")
    assert machines.published() == {"s 0": [b"1", b"2", b"3"]}


def test_only_the_missing_commit_is_made_up_for_where_the_database_is_further(machines: Machines) -> None:
    """A crash between the manifest and its commit, and then another node that has done nothing."""
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.append("s", array(2), key="k")
        sealer = rig.engine.sealer
        publisher = sealer.publisher
        publication = rig.run(sealer._thread.run(lambda: publisher.publish(rig.find("s").id, sealer.pace)))
        assert publication is not None and publication.generation == 2
        rig.append("s", array(3), stream_seq="9")
    machines.pass_by()
    with machines.open("a") as rig:
        assert rig.read("s") == [b"1", b"2", b"3"]
        assert rig.read("s", key="k") == [b"2"]
        head = rig.find("s").head
        assert head.published_seq == 2
        assert head.next_seq == 3
        assert head.stream_seq == "9"
        rig.publish("s")
    assert machines.manifest("s").generation == 3
    assert not [report for report in verify(machines.objects, JOURNALS) if report.damage]


def test_a_restored_directory_goes_on_from_what_was_published_since(machines: Machines) -> None:
    with machines.open("a") as rig:
        for name in ("grown", "still", "gone", "anew"):
            rig.create(name, JSON, array(1))
            rig.publish(name)
        rig.append("still", array("kept"))
        machines.back_up("a", "backup")
        rig.append("grown", array(2))
        rig.publish("grown")
        rig.append("grown", array("lost"))
        lost = rig.find("grown").tail_offset()
        rig.delete("gone")
        rig.delete("anew")
        rig.create("anew", JSON, array("second life"))
        rig.create("born", JSON, array("since"))
        rig.publish("anew")
        rig.publish("born")
        rig.clear()
        used = {epoch for name in ("grown", "still", "anew", "born") for epoch, _ in rig.find(name).epochs}
    machines.restore("backup", "c")
    with machines.open("c") as rig:
        found = {stream.name: rig.read(stream.name) for stream in rig.engine.log.page(prefix="", after="", limit=9)}
        assert found == {
            "anew": [b'"second life"'],
            "born": [b'"since"'],
            "grown": [b"1", b"2"],
            "still": [b"1", b'"kept"'],
        }
        for name in found:
            own = rig.create(f"{name}/new").epochs[-1][0]
            assert own not in used and rig.find(name).epochs[-1][0] not in used
        rig.append("grown", array("new"))
        with pytest.raises(OffsetFenced):
            rig.find("grown").locate(offsets.decode(lost))
        rig.reopen()
        assert rig.engine.recovered is None
        assert rig.read("grown") == [b"1", b"2", b'"new"']


def test_the_same_backup_can_be_restored_again(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.append("s", array(2))
        machines.back_up("a", "backup")
    for number in (3, 4):
        machines.restore("backup", f"copy-{number}")
        with machines.open(f"copy-{number}") as rig:
            rig.append("s", array(number))
            rig.publish("s")
    assert machines.published() == {"s 0": [b"1", b"2", b"3", b"4"]}


def test_a_directory_is_restored_with_its_store_where_that_lies_inside(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.append("s", array(2))

        def go_on(done: int, total: int) -> None:
            if rig.find("s").head.next_seq == 2:  # the log is copied, the objects are not
                rig.append("s", array(3))
                rig.publish("s")

        back_up(tmp_path / "a", "", tmp_path / "backup", SystemClock(), go_on)
        used = rig.find("s").epochs
    restore(tmp_path / "backup", StorageConfig(data_dir=str(tmp_path / "b")), lambda done, total: None)
    with Rig(tmp_path / "b") as rig:
        assert rig.read("s") == [b"1", b"2", b"3"]
        assert rig.find("s").epochs[:-1] == used
        rig.append("s", array(4))
        rig.publish("s")
        assert not [report for report in verify(rig.engine.objects, JOURNALS) if report.damage]


def test_a_store_of_others_is_refused(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
    with machines.open("b", store="another") as rig:
        rig.create("t", JSON, array(1))
        rig.publish("t")
    with refused(ConfigError, field="storage.object_store"):
        machines.open("a", store="another")
    with refused(ConfigError, field="storage.object_store"):
        machines.open("a", store="empty")
    with machines.open("c", store="elsewhere") as rig:
        rig.create("own", JSON, array(1))
    with refused(ConfigError, field="storage.object_store"):
        machines.open("c")
    with machines.open("c", store="empty") as rig:
        assert rig.read("own") == [b"1"]
        rig.publish("own")
    with machines.open("a") as rig:
        assert rig.read("s") == [b"1"]


def test_the_later_life_of_a_name_counts_and_the_earlier_is_buried(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array("first"))
        rig.publish("s")
        rig.delete("s")
        rig.create("s", JSON, array("second"))
        rig.publish("s")
    with machines.open("b") as rig:
        assert rig.engine.recovered is not None and rig.engine.recovered.problems == []
        assert rig.read("s") == [b'"second"']
        rig.clear()
    assert machines.published() == {"s 1": [b'"second"']}


def test_a_deletion_holds_where_nobody_went_on_with_the_stream(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.delete("s")
    machines.pass_by()
    with machines.open("a") as rig:
        assert rig.engine.log.catalog.find("s") is None
        rig.clear()
    assert machines.published() == {}


def test_a_stream_that_another_node_went_on_with_is_back_although_it_was_deleted_here(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.delete("s")
    with machines.open("b") as rig:
        rig.append("s", array(2))
        rig.publish("s")
    with machines.open("a") as rig:
        assert rig.read("s") == [b"1", b"2"]
        rig.sweep()
        rig.clear()
        assert rig.read("s") == [b"1", b"2"]


def test_a_fork_comes_back_after_those_it_was_forked_from(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("z", JSON, array(1, 2))
        rig.fork("z", "m", 1)
        rig.append("m", array("m"))
        rig.fork("m", "a", 2)
        rig.append("a", array("a"))
        for name in ("z", "m", "a"):
            rig.publish(name)
    with machines.open("b") as rig:
        assert rig.read("a") == [b"1", b'"m"', b'"a"']
        assert rig.find("a").lineage == ((rig.find("z").id, 1), (rig.find("m").id, 2))


def test_a_fork_of_what_is_not_published_is_a_problem_and_no_mixture(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.append("s", array("never published"))
        rig.fork("s", "f", 2)
        stream = rig.find("f").id
        publisher = rig.engine.sealer.publisher
        rig.run(rig.engine.sealer._thread.run(lambda: publisher.publish(stream, rig.engine.sealer.pace)))
    with machines.open("b") as rig:
        assert rig.engine.recovered is not None
        assert rig.engine.recovered.problems == ["'f' needs 2 entries of 's', and 1 are there"]
        assert rig.read("s") == [b"1"]


def test_an_older_manifest_counts_where_the_newest_is_damaged(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        rig.append("s", array(2))
        rig.publish("s")
    key = object_names.manifest_key("s", "0", 2)
    machines.objects.put(key, machines.objects.get(key)[:-20])
    with machines.open("b") as rig:
        assert rig.engine.recovered is not None
        (problem,) = rig.engine.recovered.problems
        assert key in problem
        assert rig.read("s") == [b"1"]
        rig.append("s", array("new"))
        rig.publish("s")
    assert machines.manifest("s").generation == 3


def test_a_lost_manifest_is_written_again_and_nothing_is_deleted(machines: Machines) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
    machines.pass_by()
    machines.objects.delete([object_names.manifest_key("s", "0", 1)])
    with machines.open("a") as rig:
        assert rig.engine.recovered is not None
        assert "'s' has segments and no manifest" in rig.engine.recovered.problems[0]
        rig.publish("s")
    assert machines.published() == {"s 0": [b"1"]}


def test_epochs_are_reserved_for_as_many_streams_as_come_back(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(9)]
    monkeypatch.setattr(nodes, "EPOCH_BLOCK", 9)
    with machines.open("a") as rig:
        for name in names:
            rig.create(name, JSON, array(name))
            rig.publish(name)
    for _ in range(9):
        Node(machines.objects, SystemClock()).reserve_epochs()
    monkeypatch.setattr(nodes, "EPOCH_BLOCK", 2)
    monkeypatch.setattr(batch, "EPOCH_BLOCK", 2)
    with machines.open("b") as rig:
        epochs = {rig.find(name).epochs[-1][0] for name in names}
        assert len(epochs) == len(names)
        assert min(epochs) > 8


def test_epochs_from_before_there_were_blocks_are_not_used_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machines.open("a") as rig:
        for number in range(7):
            rig.create(f"s{number}")
    with machines.open("a") as rig:

        def forget(batch: Any) -> None:
            batch.streams.set_meta("epoch_end", 0)
            batch.streams.set_meta("spare_epoch", -1)

        rig.run(rig.engine.apply(forget))
    monkeypatch.setattr(nodes, "EPOCH_BLOCK", 2)
    monkeypatch.setattr(batch, "EPOCH_BLOCK", 2)
    with machines.open("a") as rig:
        assert rig.create("next").epochs[-1][0] == 7


def test_who_could_not_ask_at_the_start_does_not_take_over_from_others(tmp_path: Path) -> None:
    objects, clock = Objects.open(str(tmp_path)), ManualClock()
    assert take_over(objects).newest() == 0
    same = Node(objects, clock)
    same.held = 0
    same.check()
    late = Node(objects, clock)
    late.held = 0
    with pytest.raises(Fenced):
        late.check()
    same.check()


@pytest.mark.parametrize(
    ("ours", "theirs", "parted"),
    [
        (((0, 0),), ((0, 0),), None),
        (((0, 0),), ((0, 0), (5, 3)), 3),
        (((0, 0), (5, 3)), ((0, 0),), 3),
        (((0, 0), (5, 3)), ((0, 0), (6, 2)), 2),
        (((0, 0), (5, 3)), ((0, 0), (5, 3), (9, 3)), 3),
    ],
)
def test_histories_part_where_their_epochs_do(ours: Any, theirs: Any, parted: int | None) -> None:
    assert first_difference(ours, theirs) == parted


@pytest.mark.parametrize(("before", "after"), [(b'"node":"', b'"node":"1'), (b'"node":"', b'"node":"z'), (b"{", b"[")])
def test_a_damaged_lease_is_named(machines: Machines, before: bytes, after: bytes) -> None:
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
        path = rig.engine.objects.local_path(nodes.lease_key(0))
    assert path is not None
    path.write_bytes(path.read_bytes().replace(before, after))
    refusal = pytest.raises((ConfigError, CorruptData), match=r"nodes/0000000000000000\.json is damaged")
    with refusal, machines.open("a"):
        pass
