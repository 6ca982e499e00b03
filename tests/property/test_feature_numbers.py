"""Integers of events are what their digits say, however they are spelled: held to fractions, which know no doubles."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.engine.features.source import EventSource, SourceRules
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.event_columns import SourceColumns
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.definition import EventRun
from headrace.schema.descriptor.generated import json_schema
from headrace.schema.descriptor.nodes import Derivation, Event, EventField, Feature, FeatureVersion, Node, RowOp, Table
from headrace.schema.document import Validator
from headrace.schema.registry import Registry
from reduce.features.column_states import states_of

EVENT = Event(
    "E", {"k": EventField("i64"), "x": EventField("f64"), "n": EventField("i64", required=False)}, dedupe_key="k"
)
TABLES = {
    "Plain": Table("Plain", "E", ("k",), {"last": Feature("last", {"field": "n"})}),
    "Stepped": Table("Stepped", "D", ("k",), {"last": Feature("last", {"field": "same"})}),
}
VALIDATOR = Validator(json_schema(EVENT))


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """A number near the limits of doubles and of 64 bits, with a fraction or an exponent or neither."""
    near = draw(st.sampled_from([0, 2**53, 2**60, 2**63, -(2**53), -(2**63)]))
    whole = str(near + draw(st.integers(-3, 3)))
    match draw(st.integers(0, 4)):
        case 0:
            return whole
        case 1:
            return f"{whole}.{draw(st.sampled_from(['0', '00', '5', '0000000000000000000001']))}"
        case 2:
            zeros = draw(st.integers(1, 5))
            return f"{whole}{'0' * zeros if whole != '0' else ''}e-{zeros}"
        case 3:
            return f"{whole}{draw(st.sampled_from(['e0', 'E+0', 'e1', 'e-1', 'e-400', 'e400']))}"
    sign, digits = whole[: whole.startswith("-")], whole.lstrip("-")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}e{len(digits) - 1}"


@given(st.lists(spellings(), min_size=1, max_size=4))
@example(["9007199254740993.0"])
@example(["9007199254740992.5"])
@example(["1e-400"])
@example(["9007199254740993.0", "9007199254740992", "900719925474099.2e1"])
def test_integers_are_taken_and_folded_as_their_digits_say(spelled: list[str]) -> None:
    exact = [Fraction(text) for text in spelled]
    bodies = [f'{{"k": {text}, "x": 0.5, "n": {text}}}'.encode() for text in spelled]
    fits = [number.denominator == 1 and -(2**63) <= number < 2**63 for number in exact]
    for body, is_taken in zip(bodies, fits, strict=True):
        assert {failure.pointer for failure in VALIDATOR.failures(body)} == (set() if is_taken else {"/k", "/n"})
    assume(any(fits))
    joined = b",".join(body for body, is_taken in zip(bodies, fits, strict=True) if is_taken)
    numbers = [number.numerator for number, is_taken in zip(exact, fits, strict=True) if is_taken]
    assert EventSource(SourceRules(EVENT), 100).dedupe_keys(joined) == [str(number) for number in numbers]
    told = EventRun(0, 1, [1_000] * len(numbers), joined)
    for name in TABLES:
        _assert_folded(_defined(name), told, numbers)


def _assert_folded(defined: TableDefinition, told: EventRun, numbers: list[int]) -> None:
    shapes, reducer = EventShapes(Registry.empty("events/E"), EVENT), defined.reducer
    events = shapes.events(told.body, told.version)
    rows: dict[bytes, Any] = {}
    for seq, event in enumerate(events):
        placed = reducer.key_and_row(event)
        assert placed is not None
        rows[placed[0]] = reducer.fold(rows.get(placed[0]), 1, seq, placed[1])
    columns = SourceColumns(shapes, EVENT, sorted(reducer.source_types))
    columns.add(told)
    for found in (rows, states_of(reducer, columns.table())):
        answers = {key: reducer.finish(row, 1) for key, row in found.items()}
        assert answers == {reducer.key(number): {"last": number} for number in numbers}
    hashes = [defined.keying.of_key(reducer.key(number)) for number in numbers]
    assert defined.keying.of_events(shapes, told).tolist() == hashes


def _defined(name: str) -> TableDefinition:
    step = RowOp("with_columns", exprs={"same": "(n + 0)"})
    nodes: dict[str, Node] = {"E": EVENT, "D": Derivation("D", "E", (step,)), **TABLES}
    return TableDefinition(name, "E", "events/E", nodes, {"last": FeatureVersion("last@1", 0)})
