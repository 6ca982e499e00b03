from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.search.index_status import Shares, split
from headrace.format.companion.layout import Companion, PartFile
from headrace.query import search_document
from headrace.query.search import Search
from support.work_rig import search


def companion(postings: int, *names: str, keys: bool = True, words: int = 0) -> Companion:
    return Companion(
        name="c",
        first_seq=0,
        count=10,
        level=0,
        through_version=1,
        fields=dict.fromkeys(names, "hash"),
        rollups={},
        keys=keys,
        columns=PartFile(1000, ""),
        postings=PartFile(postings, "") if postings else None,
        panes=PartFile(100, ""),
        times=None,
        segments=1,
        words={"message": (10, words)} if "message" in names else {},
    )


@given(st.integers(0, 2**50), st.dictionaries(st.text(), st.integers(0, 2**40), min_size=1))
def test_parts_are_the_whole(total: int, weights: dict[str, int]) -> None:
    given = split(total, weights)
    assert list(given) == list(weights)
    assert sum(given.values()) == (total if sum(weights.values()) else 0)
    for name, weight in weights.items():
        if sum(weights.values()):
            assert abs(given[name] - total * weight / sum(weights.values())) <= 1 + total * 1e-9


@pytest.mark.parametrize("declared", [True, False])
def test_postings_are_split_by_how_many_there_are(declared: bool) -> None:
    parsed = search_document.parse_search_document(search("user"), current_version=1)
    assert isinstance(parsed, Search)
    shares = Shares(parsed if declared else None)
    shares.add([companion(400, "user", "message", words=15), companion(200, "user", "message", words=5)])
    assert shares.postings == {"": 150, "user": 150, "message": 300}
    assert (shares.lexicon, shares.total) == (150, 2800)
    assert shares.families == {"exact": 150, "fts": 300, "col": 2000, "agg": 200}


def test_a_companion_without_postings_has_none_to_split() -> None:
    shares = Shares(None)
    shares.add([companion(0, "user")])
    assert (shares.total, shares.lexicon, shares.families["exact"]) == (1100, 0, 0)
