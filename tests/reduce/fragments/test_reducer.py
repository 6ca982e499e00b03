"""The fragments of a type as a reducer: any order and any split give the same bytes, and what is too much is told."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.reduce.fragments import reducer as module
from headrace.reduce.fragments.reducer import VERSION_ID, FragmentReducer, UserFragments
from headrace.reduce.fragments.stats import STATS
from headrace.schema.entity.accept import Fragment
from headrace.schema.entity.observation import Observation
from reduce.fragments.counting import count_observations, of_user

REDUCER = FragmentReducer()
VALUES = st.one_of(st.integers(-5, 5), st.sampled_from(["x", "7", "yes", "2024-01-01"]), st.none(), st.booleans())
FRAGMENTS = st.dictionaries(st.sampled_from([f"key{n}" for n in range(8)]), VALUES, max_size=4)


def observation(number: int, fragments: dict[str, Any]) -> Observation:
    return Observation(
        id=str(number),
        kind="observation",
        entity_id=f"e{number % 3}",
        entity_type="t",
        user_id="u",
        schema_version="1.0.0",
        source_id=f"s{number % 4}",
        observed_at_us=number,
        source_priority=100,
        observation_source="human",
        fragments=tuple(Fragment(key, value, "unknown_field") for key, value in fragments.items()),
    )


def folded(observations: list[tuple[int, Observation]]) -> UserFragments | None:
    state: UserFragments | None = None
    for seq, one in observations:
        placed = REDUCER.key_and_row(one)
        if placed is not None:
            assert placed[0] == b"u"
            state = REDUCER.fold(state, 1000 + seq, seq, placed[1])
    return state


def merged(parts: list[UserFragments | None]) -> UserFragments | None:
    found: UserFragments | None = None
    for part in parts:
        if part is not None:
            found = part if found is None else REDUCER.merge(found, part)
    return found


@given(st.lists(FRAGMENTS, max_size=20), st.randoms(use_true_random=False))
def test_any_order_and_any_split_give_the_same_bytes(given_: list[dict[str, Any]], random: Random) -> None:
    told = [(number, observation(number, fragments)) for number, fragments in enumerate(given_)]
    whole = folded(told)
    shuffled = random.sample(told, len(told))
    cuts = sorted(random.randrange(len(told) + 1) for _ in range(3))
    parts = [folded(shuffled[a:b]) for a, b in zip([0, *cuts], [*cuts, len(told)], strict=True)]
    again = [None if part is None else REDUCER.unpack(REDUCER.pack(part)) for part in parts]
    found = merged(again)
    assert (whole is None) == (found is None)
    if whole is not None and found is not None:
        assert REDUCER.pack(found) == REDUCER.pack(whole)
        oracle = of_user(count_observations((seq, 1000 + seq, one) for seq, one in told), "u")
        packed = {key: STATS.pack(stats) for key, stats in found.stats.items()}
        assert packed == {key: STATS.pack(stats) for key, stats in oracle.items()}


@given(st.lists(FRAGMENTS, max_size=20), st.integers(0, 20))
def test_keys_that_are_kept_lack_nothing_however_the_others_are_left_out(
    given_: list[dict[str, Any]], cut: int
) -> None:
    told = [(number, observation(number, fragments)) for number, fragments in enumerate(given_)]
    oracle = of_user(count_observations((seq, 1000 + seq, one) for seq, one in told), "u")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_KEYS", 2)
        found = merged([folded(told[:cut]), folded(told[cut:])])
        if found is not None:
            kept = REDUCER.unpack(REDUCER.pack(found))
            assert len(kept.stats) == min(2, len(oracle)) and kept.truncated == (len(oracle) > 2)
            assert all(STATS.pack(stats) == STATS.pack(oracle[key]) for key, stats in kept.stats.items())


def test_what_has_its_place_is_no_fragment() -> None:
    assert REDUCER.key_and_row(observation(0, {})) is None
    assert REDUCER.unpack({"": b""}) == UserFragments()
    assert set(REDUCER.pack(UserFragments())) == {"", VERSION_ID}
