"""Duplicates: every pair that is near enough is found, and no other."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.reduce.duplicates import Pair, choose_cuts, distance, find_duplicates

ALL = 1 << 30
TEXTS = st.lists(st.text(alphabet="abcé", max_size=9), max_size=12)


def oracle(texts: dict[str, str], threshold: float) -> list[Pair]:
    found = []
    for left, right in combinations(sorted(texts), 2):
        longest = max(len(texts[left]), len(texts[right]))
        similarity = 1.0 if not longest else 1 - distance(texts[left], texts[right]) / longest
        if similarity >= threshold - 1e-9:
            found.append(Pair(round(similarity, 4), left, right))
    return sorted(found, key=lambda pair: (-pair.similarity, pair.left, pair.right))


@given(TEXTS, st.sampled_from([0.5, 0.6, 0.7, 0.85, 0.95, 1.0]))
def test_every_near_pair_is_found(texts: list[str], threshold: float) -> None:
    named = {f"ent_{number:02}": text for number, text in enumerate(texts)}
    assert find_duplicates(named, threshold, ALL) == oracle(named, threshold)


def test_many_texts_with_common_parts_are_compared() -> None:
    random = Random(7)
    names = ["".join(random.choices("abcdefghij", k=10)) for _ in range(60)]
    texts = {f"ent_{number:03}": f"{name}@example.org" for number, name in enumerate(names)}
    texts["ent_twin"] = texts["ent_007"].replace("@example", "@exampel")
    found = find_duplicates(texts, 0.85, ALL)
    assert found == oracle(texts, 0.85)
    assert any({pair.left, pair.right} == {"ent_007", "ent_twin"} for pair in found)


@pytest.mark.parametrize("threshold", [0.85, 0.7])
def test_texts_that_are_cut_where_they_differ_lose_no_pair(threshold: float) -> None:
    random = Random(11)
    names = ["".join(random.choices("abc", k=5)) for _ in range(100)]
    texts = {f"ent_{number:03}": f"mr-{name}@a-long-domain.example" for number, name in enumerate(names)}
    assert find_duplicates(texts, threshold, ALL) == oracle(texts, threshold)


@given(
    st.lists(st.text(alphabet="ab", min_size=6, max_size=6), min_size=64, max_size=80, unique=False),
    st.integers(2, 5),
)
@settings(max_examples=20)
def test_pieces_are_disjoint_and_as_many_as_are_asked_for(texts: list[str], count: int) -> None:
    pieces = choose_cuts(texts, 6, count)
    assert len(pieces) == count
    assert [start for start, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
    assert pieces[-1][1] == 6
    assert all(start < end for start, end in pieces)


def test_pieces_are_cut_where_texts_differ() -> None:
    texts = [f"{number:04}@example.org" for number in range(0, 9900, 99)]
    assert all(start < 4 for start, _ in choose_cuts(texts, 16, 3))


@given(TEXTS, st.integers(1, 20))
def test_the_first_pairs_are_the_most_similar_of_all(texts: list[str], limit: int) -> None:
    named = {f"ent_{number:02}": text for number, text in enumerate(texts)}
    assert find_duplicates(named, 0.5, limit) == oracle(named, 0.5)[:limit]


def test_letters_of_any_script_are_compared() -> None:
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 140)))
    texts = {"ent_a": "東京都千代田区", "ent_b": "東京都千代田町", "ent_c": many, "ent_d": many[:-1] + "x"}
    assert find_duplicates(texts, 0.85, ALL) == oracle(texts, 0.85)
    assert [(pair.left, pair.right) for pair in find_duplicates(texts, 0.85, ALL)] == [
        ("ent_c", "ent_d"),
        ("ent_a", "ent_b"),
    ]


def test_a_text_that_everybody_has_gives_no_more_pairs_than_are_asked_for() -> None:
    texts = {f"ent_{number:05}": "berlin" if number % 2 else "berlim" for number in range(20_000)}
    assert find_duplicates(texts, 0.8, 3) == [Pair(1.0, "ent_00000", f"ent_{number:05}") for number in (2, 4, 6)]


@pytest.mark.parametrize(
    ("left", "right", "expected"), [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("é", "e", 1)]
)
def test_distances_count_letters(left: str, right: str, expected: int) -> None:
    assert distance(left, right) == distance(right, left) == expected


def test_the_most_similar_pairs_come_first_and_as_many_as_are_asked_for() -> None:
    texts = {"ent_a": "acme corporation", "ent_b": "acme corporatian", "ent_c": "acme corporation"}
    assert find_duplicates(texts, 0.85, 1) == [Pair(1.0, "ent_a", "ent_c")]
