"""Notes on keys on their way into the account: each of them once, whatever comes between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.system_streams import METRICS, REGISTRY, System
from headrace.storage.keys import KeyStore
from headrace.types import OCTETS
from support.engine_rig import Hold, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "log") as rig:
        yield rig


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "keys.db")
    yield store
    store.close()


async def recorded(rig: Rig, keys: KeyStore) -> None:
    """Take over what is noted, as a server does that then stops."""
    system = System.open(writer=rig.engine.writer, log=rig.engine.log, connect=rig.engine.connect)
    await system.take_over(keys)
    await system.close()


def told(rig: Rig) -> list[Any]:
    return [json.loads(entry) for entry in rig.read(REGISTRY)]


def test_notes_on_keys_are_taken_over(rig: Rig, keys: KeyStore) -> None:
    key, _ = keys.create(user_id="ann", scopes=["read"])
    rig.run(recorded(rig, keys))
    keys.revoke(key.id)
    rig.run(recorded(rig, keys))
    assert [(note["what"], note["key"]) for note in told(rig)] == [("key_created", key.id), ("key_revoked", key.id)]
    assert keys.pending_notes(10) == []


def test_a_crash_before_notes_are_removed_does_not_tell_them_twice(
    rig: Rig, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = keys.create(user_id="ann", scopes=["read"])
    with monkeypatch.context() as crashing:
        crashing.setattr(KeyStore, "remove_notes", _crash)
        with pytest.raises(_Crashed):
            rig.run(recorded(rig, keys))
    rig.reopen()
    second, _ = keys.create(user_id="bob", scopes=["read"])
    rig.run(recorded(rig, keys))
    assert [note["key"] for note in told(rig)] == [first.id, second.id]


def test_keys_of_a_new_file_are_told_too(rig: Rig, keys: KeyStore, tmp_path: Path) -> None:
    keys.create(user_id="ann", scopes=["read"])
    rig.run(recorded(rig, keys))
    other = KeyStore(tmp_path / "other.db")
    other.create(user_id="bob", scopes=["read"])
    rig.run(recorded(rig, other))
    other.close()
    assert [note["user_id"] for note in told(rig)] == ["ann", "bob"]


def test_streams_of_the_server_are_written_while_the_queue_is_full_and_take_no_place_in_it(tmp_path: Path) -> None:
    record = {"metric": "m", "unit": "count", "windowStart": 0, "windowEnd": 10, "count": 1, "sum": 1}
    with Rig(tmp_path, limits={"queue_requests": 1}) as rig:
        rig.create("s", OCTETS)

        async def measure() -> None:
            system, hold = (
                System.open(writer=rig.engine.writer, log=rig.engine.log, connect=rig.engine.connect, notes=False),
                Hold(),
            )
            rig.engine.writer.submit(hold)
            assert rig.engine.writer.full
            measuring = asyncio.create_task(system.measured([record]))
            await asyncio.to_thread(hold.entered.wait, 30)
            hold.go_on.set()
            await measuring
            hold = Hold()
            hold.is_chore = True
            rig.engine.writer.submit(hold)
            measuring = asyncio.create_task(system.measured([record]))
            while rig.engine.writer.queued_requests < 2:
                await asyncio.sleep(0)
            rig.submit("s", b"1", lambda _: None)
            hold.go_on.set()
            await measuring
            await system.close()

        rig.run(measure())
        assert len(rig.read(METRICS)) == 2
        assert rig.read("s") == [b"1"]


class _Crashed(Exception):
    """The process ends here."""


def _crash(*_: Any) -> None:
    raise _Crashed
