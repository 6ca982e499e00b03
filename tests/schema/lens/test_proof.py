from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headrace.schema.document import Validator
from headrace.schema.document import problems as schema_problems
from headrace.schema.lens.document import parse
from headrace.schema.lens.forward import forward, run
from headrace.schema.lens.ops import Convert, Lens, Op, Transform
from headrace.schema.lens.proof import Proof, prove
from headrace.schema.lens.values import LensFailure, Raw
from schema.lens.completeness_members import MOVES, NO_OPS
from schema.lens.completeness_values import NESTED, VALUES
from schema.lens.vocabulary import (
    LEVELS,
    MAYBE_TEXT,
    PROVEN,
    TABLE,
    TEXT,
    WHOLE,
    Row,
    add,
    closed,
    convert,
    each,
    head,
    listed,
    move,
    one_of,
    opened,
    plunge,
    within,
)

ROWS = [*NO_OPS, *MOVES, *VALUES, *NESTED]
UNSET = msgspec.UNSET


def judge(schema: Any) -> Any:
    return Validator(schema).accepts


def ops_of(*ops: dict[str, Any]) -> tuple[Op, ...]:
    lens = parse({"apiVersion": "durable.lens/v1", "schema": "s", "from": 1, "to": 2, "ops": list(ops)})
    assert isinstance(lens, Lens), lens
    return lens.ops


def proof_of(old: Any, new: Any, *ops: dict[str, Any]) -> Proof:
    return prove(old, new, ops_of(*ops), judge)


def rules(proof: Proof) -> set[str]:
    return {problem.rule for problem in proof.problems}


def promoted(ops: tuple[Op, ...], *events: Any) -> list[Any]:
    steps = forward(ops)
    holder: list[Any] = [Raw(msgspec.json.encode(event)) for event in events]
    for at in range(len(holder)):
        run(steps, holder, at)
    return json.loads(msgspec.json.encode(holder))  # type: ignore[no-any-return]


def carried(proof: Proof, new: Any) -> bool:
    """Whether the counter-example is promoted to something valid after all."""
    try:
        return Validator(new).accepts(*promoted(proof.ops, proof.counter_example))
    except LensFailure:
        return False


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_verdict_on_what_people_write(row: Row) -> None:
    assert not schema_problems(row.old) and not schema_problems(row.new)
    proof = proof_of(row.old, row.new, *row.ops)
    if row.verdict == PROVEN:
        assert not proof.problems
        return
    assert row.verdict in rules(proof)
    assert (proof.counter_example is UNSET) == row.doubt
    if not row.doubt:
        assert Validator(row.old).accepts(proof.counter_example)
        assert not carried(proof, row.new)


def test_the_table_is_long_enough_and_has_no_row_twice() -> None:
    assert len(ROWS) >= 60
    assert len({row.name for row in ROWS}) == len(ROWS)
    kinds = {op["op"] for row in ROWS if row.verdict == PROVEN for op in row.ops}
    assert len(kinds) == 11


# The ten holes of the proof that others ship.


def test_g1_a_required_member_that_no_op_makes_is_missed() -> None:
    proof = proof_of(closed({"a": TEXT}), closed({"b": TEXT, "c": TEXT}), move("/a", "/b"))
    assert [(problem.pointer, problem.rule) for problem in proof.problems] == [("/c", "not_contained")]


def test_g2_members_that_are_left_over_do_not_fit_a_closed_schema() -> None:
    proof = proof_of(opened({"a": TEXT}), closed({"b": TEXT}), move("/a", "/b"))
    assert rules(proof) == {"not_contained"}
    assert set(proof.counter_example) > {"a"}


def test_g3_a_text_is_not_one_of_some_texts() -> None:
    assert rules(proof_of(closed({"a": TEXT}), closed({"b": LEVELS}), move("/a", "/b"))) == {"not_contained"}


def test_g4_a_builtin_that_nobody_knows_is_refused() -> None:
    unknown = Transform(builtin="reverse")
    op = Convert(path=("a",), from_type="string", to_type="string", forward=unknown, backward=unknown)
    assert rules(prove(closed({"a": TEXT}), closed({"a": TEXT}), (op,))) == {"unknown_builtin"}


@pytest.mark.parametrize(
    ("old", "new", "op", "rule"),
    [
        (WHOLE, WHOLE, convert("/a", "string>integer", {**TABLE, "default": 0}), "type_mismatch"),
        (one_of("low", "mid", "high"), WHOLE, convert("/a", "string>integer", TABLE), "not_total"),
        (LEVELS, {**WHOLE, "maximum": 1}, convert("/a", "string>integer", TABLE), "not_contained"),
        (TEXT, one_of(1, 2), convert("/a", "string>integer", {**TABLE, "default": 3}), "not_contained"),
    ],
)
def test_g5_types_coverage_and_outputs_of_a_conversion_are_checked(old: Any, new: Any, op: Any, rule: str) -> None:
    assert rule in rules(proof_of(closed({"a": old}), closed({"a": new}), op))


