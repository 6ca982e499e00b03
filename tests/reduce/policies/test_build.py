"""Stored observations, brought together by entity."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from headrace.format.segment import layout
from headrace.reduce.policies import build
from headrace.reduce.policies.build import ObservationBatches
from headrace.schema.entity.observation import Observation, encode
from reduce.policies.samples import FIRST_US, observed


def batch(first_seq: int, observations: list[Observation]) -> Any:
    """Observations in the columns of a segment; tombstones have no key."""
    seqs = range(first_seq, first_seq + len(observations))
    columns = {
        "seq": seqs,
        "append_time": [FIRST_US + seq for seq in seqs],
        "key": [None if one.kind == "erased" else one.entity_id for one in observations],
        "version": [1] * len(seqs),
        "first": [True] * len(seqs),
        "payload": [encode(one).decode() for one in observations],
    }
    schema = layout.schema(True)
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


@pytest.mark.parametrize("slice_rows", [1, 3, 2048])
def test_observations_come_by_entity_and_then_in_the_order_of_the_log(
    slice_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_SLICE", slice_rows)
    given = [observed(f"ö{at}", entity_id=f"ent_{at * 3 % 4}", name="é" * at) for at in range(10)]
    given[4] = replace(given[4], kind="erased", entity_id="")
    gathered = ObservationBatches()
    for first, last in ((0, 3), (3, 4), (4, 10)):
        # A slice of a batch holds all of its memory.
        gathered.add(batch(0, given).slice(first, last - first))
    assert len(gathered) == len(given)
    slices = list(gathered.by_entity())
    assert max(map(len, slices)) <= slice_rows
    found = [(seq, at_us, one.id, one.fields) for told in slices for seq, at_us, one in told]
    kept = sorted((one.entity_id, seq) for seq, one in enumerate(given) if one.kind != "erased")
    seqs = [*(seq for _, seq in kept), 4]
    assert found == [(seq, FIRST_US + seq, given[seq].id, given[seq].fields) for seq in seqs]


def test_nothing_comes_of_no_observations() -> None:
    assert list(ObservationBatches().by_entity()) == []
