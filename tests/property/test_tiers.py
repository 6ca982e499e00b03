"""The laws of reading hold wherever entries lie: in rows, in segments, on either side of a restart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property.lines import check_budgets, check_offsets, check_pages, check_seeks, histories
from support.engine_rig import Rig

#: Many segments by size; many by rows; and one that is written again with every publication.
SEALING = [{"seal_bytes": 24}, {"seal_rows": 3}, {}]


@pytest.fixture(scope="module", params=SEALING, ids=["by-bytes", "by-rows", "rewritten"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("tiers"), storage=request.param) as rig:
        yield rig


@pytest.mark.timeout(900)  # only deep runs take long
@given(st.data())
def test_the_laws_of_reading_hold_wherever_entries_lie(rig: Rig, data: st.DataObject) -> None:
    world = data.draw(histories(rig, "publish", "publish", "publish", "reopen"))
    check_pages(world, data)
    check_budgets(world, data)
    check_seeks(world)
    check_offsets(world)