def test_g6_each_op_sees_what_those_before_it_made() -> None:
    ops = [move("/a", "/b"), convert("/b", "string>integer", TABLE), plunge("/b", "/o", "level")]
    assert not proof_of(closed({"a": LEVELS}), closed({"o": closed({"level": one_of(1, 2)})}), *ops).problems


@pytest.mark.parametrize("default", [0, "", False, None])
def test_g7_a_default_counts_whatever_it_is(default: Any) -> None:
    kind = {0: "integer", "": "string", None: "null"}.get(default, "boolean") if default is not False else "boolean"
    table = {"map": {}, "default": default}
    old, new = closed({"a": TEXT}), closed({"a": {"const": default}})
    assert not proof_of(old, new, convert("/a", f"string>{kind}", table)).problems
    assert not proof_of(closed({}), new, add("/a", {}, default)).problems


def test_g7_null_may_be_added_to_what_may_be_null() -> None:
    assert not proof_of(closed({}), closed({"a": MAYBE_TEXT}), add("/a", MAYBE_TEXT, None)).problems


def test_g8_a_rename_to_its_own_place_is_refused() -> None:
    given = {"apiVersion": "durable.lens/v1", "schema": "s", "from": 1, "to": 2, "ops": [move("/a", "/a")]}
    assert isinstance(parse(given), list)
    renamed = msgspec.structs.replace(ops_of(move("/a", "/b"))[0], target=("a",))  # type: ignore[call-arg]
    assert "target_inside_source" in rules(prove(closed({"a": TEXT}), closed({"a": TEXT}), (renamed,)))


def test_g9_ops_at_the_root_of_elements_and_objects_count() -> None:
    op = each("/tags", convert("", "string>string", "uppercase"))
    proof = proof_of(closed({"tags": listed(LEVELS)}), closed({"tags": listed(one_of("LOW", "HIGH"))}), op)
    assert not proof.problems
    assert promoted(proof.ops, {"tags": ["low", "high"]}) == [{"tags": ["LOW", "HIGH"]}]
    assert rules(proof_of(closed({"tags": listed(LEVELS)}), closed({"tags": listed(LEVELS)}), op)) == {"not_contained"}


def test_g10_a_default_is_not_shared_between_events() -> None:
    ops = [add("/o", {"type": "object"}, {}), plunge("/a", "/o", "a")]
    proof = proof_of(closed({"a": TEXT}), closed({"o": closed({"a": TEXT})}), *ops)
    assert not proof.problems
    assert promoted(proof.ops, {"a": "x"}, {"a": "y"}) == [{"o": {"a": "x"}}, {"o": {"a": "y"}}]


# What a refusal says.


def test_a_problem_names_the_nested_op_the_pointer_and_the_rule() -> None:
    old = closed({"l": listed(closed({"o": closed({"a?": TEXT})}))})
    proof = proof_of(old, old, add("/x", WHOLE, 1), each("/l", within("/o", move("/a", "/b"))))
    assert ("/ops/1/ops/0/ops/0", "/l/*/o/a", "source_optional") in [problem[:3] for problem in proof.problems]


def test_all_problems_come_at_once() -> None:
    proof = proof_of(closed({"a?": TEXT, "l": listed(TEXT)}), closed({"b": WHOLE}), move("/a", "/b"), head("/l"))
    assert rules(proof) == {"source_optional", "array_may_be_empty", "not_contained"}


def test_the_same_problem_in_every_variant_is_said_once() -> None:
    old = {"oneOf": [closed({"k": {"const": at}, "l": listed(TEXT)}) for at in range(5)]}
    assert len(proof_of(old, True, head("/l")).problems) == 1


def test_without_an_oracle_less_is_proven_and_no_counter_example_is_given() -> None:
    ops = ops_of(add("/b", TEXT, "id-0"))
    old, new = closed({}), closed({"b": {**TEXT, "pattern": "^id-"}})
    assert not prove(old, new, ops, judge).problems
    assert prove(old, new, ops) == Proof(prove(old, new, ops).problems, ops)
    assert rules(prove(old, new, ops)) == {"not_contained"}


def test_the_ops_come_back_with_their_defaults() -> None:
    new = closed({"l": listed(closed({"n": {**WHOLE, "default": 7}}))})
    proof = proof_of(closed({"l": listed(closed({}))}), new, each("/l", add("/n", WHOLE)))
    assert not proof.problems
    assert promoted(proof.ops, {"l": [{}, {}]}) == [{"l": [{"n": 7}, {"n": 7}]}]


def test_a_null_event_may_be_a_counter_example() -> None:
    assert proof_of({"type": ["null", "object"]}, {"type": "object"}).counter_example is None


def test_schemas_nested_beyond_reason_are_refused() -> None:
    old: Any = TEXT
    for _ in range(5_000):
        old = {"type": "object", "properties": {"a": old}}
    assert rules(prove(old, closed({}), ())) == {"too_complex"}
