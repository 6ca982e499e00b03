from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.extract.match.selection import Selection, among, between, rows_in_window

COUNT = 40
chosen = st.sets(st.integers(0, COUNT - 1))


def made(rows: set[int], as_mask: bool) -> Selection:
    array = np.array(sorted(rows), np.int32)
    if not as_mask:
        return Selection(COUNT, rows=array)
    mask = np.zeros(COUNT, np.bool_)
    mask[array] = True
    return Selection(COUNT, mask=mask)


def rows(selection: Selection) -> set[int]:
    found = selection.rows().tolist()
    assert found == sorted(set(found)) == np.flatnonzero(selection.mask()).tolist()
    assert len(selection) == len(found) and selection.count == COUNT
    return set(found)


@given(chosen, chosen, st.booleans(), st.booleans())
def test_selections_are_sets(a: set[int], b: set[int], a_mask: bool, b_mask: bool) -> None:
    left, right = made(a, a_mask), made(b, b_mask)
    assert rows(left & right) == a & b
    assert rows(left - right) == a - b
    assert rows(Selection.union(COUNT, [left, right])) == a | b
    assert rows(left) == a and rows(right) == b


@given(st.lists(st.tuples(chosen, st.booleans()), max_size=4))
def test_a_union_has_the_rows_of_all(parts: list[tuple[set[int], bool]]) -> None:
    found = Selection.union(COUNT, [made(part, as_mask) for part, as_mask in parts])
    assert rows(found) == set().union(*(part for part, _ in parts))


def test_all_rows_and_none() -> None:
    assert rows(Selection.every(COUNT)) == set(range(COUNT))
    assert rows(Selection.none(COUNT)) == set()


@given(st.sets(st.integers(0, 50)), st.sets(st.integers(0, 50)), st.sampled_from([1, 1_000]), st.booleans())
def test_numbers_are_found_among_others(wanted: set[int], held: set[int], scale: int, long: bool) -> None:
    kind = np.int64 if long else np.int32
    some, others = (np.array(sorted(number * scale for number in numbers), kind) for numbers in (wanted, held))
    assert among(some, others).tolist() == [number in held for number in sorted(wanted)]


@given(chosen, st.integers(0, COUNT), st.integers(0, COUNT))
def test_a_window_has_its_rows(found: set[int], start: int, stop: int) -> None:
    array = np.array(sorted(found), np.int32)
    assert (rows_in_window(array, start, stop) + start).tolist() == [
        row for row in sorted(found) if start <= row < stop
    ]
    low, high = between(array, min(start, stop), max(start, stop))
    assert array[low:high].tolist() == [row for row in sorted(found) if min(start, stop) <= row < max(start, stop)]
