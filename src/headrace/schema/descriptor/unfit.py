"""What stands in the place of a node until ``validate`` says why there can be none."""

from __future__ import annotations

from typing import Literal

from headrace.schema.descriptor.nodes import Derivation
from headrace.schema.descriptor.problem import Problem
from headrace.schema.descriptor.structure import Shaped


class Unfit(Derivation, frozen=True, tag="unfit", tag_field="kind"):
    """A descriptor that cannot be a node; one of an event names itself as its upstream."""

    of: Literal["event", "derivation", "table"] = "event"
    problems: tuple[Problem, ...] = ()


def unfit(shape: Shaped, problems: tuple[Problem, ...]) -> Unfit:
    """The stand-in for a descriptor."""
    kind: Literal["event", "derivation", "table"] = shape.kind  # type: ignore[assignment]
    return Unfit(shape.name, shape.members.get("upstream", shape.name), of=kind, problems=problems)
