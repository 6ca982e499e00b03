"""Laws of fragments: counted in any order and parts, what is promoted takes its evidence, and twice is once."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.reduce.fragments.candidates import candidates, update_of
from headrace.reduce.fragments.rules import Settings
from headrace.reduce.fragments.shapes import NULL, SHAPES, accepts, shape_of
from headrace.reduce.fragments.stats import STATS
from headrace.schema.entity.accept import Splitter
from headrace.schema.entity.nodes import Converter, Definition, Field, ReducerConfig, Schema
from headrace.schema.entity.update import UpdatedSchema, apply_update
from headrace.schema.entity.values import FUNCTIONS, UNFIT, convert_value, fits
from reduce.fragments.counting import count_observations, merge_counts, of_everyone
from reduce.fragments.histories import Told, given_values, histories, kinds, settings
from reduce.policies.samples import schema


def evidence(history: list[Told], key: str) -> list[Any]:
    """The values of a key that no field took."""
    fragments = [fragment for _, _, told in history for fragment in told.fragments if fragment.key == key]
    return [each.value for each in fragments if each.reason == "unknown_field" and each.value is not None]


@given(histories())
def test_everything_is_counted(history: list[Told]) -> None:
    for key, stats in of_everyone(count_observations(history)).items():
        having = [
            (at_us, told, fragment) for _, at_us, told in history for fragment in told.fragments if fragment.key == key
        ]
        counting = [
            (told, each) for _, told, each in having if each.reason == "unknown_field" and each.value is not None
        ]
        assert stats.frequency == len(counting) == len(evidence(history, key))
        assert stats.frequency + stats.nulls + stats.converted == len(having)
        assert stats.first_us == having[0][0]
        assert stats.last_us == having[-1][0]
        assert stats.sources(stats.shapes) == len({told.source_id for told, _ in counting} - {None})
        assert len(stats.users) == len({told.user_id for told, _ in counting})
        assert len(stats.entities) == len({told.entity_id for told, _ in counting})
        assert stats.kinds == Counter(told.observation_source for told, _ in counting)
        spelled = [repr(each.value) for _, each in counting]
        assert all(repr(example) in spelled or len(str(example)) >= 200 for example in stats.examples.values())


@given(histories(), st.integers(0, 2**32))
def test_neither_order_nor_parts_matter(history: list[Told], seed: int) -> None:
    draw = random.Random(seed)
    parts: list[list[Told]] = [[] for _ in range(draw.randint(1, 4))]
    for told in history:
        parts[draw.randrange(len(parts))].append(told)
    draw.shuffle(parts)
    counts = [count_observations(part[::-1]) for part in parts]
    tallies = [{of: STATS.unpack(STATS.pack(stats)) for of, stats in count.items()} for count in counts]
    folded = reduce(lambda left, right: merge_counts([left, right]), tallies)
    whole = {of: STATS.pack(stats) for of, stats in count_observations(history).items()}
    assert {of: STATS.pack(stats) for of, stats in folded.items()} == whole
    assert {of: STATS.pack(stats) for of, stats in merge_counts(tallies).items()} == whole


@given(given_values)
def test_converters_take_every_value_with_a_shape_that_says_so(value: Any) -> None:
    name = shape_of(value)
    if value is None:
        assert name == NULL
        return
    shape = SHAPES[name]
    assert fits(value, shape.kind)
    for function in shape.takes:
        assert FUNCTIONS[function].from_type == shape.kind
        assert fits(FUNCTIONS[function].convert(value), FUNCTIONS[function].to_type)


@given(given_values, kinds, st.lists(st.sampled_from(sorted(FUNCTIONS)), unique=True))
def test_a_field_that_accepts_a_shape_takes_its_values(value: Any, kind: Any, functions: list[str]) -> None:
    usable = [name for name in functions if FUNCTIONS[name].to_type == kind]
    field = Field(kind, converters=tuple(Converter(FUNCTIONS[name].from_type, kind, name) for name in usable))
    if value is not None and accepts(field, shape_of(value)):
        assert convert_value(field, value) is not UNFIT


@given(histories(), settings)
def test_a_promoted_type_accepts_its_evidence(history: list[Told], settings: Settings) -> None:
    stats = of_everyone(count_observations(history))
    for candidate in candidates(stats, schema(ReducerConfig({}), name="string"), settings):
        if candidate.promotable and candidate.change == "add_field":
            assert candidate.field_type is not None
            field, key = Field(candidate.field_type, converters=candidate.converters), candidate.fragment_key
            splitter, all_values = Splitter(Definition(fields={key: field})), evidence(history, key)
            taken = [value for value in all_values if key in splitter.split({key: value}).fields]
            meant = [value for value in all_values if meaning(value) == candidate.field_type]
            assert all(any(value is other for other in taken) for value in meant)
            assert len(taken) >= settings.thresholds(stats[key]).min_share * len(all_values) - 1e-6


def meaning(value: Any) -> str:
    """The type that a value seems to have."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        epoch = 1e9 <= value <= 4_102_444_800 or 1e12 <= value <= 4_102_444_800_000
        return "date" if epoch else "number"
    if isinstance(value, str):
        if re.fullmatch("[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])", value):
            return "date"
        if value.lower() in ("true", "false", "yes", "no", "1", "0"):
            return "boolean"
        return "number" if re.fullmatch("[1-9][0-9]{0,9}", value) else "string"
    return "array" if isinstance(value, list) else "object"


@given(histories(), settings, kinds)
def test_enhancement_twice_is_enhancement_once(history: list[Told], settings: Settings, kind: Any) -> None:
    base = schema(ReducerConfig({}), name=kind)
    stats = of_everyone(count_observations(history))
    once = enhanced(base, stats, settings)
    assert enhanced(once, stats, settings) is once
    assert not any(candidate.promotable for candidate in candidates(stats, once, settings))
    for name, field in base.schema_definition.fields.items():
        kept = once.schema_definition.fields[name]
        assert kept.type == field.type and kept.converters[: len(field.converters)] == field.converters


def enhanced(base: Schema, stats: Any, settings: Settings) -> Schema:
    made = apply_update(base, update_of(candidates(stats, base, settings)))
    assert isinstance(made, UpdatedSchema), made
    return made.schema
