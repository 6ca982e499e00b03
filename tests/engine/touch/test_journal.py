"""The journal of touches: it may say too much, and never too little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.touch.journal import PositionFilter, TouchJournal
from headrace.profiles.state_protocol.profile import Memory

SMALL = Memory(filter_pow2=10, k=2)
#: Few ids, and for each of them several keys.
KEYS = st.builds(lambda high, low: high << 32 | low, st.integers(0, 2), st.integers(1, 40))


def journal(recent: int = 8, floor: int = 0) -> TouchJournal:
    return TouchJournal("0123456789abcdef", floor, SMALL, recent)


@given(st.lists(KEYS, max_size=200), st.integers(0, 200), st.integers(1, 30))
def test_nothing_that_was_touched_is_denied_and_nothing_else_is_claimed(
    touched: list[int], since: int, recent: int
) -> None:
    made, last = journal(recent), dict[int, int]()
    for position, key in enumerate(touched, start=1):
        made.record(key, position)
        made.through = position
        last[key] = position
    for key in {high << 32 | low for high in range(3) for low in range(1, 42)}:
        same_id = max(
            (position for other, position in last.items() if other & 0xFFFFFFFF == key & 0xFFFFFFFF), default=0
        )
        assert made.last(key & 0xFFFFFFFF) >= same_id
        answer, truth = made.touched(key, since), last.get(key, 0) > since
        assert answer in (truth, None)
        if since >= made.exact_since and same_id == last.get(key, 0):
            assert answer is truth


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1), max_size=300), st.integers(0, 2**32 - 1))
def test_a_filter_is_never_too_early(touched: dict[int, int], other: int) -> None:
    made = PositionFilter(10, 4)
    for key_id, position in touched.items():
        made.put(key_id, position)
    assert all(made.last(key_id) >= position for key_id, position in touched.items())
    if not touched:
        assert made.last(other) == 0


@given(st.lists(KEYS, max_size=200), st.lists(KEYS, max_size=50), st.integers(0, 250))
def test_a_journal_of_another_size_denies_nothing_either(before: list[int], after: list[int], since: int) -> None:
    made, last = journal(), dict[int, int]()
    for position, key in enumerate([*before, *after], start=1):
        if position == len(before) + 1:
            made.resize(Memory(filter_pow2=11, k=1))
        made.record(key, position)
        made.through = position
        last[key] = position
    made.resize(Memory(filter_pow2=10, k=2))
    if since >= made.floor:
        assert not [key for key, position in last.items() if position > since and made.touched(key, since) is False]


def test_a_filter_that_is_large_enough_tells_keys_apart() -> None:
    made = PositionFilter(20, 4)
    for key_id in range(0, 20_000, 2):
        made.put(key_id * 2_654_435_761 % 2**32, 7)
    wrong = sum(made.last(key_id * 2_654_435_761 % 2**32) > 0 for key_id in range(1, 20_000, 2))
    assert wrong < 20


def test_a_cursor_is_the_epoch_and_how_far_the_journal_is() -> None:
    made = journal(floor=5)
    assert made.cursor == "0123456789abcdef:5"
    made.through = 7
    assert made.cursor == "0123456789abcdef:7"
    assert made.at(6) == "0123456789abcdef:6"


def test_positions_that_are_far_from_the_first_make_the_filter_begin_anew() -> None:
    made = journal(recent=1)
    made.record(1, 1)
    made.record(2, 2)
    made.record(3, 2**33)
    made.record(4, 2**33 + 1)
    made.record(5, 2**33 + 2)
    assert made.last(5) == 2**33 + 2
    assert made.last(3) >= 2**33
    assert made.floor >= 2


def test_a_journal_takes_room_for_older_keys_when_it_has_some() -> None:
    made = journal(recent=4)
    for position in range(1, 5):
        made.record(position, position)
    assert made.filter_bytes == 0
    made.record(5, 5)
    assert made.filter_bytes == 4 * 2**SMALL.filter_pow2
