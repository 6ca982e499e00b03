"""Versions of the feature registry in the store, where another node takes over while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.features.pipelines import event, registered, table
from headrace.errors import Fenced
from headrace.format import feature_registry as format_
from headrace.storage.feature_registry import FeatureRegistry
from machines import take_over_before
from rig import Rig


@pytest.mark.parametrize("theirs", [None, b"of another node"], ids=["nothing", "another version"])
def test_who_is_replaced_meanwhile_writes_over_nothing_and_notes_nothing(tmp_path: Path, theirs: bytes | None) -> None:
    key = format_.key(2)
    with Rig(tmp_path) as rig:
        registered(rig, event())
        registered(rig, event(), table())
        take_over_before(rig.engine.objects, key, theirs)
        with pytest.raises(Fenced):
            rig.run(rig.engine.sealer.publish_journals())
        assert [row.version for row in FeatureRegistry(rig.engine._reader).unpublished(0, 9)] == [1, 2]
        assert theirs in (None, rig.engine.objects.get(key))


def test_an_object_that_says_something_else_is_written_again_by_the_writer(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        registered(rig, event())
        rig.engine.objects.put(format_.key(1), b"of a node that was replaced")
        rig.run(rig.engine.sealer.publish_journals())
        found = format_.decode(rig.engine.objects.get(format_.key(1)), format_.key(1))
        assert (found.version, FeatureRegistry(rig.engine._reader).unpublished(0, 9)) == (1, [])
