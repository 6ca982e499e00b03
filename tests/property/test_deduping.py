"""Events that are stored once: whatever comes when, a key is stored again only after it was forgotten."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.features.pipelines import event, registered
from support.engine_rig import Rig, array

WINDOW_S, MOST = 10, 6
KEYED = event(schema={"id": {"type": "i64", "required": False}}, dedupe_key="id", dedupe_window=f"{WINDOW_S}s")

#: Appends of keys (None has none), seconds that pass, sweeps and restarts.
STEPS = st.lists(
    st.one_of(
        st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=1, max_size=6),
        st.integers(1, WINDOW_S),
        st.sampled_from(["sweep", "restart", "publish"]),
    ),
    max_size=15,
)


class Model:
    """What a source is to remember, said plainly: the last events, and not for long."""

    def __init__(self) -> None:
        self.log: list[tuple[int | None, int]] = []

    def append(self, keys: list[int | None], now_us: int) -> list[int]:
        """The number of each event, where those that are known have that of the first."""
        start, seqs = len(self.log), list[int]()
        for key in keys:
            first = self._known(key, now_us, start)
            if first is None:
                first = len(self.log)
                self.log.append((key, now_us))
            seqs.append(first)
        return seqs

    def _known(self, key: int | None, now_us: int, start: int) -> int | None:
        for seq in range(len(self.log) - 1, max(-1, start - MOST - 1), -1):
            if key is not None and self.log[seq][0] == key and now_us - self.log[seq][1] < WINDOW_S * 1_000_000:
                return seq
        return None


def play(rig: Rig, model: Model, steps: list[Any]) -> None:
    for step in steps:
        if isinstance(step, int):
            rig.clock.us += step * 1_000_000
        elif isinstance(step, list):
            found = rig.append("events/Txn", array(*({"id": key} for key in step)))
            assert found.seqs == model.append(step, rig.clock.us)
        elif step == "publish":
            rig.publish("events/Txn")
        elif step == "sweep":
            rig.sweep()
        else:
            rig.reopen()


@settings(max_examples=40)
@given(steps=STEPS, later=STEPS)
def test_a_key_is_stored_once_while_it_is_remembered_also_after_a_recovery(steps: list[Any], later: list[Any]) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as directory:
        place = {"object_store": str(Path(directory) / "store")}
        with Rig(Path(directory) / "first", storage=place, features={"dedupe_keys": MOST}) as rig:
            registered(rig, KEYED)
            play(rig, model, steps)
            rig.publish("events/Txn")
            now_us = rig.clock.us
        with Rig(Path(directory) / "second", storage=place, features={"dedupe_keys": MOST}) as rig:
            rig.clock.us = now_us
            play(rig, model, later)
            assert len(rig.read("events/Txn")) == len(model.log)
