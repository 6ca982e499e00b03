"""Segments that were replaced stay for those who lease them: in time, in number, after restarts and takeovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.history.read_leases import (
    LONGEST_US,
    MAX_LEASES,
    MAX_OF_USER,
    ReadLease,
    ReadLeaseEnded,
    TooManyReadLeases,
)
from headrace.types import OCTETS
from support.engine_rig import Rig
from support.stored_objects import keys, placed

SECOND = 1_000_000
GRACE_US = 60 * SECOND


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "node") as opened:
        yield opened


def lease(rig: Rig, name: str, ttl_s: int = 600, user: str = "ann") -> ReadLease:
    return rig.run(rig.engine.sealer.read_leases.grant(rig.find(name), user, ttl_s * SECOND))


def replace_segment(rig: Rig, name: str) -> str:
    """The key of a segment that another has taken the place of."""
    [before] = placed(rig, name)
    rig.append(name, b"more")
    rig.publish(name)
    assert before.key not in [segment.key for segment in placed(rig, name)]
    return before.key


def is_there(rig: Rig, key: str) -> bool:
    rig.clear()
    return key in keys(rig.engine.objects, "segments")


def make(rig: Rig, name: str = "s") -> None:
    rig.create(name, OCTETS, b"a")
    rig.publish(name)


def test_a_replaced_segment_stays_while_it_is_leased_and_goes_afterwards(rig: Rig) -> None:
    make(rig)
    lease(rig, "s", 600)
    key = replace_segment(rig, "s")
    rig.clock.us += 600 * SECOND - 1
    assert is_there(rig, key)
    rig.clock.us += 1
    assert not is_there(rig, key)


def test_what_was_replaced_long_before_a_lease_and_other_streams_are_not_kept(rig: Rig) -> None:
    make(rig)
    make(rig, "other")
    key = replace_segment(rig, "s")
    rig.clock.us += GRACE_US + 1
    lease(rig, "s")
    other = replace_segment(rig, "other")
    assert not is_there(rig, key)
    rig.clock.us += GRACE_US
    assert not is_there(rig, other)


def test_many_leased_leftovers_do_not_keep_the_others_from_going(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.history.sealer._PAGE", 1)
    for name in "abcd":
        make(rig, name)
    lease(rig, "a")
    lease(rig, "c")
    replaced = {name: replace_segment(rig, name) for name in "abcd"}
    rig.clock.us += GRACE_US
    assert [name for name, key in replaced.items() if is_there(rig, key)] == ["a", "c"]


def test_a_lease_is_renewed_for_an_hour_at_most(rig: Rig) -> None:
    make(rig)
    granted = lease(rig, "s", 600)
    leases, key, begin = rig.engine.sealer.read_leases, replace_segment(rig, "s"), rig.clock.us
    for _ in range(9):
        rig.clock.us += 400 * SECOND - 1
        if rig.clock.us >= begin + LONGEST_US - 400 * SECOND:
            break
        rig.run(leases.renew(granted.id, "ann", 600 * SECOND))
        assert is_there(rig, key)
    assert rig.run(leases.renew(granted.id, "ann", LONGEST_US)).expires_us == begin + LONGEST_US
    rig.clock.us = begin + LONGEST_US
    with pytest.raises(ReadLeaseEnded):
        rig.run(leases.renew(granted.id, "ann", SECOND))
    assert not is_there(rig, key)


def test_a_released_lease_keeps_nothing_and_belongs_to_its_user(rig: Rig) -> None:
    make(rig)
    granted, leases = lease(rig, "s"), rig.engine.sealer.read_leases
    key = replace_segment(rig, "s")
    rig.clock.us += GRACE_US
    with pytest.raises(ReadLeaseEnded):
        leases.release(granted.id, "bob")
    assert is_there(rig, key)
    leases.release(granted.id, "ann")
    assert not is_there(rig, key)
    with pytest.raises(ReadLeaseEnded):
        leases.release(granted.id, "ann")


def test_leases_are_limited_in_number(rig: Rig) -> None:
    make(rig)
    for _ in range(MAX_OF_USER):
        lease(rig, "s")
    with pytest.raises(TooManyReadLeases) as refusal:
        lease(rig, "s")
    assert refusal.value.facts["limit"] == MAX_OF_USER
    for _ in range(MAX_LEASES - MAX_OF_USER):
        lease(rig, "s", user="bob")
    with pytest.raises(TooManyReadLeases) as refusal:
        lease(rig, "s", user="cy")
    assert refusal.value.facts["limit"] == MAX_LEASES
    rig.clock.us += 600 * SECOND
    lease(rig, "s", user="cy")


def test_a_fork_leases_what_it_reads_of_its_source(rig: Rig) -> None:
    make(rig)
    rig.fork("s", "f", 1)
    lease(rig, "f")
    key = replace_segment(rig, "s")
    rig.clock.us += GRACE_US
    assert is_there(rig, key)


def test_retention_is_delayed_and_deletion_is_not(tmp_path: Path) -> None:
    with Rig(tmp_path / "node", storage={"seal_bytes": 4}) as rig:
        rig.create("s", OCTETS)
        for body in (b"aaaa", b"bbbb"):
            rig.append("s", body)
        rig.publish("s")
        first, _ = (segment.key for segment in placed(rig, "s"))
        lease(rig, "s")
        rig.retain("s", size=4)
        rig.publish("s")
        rig.clock.us += GRACE_US
        assert len(placed(rig, "s")) == 1
        assert is_there(rig, first)
        rig.delete("s")
        assert not is_there(rig, first)


def test_after_a_restart_leases_of_before_are_honoured(rig: Rig) -> None:
    make(rig)
    lease(rig, "s", 600)
    key = replace_segment(rig, "s")
    rig.reopen()
    rig.clock.us += 599 * SECOND
    assert is_there(rig, key)
    rig.clock.us += LONGEST_US
    assert not is_there(rig, key)


def test_after_a_restart_without_leases_nothing_is_kept(rig: Rig) -> None:
    make(rig)
    key = replace_segment(rig, "s")
    rig.reopen()
    rig.clock.us += GRACE_US
    assert not is_there(rig, key)


def test_after_a_takeover_nothing_replaced_is_removed_for_an_hour(tmp_path: Path) -> None:
    store = {"object_store": str(tmp_path / "store")}
    with Rig(tmp_path / "one", storage=store) as rig:
        make(rig)
    with Rig(tmp_path / "two", storage=store) as rig:
        key = replace_segment(rig, "s")
        rig.clock.us += LONGEST_US - 1
        assert is_there(rig, key)
        rig.clock.us += 1
        assert not is_there(rig, key)


def test_an_erasure_removes_what_is_leased(rig: Rig) -> None:
    make(rig)
    lease(rig, "s")
    key = replace_segment(rig, "s")
    assert is_there(rig, key)
    assert rig.run(rig.engine.sealer.purge(rig.find("s").id)) == [key]  # which ends every erasure
    assert not is_there(rig, key)
