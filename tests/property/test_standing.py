"""Whoever starts when: machines that take turns with one stream, with backups and restores in between."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.errors import Fenced, OffsetFenced
from headrace.format import offset as offsets
from headrace.types import JSON
from support.engine_rig import array
from support.machines import Machines

STEPS = st.lists(
    st.sampled_from(["append", "append and publish", "start a", "start b", "back up", "restore a", "restore b"]),
    min_size=4,
    max_size=10,
)


class Shifts:
    """Machines that take turns with one stream, and what each has been told."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self._directories = {"a": "a-0", "b": "b-0"}
        self._backups: list[list[bytes]] = []
        self._held: dict[str, list[bytes]] = {}
        self._offsets: dict[str, bytes] = {}
        self._on = "a"
        self.rig = machines.open("a-0")
        self.rig.create("s", JSON, array("first"))
        self.rig.publish("s")

    def take(self, number: int, step: str) -> None:
        verb, _, machine = step.rpartition(" ")
        if step.startswith("append"):
            self.rig.append("s", array(number))
            self._offsets[self.rig.find("s").tail_offset()] = b"%d" % number
        if step == "append and publish":
            self.rig.publish("s")
        elif step == "back up":
            self._backups.append(self.rig.read("s"))
            self.machines.back_up(self._directories[self._on], f"backup-{len(self._backups)}")
        elif verb == "restore" and self._backups and machine != self._on:
            directory = self._directories[machine] = f"{machine}-{number}"
            self._held[directory] = self._backups[-1]
            self.machines.restore(f"backup-{len(self._backups)}", directory)
        elif verb == "start":
            self._start(machine)

    def _start(self, machine: str) -> None:
        self._held[self._directories[self._on]] = self.rig.read("s")
        self.rig.close()
        try:
            self.rig = self.machines.open(self._directories[machine])
            self._on = machine
        except Fenced:
            self.rig = self.machines.open(self._directories[self._on])
        held = self._held.get(self._directories[self._on], [])
        assert self.rig.read("s")[: len(held)] == held, "a directory keeps what it has acknowledged"

    def check_offsets(self) -> None:
        """An offset leads to its entry, or nowhere."""
        stream, entries = self.rig.find("s"), self.rig.read("s")
        for offset, entry in self._offsets.items():
            with suppress(OffsetFenced):
                position = stream.locate(offsets.decode(offset))
                assert position == offsets.decode(offset).position
                assert entries[position - 1] == entry


@settings(max_examples=25)
@example(["append", "start b", "append and publish", "start a", "append"])
@example(["back up", "append and publish", "start b", "restore a", "start a", "append"])
@given(steps=STEPS)
def test_whoever_starts_when_goes_on_from_what_was_published_or_refuses(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    machines = Machines(tmp_path_factory.mktemp("machines"))
    shifts = Shifts(machines)
    before = machines.published()["s 0"]
    try:
        for number, step in enumerate(steps):
            shifts.take(number, step)
            now = machines.published()["s 0"]
            assert now[: len(before)] == before, "what is published is only ever added to"
            assert shifts.rig.read("s")[: len(now)] == now
            shifts.check_offsets()
            before = now
    finally:
        shifts.rig.close()
    assert not [report for report in verify(machines.objects, JOURNALS) if report.damage]
