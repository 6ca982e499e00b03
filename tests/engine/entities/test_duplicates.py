"""Duplicates: every pair that is near enough is found, and no other."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.entities.duplicates import Pair, distance, duplicates

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
    assert duplicates(named, threshold, ALL) == oracle(named, threshold)


def test_many_texts_with_common_parts_are_compared() -> None:
    random = Random(7)
    names = ["".join(random.choices("abcdefghij", k=10)) for _ in range(60)]
    texts = {f"ent_{number:03}": f"{name}@example.org" for number, name in enumerate(names)}
    texts["ent_twin"] = texts["ent_007"].replace("@example", "@exampel")
    found = duplicates(texts, 0.85, ALL)
    assert found == oracle(texts, 0.85)
    assert any({pair.left, pair.right} == {"ent_007", "ent_twin"} for pair in found)


@pytest.mark.parametrize(
    ("left", "right", "expected"), [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("é", "e", 1)]
)
def test_distances_count_letters(left: str, right: str, expected: int) -> None:
    assert distance(left, right) == distance(right, left) == expected


def test_the_most_similar_pairs_come_first_and_as_many_as_are_asked_for() -> None:
    texts = {"ent_a": "acme corporation", "ent_b": "acme corporatian", "ent_c": "acme corporation"}
    assert duplicates(texts, 0.85, 1) == [Pair(1.0, "ent_a", "ent_c")]
