"""Up to where lives are folded, what is missing, and what is merged."""

from __future__ import annotations

from itertools import count
from typing import Any

from headrace.engine.derive.state_job import blocks, windows
from headrace.format.ranges import Range
from headrace.format.state import State
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.states.coverage import base, missing, unused_states
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table

NAMES = count()
FAR = 1 << 40


def defined(**births: int) -> TableDefinition:
    """A table whose features have these births."""
    nodes = {
        "E": Event(name="E", schema={"k": EventField(type="str")}),
        "T": Table(name="T", upstream="E", key=("k",), features={name: Feature("count") for name in births}),
    }
    lives = {name: FeatureVersion(f"{name}@1", birth) for name, birth in births.items()}
    return TableDefinition("T", "E", "events/E", nodes, lives)  # type: ignore[arg-type]


def state(first: int, end: int, *features: str, level: int = 0, table: str = "T") -> State:
    lives = {name: f"{name}@1" for name in features}
    return State(
        table=table, name=f"s{next(NAMES):03}", first_seq=first, count=end - first, level=level, lives=lives, rows=1,
        bytes=10, sha256="",
    )  # fmt: skip


def told(found: list[tuple[Range, dict[str, str]]]) -> list[tuple[int, int, str]]:
    return [(where.first, where.end, "".join(lives)) for where, lives in found]


def based(
    table: TableDefinition, states: list[State], first_seq: int = 0, published: int = 100, most: int = FAR
) -> Any:
    found = base(table, states, first_seq, published, most)
    chains = {"".join(one.names): [(s.first_seq, s.end_seq) for s in one.states] for one in found.chains}
    return found.start, chains, "".join(sorted(found.backfilling))


def test_without_states_the_tail_begins_with_the_first_birth() -> None:
    assert based(defined(a=5, b=9), []) == (5, {"ab": []}, "")


def test_the_tail_begins_where_the_states_of_the_furthest_end() -> None:
    states = [state(0, 10, "a", "b"), state(10, 20, "a", "b")]
    assert based(defined(a=0, b=0), states) == (20, {"ab": [(0, 10), (10, 20)]}, "")


def test_a_feature_that_came_later_is_backfilled_until_it_has_caught_up() -> None:
    states = [state(0, 20, "a"), state(20, 30, "a", "b")]
    assert based(defined(a=0, b=0), states) == (30, {"a": [(0, 20), (20, 30)]}, "b")
    states.append(state(0, 20, "b"))
    assert based(defined(a=0, b=0), states) == (30, {"a": [(0, 20), (20, 30)], "b": [(0, 20), (20, 30)]}, "")


def test_a_feature_that_is_born_after_the_states_needs_none() -> None:
    assert based(defined(a=0, b=50), [state(0, 20, "a")]) == (20, {"a": [(0, 20)], "b": []}, "")


def test_a_gap_of_retained_events_ends_the_history() -> None:
    states = [state(0, 10, "a"), state(20, 30, "a")]
    assert based(defined(a=0), states)[0] == 10
    assert based(defined(a=0), states, first_seq=20)[0] == 30


def test_states_survive_retention_and_what_neither_holds_is_gone() -> None:
    assert based(defined(a=0), [state(0, 40, "a")], first_seq=30) == (40, {"a": [(0, 40)]}, "")
    assert based(defined(a=0), [], first_seq=30) == (30, {"a": []}, "")


def test_features_that_lack_few_published_events_are_answered_though_others_lack_too_many() -> None:
    assert based(defined(a=0, b=60, c=80), [], most=50) == (60, {"bc": []}, "a")
    assert based(defined(a=0, b=60), [state(0, 20, "a")], most=50) == (60, {"b": []}, "a")
    assert based(defined(a=0, b=40), [state(0, 20, "a")], most=50) == (100, {}, "ab")
    assert based(defined(a=0, b=FAR), [], most=50) == (100, {"b": []}, "a")


def test_too_many_published_events_are_left_to_whoever_makes_states() -> None:
    assert based(defined(a=0), [], published=100, most=99) == (100, {}, "a")
    assert based(defined(a=0), [], published=100, most=100) == (0, {"a": []}, "")
    assert based(defined(a=0, b=100), [state(0, 10, "a")], published=100, most=50) == (100, {"b": []}, "a")


def test_what_is_missing_is_told_by_the_lives_that_lack_it() -> None:
    states = [state(0, 20, "a"), state(40, 50, "a", "b")]
    wanted = [(10, 20, "b"), (20, 40, "ab"), (50, 60, "ab")]
    assert told(missing(defined(a=0, b=10), states, Range(0, 60))) == wanted
    assert told(missing(defined(a=0), states, Range(5, 20))) == []


def test_states_of_lives_that_are_over_are_useless() -> None:
    states = [state(0, 10, "a", "gone"), state(0, 10, "gone"), state(0, 10, "a", table="Other")]
    assert unused_states([defined(a=0)], states) == [states[1].name, states[2].name]


def merges(
    table: TableDefinition, states: list[State], *taken: Range, fan_out: int = 2
) -> list[tuple[int, int, int, int]]:
    found = windows(table, states, list(taken), fan_out)
    return [
        (blocks[0].range.first, blocks[-1].range.end, level, sum(len(block.states) for block in blocks))
        for blocks, level in found
    ]


def test_neighbours_of_one_level_make_one_of_the_next() -> None:
    states = [state(0, 10, "a", level=1), state(10, 12, "a"), state(12, 14, "a"), state(14, 16, "a")]
    assert merges(defined(a=0), states) == [(10, 14, 1, 2)]
    assert merges(defined(a=0), states, fan_out=3) == [(10, 16, 1, 3)]
    assert merges(defined(a=0), states, Range(11, 12)) == [(12, 16, 1, 2)]


def test_one_that_stands_before_a_higher_level_counts_as_of_that_level() -> None:
    states = [state(0, 10, "a"), state(10, 20, "a", level=1)]
    assert merges(defined(a=0), states) == [(0, 20, 2, 2)]


def test_what_was_folded_apart_is_merged_once_nothing_lacks() -> None:
    states = [state(0, 20, "a", level=2), state(0, 12, "b"), state(12, 16, "b")]
    assert merges(defined(a=0, b=0), states) == []
    states.append(state(16, 20, "b"))
    assert merges(defined(a=0, b=0), states) == [(0, 20, 2, 4)]
    assert [len(block.states) for block in blocks(defined(a=0, b=0), states)] == [4]


def test_states_with_a_gap_between_them_are_not_merged() -> None:
    assert merges(defined(a=0), [state(0, 10, "a"), state(11, 20, "a")]) == []
