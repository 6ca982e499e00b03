"""Law of carried bindings: a field that is not listed answers alike before and after a lens, and one that is does not.

The oracle applies the lens to events in plain Python and reads the field from the event before and after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.query.definition import decoded
from headrace.query.reader import FieldReader
from headrace.query.search import Binding, Field, Kind
from headrace.query.values import values
from headrace.schema.lens.carry import Crossing, Effect
from headrace.schema.lens.proof import prove
from headrace.schema.lens.reader import KeyReader, Reader
from schema.lens.oracle import Names, Number, has, look, promoted, spell
from schema.lens.strategies import Case, Manner, Shape, cases, pointers_of

OPS = ("rename", "copy", "add", "remove", "hoist", "plunge", "wrap", "head", "convert", "in", "map")
#: As many events are tried before a listed field is said to have no counterexample.
TRIED = 400

_TEXTS = ["x", "Y", "12", "", "2023", "true", "ß", "İ", "falſe", "-3 apples", "2024-02-29T12:00:00Z", "/", "é"]
_WHOLE = ["0", "1", "-3", "7", "2023", "1.0", "1e25", "9007199254740993"]
_NUMBERS = [*_WHOLE, "0.5", "2.50"]


def sample(random: Random, shape: Shape, share: float) -> Any:
    """An event of a shape, with a share of what may be left out."""
    match shape.kind:
        case "object":
            chosen = [item for item in shape.members.items() if item[1][1] or random.random() < share]
            return {name: sample(random, inner, share) for name, (inner, _) in chosen}
        case "array" if shape.items is not None:
            return [sample(random, shape.items, share) for _ in range(random.randint(*shape.lengths))]
        case "string":
            return random.choice(_TEXTS)
        case "number":
            return Number(random.choice(_NUMBERS))
        case "integer":
            return Number(random.choice(_WHOLE))
    return random.choice([True, False]) if shape.kind == "boolean" else None


def events(case: Case, random: Random) -> Iterator[Any]:
    yield from case.documents[0]
    for _ in range(TRIED):
        yield sample(random, case.shape, random.choice([0.0, 0.5, 0.9, 1.0]))


def field_values(field: Field, pointer: Names, event: Any) -> list[Any]:
    bound = Field(name="f", kind=field.kind, lowercase=field.lowercase, bindings=(Binding(1, pointer),))
    return [(type(value), value) for value in values(bound, decoded(spell(event)))]


def routing_key(field: Any, pointer: Names, event: Any) -> list[Any]:
    key = look(event, pointer) if has(event, pointer) else None
    return [key] if isinstance(key, str) and not isinstance(key, Number) and key else []


def hold_the_law(case: Case, reader: Reader, read: Any, field: Any, pointer: Names, random: Random) -> None:
    ops = case.lenses[1].ops
    assume(not prove(case.schema, True, ops).problems)
    carried = Crossing(case.schema, True, case.lenses[1]).carry(pointer, reader)
    differs = False
    for number, event in enumerate(events(case, random)):
        after = promoted(case.wire[0]["ops"], event)
        was, now = read(field, pointer, event), read(field, carried.pointer, after)
        if carried.effect is None:
            assert was == now, (pointer, carried, event, after)
            if number == 40:
                return
        if carried.effect is Effect.LOST:
            assert not now, (pointer, carried, event, after)
        if was != now:
            differs = True
            break
    # Many operations may undo each other, and then a field is listed to be on the safe side.
    assert differs or carried.effect is None or count_ops(case.wire[0]["ops"]) > 3, (pointer, carried)


def count_ops(ops: list[dict[str, Any]]) -> int:
    return sum(1 + count_ops(op.get("ops", [])) for op in ops)


def chosen_pointer(case: Case, random: Random) -> Names:
    """A pointer into an event before the lens, or now and then one into an event after it, or to nothing."""
    before, after = case.documents[0], case.documents[1]
    known = sorted({names for event in before for names in pointers_of(event)})
    later = sorted({names for event in after for names in pointers_of(event)})
    return random.choice(random.choice([known, known, known, later, [("nowhere",)]]))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data(), st.randoms(use_true_random=False))
def test_a_field_is_listed_if_and_only_if_some_event_has_other_values(op: str, data: Any, random: Random) -> None:
    case = data.draw(cases(Manner.LOOSE, first=op))
    field = Field(name="f", kind=random.choice([*Kind]), lowercase=random.random() < 0.3, bindings=())
    hold_the_law(case, FieldReader.of(field), field_values, field, chosen_pointer(case, random), random)


@settings(max_examples=400, suppress_health_check=[HealthCheck.filter_too_much])
@given(cases(Manner.LOOSE), st.randoms(use_true_random=False))
def test_a_routing_key_is_listed_if_and_only_if_some_event_has_another_key(case: Case, random: Random) -> None:
    hold_the_law(case, KeyReader(), routing_key, None, chosen_pointer(case, random), random)
