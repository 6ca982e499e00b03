"""Expiry as a rule of reading: at any moment exactly the events are readable whose own lifetime is not over."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.features.pipelines import event, registered
from headrace.types import JSON
from support.engine_rig import Rig, array

SECOND = 1_000_000
TXN = "events/Txn"


@dataclass
class Oracle:
    """The events of a source, each with its append time and the lifetime that holds for it, in seconds."""

    lifetime: int | None
    events: list[tuple[int, int, int | None]] = field(default_factory=list)

    def append(self, count: int, now_us: int) -> None:
        self.events += [(len(self.events) + number, now_us, self.lifetime) for number in range(count)]

    def change(self, lifetime: int | None) -> None:
        old, self.lifetime = self.lifetime, lifetime
        if lifetime is not None and (old is None or lifetime < old):
            self.events = [
                (number, at_us, lifetime if kept is None else min(kept, lifetime))
                for number, at_us, kept in self.events
            ]

    def readable(self, now_us: int) -> list[int]:
        return [number for number, at_us, kept in self.events if kept is None or now_us - at_us <= kept * SECOND]


def readable(rig: Rig, name: str) -> list[int]:
    """The events that a reader gets from the start of a stream."""
    stream = rig.find(name)
    head = rig.ask(lambda: rig.engine.log.readable_head(stream))
    if head.first_seq == head.next_seq:
        return []
    parts = rig.ask(lambda: rig.engine.log.read(stream, head, head.first_seq, budget=1 << 20)).parts
    return [int(one["amount"]) for part in parts for one in json.loads(b"[" + bytes(part) + b"]")]


def source(lifetime: int | None) -> dict[str, Any]:
    return event(**({} if lifetime is None else {"keep_events_for": f"{lifetime}s"}))


LIFETIMES = st.none() | st.integers(1, 30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("change"), LIFETIMES),
        st.tuples(st.just("wait"), st.integers(0, 20)),
        st.tuples(st.just("publish"), st.just(0)),
        st.tuples(st.just("sweep"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(first=LIFETIMES, steps=STEPS)
def test_each_event_is_readable_for_the_lifetime_under_which_it_was_appended(
    first: int | None, steps: list[tuple[str, Any]]
) -> None:
    with TemporaryDirectory() as directory, Rig(Path(directory)) as rig:
        registered(rig, source(first))
        oracle = Oracle(first)
        for action, value in steps:
            match action:
                case "append":
                    numbers = range(len(oracle.events), len(oracle.events) + value)
                    rig.append(TXN, array(*({"user": "u", "amount": float(number)} for number in numbers)))
                    oracle.append(value, rig.clock.us)
                case "change":
                    registered(rig, source(value), force=True)
                    oracle.change(value)
                case "wait":
                    rig.clock.us += value * SECOND
                case "publish":
                    rig.publish(TXN)
                case "sweep":
                    rig.sweep()
                case "reopen":
                    rig.reopen()
            assert readable(rig, TXN) == oracle.readable(rig.clock.us)


def test_a_retention_rule_of_a_stream_hides_events_before_any_sweep(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", JSON, retention_age_us=10 * SECOND)
        for number in range(3):
            rig.append("s", array({"amount": number}))
            rig.clock.us += 5 * SECOND
        rig.publish("s")
        assert readable(rig, "s") == [1, 2]
        rig.clock.us += 1
        assert readable(rig, "s") == [2]
        assert rig.find("s").head.first_seq == 0


@pytest.mark.parametrize("raised", ["4d", None])
def test_a_segment_ends_where_another_lifetime_begins(tmp_path: Path, raised: str | None) -> None:
    with Rig(tmp_path) as rig:
        registered(rig, event(keep_events_for="2d"))
        rig.append(TXN, array({"user": "u", "amount": 0.0}, {"user": "u", "amount": 1.0}))
        registered(rig, event(**({} if raised is None else {"keep_events_for": raised})))
        rig.append(TXN, array({"user": "u", "amount": 2.0}))
        rig.publish(TXN)
        rig.append(TXN, array({"user": "u", "amount": 3.0}))
        rig.publish(TXN)

        rig.clock.us += 2 * 86_400 * SECOND + 1
        rig.sweep()
        head = rig.find(TXN).head
        assert head.first_seq == 2
        assert head.next_seq == 4


@pytest.mark.parametrize("publishes", [False, True])
def test_a_fork_has_nothing_that_had_expired(tmp_path: Path, publishes: bool) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", JSON, retention_age_us=10 * SECOND)
        for number in range(3):
            rig.append("s", array({"amount": number}))
            rig.clock.us += 5 * SECOND
        if publishes:
            rig.publish("s")
        fork = rig.fork("s", "f", 3)
        assert readable(rig, "f") == [1, 2]
        assert fork.head.bytes == 36
        assert fork.head.first_bytes == 12
