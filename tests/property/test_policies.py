"""Laws of snapshots: neither the order of observations nor how they are split matters, and schemas only add to them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.reduce.policies import arrays, build
from headrace.reduce.policies.build import fold_observations, reduce_observations
from headrace.reduce.policies.reducer import EVERYONE, EntityState, TypeReducer
from headrace.schema.entity.nodes import DEFAULT_POLICY, Field, Policy, ReducerConfig
from headrace.schema.entity.observation import Observation, decode, encode
from headrace.schema.entity.update import Addition, TypeUpdate, UpdatedSchema, apply_update
from reduce.policies.histories import NAMES, Told, configs, histories, seeds
from reduce.policies.oracle import shown
from reduce.policies.samples import FIRST_US, observed, schema


def reducer_of(config: ReducerConfig) -> TypeReducer:
    return TypeReducer({EVERYONE: ReducerConfig({}), "ada": config})


def of_user(history: list[Told], entity: str) -> list[Observation]:
    return [told for _, _, told in history if told.entity_id == entity and told.user_id == "ada"]


@given(histories(), configs)
def test_snapshots_are_what_the_rules_say(history: list[Told], config: ReducerConfig) -> None:
    reducer, seen = TypeReducer({EVERYONE: config}), schema(config, age="object", name="object", absent="string")
    rows = fold_observations(reducer, history)
    assert sorted(rows) == sorted({told.entity_id.encode() for _, _, told in history})
    for key, row in rows.items():
        told = [told for _, _, told in history if told.entity_id.encode() == key]
        for by in (None, seen):
            found = reducer.finish(reducer.unpack(reducer.pack(row)), version_name=EVERYONE, schema=by)
            expected = shown(told, config.dump(), by)
            assert repr(found and (found.snapshot, found.provenance)) == repr(expected)
            if found is not None:
                assert found.observation_count == len(told)
                assert found.computed_at_us == max(each.observed_at_us for each in told)
                origins = {name: ",".join(said.id for said in saids) for name, saids in found.origins.items()}
                assert origins == found.provenance


@given(histories(), configs)
def test_a_life_of_a_user_is_what_their_policies_make_of_their_observations(
    history: list[Told], config: ReducerConfig
) -> None:
    reducer = reducer_of(config)
    for key, row in fold_observations(reducer, history).items():
        theirs = of_user(history, key.decode())
        assert ("ada" in row.fields_by_version) == bool(theirs)
        if theirs and not row.is_deleted:
            found, expected = (
                reducer.finish(row, version_name="ada", schema=None),
                shown(undying(theirs), config.dump(), None),
            )
            assert found is not None
            assert repr((found.snapshot, found.provenance)) == repr(expected)


def undying(observations: list[Observation]) -> list[Observation]:
    return [told for told in observations if told.kind not in ("deletion", "restoration")]


@given(histories(), configs, seeds)
def test_the_order_of_observations_does_not_matter(history: list[Told], config: ReducerConfig, seed: int) -> None:
    reducer, other = reducer_of(config), list(history)
    random.Random(seed).shuffle(other)
    assert list(reduce_observations(reducer, history)) == list(reduce_observations(reducer, other))


@given(histories(), configs, seeds)
def test_how_history_is_split_does_not_matter(history: list[Told], config: ReducerConfig, seed: int) -> None:
    reducer, draw = reducer_of(config), random.Random(seed)
    parts: list[list[Told]] = [[] for _ in range(draw.randint(1, 4))]
    for told in history:
        parts[draw.randrange(len(parts))].append(told)
    packed = [dict(reduce_observations(reducer, part)) for part in parts]
    whole = {}
    for key in {key for part in packed for key in part}:
        rows = [reducer.unpack(part[key]) for part in packed if key in part]
        draw.shuffle(rows)
        whole[key] = reducer.pack(grouped(reducer, rows, draw))
    assert whole == dict(reduce_observations(reducer, history))


def grouped(reducer: TypeReducer, rows: list[EntityState], draw: random.Random) -> EntityState:
    """Rows merged with brackets anywhere."""
    if len(rows) == 1:
        return rows[0]
    cut = draw.randrange(1, len(rows))
    return reducer.merge(grouped(reducer, rows[:cut], draw), grouped(reducer, rows[cut:], draw))


@given(st.one_of(histories(), histories(["observation"], ["ada"])), configs)
def test_observations_of_an_entity_give_the_same_at_once_as_one_after_the_other(
    history: list[Told], config: ReducerConfig
) -> None:
    reducer = reducer_of(config)
    together = sorted(history, key=lambda told: told[2].entity_id)
    assert list(build.pack_entities(reducer, together)) == list(reduce_observations(reducer, history))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 1)), min_size=1, max_size=40), seeds)
def test_bounded_arrays_do_not_depend_on_order_or_splits(given_: list[tuple[int, int, int]], seed: int) -> None:
    config, draw = ReducerConfig({"tags": Policy("merge_array")}), random.Random(seed)
    reducer = TypeReducer({EVERYONE: config})
    history = [
        (seq, FIRST_US, observed(f"{seq:02}", at, fields={"tags": [value, value + 1]}, source_priority=priority))
        for seq, (at, value, priority) in enumerate(given_)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "MAX_VALUES", 3)
        ((_, whole),) = reduce_observations(reducer, history)
        assert list(build.pack_entities(reducer, history)) == [(b"ent_1", whole)]
        draw.shuffle(history)
        cut = draw.randrange(len(history) + 1)
        parts = [row for part in (history[:cut], history[cut:]) for row in fold_observations(reducer, part).values()]
        assert reducer.pack(grouped(reducer, parts, draw)) == whole
        found = reducer.finish(reducer.unpack(whole), version_name=EVERYONE, schema=None)
    expected = shown([told for _, _, told in history], config.dump(), None)
    assert found is not None and expected is not None
    assert found.snapshot["tags"] == expected[0]["tags"][:3]
    assert found.truncated == (("tags",) if len(expected[0]["tags"]) > 3 else ())


@given(histories(), configs)
def test_what_is_folded_twice_changes_nothing_but_the_count(history: list[Told], config: ReducerConfig) -> None:
    reducer = reducer_of(config)
    once, twice = fold_observations(reducer, history), fold_observations(reducer, [*history, *history[::-1]])
    for key, row in once.items():
        again = twice[key]
        assert again.count == 2 * row.count
        again.count = row.count
        assert reducer.pack(again) == reducer.pack(row)


@given(histories(), configs)
def test_observations_that_claim_one_id_are_told_apart_by_what_they_say(
    history: list[Told], config: ReducerConfig
) -> None:
    reducer = reducer_of(config)
    same = [(seq, at_us, decode(encode(told).replace(told.id.encode(), b"id", 1))) for seq, at_us, told in history]
    assert list(reduce_observations(reducer, same)) == list(reduce_observations(reducer, same[::-1]))


@settings(max_examples=50)
@given(histories(), configs, st.sampled_from(["string", "number", "array"]))
def test_additions_never_change_the_values_that_are_shown(
    history: list[Told], config: ReducerConfig, kind: Any
) -> None:
    fields = {name: Field("string") for name in NAMES}
    base = schema(config, **fields)
    addition = Addition("other", Field(kind), DEFAULT_POLICY)
    made = apply_update(base, TypeUpdate(fields_to_add=(addition,)))
    assert isinstance(made, UpdatedSchema)
    before, after = (TypeReducer({EVERYONE: each.reducer_config}) for each in (base, made.schema))
    assert before.ids == after.ids
    for key, packed in reduce_observations(before, history):
        was = before.finish(before.unpack(packed), version_name=EVERYONE, schema=base)
        now = after.finish(after.unpack(packed), version_name=EVERYONE, schema=made.schema)
        assert (was is None) == (now is None), key
        if was is not None and now is not None:
            assert repr(was.snapshot) == repr({name: now.snapshot[name] for name in NAMES if name in now.snapshot})
            assert was.provenance == {name: ids for name, ids in now.provenance.items() if name in NAMES}
