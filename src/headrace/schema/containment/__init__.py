"""Whether a schema admits everything that another one admits: the base of what needs no lens, and of the proof."""

from __future__ import annotations

from typing import Any

from headrace.schema.containment import containers, scalars
from headrace.schema.containment.check import Check, Exhausted, Gap, Oracle, ProofLocation
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


def find_schema_gaps(old: Any, new: Any, oracle: Oracle | None = None) -> list[Gap]:
    """Why a document valid under one schema might not be valid under the other; nothing where all are.

    Both schemas are taken to be well formed.
    """
    return find_gaps(shape_of(Root(old).source), Root(new).source, oracle)
