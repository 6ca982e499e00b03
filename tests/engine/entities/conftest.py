"""Engines that store entities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.entities.store import CONTACT, Store
from support.engine_rig import Rig


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An engine without types."""
    with Rig(tmp_path) as rig:
        yield Store(rig)


@pytest.fixture
def contacts(store: Store) -> Store:
    """An engine with one type."""
    store.register(CONTACT)
    return store
