"""The proof that a lens carries every event: valid under the old schema before it, valid under the new one after it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from headrace.schema.containment import gaps
from headrace.schema.containment.check import Oracle
from headrace.schema.lens.counterexample import counter_example
from headrace.schema.lens.document import filled
from headrace.schema.lens.ops import Lens, Op
from headrace.schema.lens.walk import Place, Unproven, Walk
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root


class Proof(NamedTuple):
    """What could not be shown, and the ops with the defaults they left to the new schema.

    The counter-example, UNSET where none was found, is an event that is valid under the old schema and that the lens
    does not carry to the new one.
    """

    problems: list[Unproven]
    ops: tuple[Op, ...]
    counter_example: Any = msgspec.UNSET


def prove(old: Any, new: Any, ops: tuple[Op, ...], oracle: Oracle | None = None) -> Proof:
    """Show that the ops carry every event valid under the old schema to one valid under the new, or say why not.

    Both schemas, and those inside ops, are taken to be well formed. The oracle, which compiles a schema to a validator,
    decides about single texts and confirms counter-examples; without one fewer lenses are proven, never more.
    """
    ops = filled(Lens(schema="", source=0, target=1, ops=ops), new).ops
    try:
        problems = _problems(Root(old), Root(new), ops, oracle)
    except RecursionError:
        return Proof([Unproven("", "", "too_complex", "the schemas are nested too deep to follow")], ops)
    if not problems or oracle is None:
        return Proof(problems, ops)
    return Proof(problems, ops, counter_example(old, new, ops, oracle))


#: What is wrong with ops whatever comes along: one that lacks what it adds, or moves a value into itself.
_SENSELESS = ("default_missing", "target_inside_source")


def runnable(new: Any, ops: tuple[Op, ...]) -> bool:
    """Whether the ops, proven or not, can be run on an event at all."""
    walk = Walk(None)
    walk.inspect(filled(Lens(schema="", source=0, target=1, ops=ops), new).ops, Place())
    return not any(problem.rule in _SENSELESS for problem in walk.problems)


def _problems(old: Root, new: Root, ops: tuple[Op, ...], oracle: Oracle | None) -> list[Unproven]:
    walk = Walk(oracle)
    walk.inspect(ops, Place())
    after = walk.through(ops, shape_of(old.source), Place())
    for gap in gaps(after, new.source, oracle):
        walk.note(Place(), gap.pointer, "not_contained", gap.reason)
    return walk.problems
