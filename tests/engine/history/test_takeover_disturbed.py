"""A directory that starts while its store fails, or while others take over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Fenced, StoreUnavailable, Unavailable
from headrace.storage.objects import Objects
from headrace.types import JSON
from support.disturbed_store import Call, Disturbed, Fault, disturb
from support.engine_rig import Rig, array
from support.machines import Machines, take_over

Open = Callable[[str, Callable[[Disturbed], None]], Rig]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    """A directory "a" that was the first to write to the store."""
    machines = Machines(tmp_path)
    with machines.open("a") as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
    return machines


@pytest.fixture
def start(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a directory whose store is prepared for that."""
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)
    plain = Objects.open

    def opened(name: str, prepare: Callable[[Disturbed], None]) -> Rig:
        def prepared(*args: Any, **facts: Any) -> Objects:
            monkeypatch.setattr(Objects, "open", plain)  # others are not disturbed
            objects = plain(*args, **facts)
            prepare(disturb(objects))
            return objects

        monkeypatch.setattr(Objects, "open", prepared)
        return machines.open(name)

    return opened


def go_on_with(machines: Machines, name: str, *values: object) -> None:
    with machines.open(name) as rig:
        rig.append("s", array(*values))
        rig.publish("s")


def is_claim(call: Call) -> bool:
    return call.verb == "create" and call.key.startswith("nodes/")


class Outage:
    """A plan by which a store fails from a certain call on, until it is back."""

    def __init__(self, verb: str, kind: str, fault: Fault = "refuse", after: int = 0) -> None:
        self._what, self._fault, self._left = (verb, kind), fault, after
        self.began = self.over = False

    def __call__(self, call: Call) -> Fault | None:
        if self.began:
            return None if self.over else "refuse"
        if (call.verb, call.key.partition("/")[0]) != self._what:
            return None
        self.began, self._left = not self._left, self._left - 1
        return self._fault if self.began else None


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(("get", "manifests"), id="judging"),
        pytest.param(("create", "nodes"), id="claiming"),
        pytest.param(("create", "nodes", "lose"), id="claiming, and the answer is lost"),
        pytest.param(("create", "epochs"), id="reserving epochs"),
        pytest.param(("get", "manifests", "refuse", 1), id="catching up"),
    ],
)
def test_who_is_known_to_be_behind_does_not_start_without_the_store(
    machines: Machines, start: Open, what: tuple[Any, ...]
) -> None:
    outage = Outage(*what)
    go_on_with(machines, "b", 2)
    with pytest.raises(Unavailable, match="lacks what was published") as refusal:
        start("a", lambda store: setattr(store, "plan", outage))
    assert outage.began and refusal.value.facts["behind"]
    with machines.open("a") as rig:
        assert rig.read("s") == [b"1", b"2"]


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(("list", "nodes"), id="looking"),
        pytest.param(("create", "nodes"), id="claiming"),
        pytest.param(("create", "nodes", "lose"), id="claiming, and the answer is lost"),
    ],
)
def test_who_wrote_last_starts_without_the_store_and_publishes_once_it_is_back(
    machines: Machines, start: Open, what: tuple[Any, ...]
) -> None:
    outage = Outage(*what)
    with start("a", lambda store: setattr(store, "plan", outage)) as rig:
        rig.append("s", array(2))
        with pytest.raises(StoreUnavailable):
            rig.publish("s")
        outage.over = True
        rig.publish("s")
        assert rig.engine.recovered is None
        assert rig.engine.node.newest() == 1
    assert machines.published() == {"s 0": [b"1", b"2"]}


def test_who_was_overtaken_between_the_look_and_the_claim_looks_again(machines: Machines, start: Open) -> None:
    others = ["b"]

    def overtake(call: Call) -> None:
        if is_claim(call) and others:
            go_on_with(machines, others.pop(), 2)

    with start("a", lambda store: setattr(store, "before", overtake)) as rig:
        assert rig.read("s") == [b"1", b"2"]
        rig.append("s", array(3))
        rig.publish("s")
    assert machines.published() == {"s 0": [b"1", b"2", b"3"]}


def test_who_is_overtaken_again_and_again_gives_up(machines: Machines, start: Open) -> None:
    def overtake(call: Call) -> None:
        if is_claim(call):
            take_over(machines.objects)

    with pytest.raises(Fenced, match="again and again"):
        start("a", lambda store: setattr(store, "before", overtake))
    with machines.open("a") as rig:
        assert rig.read("s") == [b"1"]
