from __future__ import annotations

from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.format.segment import layout
from headrace.format.segment.columns import body_runs


def batch(versions: list[int], payloads: list[str], first: int = 7) -> pa.RecordBatch:
    count = len(versions)
    columns = [
        pa.arange(first, first + count),
        pa.array([0] * count, layout.TIME),
        pa.nulls(count, pa.string()),
        pa.array(versions, pa.int32()),
        pa.array([True] * count),
        pa.array(payloads, pa.string()),
    ]
    return pa.record_batch(columns, schema=layout.schema(True))


@given(
    st.lists(st.tuples(st.integers(1, 2), st.sampled_from(["1", "[2]", '"é"', '{"a": [1, 2]}'])), max_size=30),
    st.integers(0, 40),
    st.integers(0, 5),
)
def test_every_entry_comes_once_with_its_version_and_few_at_a_time(
    entries: list[tuple[int, str]], most: int, skip: int
) -> None:
    given_batch = batch([version for version, _ in entries], [payload for _, payload in entries])
    found = list(body_runs(given_batch.slice(skip), most))
    left = entries[skip:]
    at = 0
    for first_seq, version, count, body in found:
        part = left[at : at + count]
        assert first_seq == 7 + skip + at
        assert {one for one, _ in part} == {version}
        assert body == ",".join(payload for _, payload in part).encode()
        assert count == 1 or len(body) <= most
        at += count
    assert at == len(left)


def test_as_many_come_together_as_may() -> None:
    versions = [1, 1, 1, 2, 2, 1]
    found = list(body_runs(batch(versions, ["1"] * 6), 1 << 20))
    assert [one.entries for one in found] == [len(list(run)) for _, run in groupby(versions)]


@pytest.mark.parametrize("most", [0, 100])
def test_a_batch_without_entries_has_none(most: int) -> None:
    assert list(body_runs(batch([], []), most)) == []
