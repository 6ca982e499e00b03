"""Statistics of fragments."""

from __future__ import annotations

from headrace.reduce.fragments.stats import LONGEST_EXAMPLE, MAX_EXAMPLES, MAX_HASHES, add_text, estimate_count
from headrace.schema.entity.accept import Fragment
from reduce.fragments.counting import count_observations, of_everyone, of_user
from reduce.fragments.samples import stats, told
from reduce.policies.samples import FIRST_US, observed


def test_every_value_is_counted_with_its_shape_source_and_time() -> None:
    found = stats(["a", "b", "a", 5, None], sources=3)["extra"]
    assert {shape: tally.count for shape, tally in found.shapes.items()} == {"text": 3, "small": 1}
    assert found.frequency == 4
    assert found.nulls == 1
    assert found.converted == 0
    assert found.first_us == FIRST_US
    assert found.last_us == FIRST_US + 4
    assert found.sources(["text"]) == 3
    assert found.sources(["text", "small"]) == 3
    assert len(found.entities) == 4


def test_values_without_a_source_have_none() -> None:
    found = of_everyone(
        count_observations([(0, 0, observed(source_id=None, fragments=(Fragment("extra", 1, "unknown_field"),)))])
    )
    assert found["extra"].frequency == 1
    assert found["extra"].sources(["small"]) == 0


def test_originals_of_converted_values_are_no_evidence() -> None:
    original = Fragment("born", 1, "converted_value_original", "date")
    found = of_everyone(count_observations([(0, 0, observed(fragments=(original,)))]))["born"]
    assert found.converted == 1
    assert found.frequency == 0
    assert found.examples == {}


def test_users_are_counted_apart_and_together() -> None:
    both = [*told(["a", "b"], user_id="ada"), *told(["c"], user_id="bob")]
    tally = count_observations(both)
    assert of_user(tally, "ada")["extra"].frequency == 2
    together = of_everyone(tally)["extra"]
    assert together.frequency == 3
    assert len(together.users) == 2


def test_a_few_examples_are_kept_and_long_ones_cut() -> None:
    found = stats([*range(100), "long" * LONGEST_EXAMPLE])["extra"]
    assert len(found.examples) == MAX_EXAMPLES
    (cut,) = stats(["long" * LONGEST_EXAMPLE])["extra"].examples.values()
    assert len(cut) == LONGEST_EXAMPLE


def test_many_different_texts_are_counted_within_the_error() -> None:
    held: set[int] = set()
    for number in range(MAX_HASHES - 1):
        add_text(held, f"source {number}")
    assert estimate_count(held) == MAX_HASHES - 1
    for number in range(20_000):
        add_text(held, f"source {number}")
    assert abs(estimate_count(held) - 20_000) < 20_000 * 0.15
    assert len(held) <= 2 * MAX_HASHES
