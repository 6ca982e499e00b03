"""Durability itself: nothing acknowledged is missing after the power fails at any moment."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from crash.forgetful import ANY_PART, NOTHING, Disk
from headrace.errors import HeadraceError, Unavailable
from headrace.storage import database
from headrace.types import JSON, OCTETS
from support.engine_rig import Rig, array

pytestmark = pytest.mark.crash

ROUNDS = 20
STEPS = 60
FAILURES = 60
NUMBERS = count()
State = dict[str, Any]


class Load:
    """A random life of a log on a forgetful disk, and what it must look like after each of its steps."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = Disk(f"forgetful-{next(NUMBERS)}")
        self.rig = Rig(directory, vfs=self.disk.name, storage={"checkpoint_pages": self.chance.choice((4, 30, 1000))})
        self.state: State = {}
        # After step n the log holds states[n]; the step was begun and settled after so many events of the disk.
        self.states: list[State] = [{}]
        self.begun: list[int] = []
        self.settled: list[int | None] = []

    def run(self) -> None:
        for _ in range(STEPS):
            verb = self.chance.choice(("append",) * 6 + ("create", "create", "fork", "delete", "close", "retain"))
            getattr(self, verb)()
        self.moments = len(self.disk.events)
        self.rig.close()
        self.disk.unregister()

    def create(self) -> None:
        name = f"s{len(self.states)}"
        self.state[name] = {"entries": [], "first": 0, "closed": False, "producer": None}
        self._begin(lambda: self.rig.create(name, JSON))

    def append(self) -> None:
        """One to three appends that the writer may commit together; some of a producer."""
        open_streams = [name for name, stream in self.state.items() if not stream["closed"]]
        if not open_streams:
            return

        async def queue() -> None:
            for _ in range(self.chance.randint(1, 3)):
                self._queue(self.chance.choice(open_streams))

        self.rig.run(queue())
        self.rig.run(self.rig.engine.probe())  # the writer is first come, first served

    def _queue(self, name: str) -> None:
        stream, size = self.state[name], self.chance.choice((10, 10, 300, 9000))
        values = [f"{len(self.states)}.{n}".ljust(size, "x") for n in range(self.chance.randint(1, 3))]
        producer = None
        if self.chance.random() < 0.3:
            last = stream["producer"]
            stream["producer"] = [0, 0 if last is None else last[1] + 1]
            producer = ("p", *stream["producer"])
        stream["entries"] = [*stream["entries"], *values]
        number = self._note()
        self.rig.submit(name, array(*values), lambda append: self._settle(number, append.error), producer=producer)

    def fork(self) -> None:
        if self.state:
            source = self.chance.choice(list(self.state))
            stream, name = self.state[source], f"s{len(self.states)}"
            kept = stream["entries"][: self.chance.randint(0, len(stream["entries"]))]
            self.state[name] = {"entries": kept, "first": stream["first"], "closed": False, "producer": None}
            self._begin(lambda: self.rig.fork(source, name, stream["first"] + len(kept)))

    def close(self) -> None:
        name = self.chance.choice([*self.state, ""])
        if name and not self.state[name]["closed"]:
            self.state[name]["closed"] = True
            self._begin(lambda: self.rig.append(name, close=True))

    def delete(self) -> None:
        if self.state:
            name = self.chance.choice(list(self.state))
            del self.state[name]
            self._begin(lambda: self.rig.delete(name))

    def retain(self) -> None:
        """Keep nothing of a stream; the sweep also purges deleted ones."""
        name = self.chance.choice([*self.state, ""])
        if name:
            self.state[name]["first"] += len(self.state[name]["entries"])
            self.state[name]["entries"] = []
            self._begin(lambda: self.rig.retain(name, size=0))
            self.rig.retain(name)

    def _begin(self, verb: Callable[[], object]) -> None:
        number = self._note()
        verb()
        self._settle(number, None)

    def _note(self) -> int:
        self.begun.append(len(self.disk.events))
        self.settled.append(None)
        self.states.append(json.loads(json.dumps(self.state)))
        return len(self.settled) - 1

    def _settle(self, number: int, error: HeadraceError | None) -> None:
        assert error is None
        self.settled[number] = len(self.disk.events)

    def lost(self, moment: int, directory: Path, survives: tuple[float, ...]) -> str | None:
        """Let the power fail at a moment and start again; answers what is wrong then."""
        self.disk.after_power_failure(moment, directory, self.chance, survives)
        done = sum(at is not None and at <= moment for at in self.settled)
        begun = sum(at <= moment for at in self.begun)
        rig = Rig(directory)
        try:
            found = _state(rig)
            if found not in self.states[done : begun + 1]:
                return f"after {done} settled and {begun} begun steps the log holds {found}"
            _goes_on(rig, found)
        finally:
            rig.close()
        return None

    def moments_of_failure(self) -> list[int]:
        """Every other one right after a step was settled, the rest anywhere."""
        settled = self.chance.sample([at for at in self.settled if at is not None], FAILURES // 2)
        return settled + [self.chance.randint(0, self.moments) for _ in range(FAILURES // 2)]


def _state(rig: Rig) -> State:
    """What the log holds."""
    found: State = {}
    for stream in rig.engine.log.page(prefix="", after="", limit=1000):
        producer = rig.engine.streams.producer(stream.id, "p")
        found[stream.name] = {
            "entries": [json.loads(entry) for entry in rig.read(stream.name, stream.head.first_seq)],
            "first": stream.head.first_seq,
            "closed": stream.head.closed,
            "producer": None if producer is None else list(producer),
        }
    return found


def _goes_on(rig: Rig, found: State) -> None:
    """A recovered log takes the next append where it left off."""
    for name, stream in found.items():
        if not stream["closed"]:
            append = rig.append(name, array("next"))
            assert append.position == stream["first"] + len(stream["entries"]) + 1
            assert rig.read(name, stream["first"])[-1] == b'"next"'
            break


def _losses(directory: Path, seed: int, survives: tuple[float, ...] = ANY_PART) -> Iterator[str]:
    load = Load(directory / "live", seed)
    load.run()
    for number, moment in enumerate(load.moments_of_failure()):
        loss = load.lost(moment, directory / f"failure-{number}", survives)
        if loss is not None:
            yield f"event {moment}: {loss}"


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_nothing_acknowledged_is_missing_after_a_power_failure(tmp_path: Path, seed: int) -> None:
    assert list(_losses(tmp_path, seed)) == []


@pytest.mark.parametrize("carelessness", ["OFF", "NORMAL"])
def test_the_same_test_finds_a_loss_where_commits_are_not_synced(
    tmp_path: Path, carelessness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    careful = database.connect

    def careless(*arguments: Any, **facts: Any) -> database.Connection:
        connection = careful(*arguments, **facts)
        connection.pragma("synchronous", carelessness)
        return connection

    monkeypatch.setattr(database, "connect", careless)
    # Nothing of what was not synced survives: so the log is merely old, and not damaged.
    assert next(_losses(tmp_path, seed=0, survives=NOTHING), None)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(f"forgetful-{next(NUMBERS)}")
    yield disk
    disk.unregister()


@pytest.mark.parametrize("what", ["write", "sync"])
@pytest.mark.parametrize("error", [apsw.FullError("no space"), apsw.IOError("broken")], ids=["full", "broken"])
def test_an_append_that_the_disk_refuses_is_refused_and_the_next_one_goes_on(
    tmp_path: Path, disk: Disk, what: str, error: apsw.Error
) -> None:
    rig = Rig(tmp_path / "live", vfs=disk.name)
    rig.create("s", OCTETS, b"before")
    disk.fail[what] = error
    for _ in range(3):
        with pytest.raises(Unavailable) as refusal:
            rig.append("s", b"refused", producer=("p", 0, 0))
        assert refusal.value.facts["reason"] == ("disk_full" if isinstance(error, apsw.FullError) else "storage")
        assert rig.read("s") == [b"before"]
    disk.fail.clear()
    assert rig.append("s", b"after", producer=("p", 0, 0)).position == 2
    disk.after_power_failure(len(disk.events), tmp_path / "left", random.Random(0))
    rig.close()
    again = Rig(tmp_path / "left")
    assert again.read("s") == [b"before", b"after"]
    again.close()
