"""The server makes the states of entity types itself where no worker comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from engine.entities.read.test_snapshots import LATEST, said
from headrace.engine.derive import local_worker
from support.entity_rig import Entities, contact


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker, "WORKERS_FIRST_S", 0.05)
    monkeypatch.setattr(local_worker, "_PAUSE_S", 0.01)


def until_folded(entities: Entities) -> None:
    async def wait() -> None:
        serving, stream = entities.engine.snapshots.state_reader, entities.find("entities/contact")
        async with asyncio.timeout(20):
            while True:
                base = serving.current_base(serving.defined("contact"), stream)
                if base.states and not base.backfilling:
                    return
                await asyncio.sleep(0.01)

    entities.run(wait())


def test_observations_become_states_and_policies_that_change_make_them_anew(tmp_path: Path) -> None:
    random = Random(1)
    settings = {"storage": {"seal_rows": 8}, "features": {"fold_rows": 8}}
    with Entities(tmp_path / "data", helps=True, **settings) as entities:  # type: ignore[arg-type]
        entities.register_type(contact())
        entities.store(*(said(random) for _ in range(40)))
        entities.seal_type()
        until_folded(entities)
        assert entities.rows() == entities.oracle()
        entities.register_type(contact("2.0.0", LATEST))
        assert entities.rows() == entities.oracle()
        until_folded(entities)
        entities.ready()
        assert entities.rows() == entities.oracle()
        assert all(entities.shown(id).kept for id in entities.oracle())
