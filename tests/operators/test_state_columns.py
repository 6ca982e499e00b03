"""Columns of states pack to what each of their values packs to, whatever the width of numbers is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators.state_bytes import unpack
from headrace.operators.state_columns import (
    Blobs,
    Coded,
    Lists,
    Maps,
    Mixed,
    Numbers,
    Optional,
    Plain,
    Records,
    Same,
    StateColumn,
    Texts,
    Vectors,
    arrow_column,
)

COUNT = 4
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-40, 70_000) | st.integers(0, 200)
LENGTHS = st.lists(st.sampled_from([0, 1, 3, 15, 16, 20]), min_size=COUNT, max_size=COUNT)


def times(values: st.SearchStrategy[Any], count: int = COUNT) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=count, max_size=count)


def leaves(count: int) -> st.SearchStrategy[StateColumn]:
    """Columns of so many values without parts."""
    doubles = times(st.floats(allow_nan=False), count).map(lambda numbers: Numbers(np.array(numbers, np.float64)))
    texts = times(st.text(st.characters(exclude_categories=("Cs",)), max_size=40), count)
    masks = times(st.booleans(), count)
    return st.one_of(
        times(INTEGERS, count).map(lambda numbers: Numbers(np.array(numbers, np.int64))),
        times(st.integers(0, 2**64 - 1), count).map(lambda numbers: Numbers(np.array(numbers, np.uint64))),
        doubles,
        masks.map(lambda flags: Numbers(np.array(flags, np.bool_))),
        masks.map(lambda flags: Optional(np.arange(count) / 2, np.array(flags, np.bool_))),
        texts.map(lambda held: Texts(pa.array(held, pa.string()))),
        texts.map(lambda held: arrow_column(pa.array(held, pa.string()).dictionary_encode())),
        st.sampled_from([None, 0, "x" * 40]).map(lambda value: Same(value, count)),
        times(st.sampled_from([0, 1, 2]), count).map(
            lambda codes: Coded(np.array(codes, np.int64), Plain(["a", 2.5, None]))
        ),
        times(st.none() | st.lists(st.integers(0, 300), max_size=3), count).map(Plain),
        st.integers(1, 300).map(lambda width: Blobs(np.arange(count * width, dtype=np.uint8).reshape(count, width))),
        times(INTEGERS, count * 3).map(lambda numbers: Vectors(np.array(numbers, np.int64).reshape(count, 3))),
    )


@st.composite
def columns(draw: st.DrawFn, count: int = COUNT, depth: int = 2) -> StateColumn:
    kind = draw(st.sampled_from(["leaf", "records", "lists", "maps", "mixed"])) if depth else "leaf"
    if kind == "leaf":
        return draw(leaves(count))
    if kind == "records":
        return Records(*(draw(columns(count, depth - 1)) for _ in range(draw(st.integers(1, 3)))))
    if kind == "mixed":
        at = draw(st.lists(st.integers(0, count - 1), unique=True)) if count else []
        return Mixed(draw(columns(count, depth - 1)), sorted(at), [{"n": number} for number in at])
    lengths = np.array(draw(times(st.sampled_from([0, 1, 3, 16]), count)), np.int64)
    total = int(lengths.sum())
    elements = draw(columns(total, depth - 1))
    return Lists(lengths, elements) if kind == "lists" else Maps(lengths, Numbers(np.arange(total)), elements)


@given(columns())
def test_a_column_packs_to_its_values(column: StateColumn) -> None:
    values = column.values()
    assert len(column) == len(values) == COUNT
    assert list(column) == values
    assert [unpack(packed) for packed in column.packed().to_pylist()] == values
    fixed = column.fixed()
    assert fixed is None or [row.tobytes() for row in fixed] == column.packed().to_pylist()


@pytest.mark.parametrize("length", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_texts_of_any_length_are_packed(length: int) -> None:
    values: Sequence[str] = ["é" * (length // 2) + "x" * (length % 2), ""]
    assert [unpack(packed) for packed in Texts(pa.array(values)).packed().to_pylist()] == values


def test_members_of_records_are_equally_many() -> None:
    with pytest.raises(ValueError, match="equally many"):
        Records(Same(0, 1), Same(0, 2))
