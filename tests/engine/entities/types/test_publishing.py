"""Changes of entity types in the store, where another node takes over while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.entities.registering import register, schema
from headrace.errors import Fenced
from headrace.format import entity_registry as format_
from headrace.storage.entity_changes import EntityChanges
from machines import take_over_before
from rig import Rig


@pytest.mark.parametrize("theirs", [None, b"of another node"], ids=["nothing", "another change"])
def test_who_is_replaced_meanwhile_writes_over_nothing_and_notes_nothing(tmp_path: Path, theirs: bytes | None) -> None:
    key = format_.key(1)
    with Rig(tmp_path) as rig:
        register(rig, schema())
        take_over_before(rig.engine.objects, key, theirs)
        with pytest.raises(Fenced):
            rig.run(rig.engine.sealer.publish_journals())
        assert EntityChanges(rig.engine._reader).unpublished(0, 1)
        assert theirs in (None, rig.engine.objects.get(key))
