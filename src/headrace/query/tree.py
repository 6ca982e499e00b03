"""A query as a tree of frozen values: what is asked, free of spelling and of what a stream has declared.

Two queries are equal if they ask the same; where a clause stood in the text does not count. A clause without a field
is *bare* and asks the default fields of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Operator = Literal["<", "<=", ">", ">="]


class Fault(NamedTuple):
    """One thing that is wrong with a query: at which character of it, counted from 0, and why."""

    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} (at character {self.position})"


@dataclass(frozen=True, slots=True)
class Node:
    """Anything that can be true of an event; ``position`` is the character where it begins."""

    position: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class And(Node):
    """All of two or more."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    """Any of two or more."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not(Node):
    """The opposite; also true where the field is absent."""

    part: Node


@dataclass(frozen=True, slots=True)
class Clause(Node):
    """A leaf: one question about the values of one field, or of the default fields."""

    field: str | None


@dataclass(frozen=True, slots=True)
class Has(Clause):
    """``has:field``: at least one value is there."""

    field: str


@dataclass(frozen=True, slots=True)
class Compare(Clause):
    """``field:>=value``: a value lies on that side."""

    field: str
    operator: Operator
    value: str


@dataclass(frozen=True, slots=True)
class Term(Clause):
    """``field:value`` or ``value``: equal to it, or all its words are there; ``value*`` is a prefix."""

    value: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Phrase(Clause):
    """``field:"some words"`` or ``"some words"``: like a term, but the words of a text follow each other."""

    value: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Contains(Clause):
    """``contains:field:value`` or ``contains:value``: it occurs anywhere in a value, inside words too."""

    value: str


def clauses(tree: Node) -> Iterator[Clause]:
    """The leaves, from left to right."""
    match tree:
        case And(parts=parts) | Or(parts=parts):
            for part in parts:
                yield from clauses(part)
        case Not(part=part):
            yield from clauses(part)
        case Clause():
            yield tree
