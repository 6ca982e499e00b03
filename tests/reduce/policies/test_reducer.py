"""Snapshots by policy, a case for each rule."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.reduce.policies import arrays
from headrace.reduce.policies.build import reduce_observations
from headrace.reduce.policies.reducer import EVERYONE, TypeReducer, policy_hash
from headrace.schema.entity.nodes import Converter, Field, ReducerConfig
from headrace.schema.entity.observation import Observation
from reduce.policies.samples import FIRST_US, config, observed, row, schema, snapshot

PLAIN = ReducerConfig({})
NUMERIC = Field("number", converters=(Converter("string", "number", "string_to_number"),))


def test_the_latest_write_is_shown_whatever_its_priority() -> None:
    found = snapshot(PLAIN, observed("a", 1, age=1), observed("b", 0, age=2, source_priority=999))
    assert found.snapshot == {"age": 1}
    assert found.provenance == {"age": "a"}


def test_the_lesser_id_is_shown_of_two_writes_at_once() -> None:
    assert snapshot(PLAIN, observed("b", 1, age=2), observed("a", 1, age=1)).snapshot == {"age": 1}


@pytest.mark.parametrize(
    ("policy", "better", "worse"),
    [
        ("highest_priority", observed("z", 0, source_priority=101), observed("a", 9, source_priority=100)),
        ("highest_priority", observed("z", 0, observation_source="sensor"), observed("a", 9)),
        ("highest_priority", observed("z", 9), observed("a", 0)),
        ("highest_priority:source_priority", observed("a", 0), observed("z", 9)),
        ("highest_priority", observed("z", 0, observation_source="sync"), observed("a", 9, observation_source="other")),
        ("most_specific", observed("z", 0, specificity_score=0.2), observed("a", 9, source_priority=900)),
        ("most_specific", observed("z", 9, specificity_score=0.0), observed("a", 0)),
        ("most_specific:source_priority", observed("z", 0, source_priority=101), observed("a", 9)),
        ("most_specific", observed("z", 0, observation_source="sensor"), observed("a", 9, source_priority=900)),
    ],
)
def test_each_order_decides_by_its_first_difference(policy: str, better: Observation, worse: Observation) -> None:
    first, second = (replace(given, fields={"age": value}) for given, value in ((better, "better"), (worse, "worse")))
    for given in ((first, second), (second, first)):
        assert snapshot(config(age=policy), *given).snapshot == {"age": "better"}


def test_a_schema_ranks_kinds_of_sources_its_own_way() -> None:
    given = (
        observed("a", 0, age="human", observation_source="human"),
        observed("b", 1, age="sensor", observation_source="sensor"),
    )
    assert snapshot(config(age="highest_priority"), *given).snapshot == {"age": "sensor"}
    assert snapshot(config("human", age="highest_priority"), *given).snapshot == {"age": "human"}


@pytest.mark.parametrize("strategy", ["last_write", "highest_priority", "most_specific", "merge_array"])
def test_a_correction_wins_over_later_and_greater_writes_and_a_later_one_replaces_it(strategy: str) -> None:
    later = observed("c", 9, tags=["x"], source_priority=5000, specificity_score=1.0, observation_source="sensor")
    first, second = (
        observed(id, at, tags=tags, kind="correction") for id, at, tags in (("a", 1, ["p"]), ("b", 2, ["q"]))
    )
    policies = config(tags=strategy)
    assert snapshot(policies, first, later).snapshot == {"tags": ["p"]}
    found = snapshot(policies, second, later, first)
    assert found.snapshot == {"tags": ["q"]}
    assert found.provenance == {"tags": "b"}
    assert found.origins["tags"][0].correction


def test_a_correction_to_null_clears_a_field_for_good() -> None:
    cleared = observed("a", 1, tags=None, kind="correction")
    for strategy in ("last_write", "merge_array"):
        found = snapshot(config(tags=strategy), cleared, observed("b", 2, tags=["x"]))
        assert found.snapshot == {}
        assert found.provenance == {}
        assert found.origins == {}


def test_a_null_that_wins_clears_a_field_and_one_that_loses_does_not() -> None:
    assert snapshot(PLAIN, observed("a", 0, age=1), observed("b", 1, age=None)).snapshot == {}
    assert snapshot(PLAIN, observed("a", 2, age=1), observed("b", 1, age=None)).snapshot == {"age": 1}


def test_arrays_merge_at_the_greatest_priority_alone() -> None:
    found = snapshot(
        config(tags="merge_array"),
        observed("a", 0, tags=["x", "y"]),
        observed("b", 1, tags=["y", "z"]),
        observed("c", 2, tags=["low"], source_priority=99),
    )
    assert found.snapshot == {"tags": ["y", "z", "x"]}
    assert found.provenance == {"tags": "b,a"}


def test_array_elements_are_the_same_by_structure() -> None:
    given = [1, True, {"a": 1, "b": [2]}, "1", 1.0, {"b": [2.0], "a": 1}, [1], None]
    found = snapshot(config(tags="merge_array"), observed("a", 0, tags=given))
    assert found.snapshot["tags"] == [1, True, {"a": 1, "b": [2]}, "1", [1], None]
    assert found.snapshot["tags"][1] is True


def test_scalars_and_texts_of_arrays_count_as_elements_and_null_as_none() -> None:
    found = snapshot(
        config(tags="merge_array"),
        observed("a", 4, tags="x"),
        observed("b", 3, tags=' ["y", 2]'),
        observed("c", 2, tags="[not json"),
        observed("d", 1, tags=None),
        observed("e", 0, tags={"k": 1}),
    )
    assert found.snapshot == {"tags": ["x", "y", 2, "[not json", {"k": 1}]}
    assert found.provenance == {"tags": "a,b,c,e"}


def test_arrays_of_nulls_are_empty_and_say_who_said_so() -> None:
    found = snapshot(config(tags="merge_array"), observed("b", 1, tags=None), observed("a", 0, tags=None))
    assert found.snapshot == {"tags": []}
    assert found.provenance == {"tags": "b"}


def test_arrays_keep_the_latest_values_and_say_that_there_were_more() -> None:
    many = [observed(f"{number:05}", number, tags=[number]) for number in range(3 * arrays.MAX_VALUES)]
    found = snapshot(config(tags="merge_array"), *many)
    assert found.snapshot["tags"] == list(range(3 * arrays.MAX_VALUES - 1, 2 * arrays.MAX_VALUES - 1, -1))
    assert found.truncated == ("tags",)
    assert snapshot(config(tags="merge_array"), *many[: arrays.MAX_VALUES]).truncated == ()


def test_a_deletion_hides_an_entity_until_it_is_restored_and_nothing_else_brings_it_back() -> None:
    reducer = TypeReducer({EVERYONE: PLAIN})
    first = observed("a", 0, age=1)
    gone = observed("b", 1, kind="deletion", source_priority=1000, _deleted=True)
    back = observed("c", 2, kind="restoration", source_priority=1001, _deleted=False)
    others = observed("d", 3, age=2, source_priority=9000), observed("e", 4, age=3, kind="correction")
    assert reducer.finish(row(reducer, first, gone, *others), version_name=EVERYONE, schema=None) is None
    found = snapshot(PLAIN, first, gone, back)
    assert found.snapshot == {"age": 1}
    assert found.observation_count == 3
    assert (
        reducer.finish(
            row(reducer, first, gone, back, observed("f", 5, kind="deletion")), version_name=EVERYONE, schema=None
        )
        is None
    )


def test_an_entity_that_was_never_seen_has_no_snapshot() -> None:
    assert TypeReducer({EVERYONE: PLAIN}).finish(None, version_name=EVERYONE, schema=None) is None


def test_a_migration_takes_its_place_in_time() -> None:
    moved = observed("a", 0, age=1, kind="migration", source_priority=0)
    assert snapshot(PLAIN, moved).snapshot == {"age": 1}
    assert snapshot(PLAIN, moved, observed("b", 1, age=2)).snapshot == {"age": 2}


def test_only_fields_of_the_schema_are_shown_and_others_come_back_with_it() -> None:
    given = observed("a", 0, age=1, name="x")
    assert snapshot(PLAIN, given, seen=schema(PLAIN, name="string")).snapshot == {"name": "x"}
    assert snapshot(PLAIN, given, seen=schema(PLAIN, name="string", age="number")).snapshot == {"name": "x", "age": 1}


def test_a_converter_that_came_later_converts_what_is_shown() -> None:
    given = observed("a", 0, age="12")
    assert snapshot(PLAIN, given, seen=schema(PLAIN, age=NUMERIC)).snapshot == {"age": 12}
    assert snapshot(PLAIN, observed("a", 0, age="x"), seen=schema(PLAIN, age=NUMERIC)).snapshot == {"age": "x"}


def test_a_snapshot_is_as_old_as_its_latest_observation_and_names_the_schema_it_is_seen_by() -> None:
    given = observed("a", 5, age=1, schema_version="1.0.0"), observed("b", 7, name="x", schema_version="1.0.1")
    seen, unseen = (snapshot(PLAIN, *given, seen=by) for by in (schema(PLAIN, age="number"), None))
    assert seen.computed_at_us == FIRST_US + 7
    assert seen.last_observation_at_us == FIRST_US + 7
    assert seen.observation_count == 2
    assert seen.schema_version == "1.1.0"
    assert unseen.schema_version == "1.0.1"
    assert unseen.snapshot == {"age": 1, "name": "x"}


def test_origins_lead_to_the_source() -> None:
    (origin,) = snapshot(PLAIN, observed("a", 5, age=1, source_id="src_7")).origins["age"]
    assert origin.id == "a"
    assert origin.source_id == "src_7"
    assert origin.observed_at_us == FIRST_US + 5


def test_an_observation_that_comes_twice_changes_nothing_but_the_count() -> None:
    policies = config(tags="merge_array", age="most_specific")
    given = observed("a", 0, age=1, tags=["x"]), observed("b", 1, age=2, tags=["y"])
    once, twice = snapshot(policies, *given), snapshot(policies, *given, *given)
    assert once.snapshot == twice.snapshot
    assert once.provenance == twice.provenance
    assert once.observation_count == 2
    assert twice.observation_count == 4


def test_numbers_of_any_size_survive_packing() -> None:
    reducer = TypeReducer({EVERYONE: PLAIN})
    state = row(reducer, observed("a", 0, age=2**80, rate=1e-7, whole=1.0))
    found = reducer.finish(reducer.unpack(reducer.pack(state)), version_name=EVERYONE, schema=None)
    assert found is not None
    assert found.snapshot == {"age": 2**80, "rate": 1e-7, "whole": 1.0}
    assert isinstance(found.snapshot["whole"], float)


def test_merges_and_splits_are_no_rows_of_their_entity() -> None:
    reducer = TypeReducer({EVERYONE: PLAIN})
    assert [reducer.key_and_row(observed("a", 0, kind=kind)) for kind in ("merge", "split", "undo")] == [None] * 3
    assert reducer.key_and_row(given := observed("a")) == (b"ent_1", given)


def test_a_user_with_policies_of_their_own_has_a_life_of_their_own_for_their_entities_alone() -> None:
    reducer = TypeReducer({EVERYONE: PLAIN, "ada": config(age="highest_priority")})
    given = observed("a", 0, age=1, source_priority=500), observed("b", 1, age=2)
    theirs = row(reducer, *(replace(each, user_id="ada") for each in given))
    others = row(reducer, *given)
    assert reducer.version_for("ada") == "ada"
    assert reducer.version_for("local") == EVERYONE
    assert set(reducer.pack(theirs)) == {"", *reducer.ids.values()}
    assert set(reducer.pack(others)) == {"", reducer.ids[EVERYONE]}
    shown = {life: reducer.finish(theirs, version_name=life, schema=None) for life in (EVERYONE, "ada")}
    assert [found and found.snapshot for found in shown.values()] == [{"age": 2}, {"age": 1}]
    with pytest.raises(KeyError):
        reducer.finish(others, version_name="ada", schema=None)


def test_a_reducer_of_one_user_alone_takes_nothing_of_others() -> None:
    reducer = TypeReducer({"ada": PLAIN})
    assert reducer.key_and_row(observed("a")) is None
    assert set(row(reducer, observed("a", user_id="ada", age=1)).fields_by_version) == {"ada"}


def test_lives_that_are_gone_are_passed_over() -> None:
    before, after = (TypeReducer({EVERYONE: policies}) for policies in (PLAIN, config(age="highest_priority")))
    packed = before.pack(row(before, observed("a", 0, age=1)))
    assert after.unpack(packed).fields_by_version == {}


@pytest.mark.parametrize(
    "alike",
    [
        config(age="last_write"),
        config(age="last_write:source_priority"),
        config("human", age="last_write"),
        replace(config(age="last_write"), source_priorities={"crm-a": 5}),
    ],
)
def test_configurations_that_fold_alike_are_one_life(alike: ReducerConfig) -> None:
    assert policy_hash(alike) == policy_hash(PLAIN)


def test_configurations_that_fold_differently_are_different_lives() -> None:
    found = [
        PLAIN,
        config(age="merge_array"),
        config(age="highest_priority"),
        config(name="highest_priority"),
        config(age="highest_priority:source_priority"),
        config("human", age="highest_priority"),
        config(age="most_specific"),
        replace(config(age="merge_array"), source_priorities={"crm-a": 5}),
        replace(config(age="merge_array"), source_priorities={"crm-a": 6}),
    ]
    assert (
        len({policy_hash(each) for each in found} | {policy_hash(PLAIN, "ada"), policy_hash(PLAIN, "bob")})
        == len(found) + 2
    )
    assert policy_hash(config(age="merge_array:source_priority")) == policy_hash(config(age="merge_array"))


def test_a_batch_comes_out_in_the_order_of_keys() -> None:
    reducer = TypeReducer({EVERYONE: PLAIN})
    given = [observed(f"o{at}", at, entity_id=f"ent_{at * 7 % 10}", age=at) for at in range(20)]
    found = list(reduce_observations(reducer, ((seq, FIRST_US, each) for seq, each in enumerate(given))))
    assert [key for key, _ in found] == [f"ent_{number}".encode() for number in range(10)]
    assert all(reducer.unpack(packed).count == 2 for _, packed in found)
