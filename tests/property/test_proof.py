"""The promise of the proof, with jsonschema-rs as the judge and the real runner: whatever it accepts, holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.containment import find_schema_gaps
from headrace.schema.document import Validator, problems
from headrace.schema.lens.document import parse
from headrace.schema.lens.forward import Steps, forward, run
from headrace.schema.lens.ops import Lens, Op
from headrace.schema.lens.proof import prove, sample_documents
from headrace.schema.lens.values import LensFailure, Raw
from headrace.schema.lens.walk import OpLocation, Walk
from headrace.schema.shape import edit
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root
from schema.lens.evolutions import evolution, schema_document, widening, wild_ops
from schema.membership import admits
from schema.sketches import NAMES, Guess

SEEDS = st.integers(0, 2**64 - 1)


def judge(schema: Any) -> Any:
    return Validator(schema).accepts


def lens_of(ops: list[dict[str, Any]]) -> tuple[Op, ...] | None:
    """The ops, or None where a lens may not ask for them."""
    lens = parse({"apiVersion": "durable.lens/v1", "schema": "s", "from": 1, "to": 2, "ops": ops})
    return lens.ops if isinstance(lens, Lens) else None


def events(random: Random, schema: Any) -> Iterator[Any]:
    """Documents valid under a schema: likely ones, likely ones with one thing changed, and those at the edges."""
    valid, guess = judge(schema), Guess(random, schema)
    likely = [guess.value(schema) for _ in range(8)]
    edges = islice(sample_documents(shape_of(Root(schema).source), NAMES), 16)
    return filter(valid, [*likely, *map(guess.changed, likely), *edges])


def promoted(steps: Steps, event: Any) -> Any:
    holder: list[Any] = [Raw(msgspec.json.encode(event))]
    run(steps, holder, 0)
    return msgspec.json.decode(msgspec.json.encode(holder[0]))


@pytest.mark.parametrize("block", range(4))
def test_what_is_proven_of_a_lens_holds(block: int) -> None:
    seen = Counter[str]()

    @settings(max_examples=1_300)
    @given(SEEDS)
    def holds(seed: int) -> None:
        random = Random(f"{block}.{seed}")
        old, new, given_ops = evolution(random)
        ops = lens_of(given_ops)
        assert ops is not None
        proof = prove(old, new, ops)
        seen["refused" if proof.problems else "accepted with ops" if ops else "accepted"] += 1
        if proof.problems:
            return
        steps, valid = forward(proof.ops), judge(new)
        for event in events(random, old):
            seen["events"] += 1
            assert valid(promoted(steps, event)), (old, new, given_ops, event)

    holds()
    assert seen["accepted"] + seen["accepted with ops"] + seen["refused"] >= 1_250
    assert seen["accepted with ops"] >= 500
    assert seen["refused"] >= 200
    assert seen["events"] >= 8_000


def test_what_is_contained_stays_valid() -> None:
    seen = Counter[str]()

    @settings(max_examples=1_000)
    @given(SEEDS)
    def holds(seed: int) -> None:
        random = Random(seed)
        old, new, _ = widening(random)
        if old.get("$schema") != new.get("$schema") and problems(new):
            return  # In another draft the same words may be no schema.
        verdict = find_schema_gaps(old, new, judge)
        seen["refused" if verdict else "contained" if old != new else "the same"] += 1
        valid = judge(new)
        for event in [] if verdict else events(random, old):
            assert valid(event), (old, new, event)

    holds()
    assert seen["contained"] >= 250
    assert seen["refused"] >= 60


@pytest.mark.parametrize("last_element", [0, edit.LAST_ELEMENT])
def test_shapes_hold_what_schemas_admit_and_what_ops_make_of_it(
    monkeypatch: pytest.MonkeyPatch, last_element: int
) -> None:
    monkeypatch.setattr(edit, "LAST_ELEMENT", last_element)
    seen = Counter[str]()

    @settings(max_examples=1_000)
    @given(SEEDS)
    def holds(seed: int) -> None:
        random = Random(seed)
        old = schema_document(random)
        given_ops = wild_ops(random, old)
        ops = lens_of(given_ops)
        if ops is None:
            return
        before, walk = shape_of(Root(old).source), Walk(judge)
        walk.inspect(ops, OpLocation())
        after = walk.through(ops, before, OpLocation())
        seen["refused" if walk.problems else "accepted"] += 1
        for event in events(random, old):
            assert admits(before, event), (old, event)
            if not walk.problems:
                made = promoted(forward(ops), event)
                seen["changed"] += made != event
                assert admits(after, made), (old, given_ops, event, made)

    holds()
    assert seen["accepted"] >= 250
    assert seen["changed"] >= 300


def test_a_counter_example_is_one() -> None:
    seen = Counter[str]()

    @settings(max_examples=400)
    @given(SEEDS)
    def holds(seed: int) -> None:
        old, new, given_ops = evolution(Random(seed))
        ops = lens_of(given_ops)
        assert ops is not None
        proof = prove(old, new, ops, judge)
        seen["refused"] += bool(proof.problems)
        if proof.counter_example is msgspec.UNSET:
            return
        seen["shown"] += 1
        assert proof.problems and judge(old)(proof.counter_example)
        try:
            assert not judge(new)(promoted(forward(proof.ops), proof.counter_example))
        except LensFailure:
            pass

    holds()
    assert seen["shown"] >= seen["refused"] // 2 >= 40
