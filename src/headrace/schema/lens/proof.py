"""The proof that a lens carries every event: valid under the old schema before it, valid under the new one after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from headrace.deadline import check_deadline
from headrace.schema.canonical import json_number, value_text
from headrace.schema.containment import find_gaps
from headrace.schema.containment.check import Oracle
from headrace.schema.containment.scalars import highest, lowest
from headrace.schema.lens import ops as kinds
from headrace.schema.lens.conversions import list_finite_values
from headrace.schema.lens.document import fill_defaults
from headrace.schema.lens.forward import Steps, forward, run
from headrace.schema.lens.ops import Lens, Op
from headrace.schema.lens.values import LensFailure, Raw
from headrace.schema.lens.walk import OpLocation, Unproven, Walk
from headrace.schema.shape.algebra import element, member, unnamed, vacant
from headrace.schema.shape.model import INTEGRAL, Alternative, Array, Number, Object, Shape, Text
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root

_MAX_DEPTH = 6
_MAX_SAMPLES = 40
_TEXTS = (
    "x",
    "X",
    "",
    "0",
    "1",
    "12",
    "abc",
    "a-b",
    "a_b",
    "2024-02-29",
    "00000000-0000-4000-8000-000000000000",
    "a@b.example",
)
_TIMES = (
    "2024-02-29T12:00:00Z",
    "0000-01-01T00:00:00+23:59",
    "2016-12-31T23:59:60Z",
    "9999-12-31T23:59:59.999999-23:59",
)


def sample_documents(shape: Shape, names: list[str]) -> Iterator[Any]:
    """Values of a shape, plain ones first; open objects also hold the given names."""
    for alternative in shape.alternatives:
        yield from _values(alternative, names, _MAX_DEPTH)


def _samples(shape: Shape, names: list[str], depth: int) -> list[Any]:
    """Some values, in turn from each alternative."""
    if depth == 0:
        return []
    turns = [_values(alternative, names, depth) for alternative in shape.alternatives]
    samples: list[Any] = []
    while turns and len(samples) < _MAX_SAMPLES:
        alive = []
        for values in turns:
            for value in islice(values, 1):
                check_deadline()
                samples.append(value)
                alive.append(values)
        turns = alive
    return samples


def _values(alternative: Alternative, names: list[str], depth: int) -> Iterator[Any]:
    check_deadline()
    finite_values = list_finite_values(alternative)
    if finite_values is not None:
        yield from (float(value) if isinstance(value, Decimal) else value for value in finite_values)
    elif isinstance(alternative, Number):
        yield from _numbers(alternative)
    elif isinstance(alternative, Text):
        yield from _texts(alternative)
    elif isinstance(alternative, Object):
        yield from _objects(alternative, names, depth)
    elif isinstance(alternative, Array):
        yield from _arrays(alternative, names, depth)


def _numbers(number: Number) -> Iterator[int | float]:
    low, high = lowest(number), highest(number)
    ends = [json_number(value_text(bound.value)) for bound in (low, high) if bound is not None]
    near = [end + step for end in ends for step in (0, 1, -1)]
    for guess in dict.fromkeys([0, 1, *near, -1, 7, 10**18, *([] if number.integer >= INTEGRAL else [0.5, -1.5])]):
        if (low is None or guess >= low.value) and (high is None or guess <= high.value):
            yield guess


def _texts(text: Text) -> Iterator[str]:
    if text.formats:
        yield from _TIMES
    yield from (guess for guess in _TEXTS if _fits(text, guess))
    yield "a" * text.low
    if text.high is not None and text.high <= 10_000:
        yield "a" * text.high


def _fits(text: Text, guess: str) -> bool:
    return len(guess) >= text.low and (text.high is None or len(guess) <= text.high)


def _objects(alternative: Object, names: list[str], depth: int) -> Iterator[dict[str, Any]]:
    """The smallest and the largest object, and either with one member changed, left out or added."""
    choices = {
        name: _samples(object_member.shape, names, depth - 1) for name, object_member in alternative.members.items()
    }
    smallest = {
        name: choices[name][0]
        for name, object_member in alternative.members.items()
        if object_member.required and choices[name]
    }
    largest = {name: values[0] for name, values in choices.items() if values}
    yield smallest
    yield largest
    for name, values in choices.items():
        if name in largest and not alternative.members[name].required:
            yield {other: value for other, value in largest.items() if other != name}
        for value in values:
            yield {**smallest, name: value}
            yield {**largest, name: value}
    extra = [] if vacant(unnamed(alternative)) else _samples(member(alternative, "").shape, names, min(depth - 1, 2))
    for name in names:
        if name not in alternative.members:
            yield from ({**smallest, name: value} for value in extra)


def _arrays(alternative: Array, names: list[str], depth: int) -> Iterator[list[Any]]:
    """Short arrays: of the plainest elements, of different ones, and with each element changed."""
    count = len(alternative.prefix) if alternative.high is None else min(len(alternative.prefix), alternative.high)
    for length in sorted({alternative.low, alternative.low + 1, alternative.low + 2, count, count + 1}):
        choices = [
            _samples(element(alternative, position).shape, names, depth - 1)
            for position in range(min(length, _MAX_SAMPLES))
        ]
        if not all(choices):
            continue
        first = [values[0] for values in choices]
        yield first
        yield [values[position % len(values)] for position, values in enumerate(choices)]
        for position, values in enumerate(choices):
            yield from ([*first[:position], value, *first[position + 1 :]] for value in values[1:])


TRIED, TRIED_BYTES = 2_000, 2_000_000
"""How many events are tried, and how many bytes of them."""


def counter_example(old: Any, new: Any, ops: tuple[Op, ...], oracle: Oracle) -> Any:
    """An event that is valid under the old schema and not carried to the new one, or UNSET."""
    try:
        steps = forward(ops)
    except ValueError:  # An op without a default does not run at all.
        return msgspec.UNSET
    before, after = oracle(old), oracle(new)
    names = [*sorted({*_op_names(ops), *_member_names(new)}), "other"]
    left = TRIED_BYTES
    for event in islice(sample_documents(shape_of(Root(old).source), names), TRIED):
        check_deadline()
        spelled = msgspec.json.encode(event)
        if before(event) and not _is_carried(steps, spelled, after):
            return event
        left -= len(spelled)
        if left < 0:
            break
    return msgspec.UNSET


def _is_carried(steps: Steps, event: bytes, valid: Callable[[Any], bool]) -> bool:
    holder = [Raw(event)]
    try:
        run(steps, holder, 0)
    except LensFailure:
        return False
    return valid(msgspec.json.decode(msgspec.json.encode(holder[0])))


def _op_names(ops: tuple[Op, ...]) -> Iterator[str]:
    """The names in the pointers of ops."""
    for op in ops:
        for field in ("path", "source", "target", "host"):
            yield from getattr(op, field, ())
        if isinstance(op, kinds.Hoist | kinds.Plunge):
            yield op.member
        if isinstance(op, kinds.In | kinds.Map):
            yield from _op_names(op.ops)


def _member_names(schema: Any) -> Iterator[str]:
    """The names of members in a schema, at any depth."""
    if isinstance(schema, list):
        yield from chain.from_iterable(map(_member_names, schema))
    elif isinstance(schema, dict):
        if isinstance(members := schema.get("properties"), dict):
            yield from members
        yield from chain.from_iterable(map(_member_names, schema.values()))


class Proof(NamedTuple):
    """What could not be shown, and the ops with the defaults they left to the new schema.

    The counter-example, UNSET where none was found, is an event that is valid under the old schema and that the lens
    does not carry to the new one.
    """

    problems: list[Unproven]
    ops: tuple[Op, ...]
    counter_example: Any = msgspec.UNSET


def prove(old: Any, new: Any, ops: tuple[Op, ...], oracle: Oracle | None = None) -> Proof:
    """Prove that the ops make every event that is valid under the old schema one that is valid under the new.

    Both schemas, and those inside ops, are taken to be well formed. The oracle, which compiles a schema to a validator,
    decides about single texts and confirms counter-examples; without one fewer lenses are proven, never more.
    """
    ops = fill_defaults(Lens(schema="", source=0, target=1, ops=ops), new).ops
    try:
        problems = _problems(Root(old), Root(new), ops, oracle)
    except RecursionError:
        return Proof([Unproven("", "", "too_complex", "the schemas are nested too deep to follow")], ops)
    if not problems or oracle is None:
        return Proof(problems, ops)
    return Proof(problems, ops, counter_example(old, new, ops, oracle))


#: Rules that ops break whatever the event: an add without a default, or a move of a value into itself.
_SENSELESS = ("default_missing", "target_inside_source")


def is_runnable(new: Any, ops: tuple[Op, ...]) -> bool:
    """Whether the ops, proven or not, can be run on an event at all."""
    walk = Walk(None)
    walk.inspect(fill_defaults(Lens(schema="", source=0, target=1, ops=ops), new).ops, OpLocation())
    return not any(problem.rule in _SENSELESS for problem in walk.problems)


def _problems(old: Root, new: Root, ops: tuple[Op, ...], oracle: Oracle | None) -> list[Unproven]:
    walk = Walk(oracle)
    walk.inspect(ops, OpLocation())
    after = walk.through(ops, shape_of(old.source), OpLocation())
    for gap in find_gaps(after, new.source, oracle):
        walk.note(OpLocation(), gap.pointer, "not_contained", gap.reason)
    return walk.problems
