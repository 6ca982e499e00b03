"""The laws of lenses, on generated lenses and documents, held against a plain reading of the ops."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.lens.backward import backward
from headrace.schema.lens.forward import forward
from headrace.schema.lens.pullback import pull_back
from schema.lens.oracle import has, load, look, spell
from schema.lens.strategies import Case, Manner, cases, pointers_of
from schema.lens.wire import through

styles = st.integers(0, 3)


@settings(max_examples=1_000)
@given(cases(Manner.LOOSE) | cases(Manner.GENTLE), styles)
def test_promotion_does_what_the_ops_say(case: Case, style: int) -> None:
    steps = forward(case.lenses[1].ops)
    for before, after in zip(*case.documents, strict=True):
        assert load(through(steps, spell(before, style))) == after


@settings(max_examples=1_000)
@given(cases(Manner.GENTLE), styles)
def test_going_back_undoes_a_lens_that_loses_nothing(case: Case, style: int) -> None:
    ahead, back = forward(case.lenses[1].ops), backward(case.lenses[1].ops, case.schema)
    valid = jsonschema_rs.validator_for(case.schema)
    for document in case.documents[0]:
        returned = through(back, through(ahead, spell(document, style)))
        assert load(returned) == document
        assert valid.is_valid(json.loads(returned))


@settings(max_examples=1_000)
@given(cases(Manner.LOSSY))
def test_going_back_makes_an_old_document_that_comes_out_the_same(case: Case) -> None:
    ahead, back = forward(case.lenses[1].ops), backward(case.lenses[1].ops, case.schema)
    valid = jsonschema_rs.validator_for(case.schema)
    for after in case.documents[1]:
        before = through(back, spell(after))
        assert valid.is_valid(json.loads(before))
        assert load(through(ahead, before)) == after


@settings(max_examples=1_500)
@given(cases(Manner.LOOSE, lenses=3) | cases(Manner.GENTLE, lenses=3), st.randoms(use_true_random=False))
def test_pulling_a_pointer_back_equals_promoting_and_pointing(case: Case, random: Any) -> None:
    known = sorted({names for version in case.documents for names in pointers_of(version[0])})
    pointer = random.choice(known)
    sources = pull_back(case.lenses, pointer, case.latest)
    assert sorted(sources) == [1, 2, 3, 4]
    for version, source in sources.items():
        for stored, latest in zip(case.documents[version - 1], case.documents[-1], strict=True):
            value = source.evaluate(spell(stored))
            assert (value is not None) == has(latest, pointer)
            assert value is None or load(value) == look(latest, pointer)
