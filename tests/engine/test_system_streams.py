"""Notes on keys on their way into the account: each of them once, whatever comes between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.system_streams import REGISTRY, System
from headrace.storage.keys import KeyStore
from rig import Rig


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
    system = System.open(rig.engine)
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
    assert keys.noted(10) == []


def test_a_crash_before_notes_are_removed_does_not_tell_them_twice(
    rig: Rig, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = keys.create(user_id="ann", scopes=["read"])
    with monkeypatch.context() as crashing:
        crashing.setattr(KeyStore, "told", _crash)
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


class _Crashed(Exception):
    """The process ends here."""


def _crash(*_: Any) -> None:
    raise _Crashed
