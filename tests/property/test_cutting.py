"""Whatever JSON was appended, a segment holds the entries as they were spelled."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headrace.format.segment.row_group import cut
from headrace.schema.entries import entries_of

TEXTS = st.text(alphabet='{}[],"\\: aé', max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
PLAIN = st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS, max_size=2), max_size=3)
COLONS = st.sampled_from([":", ": "])


@st.composite
def bodies(draw: st.DrawFn) -> list[list[str]]:
    """Append requests, each with its entries as they are spelled."""
    colon = draw(COLONS)
    requests = draw(st.lists(st.lists(PLAIN if draw(st.booleans()) else VALUES, min_size=1, max_size=4), min_size=1))
    return [[json.dumps(entry, separators=(",", colon), ensure_ascii=False) for entry in one] for one in requests]


@given(bodies(), st.sampled_from([",", ",", ", "]))
def test_bodies_are_cut_where_their_entries_end(requests: list[list[str]], comma: str) -> None:
    joined = [comma.join(entries).encode() for entries in requests]
    found = cut(joined, [len(entries) for entries in requests], entries_of)
    assert found.to_pylist() == [entry for entries in requests for entry in entries]
