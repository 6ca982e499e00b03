"""Where forks leave their sources, wherever those keep their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import BadRequest
from headrace.types import JSON, OCTETS
from support.engine_rig import Rig, array

Place = Callable[[str], None]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


@pytest.fixture(params=["rows", "segments"])
def settle(rig: Rig, request: pytest.FixtureRequest) -> Place:
    """Decides where the first entries of a stream lie; what follows is in rows."""
    return (lambda name: None) if request.param == "rows" else rig.publish


def test_a_fork_cuts_a_request_after_so_many_messages(rig: Rig, settle: Place) -> None:
    rig.create("s", JSON, array(1, 2, 3))
    settle("s")
    rig.append("s", array(4, 5))
    for position, sub, inherited in ((0, 0, 0), (0, 1, 1), (0, 3, 3), (1, 1, 2), (1, 2, 3), (3, 2, 5), (4, 1, 5)):
        fork = rig.fork("s", f"fork-{position}-{sub}", position, sub)
        assert fork.head.next_seq == inherited
        assert fork.head.published_seq == inherited
        assert rig.read(fork.name) == [b"%d" % number for number in range(1, inherited + 1)]
        assert rig.append(fork.name, array("own")).position == inherited + 1


def test_a_fork_cuts_an_entry_after_so_many_bytes(rig: Rig, settle: Place) -> None:
    rig.create("s", OCTETS, b"hello")
    settle("s")
    rig.append("s", b"world")
    for position, sub, inherited in ((0, 2, b"he"), (0, 5, b"hello"), (1, 1, b"hellow"), (1, 5, b"helloworld")):
        fork = rig.fork("s", f"fork-{position}-{sub}", position, sub)
        assert b"".join(rig.read(fork.name)) == inherited
        assert fork.head.bytes == len(inherited)
        rig.append(fork.name, b"!")
        rig.publish(fork.name)
        assert b"".join(rig.read(fork.name)) == inherited + b"!"


@pytest.mark.parametrize(("position", "sub", "left"), [(0, 4, 3), (2, 2, 1), (3, 3, 2), (5, 1, 0)])
def test_a_fork_cannot_go_beyond_the_next_request(rig: Rig, settle: Place, position: int, sub: int, left: int) -> None:
    rig.create("s", JSON, array(1, 2, 3))
    settle("s")
    rig.append("s", array(4, 5))
    with pytest.raises(BadRequest, match=f"which has {left}"):
        rig.fork("s", "fork", position, sub)


def test_a_fork_begins_with_the_bytes_and_the_time_of_its_last_entry(rig: Rig, settle: Place) -> None:
    rig.create("s", JSON, array(1, 22, 333))
    rig.clock.us += 5
    rig.append("s", array(4444))
    settle("s")
    rig.clock.us += 5
    rig.append("s", array(55555))
    start = rig.clock.us - 10
    expected = {0: (0, None), 1: (1, 0), 2: (4, 0), 3: (8, 0), 4: (12, 5), 5: (17, 10)}
    for position, (size, at_us) in expected.items():
        fork = rig.fork("s", f"fork-{position}", position)
        assert fork.head.bytes == size
        if at_us is not None:
            assert fork.head.last_us - start == at_us


def test_a_part_of_an_entry_keeps_its_key_and_its_time(rig: Rig, settle: Place) -> None:
    rig.create("s", OCTETS)
    rig.append("s", b"hello", key="k")
    at_us = rig.clock.us
    settle("s")
    rig.clock.us += 5
    fork = rig.fork("s", "fork", 0, 2)
    assert fork.head.last_us == at_us
    assert rig.read("fork", key="k") == [b"he"]


def test_a_request_that_a_fork_cut_ends_there_for_its_own_forks(rig: Rig, settle: Place) -> None:
    rig.create("s", JSON, array(1, 2, 3))
    settle("s")
    rig.fork("s", "fork", 0, 2)
    rig.append("fork", array("own"))
    settle("fork")
    with pytest.raises(BadRequest, match="which has 2"):
        rig.fork("fork", "leaf", 0, 3)
    assert rig.read(rig.fork("fork", "leaf", 0, 2).name) == [b"1", b"2"]
