"""Reading, seeking and retention over forks of forks, held against plain lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property.lines import check_budgets, check_offsets, check_pages, check_seeks, histories
from support.engine_rig import Rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("read")) as rig:
        yield rig


@given(st.data())
def test_following_the_pages_yields_every_entry_once_in_order(rig: Rig, data: st.DataObject) -> None:
    check_pages(data.draw(histories(rig)), data)


@given(st.data())
def test_a_page_holds_as_much_as_its_budget_allows_and_at_least_one_entry(rig: Rig, data: st.DataObject) -> None:
    check_budgets(data.draw(histories(rig)), data)


@given(st.data())
def test_seeking_a_moment_finds_the_first_retained_entry_at_or_after_it(rig: Rig, data: st.DataObject) -> None:
    check_seeks(data.draw(histories(rig)))


@given(st.data())
def test_an_offset_leads_back_to_its_position_and_is_shared_with_forks(rig: Rig, data: st.DataObject) -> None:
    check_offsets(data.draw(histories(rig)))
