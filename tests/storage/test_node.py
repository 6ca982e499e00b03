from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import CorruptData, Fenced
from headrace.storage.node import EPOCH_BLOCK, Node, holder_of
from headrace.storage.objects import Objects, StoreUnavailable
from support.disturbed_store import Call, disturb
from support.engine_rig import ManualClock
from support.machines import take_over


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.open(str(tmp_path))


def _node(objects: Objects) -> Node:
    return Node(objects, ManualClock())


def test_the_newest_claim_counts(objects: Objects) -> None:
    nodes = [_node(objects) for _ in range(3)]
    for number, node in enumerate(nodes):
        assert node.claim(node.newest()) == number
        node.check()
        assert node.newest() == number
        assert holder_of(objects, number) == node.identity
    for older in nodes[:2]:
        with pytest.raises(Fenced) as fenced:
            older.check()
        assert fenced.value.status == 503
    nodes[2].check()


def test_of_many_who_claim_at_once_one_is_the_writer(objects: Objects) -> None:
    nodes = [_node(objects) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda node: node.claim(None), nodes))
    assert [number for number in numbers if number is not None] == [0]
    for node, number in zip(nodes, numbers, strict=True):
        if number == 0:
            node.check()
        else:
            with pytest.raises(Fenced):
                node.check()


def test_a_claim_takes_over_from_the_lease_that_was_judged_and_from_no_later_one(objects: Objects) -> None:
    take_over(objects)
    last = take_over(objects)
    node = _node(objects)
    assert node.claim(0) is None
    last.check()
    assert node.claim(1) == 2
    with pytest.raises(Fenced):
        last.check()


def test_a_lost_answer_to_a_claim_claims_once(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)
    store, faults = disturb(objects), ["lose"]
    store.plan = lambda call: faults.pop() if call.verb == "create" and faults else None  # type: ignore[return-value]
    node = _node(objects)
    assert node.claim(None) == 0
    node.check()
    assert node.newest() == 0


def test_whoever_cannot_ask_is_neither_the_writer_nor_fenced(objects: Objects) -> None:
    node = take_over(objects)
    disturb(objects).plan = lambda _: "refuse"
    with pytest.raises(StoreUnavailable):
        node.check()


def test_a_late_claim_is_made_where_nobody_came_between(objects: Objects) -> None:
    take_over(objects)
    late = _node(objects)
    late.held = 0
    late.check()
    assert late.newest() == 1
    missed = _node(objects)
    missed.held = 0
    with pytest.raises(Fenced):
        missed.check()
    assert missed.newest() == 1


def test_a_late_claim_that_another_node_forestalls_is_none(objects: Objects, tmp_path: Path) -> None:
    late, others = _node(objects), Objects.open(str(tmp_path))

    def forestall(call: Call) -> None:
        if call.verb == "create":
            take_over(others)

    disturb(objects).before = forestall
    with pytest.raises(Fenced):
        late.check()
    assert late.newest() == 0


def test_a_late_claim_finds_the_one_whose_answer_was_lost(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)
    take_over(objects)
    node, store = _node(objects), disturb(objects)
    node.held = 0
    store.plan = lambda call: "lose" if call.verb == "create" else "refuse"
    with pytest.raises(StoreUnavailable):
        node.claim(0)
    store.plan = lambda _: None
    node.check()
    assert node.newest() == 1
    assert holder_of(objects, 1) == node.identity
    take_over(objects)
    with pytest.raises(Fenced):
        node.check()


def test_no_epoch_is_reserved_twice(objects: Objects) -> None:
    blocks = [_node(objects).reserve_epochs() for _ in range(3)]
    assert [len(block) for block in blocks] == [EPOCH_BLOCK] * 3
    assert len({epoch for block in blocks for epoch in (block.start, block.stop - 1)}) == 6
    with ThreadPoolExecutor(8) as pool:
        starts = list(pool.map(lambda _: _node(objects).reserve_epochs().start, range(8)))
    assert len({*starts, *(block.start for block in blocks)}) == 11


def test_objects_that_are_no_leases_are_overlooked(objects: Objects) -> None:
    objects.put("nodes/readme.txt", b"not a lease")
    node = _node(objects)
    assert node.claim(node.newest()) == 0
    assert holder_of(objects, 5) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"node": 7}', b'{"node": "z"}'])
def test_a_damaged_lease_is_named(objects: Objects, data: bytes) -> None:
    objects.put("nodes/0000000000000000.json", data)
    with pytest.raises(CorruptData, match=r"nodes/0000000000000000\.json is damaged") as damaged:
        holder_of(objects, 0)
    assert damaged.value.facts["object"] == "nodes/0000000000000000.json"
    with pytest.raises(CorruptData, match=r"nodes/0000000000000000\.json is damaged"):
        _node(objects).check()
