"""How long events are kept, and how long their keys are remembered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.features.pipelines import event, registered
from headrace.storage.dedupe import Dedupe
from support.engine_rig import Rig, array

DAY = 86_400_000_000
HOUR = 3_600_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, features={"dedupe_keys": 5}) as opened:
        yield opened


def keyed(**settings: Any) -> dict[str, Any]:
    return event(schema={"id": "str"}, dedupe_key="id", **settings)


def push(rig: Rig, *ids: str) -> int:
    """Append events of these keys; answers how many were there before."""
    return rig.append("events/Txn", array(*({"id": one} for one in ids))).deduplicated


def kept(rig: Rig) -> int:
    rig.sweep()
    head = rig.find("events/Txn").head
    return head.next_seq - head.first_seq


@pytest.mark.parametrize("publishes", [False, True])
def test_an_event_keeps_what_held_when_it_came(rig: Rig, publishes: bool) -> None:
    registered(rig, event(keep_events_for="2d"))
    for _ in range(2):
        rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    if publishes:
        rig.publish("events/Txn")
    registered(rig, event(keep_events_for="4d"))
    rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    if publishes:
        rig.publish("events/Txn")
    assert kept(rig) == 3
    rig.clock.us += 2 * DAY + HOUR
    assert kept(rig) == 1
    rig.clock.us += 2 * DAY
    assert kept(rig) == 0


def test_keeping_less_by_force_holds_for_all(rig: Rig) -> None:
    registered(rig, event(keep_events_for="4d"))
    rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    registered(rig, event(keep_events_for="1d"), force=True)
    rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    rig.clock.us += DAY + HOUR
    assert kept(rig) == 0


def test_what_is_kept_for_ever_stays_where_older_ones_go(rig: Rig) -> None:
    registered(rig, event(keep_events_for="1d"))
    rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    registered(rig, event())
    rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    rig.clock.us += 100 * DAY
    assert kept(rig) == 1


def test_events_that_are_still_needed_are_held(rig: Rig) -> None:
    registered(rig, event(keep_events_for="1d"))
    rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    rig.append("events/Txn", array({"user": "u", "amount": 1.0}))
    rig.clock.us += 2 * DAY
    rig.engine.sweeper.retain_from = lambda stream: 1
    assert kept(rig) == 2
    rig.engine.sweeper.retain_from = lambda stream: 2
    assert kept(rig) == 0


def test_keys_are_forgotten_after_their_window(rig: Rig) -> None:
    registered(rig, keyed(dedupe_window="1h"))
    assert push(rig, "a") == 0
    rig.clock.us += HOUR - 1
    assert push(rig, "a") == 1
    rig.clock.us += 1
    assert push(rig, "a") == 0
    assert push(rig, "a") == 1


def test_so_many_keys_are_remembered_and_no_more(rig: Rig) -> None:
    registered(rig, keyed())
    assert push(rig, *"abcde") == 0
    assert push(rig, *"abcde") == 5
    assert push(rig, "f") == 0
    assert push(rig, "b") == 1
    assert push(rig, "a") == 0


def test_a_sweep_forgets_what_is_not_remembered(rig: Rig) -> None:
    registered(rig, keyed(dedupe_window="1h"))
    push(rig, *"abcdefgh")
    connection = rig.engine.connect()
    dedupe, stream = Dedupe(connection), rig.find("events/Txn").id
    assert dedupe.count(stream) == 8
    rig.sweep()
    assert dedupe.count(stream) == 5
    rig.clock.us += HOUR
    rig.sweep()
    assert dedupe.count(stream) == 0
    connection.close()


def test_keys_of_one_commit_know_each_other(rig: Rig) -> None:
    registered(rig, keyed())
    outcomes: list[Any] = []

    def together(done: Any) -> None:
        for _ in range(3):
            rig.submit("events/Txn", array({"id": "a"}), outcomes.append)
        rig.submit("events/Txn", array({"id": "b"}), done)

    rig.settle(together)
    assert [one.seqs for one in outcomes] == [[0]] * 3
    assert len(rig.read("events/Txn")) == 2
