"""Whether a schema admits everything that another one admits: the base of what needs no lens, and of the proof."""

from __future__ import annotations

from typing import Any

from headrace.schema import pointer
from headrace.schema.containment import containers, scalars
from headrace.schema.containment.check import Check, Exhausted, Gap, Oracle, ProofLocation
from headrace.schema.problem import Problem
from headrace.schema.shape.model import Shape
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root, Source

RULES = {**scalars.RULES, **containers.CONTAINER_RULES, **containers.APPLICATOR_RULES}


def find_gaps(shape: Shape, schema: Source, oracle: Oracle | None = None) -> list[Gap]:
    """Why a value of the shape might not be valid under the schema; nothing where all are."""
    try:
        return Check(RULES, oracle).shape(shape, schema, ProofLocation())
    except (Exhausted, RecursionError):
        return [ProofLocation().gap("the schemas are too large to compare")]


def containment_problems(old: Any, new: Any, oracle: Oracle | None = None) -> list[Problem]:
    """Why a document valid under the old schema might not be valid under the new one; nothing where all are.

    The pointers lead into the new schema. Both schemas are taken to be well formed.
    """
    gaps = find_gaps(shape_of(Root(old).source), Root(new).source, oracle)
    return [
        Problem(pointer.text(gap.keyword), f"{pointer.text(gap.pointer) or 'the event'}: {gap.reason}") for gap in gaps
    ]
